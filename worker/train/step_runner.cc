#include "worker/train/step_runner.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "worker/checkpoint/checksum.h"
#include "worker/comm/agreement.h"
#include "worker/train/worker_exit.h"

namespace regroup::worker {
namespace {

int MicroBatchesOf(std::int64_t samples, int largest) {
  return static_cast<int>((samples + largest - 1) / largest);
}

// Every rank makes the plans of all, and checks them against each other before anything runs.
absl::StatusOr<std::vector<Plan>> CheckedPlans(const ParamLayout& layout,
                                               const StepRunnerOptions& options,
                                               const std::vector<UnitId>& recomputed,
                                               bool overlap) {
  PlanOptions of_all =
      PlanOptionsOf(options.batch, options.micro_batch, 0, layout.world(), recomputed);
  of_all.overlap = overlap;
  of_all.reshard_after_forward = options.reshard_after_forward;
  of_all.wrap = options.wrap;
  of_all.bucket_bytes = options.bucket_bytes;
  std::vector<int> micro_batches;
  for (int r = 0; r < layout.world(); ++r)
    micro_batches.push_back(
        MicroBatchesOf(RankSlice(options.batch, r, layout.world()).size, options.micro_batch));
  ASSIGN_OR_RETURN(std::vector<Plan> plans, MakePlans(layout, of_all, micro_batches));
  RETURN_IF_ERROR(CheckPlan(layout, plans));
  return plans;
}

// A check holds for the plans that were checked: all ranks must have checked the same ones.
absl::Status AgreeOnPlans(Group& ranks, const ParamLayout& layout, const std::vector<Plan>& plans) {
  Xxh3Stream hash;
  for (const Plan& plan : plans) {
    const std::string text = ToString(plan, layout);
    hash.Update(std::as_bytes(std::span(text)));
  }
  ASSIGN_OR_RETURN(const std::optional<Disagreement> found,
                   FindDisagreement(ranks, {{"plan", hash.Hex()}}));
  if (!found) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "the plans that rank ", found->rank, " has made for ", layout.world(), " ranks (hash ",
      found->theirs, ") are not those of rank 0 (", found->ours, ")"));
}

}  // namespace

PlanOptions PlanOptionsOf(int batch, int micro_batch, int rank, int world,
                          std::vector<UnitId> recomputed) {
  PlanOptions options;
  options.rank = rank;
  options.micro_batches = MicroBatchesOf(RankSlice(batch, rank, world).size, micro_batch);
  // Rank 0's part is the largest.
  options.rounds = MicroBatchesOf(RankSlice(batch, 0, world).size, micro_batch);
  options.recomputed = std::move(recomputed);
  return options;
}

StepRunner::StepRunner(const Backend& backend, const ParamLayout& layout, const Dataset& dataset,
                       const StepRunnerOptions& options, DType type)
    : backend_(backend),
      layout_(layout),
      dataset_(dataset),
      options_(options),
      slice_(RankSlice(options.batch, backend.group.rank(), backend.group.world_size())),
      micro_batches_(MicroBatchesOf(slice_.size, options.micro_batch)),
      type_(type),
      scaler_(type),
      compute_(backend.device.NewStream(StreamKind::kCompute)) {}

template <typename T>
absl::StatusOr<std::unique_ptr<StepRunner>> StepRunner::Create(
    const Backend& backend, const Model<T>& model, const ParamLayout& layout,
    const Dataset& dataset, TrainState& state, const StepRunnerOptions& options) {
  const int rank = backend.group.rank();
  std::unique_ptr<StepRunner> runner(
      new StepRunner(backend, layout, dataset, options, DTypeOf<T>()));
  CHECK(layout.rounded() == (DTypeOf<T>() != DType::kF32));
  ASSIGN_OR_RETURN(std::vector<Plan> plans,
                   CheckedPlans(layout, options, UnitsRecomputed(model, options.recompute),
                                backend.tensors.WaitsForNetwork()));
  RETURN_IF_ERROR(AgreeOnPlans(backend.group, layout, plans));
  runner->plan_ = PlanOf(plans, rank);
  if (runner->plan_.overlaps) {
    runner->moves_ = backend.device.NewStream(StreamKind::kMove);
  }
  runner->reduced_at_.resize(runner->plan_.buckets.size());
  runner->gathered_at_.resize(layout.units().size());
  RETURN_IF_ERROR(runner->Allocate(state));
  runner->Connect(state);
  const std::int64_t samples = std::max<std::int64_t>(1, runner->slice_.size);
  const int micro_batches = std::max(1, runner->micro_batches_);
  const Extent extent{.batch = RankSlice(samples, 0, micro_batches).size,
                      .time = dataset.context()};
  ASSIGN_OR_RETURN(runner->runner_,
                   UnitRunner<T>::Create(
                       model, layout, {backend.device, *runner->compute_, backend.kernels.Of<T>()},
                       extent, runner->Places<T>(), options.recompute));
  ASSIGN_OR_RETURN(
      runner->optimizer_,
      Optimizer<float>::Create(layout, options.optimizer,
                               {backend.device, *runner->compute_, backend.kernels.Of<float>()},
                               runner->OptimizerBuffers(state), rank));
  ASSIGN_OR_RETURN(runner->reader_, BatchReader::Create(dataset, runner->slice_.size));
  return runner;
}
template absl::StatusOr<std::unique_ptr<StepRunner>> StepRunner::Create(const Backend&,
                                                                        const Model<float>&,
                                                                        const ParamLayout&,
                                                                        const Dataset&, TrainState&,
                                                                        const StepRunnerOptions&);
template absl::StatusOr<std::unique_ptr<StepRunner>> StepRunner::Create(const Backend&,
                                                                        const Model<BFloat16>&,
                                                                        const ParamLayout&,
                                                                        const Dataset&, TrainState&,
                                                                        const StepRunnerOptions&);
template absl::StatusOr<std::unique_ptr<StepRunner>> StepRunner::Create(const Backend&,
                                                                        const Model<Half>&,
                                                                        const ParamLayout&,
                                                                        const Dataset&, TrainState&,
                                                                        const StepRunnerOptions&);

absl::Status StepRunner::AllocateGradients() {
  CHECK(options_.reduce_type != DType::kF16);
  const bool narrows = options_.reduce_type != DType::kF32,
             scatters = layout_.Divides(StateKind::kGradients);
  const auto all = static_cast<std::size_t>(plan_.gradients.elements),
             owned = scatters ? static_cast<std::size_t>(
                                    layout_.Elements(StateKind::kGradients, backend_.group.rank()))
                              : std::size_t{0};
  CHECK(!KeepsShort() || options_.accumulate_type == options_.reduce_type);
  ASSIGN_OR_RETURN(sent_, backend_.tensors.AllocateTensor(options_.reduce_type, all));
  if (KeepsShort()) {
    staging_ = StagingOf(layout_);
    const auto staged = static_cast<std::size_t>(staging_.elements);
    ASSIGN_OR_RETURN(
        gradient_memory_,
        backend_.device.Allocate(MemoryKind::kDevice, Arena::Footprint<float>(staged) +
                                                          Arena::Footprint<BFloat16>(owned)));
    staged_ = gradient_memory_.Take<float>(staged);
    received_ = scatters ? Tensor(gradient_memory_.Take<BFloat16>(owned)) : sent_;
    memory_bytes_ += static_cast<std::int64_t>(gradient_memory_.size_bytes() + sent_.bytes());
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(
      gradient_memory_,
      backend_.device.Allocate(
          MemoryKind::kDevice,
          Arena::Footprint<float>(owned) +
              (narrows ? Arena::Footprint<float>(all) + Arena::Footprint<BFloat16>(owned) : 0)));
  gradients_ = narrows ? gradient_memory_.Take<float>(all) : sent_.Elements<float>();
  reduced_ = scatters ? gradient_memory_.Take<float>(owned) : gradients_;
  received_ = !scatters ? sent_
              : narrows ? Tensor(gradient_memory_.Take<BFloat16>(owned))
                        : Tensor(reduced_);
  memory_bytes_ += static_cast<std::int64_t>(gradient_memory_.size_bytes() + sent_.bytes());
  return absl::OkStatus();
}

Optimizer<float>::Buffers StepRunner::OptimizerBuffers(const TrainState& state) {
  Optimizer<float>::Buffers buffers{
      .weights = state.weights, .gradients = reduced_, .state = state.slots};
  if (KeepsShort()) {
    buffers.widened = [this](std::int64_t offset, std::int64_t elements) {
      return Widened(offset, elements);
    };
    buffers.widened_at_once = static_cast<std::int64_t>(staged_.size());
  }
  return buffers;
}

absl::Status StepRunner::Allocate(TrainState& state) {
  RETURN_IF_ERROR(AllocateGradients());
  Collectives& tensors = backend_.tensors;
  const bool divided = layout_.Divides(StateKind::kMoments), frees = layout_.FreesWeights(),
             rounds = layout_.rounded(), by_block = divided || KeepsShort();
  const auto copied = static_cast<std::size_t>(plan_.weights.elements);
  // What is gathered in place is shared memory, and so is where it comes from.
  const bool copies = frees || (rounds && !divided);
  const std::size_t copy =
                        copies ? copied * static_cast<std::size_t>(SizeOf(type_)) : std::size_t{0},
                    blocks = by_block ? static_cast<std::size_t>(BlocksOf(layout_)) : 0;
  ASSIGN_OR_RETURN(
      own_, backend_.device.Allocate(MemoryKind::kDevice, Arena::Footprint<std::byte>(copy)));
  ASSIGN_OR_RETURN(results_, backend_.device.Allocate(MemoryKind::kShared,
                                                      by_block ? Arena::Footprint<double>(blocks)
                                                               : Arena::Footprint<double>(1)));
  memory_bytes_ += static_cast<std::int64_t>(own_.size_bytes());
  if (by_block) memory_bytes_ += static_cast<std::int64_t>(results_.size_bytes());
  if (divided && rounds) {
    std::size_t largest = 0;  // All ranks' parts of an arena are of one size.
    for (int r = 0; r < layout_.world(); ++r)
      largest =
          std::max(largest, static_cast<std::size_t>(layout_.Elements(StateKind::kWeights, r)));
    ASSIGN_OR_RETURN(source_, frees ? tensors.AllocateTensor(type_, largest)
                                    : tensors.AllocateShared(type_, copied, layout_.group()));
    memory_bytes_ += static_cast<std::int64_t>(source_.bytes());
  } else if (divided) {
    source_ = state.shared_weights;
  }
  weights_ = copies    ? Tensor(type_, own_.Take<std::byte>(copy).data(), copied)
             : divided ? source_
                       : Tensor(state.weights);
  if (by_block) {
    squares_ = results_.Take<double>(blocks);
  } else {
    sum_ = results_.Take<double>(1).data();
  }
  return absl::OkStatus();
}

template <typename T>
typename UnitRunner<T>::Places StepRunner::Places() {
  typename UnitRunner<T>::Places places;
  for (std::size_t u = 0; u < layout_.units().size(); ++u) {
    places.weights.push_back(weights_.Elements<T>().data() + plan_.weights.at[u]);
    places.gradients.push_back(KeepsShort() ? staged_.data() + staging_.at[u]
                                            : gradients_.data() + plan_.gradients.at[u]);
  }
  return places;
}

// Elements of a unit, by their place in the flat order.
class StepRunner::Placed {
 public:
  Placed(const StepRunner& runner, UnitId unit)
      : layout_(runner.layout_),
        gradients_(MoveOf(runner.plan_.gradients, unit)),
        weights_(MoveOf(runner.plan_.weights, unit)) {}
  std::int64_t InGradients(std::int64_t element) const { return element + gradients_; }
  std::int64_t InWeights(std::int64_t element) const { return element + weights_; }
  // What a rank gives to gathers.
  std::int64_t InSource(int rank, std::int64_t element) const {
    return layout_.FreesWeights() ? layout_.Offset(StateKind::kWeights, rank, element)
                                  : InWeights(element);
  }

 private:
  std::int64_t MoveOf(const Windows& windows, UnitId unit) const {
    const auto u = static_cast<std::size_t>(unit);
    return windows.at[u] - layout_.units()[u].flat.begin;
  }
  const ParamLayout& layout_;
  const std::int64_t gradients_, weights_;
};

// What collectives move, once for all steps. Padding is not moved: in the window of a unit it is
// what another unit has left there.
void StepRunner::Connect(const TrainState& state) {
  const auto units = static_cast<UnitId>(layout_.units().size());
  if (layout_.rounded()) {
    for (UnitId u = 0; u < units; ++u) roundings_.push_back(RoundingsOf(u, state));
  }
  if (!layout_.Divides(StateKind::kMoments)) return;
  const auto stretches = [&](UnitId unit, const auto& stretch_of, std::vector<Stretch>& list) {
    for (ParamId p : layout_.units()[static_cast<std::size_t>(unit)].params) {
      for (const Share& share : layout_.Shares(p)) list.push_back(stretch_of(share));
    }
  };
  for (const Bucket& bucket : plan_.buckets) {
    std::vector<Stretch>& list = reductions_.emplace_back();
    for (UnitId u = bucket.first_unit; u <= bucket.last_unit; ++u) {
      const Placed placed(*this, u);
      stretches(
          u,
          [&](const Share& s) {
            return Stretch{s.owner, placed.InGradients(s.flat.begin),
                           layout_.Offset(StateKind::kGradients, s.owner, s.flat.begin),
                           s.flat.size};
          },
          list);
    }
  }
  for (UnitId u = 0; u < units; ++u) {
    const Placed placed(*this, u);
    stretches(
        u,
        [&](const Share& s) {
          return Stretch{s.owner, placed.InSource(s.owner, s.flat.begin),
                         placed.InWeights(s.flat.begin), s.flat.size};
        },
        gathers_.emplace_back());
  }
}

// Of what the rank owns, or of all where nothing is divided.
std::vector<Runner::Weights> StepRunner::RoundingsOf(UnitId unit, const TrainState& state) const {
  const bool divided = layout_.Divides(StateKind::kWeights);
  const Placed placed(*this, unit);
  const int rank = backend_.group.rank();
  std::vector<Runner::Weights> list;
  const auto add = [&](ParamId param, const Range& flat) {
    const std::int64_t held = layout_.Offset(StateKind::kWeights, rank, flat.begin);
    list.push_back(
        {.param = param,
         .first = flat.begin - layout_.params()[static_cast<std::size_t>(param)].flat.begin,
         .from = state.weights.subspan(static_cast<std::size_t>(held),
                                       static_cast<std::size_t>(flat.size)),
         .to = divided ? source_.at(static_cast<std::size_t>(placed.InSource(rank, flat.begin)))
                       : weights_.at(static_cast<std::size_t>(placed.InWeights(flat.begin)))});
  };
  for (ParamId p : layout_.units()[static_cast<std::size_t>(unit)].params) {
    if (!divided) add(p, layout_.params()[static_cast<std::size_t>(p)].flat);
    for (const Share& share : layout_.Shares(p))
      if (share.owner == layout_.PlaceOf(rank)) add(p, share.flat);
  }
  return list;
}

// What a step with one micro-batch on every rank does before its first backward: gathers are where
// the forwards need them, and the same on all ranks.
absl::Status StepRunner::PlanForwards() {
  ASSIGN_OR_RETURN(const Plan plan,
                   MakePlan(layout_, {.micro_batches = 1,
                                      .rounds = 1,
                                      .recomputed = plan_.recomputed,
                                      .overlap = plan_.overlaps,
                                      .reshard_after_forward = options_.reshard_after_forward,
                                      .wrap = options_.wrap}));
  RETURN_IF_ERROR(CheckPlan(layout_, {&plan, 1}));
  CHECK(plan.weights == plan_.weights);
  const auto after = std::ranges::find(plan.instructions.rbegin(), plan.instructions.rend(),
                                       Op::kForward, &Instruction::op);
  forwards_.assign(plan.instructions.begin(), after.base());
  return absl::OkStatus();
}

std::span<const std::int64_t> StepRunner::SliceOf(std::span<const std::int64_t> ids) const {
  return ids.subspan(static_cast<std::size_t>(slice_.begin), static_cast<std::size_t>(slice_.size));
}

absl::Status StepRunner::ReadSamples(BatchReader& reader, std::span<const std::int64_t> ids,
                                     std::span<const std::int64_t> next) {
  const absl::StatusOr<BatchReader::Batch> batch = reader.Take(SliceOf(ids));
  if (!batch.ok()) return WithExit(batch.status(), WorkerExit::kUsage);
  tokens_ = batch->tokens;
  targets_ = batch->targets;
  if (!next.empty()) reader.ReadAhead(SliceOf(next));
  return absl::OkStatus();
}

MicroBatch StepRunner::MicroBatchOf(int index) const {
  const Slice part = RankSlice(slice_.size, index, micro_batches_);
  const std::int64_t context = dataset_.context();
  const auto begin = static_cast<std::size_t>(part.begin * context),
             size = static_cast<std::size_t>(part.size * context);
  // The sum of all ranks' gradients is then the gradient of the global mean, whatever each rank's
  // share.
  const double scale =
      scaler_.scale() * options_.gradient_factor / static_cast<double>(options_.batch * context);
  return {.batch = part.size,
          .time = context,
          .tokens = tokens_.subspan(begin, size),
          .targets = targets_.subspan(begin, size),
          .loss_scale = scale,
          .adds_loss = index > 0,
          .backward = true};
}

absl::StatusOr<StepResult> StepRunner::Run(std::int64_t step, std::span<const std::int64_t> ids,
                                           const Ballot& ballot,
                                           std::span<const std::int64_t> next) {
  CHECK(ids.size() == static_cast<std::size_t>(options_.batch));
  CHECK(next.empty() || next.size() == ids.size());
  RETURN_IF_ERROR(ReadSamples(*reader_, ids, next));
  StepResult result;
  absl::Status status = RunAll(step, ballot, result);
  // Nothing of this step goes on after it. The others come to what has begun, or have failed.
  status.Update(Await());
  if (!status.ok()) return status;
  return result;
}

// No call of the group's is made beside one of the collectives'.
absl::Status StepRunner::Await() {
  absl::Status status = compute_->Await();
  if (moves_) status.Update(moves_->Await());
  return status;
}

absl::Status StepRunner::RunAll(std::int64_t step, const Ballot& ballot, StepResult& result) {
  for (const Instruction& instruction : plan_.instructions) {
    RETURN_IF_ERROR(Carry(instruction, step, ballot, result));
    compute_->Submit();  // Whole instructions come again in the next step.
    if (instruction.op == Op::kVote && !std::isfinite(result.loss + result.gradient_norm)) {
      result.retry = std::isfinite(result.loss) && scaler_.Halve();
      break;
    }
  }
  return absl::OkStatus();
}

void StepRunner::Gather(UnitId unit) {
  const auto u = static_cast<std::size_t>(unit);
  Stream& moves = StreamFor(Op::kGather);
  moves.Wait(compute_->Record());
  backend_.tensors.AllGather(moves, source_, gathers_[u], weights_, layout_.group());
  gathered_at_[u] = moves.Record();
}

void StepRunner::Round(UnitId unit, std::int64_t step) {
  const RngKey key = SeedKey(options_.seed).Fold("round").Fold(static_cast<std::uint64_t>(step));
  for (const Runner::Weights& weights : roundings_[static_cast<std::size_t>(unit)])
    runner_->RoundWeights(weights, key);
}

void StepRunner::Backward(const Instruction& instruction) {
  const AddMask adds = AddsOf(plan_, layout_, instruction.unit, instruction.micro_batch);
  runner_->Backward(instruction.unit, instruction.part, MicroBatchOf(instruction.micro_batch),
                    KeepsShort() ? AddMask{0} : adds);
  if (KeepsShort()) Accumulate(instruction, adds);
}

// What a backward has left in full precision is rounded as it is written or added to what is kept.
void StepRunner::Accumulate(const Instruction& backward, AddMask adds) {
  const std::span<BFloat16> kept = sent_.Elements<BFloat16>();
  const UnitPlace& place = layout_.units()[static_cast<std::size_t>(backward.unit)];
  const bool whole = backward.part == kWholeUnit;
  std::vector<ParamId> touched = place.params;
  touched.insert(touched.end(), place.shared.begin(), place.shared.end());
  for (std::size_t i = 0; i < touched.size(); ++i) {
    const ParamPlace& param = layout_.params()[static_cast<std::size_t>(touched[i])];
    if (!whole && !place.parts[static_cast<std::size_t>(backward.part)].Has(param.flat)) continue;
    const auto owner = static_cast<std::size_t>(param.unit);
    const std::int64_t at = param.flat.begin - layout_.units()[owner].flat.begin;
    backend_.kernels.Of<BFloat16>().narrow({*compute_},
                                           {.elements = param.flat.size,
                                            .x = staged_.data() + staging_.at[owner] + at,
                                            .y = kept.data() + plan_.gradients.at[owner] + at,
                                            .add = (adds >> i & 1) != 0});
  }
}

absl::Status StepRunner::Carry(const Instruction& instruction, std::int64_t step,
                               const Ballot& ballot, StepResult& result) {
  const auto unit = static_cast<std::size_t>(instruction.unit),
             bucket = static_cast<std::size_t>(instruction.bucket);
  switch (instruction.op) {
    case Op::kGather: Gather(instruction.unit); return absl::OkStatus();
    case Op::kAwaitGather: compute_->Wait(gathered_at_[unit]); return absl::OkStatus();
    case Op::kFree: return absl::OkStatus();  // What is gathered next takes its place.
    case Op::kRound: Round(instruction.unit, step); return absl::OkStatus();
    case Op::kForward:
      return runner_->Forward(instruction.unit, MicroBatchOf(instruction.micro_batch));
    case Op::kRecompute:
      runner_->Recompute(instruction.unit, MicroBatchOf(instruction.micro_batch));
      return absl::OkStatus();
    case Op::kBackward: Backward(instruction); return absl::OkStatus();
    case Op::kZeroGrad: ZeroGradients(instruction); return absl::OkStatus();
    case Op::kReduceGrad: ReduceGradients(instruction); return absl::OkStatus();
    case Op::kAwaitGrad:
      compute_->Wait(reduced_at_[bucket]);
      WidenReduced(instruction.bucket);
      return absl::OkStatus();
    case Op::kSumSquares: return SumSquares(step);
    case Op::kVote: return Vote(ballot, result);
    case Op::kStep:
      optimizer_->Step(instruction.unit, InfoOf(step, sum_squares_));
      return absl::OkStatus();
    case Op::kCommit:
      result.done = true;
      scaler_.NoteStep();
      return absl::OkStatus();
  }
  CHECK(false);
}

absl::Status StepRunner::RunForwards(
    BatchReader& reader, std::int64_t batches,
    const std::function<std::vector<std::int64_t>(std::int64_t)>& ids_of) {
  // All ranks gather for the one that has most micro-batches, which is rank 0.
  const int rounds =
      PlanOptionsOf(options_.batch, options_.micro_batch, 0, layout_.world(), {}).rounds;
  StepResult ignored;
  std::vector<std::int64_t> next = ids_of(0);
  for (std::int64_t batch = 0; batch < batches; ++batch) {
    const std::vector<std::int64_t> ids =
        std::exchange(next, batch + 1 < batches ? ids_of(batch + 1) : std::vector<std::int64_t>());
    RETURN_IF_ERROR(Await());  // What was read before.
    RETURN_IF_ERROR(ReadSamples(reader, ids, next));
    for (int round = 0; round < rounds; ++round) {
      for (const Instruction& instruction : forwards_) {
        if (instruction.op == Op::kForward && round >= micro_batches_) continue;
        // What is not freed stays as the first forwards have found it.
        const bool first = batch == 0 && round == 0;
        if (instruction.op != Op::kForward && !first && !layout_.FreesWeights()) continue;
        if (instruction.op == Op::kForward) {
          MicroBatch micro_batch = MicroBatchOf(round);
          micro_batch.adds_loss = !first;
          micro_batch.backward = false;
          RETURN_IF_ERROR(runner_->Forward(instruction.unit, micro_batch));
        } else {
          RETURN_IF_ERROR(Carry(instruction, 0, {}, ignored));
        }
        compute_->Submit();
      }
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<double> StepRunner::Evaluate(const Dataset& dataset, std::int64_t batches) {
  CHECK(dataset.vocabulary() == dataset_.vocabulary() && dataset.context() == dataset_.context());
  const std::int64_t count = batches * options_.batch;
  CHECK(batches >= 1 && count <= dataset.samples());
  const auto ids_of = [&](std::int64_t batch) {
    std::vector<std::int64_t> ids;
    for (std::int64_t i = batch * options_.batch; i < (batch + 1) * options_.batch; ++i) {
      ids.push_back(
          static_cast<std::int64_t>(static_cast<__int128>(i) * dataset.samples() / count));
    }
    return ids;
  };
  if (forwards_.empty()) RETURN_IF_ERROR(PlanForwards());
  ASSIGN_OR_RETURN(const auto reader, BatchReader::Create(dataset, slice_.size));
  absl::Status status = RunForwards(*reader, batches, ids_of);
  status.Update(Await());  // As in Run.
  RETURN_IF_ERROR(status);
  double loss_sum = runner_->LossSum();
  RETURN_IF_ERROR(backend_.group.AllReduce(std::span(&loss_sum, 1), Reduction::kSum));
  return loss_sum / static_cast<double>(count * dataset.context());
}

const Bucket& StepRunner::BucketOf(const Instruction& instruction) const {
  return plan_.buckets[static_cast<std::size_t>(instruction.bucket)];
}

// Where the plan has the gradients of a bucket.
std::vector<Range> StepRunner::PiecesOf(const Bucket& bucket) const {
  std::vector<Range> pieces;
  for (UnitId u = bucket.first_unit; u <= bucket.last_unit; ++u) {
    const auto unit = static_cast<std::size_t>(u);
    const Range& flat = layout_.units()[unit].flat;
    Range piece = Common(flat, bucket.flat);
    piece.begin += plan_.gradients.at[unit] - flat.begin;
    pieces.push_back(piece);
  }
  return pieces;
}

void StepRunner::ZeroGradients(const Instruction& instruction) {
  const Tensor kept = KeepsShort() ? sent_ : Tensor(gradients_);
  for (const Range& piece : PiecesOf(BucketOf(instruction))) {
    compute_->Zero(kept.at(static_cast<std::size_t>(piece.begin)),
                   static_cast<std::size_t>(piece.size) * kept.element_bytes());
  }
}

void StepRunner::ReduceGradients(const Instruction& instruction) {
  const auto bucket = static_cast<std::size_t>(instruction.bucket);
  NarrowGradients(BucketOf(instruction));
  Stream& moves = StreamFor(Op::kReduceGrad);
  moves.Wait(compute_->Record());
  if (reductions_.empty()) {
    const Range& flat = BucketOf(instruction).flat;
    backend_.tensors.AllReduceSum(moves,
                                  {sent_.type, sent_.at(static_cast<std::size_t>(flat.begin)),
                                   static_cast<std::size_t>(flat.size)});
  } else {
    backend_.tensors.ReduceScatter(moves, sent_, reductions_[bucket], received_, layout_.group());
  }
  reduced_at_[bucket] = moves.Record();
  if (!moves_) WidenReduced(instruction.bucket);
}

void StepRunner::NarrowGradients(const Bucket& bucket) {
  if (sent_.type == DType::kF32 || KeepsShort()) return;
  const std::span<BFloat16> sent = sent_.Elements<BFloat16>();
  for (const Range& piece : PiecesOf(bucket)) {
    const auto at = static_cast<std::size_t>(piece.begin);
    backend_.kernels.Of<BFloat16>().narrow(
        {*compute_}, {.elements = piece.size, .x = &gradients_[at], .y = &sent[at]});
  }
}

// What this rank has of the sums of a bucket.
void StepRunner::WidenReduced(int bucket) {
  if (sent_.type == DType::kF32 || KeepsShort()) return;
  const std::span<BFloat16> received = received_.Elements<BFloat16>();
  const auto widen = [&](std::int64_t begin, std::int64_t size) {
    const auto at = static_cast<std::size_t>(begin);
    backend_.kernels.Of<BFloat16>().widen(
        {*compute_}, {.elements = size, .y = &received[at], .x = &reduced_[at]});
  };
  if (reductions_.empty()) {
    const Range& flat = plan_.buckets[static_cast<std::size_t>(bucket)].flat;
    return widen(flat.begin, flat.size);
  }
  const int own = layout_.PlaceOf(backend_.group.rank());
  for (const Stretch& stretch : reductions_[static_cast<std::size_t>(bucket)])
    if (stretch.owner == own && stretch.size > 0) widen(stretch.to, stretch.size);
}

// Of what this rank has of the sums.
const float* StepRunner::Widened(std::int64_t offset, std::int64_t elements) {
  backend_.kernels.Of<BFloat16>().widen({*compute_},
                                        {.elements = elements,
                                         .y = received_.Elements<BFloat16>().data() + offset,
                                         .x = staged_.data()});
  return staged_.data();
}

// `sum_squares` is that of the gradients, without the loss scale that they still have.
StepInfo StepRunner::InfoOf(std::int64_t step, double sum_squares) const {
  return {.step = step,
          .lr = LearningRate(options_.schedule, step),
          .grad_scale = ClipScale(sum_squares, options_.clip) / scaler_.scale()};
}

// The norms of tensors too, where the optimizer needs them: after the vote nothing waits for
// another rank.
absl::Status StepRunner::SumSquares(std::int64_t step) {
  if (squares_.empty()) {
    optimizer_->SumSquares(sum_);
    RETURN_IF_ERROR(Await());
    sum_squares_ = *sum_;
  } else {
    optimizer_->SquareOwnedBlocks(squares_);
    RETURN_IF_ERROR(Await());
    // Each block is one rank's, or all ranks have all of them.
    if (layout_.Divides(StateKind::kMoments))
      RETURN_IF_ERROR(backend_.group.AllReduce(squares_, Reduction::kSum));
    sum_squares_ = AddBlocks(layout_.flat_elements(), squares_.data());
  }
  if (!optimizer_->needs_norms()) return absl::OkStatus();
  const double unscaled = sum_squares_ / (scaler_.scale() * scaler_.scale());
  const std::span<double> squares = optimizer_->SquareTensors(InfoOf(step, unscaled));
  RETURN_IF_ERROR(Await());
  if (!layout_.Divides(StateKind::kMoments)) return absl::OkStatus();
  return backend_.group.AllReduce(squares, Reduction::kSum);
}

// From here on every rank goes by the same numbers, also where its own are wrong. Nothing is under
// way: the sums before have awaited it.
absl::Status StepRunner::Vote(const Ballot& ballot, StepResult& result) {
  const auto batch = static_cast<double>(options_.batch);
  std::array<double, 2> sums{runner_->LossSum(), static_cast<double>(slice_.size)};
  RETURN_IF_ERROR(backend_.group.AllReduce(sums, Reduction::kSum));
  std::array<double, 5> most{sum_squares_, ballot.notice ? 1.0 : 0.0, ballot.busy ? 1.0 : 0.0,
                             batch, -batch};
  RETURN_IF_ERROR(backend_.group.AllReduce(most, Reduction::kMax));
  const auto& [loss_sum, samples] = sums;
  const auto& [sum_squares, notice, busy, largest_batch, minus_smallest_batch] = most;
  if (samples != largest_batch || samples != -minus_smallest_batch) {
    return WithExit(
        absl::FailedPreconditionError(absl::StrCat(
            "the ranks brought ", samples, " samples to a step whose batch is ", largest_batch,
            " for one of them and ", -minus_smallest_batch, " for another")),
        WorkerExit::kRanksDisagree);
  }
  // Not a number if that is so on any rank.
  sum_squares_ = sum_squares / (scaler_.scale() * scaler_.scale());
  result.loss = loss_sum / (samples * dataset_.context());
  result.gradient_norm = std::sqrt(sum_squares_);
  result.any = {.notice = notice != 0, .busy = busy != 0};
  return absl::OkStatus();
}

}  // namespace regroup::worker
