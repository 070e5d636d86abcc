#include "worker/train/step_runner.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string>
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

absl::StatusOr<Plan> PlanOf(const ParamLayout& layout, const StepRunnerOptions& options, int rank) {
  const Slice slice = RankSlice(options.batch, rank, layout.world());
  PlanOptions how;
  how.rank = rank;
  how.micro_batches = MicroBatchesOf(slice.size, options.micro_batch);
  return MakePlan(layout, how);
}

// Every rank makes the plans of all, and checks them against each other before anything runs.
absl::StatusOr<std::vector<Plan>> CheckedPlans(const ParamLayout& layout,
                                               const StepRunnerOptions& options) {
  std::vector<Plan> plans;
  for (int r = 0; r < layout.world(); ++r) {
    ASSIGN_OR_RETURN(Plan plan, PlanOf(layout, options, r));
    plans.push_back(std::move(plan));
  }
  RETURN_IF_ERROR(CheckPlan(layout, plans));
  return plans;
}

// A check holds for the plans that were checked: all ranks must have checked the same ones.
absl::Status AgreeOnPlans(Communicator& ranks, const ParamLayout& layout,
                          const std::vector<Plan>& plans) {
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

StepRunner::StepRunner(Communicator& ranks, const ParamLayout& layout, const Dataset& dataset,
                       const StepRunnerOptions& options)
    : ranks_(ranks),
      layout_(layout),
      dataset_(dataset),
      options_(options),
      slice_(RankSlice(options.batch, ranks.rank(), ranks.world_size())),
      micro_batches_(MicroBatchesOf(slice_.size, options.micro_batch)) {}

absl::StatusOr<std::unique_ptr<StepRunner>> StepRunner::Create(
    Communicator& ranks, const Model<float>& model, const ParamLayout& layout,
    const Dataset& dataset, TrainState& state, const StepRunnerOptions& options) {
  std::unique_ptr<StepRunner> runner(new StepRunner(ranks, layout, dataset, options));
  ASSIGN_OR_RETURN(std::vector<Plan> plans, CheckedPlans(layout, options));
  RETURN_IF_ERROR(AgreeOnPlans(ranks, layout, plans));
  runner->plan_ = std::move(plans[static_cast<std::size_t>(ranks.rank())]);
  // A rank without a sample makes room for one, so that no arena has to be empty.
  const std::int64_t samples = std::max<std::int64_t>(1, runner->slice_.size);
  const auto tokens = static_cast<std::size_t>(samples * dataset.context());
  ASSIGN_OR_RETURN(runner->samples_, Arena::Create(2 * Arena::Footprint<std::int32_t>(tokens)));
  runner->tokens_ = runner->samples_.Take<std::int32_t>(tokens);
  runner->targets_ = runner->samples_.Take<std::int32_t>(tokens);
  ASSIGN_OR_RETURN(runner->gradients_,
                   ranks.AllocateArena(static_cast<std::size_t>(layout.flat_elements())));
  const int micro_batches = std::max(1, runner->micro_batches_);
  const Extent extent{.batch = RankSlice(samples, 0, micro_batches).size,
                      .time = dataset.context()};
  const Kernels& kernels = KernelsFor(options.kernels);
  ASSIGN_OR_RETURN(runner->runner_, UnitRunner<float>::Create(model, layout, kernels, extent,
                                                              state.weights, runner->gradients_));
  runner->optimizer_ = std::make_unique<AdamW<float>>(
      layout, options.optimizer, kernels,
      AdamW<float>::Buffers{state.weights, runner->gradients_, state.first_moment,
                            state.second_moment});
  return runner;
}

absl::Status StepRunner::ReadSamples(std::span<const std::int64_t> ids) {
  const auto context = static_cast<std::size_t>(dataset_.context());
  for (std::size_t i = 0; i < static_cast<std::size_t>(slice_.size); ++i) {
    RETURN_IF_ERROR(WithExit(dataset_.Read(ids[static_cast<std::size_t>(slice_.begin) + i],
                                           tokens_.subspan(i * context, context),
                                           targets_.subspan(i * context, context)),
                             WorkerExit::kUsage));
  }
  return absl::OkStatus();
}

MicroBatch StepRunner::MicroBatchOf(int index) const {
  const Slice part = RankSlice(slice_.size, index, micro_batches_);
  const std::int64_t context = dataset_.context();
  const auto begin = static_cast<std::size_t>(part.begin * context),
             size = static_cast<std::size_t>(part.size * context);
  // The sum of all ranks' gradients is then the gradient of the global mean, whatever each rank's
  // share.
  const double scale = options_.gradient_factor / static_cast<double>(options_.batch * context);
  return {.batch = part.size,
          .time = context,
          .tokens = tokens_.subspan(begin, size),
          .targets = targets_.subspan(begin, size),
          .loss_scale = scale};
}

absl::StatusOr<StepResult> StepRunner::Run(std::int64_t step, std::span<const std::int64_t> ids,
                                           const Ballot& ballot) {
  CHECK(ids.size() == static_cast<std::size_t>(options_.batch));
  RETURN_IF_ERROR(ReadSamples(ids));
  StepResult result;
  loss_sum_ = 0;
  for (const Instruction& instruction : plan_.instructions) {
    RETURN_IF_ERROR(Carry(instruction, step, ballot, result));
    if (instruction.op == Op::kVote && !std::isfinite(result.loss + result.gradient_norm))
      return result;
  }
  return result;
}

absl::Status StepRunner::Carry(const Instruction& instruction, std::int64_t step,
                               const Ballot& ballot, StepResult& result) {
  switch (instruction.op) {
    case Op::kForward:
      RETURN_IF_ERROR(runner_->Forward(instruction.unit, MicroBatchOf(instruction.micro_batch)));
      if (instruction.unit + 1 == static_cast<UnitId>(layout_.units().size()))
        loss_sum_ += runner_->LossSum();
      return absl::OkStatus();
    case Op::kBackward:
      return runner_->Backward(instruction.unit, MicroBatchOf(instruction.micro_batch),
                               AddsOf(plan_, layout_, instruction.unit, instruction.micro_batch));
    case Op::kZeroGrad: {
      const std::span<float> bucket = BucketOf(instruction);
      std::fill(bucket.begin(), bucket.end(), 0.0F);
      return absl::OkStatus();
    }
    case Op::kReduceGrad: return ranks_.AllReduceSum(BucketOf(instruction));
    case Op::kSumSquares: sum_squares_ = optimizer_->SumSquares(); return absl::OkStatus();
    case Op::kVote: return Vote(ballot, result);
    case Op::kStep:
      optimizer_->Step(instruction.unit, {.step = step,
                                          .lr = LearningRate(options_.schedule, step),
                                          .grad_scale = ClipScale(sum_squares_, options_.clip)});
      return absl::OkStatus();
    case Op::kCommit: result.done = true; return absl::OkStatus();
  }
  CHECK(false);
}

std::span<float> StepRunner::BucketOf(const Instruction& instruction) const {
  const Range& flat = plan_.buckets[static_cast<std::size_t>(instruction.bucket)].flat;
  return gradients_.subspan(static_cast<std::size_t>(flat.begin),
                            static_cast<std::size_t>(flat.size));
}

// From here on every rank goes by the same numbers, also where its own are wrong.
absl::Status StepRunner::Vote(const Ballot& ballot, StepResult& result) {
  const auto batch = static_cast<double>(options_.batch);
  std::array<double, 2> sums{loss_sum_, static_cast<double>(slice_.size)};
  RETURN_IF_ERROR(ranks_.AllReduce(sums, Reduction::kSum));
  std::array<double, 5> most{sum_squares_, ballot.notice ? 1.0 : 0.0, ballot.busy ? 1.0 : 0.0,
                             batch, -batch};
  RETURN_IF_ERROR(ranks_.AllReduce(most, Reduction::kMax));
  const auto& [loss_sum, samples] = sums;
  const auto& [sum_squares, notice, busy, largest_batch, minus_smallest_batch] = most;
  if (samples != largest_batch || samples != -minus_smallest_batch) {
    return WithExit(
        absl::FailedPreconditionError(absl::StrCat(
            "the ranks brought ", samples, " samples to a step whose batch is ", largest_batch,
            " for one of them and ", -minus_smallest_batch, " for another")),
        WorkerExit::kRanksDisagree);
  }
  sum_squares_ = sum_squares;  // Not a number if that is so on any rank.
  result.loss = loss_sum / (samples * dataset_.context());
  result.gradient_norm = std::sqrt(sum_squares_);
  result.any = {.notice = notice != 0, .busy = busy != 0};
  return absl::OkStatus();
}

}  // namespace regroup::worker
