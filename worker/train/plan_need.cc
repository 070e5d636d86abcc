#include "worker/train/plan_need.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <variant>
#include <vector>

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "worker/data/sampler.h"
#include "worker/model/runner.h"
#include "worker/optim/optimizer.h"
#include "worker/train/step_runner.h"

namespace regroup::worker {
namespace {

constexpr std::int64_t kElementBytes = sizeof(float);

std::int64_t SamplesOfRank0(const TrainConfig& config, int world) {
  return RankSlice(config.batch, 0, world).size;
}

// Of its largest micro-batch.
Extent ExtentOf(const TrainConfig& config, const Planned& planned) {
  const std::int64_t samples =
      std::max<std::int64_t>(1, SamplesOfRank0(config, planned.layout.world()));
  return {.batch = RankSlice(samples, 0, std::max(1, planned.plan.micro_batches)).size,
          .time = config.context};
}

std::int64_t LargestOwned(const ParamLayout& layout) {
  std::int64_t largest = 0;
  for (int r = 0; r < layout.world(); ++r) {
    std::int64_t owned = 0;
    for (const Range& box : layout.Owned(r)) owned += box.size;
    largest = std::max(largest, owned);
  }
  return largest;
}

std::vector<UnitId> Recomputed(const AnyModel& model, const TrainConfig& config) {
  return std::visit([&](const auto& m) { return UnitsRecomputed(m, config.recompute); }, model);
}

bool SharesWeights(const ParamLayout& layout) {
  return layout.Divides(StateKind::kWeights) && !layout.FreesWeights();
}

bool KeepsShort(const TrainConfig& config) { return config.accumulate_type != DType::kF32; }

// Of an element of a gradient: what the optimizer reads, and beside it what is exchanged, if that
// is not the same.
std::int64_t GradientBytes(const TrainConfig& config) {
  if (config.accumulate_type == config.ReduceType()) return SizeOf(config.accumulate_type);
  return SizeOf(config.accumulate_type) + SizeOf(config.ReduceType());
}

// Of gradients in full precision, beside what is kept of them.
std::int64_t StagingBytes(const TrainConfig& config, const ParamLayout& layout) {
  return KeepsShort(config) ? StagingOf(layout).elements * kElementBytes : 0;
}

// What rank 0 takes from others in a step and gives to them, in bytes.
std::int64_t MovedBytes(const Planned& planned, DType precision, DType reduce_type) {
  const ParamLayout& layout = planned.layout;
  // Results come in their own type, whatever went up.
  const std::int64_t reduced =
      planned.partial_sums ? (kElementBytes + SizeOf(reduce_type)) / 2 : SizeOf(reduce_type);
  // What the first so many ranks own of the units, or the others.
  const auto elements = [&](UnitId first, UnitId last, int ranks, bool own) {
    std::int64_t sum = 0;
    for (UnitId u = first; u <= last; ++u) {
      for (ParamId p : layout.units()[static_cast<std::size_t>(u)].params) {
        for (const Share& share : layout.Shares(p))
          sum += (share.owner < ranks) == own ? share.flat.size : 0;
      }
    }
    return sum;
  };
  const int sharers = SharesWeights(layout) ? planned.sharers : 1;
  std::int64_t moved = 0;
  for (const Instruction& i : planned.plan.instructions) {
    if (i.op == Op::kGather) moved += elements(i.unit, i.unit, sharers, false) * SizeOf(precision);
    if (i.op != Op::kReduceGrad) continue;
    const Bucket& bucket = planned.plan.buckets[static_cast<std::size_t>(i.bucket)];
    const auto all_reduced = [](std::int64_t size, int ranks) {
      return 2 * size * (ranks - 1) / ranks;
    };
    if (!layout.Divides(StateKind::kMoments)) {
      moved += all_reduced(bucket.flat.size, layout.world()) * reduced;
      continue;
    }
    const std::int64_t owned = elements(bucket.first_unit, bucket.last_unit, 1, true);
    moved += (owned * (layout.group() - 1) + all_reduced(owned, layout.groups())) * reduced;
  }
  return moved;
}

absl::StatusOr<std::size_t> ActivationBytes(const AnyModel& model, const Extent& extent,
                                            Recompute recompute) {
  return std::visit(
      [&]<typename T>(const Model<T>& m) {
        return UnitRunner<T>::ActivationBytes(m, extent, recompute);
      },
      model);
}

// By unit.
std::vector<std::int64_t> KeptBytes(const TrainConfig& config, const Planned& planned) {
  const Extent extent = ExtentOf(config, planned);
  return std::visit(
      [&]<typename T>(const Model<T>& m) {
        return UnitRunner<T>::KeptBytes(m, extent, config.recompute);
      },
      planned.model);
}

// Of the product that needs most.
std::size_t WideningBytes(const TrainConfig& config, const Planned& planned, const Extent& extent) {
  std::size_t most = 0;
  std::visit(
      [&](const auto& model) {
        for (const auto& unit : model.units()) {
          most = std::max(most, WideningBytes(config.Precision(), config.Kernels(),
                                              unit.layer->Spec(extent).largest_product));
        }
      },
      planned.model);
  return most;
}

}  // namespace

int RanksOnHosts::Sharers(int group) const {
  if (!shared_memory) return 1;
  constexpr int kMostOnOneHost = 64;
  const int most = std::min(per_host == 0 ? world : std::min(per_host, world), kMostOnOneHost);
  if (group == world) return most;
  return most % group == 0 && world % most % group == 0 ? group : 1;
}

absl::StatusOr<Planned> PlanFor(const TrainConfig& config, const RanksOnHosts& ranks,
                                Strategy strategy) {
  AnyModel model = MakeGpt(config.Model(), config.Precision());
  ASSIGN_OR_RETURN(ParamLayout layout, ParamLayout::Create(UnitSpecs(model), ranks.world, strategy,
                                                           config.shard_group, config.Rounds()));
  PlanOptions options =
      PlanOptionsOf(config.batch, config.micro_batch, 0, ranks.world, Recomputed(model, config));
  options.overlap = ranks.hosts() > 1;
  options.reshard_after_forward = config.reshard_after_forward;
  options.wrap = config.wrap;
  ASSIGN_OR_RETURN(Plan plan, MakePlan(layout, options));
  const int sharers = ranks.Sharers(layout.group());
  return Planned{std::move(model), std::move(layout), std::move(plan), sharers,
                 ranks.hosts() > 1 && ranks.per_host > 1};
}

absl::StatusOr<MemoryNeed> NeedOf(const TrainConfig& config, const Planned& planned) {
  const ParamLayout& layout = planned.layout;
  const int world = layout.world();
  const bool divided = layout.Divides(StateKind::kMoments);
  const Extent extent = ExtentOf(config, planned);
  MemoryNeed need;
  const auto part = [&](std::int64_t bytes) {
    return SharesWeights(layout) ? (bytes + planned.sharers - 1) / planned.sharers : bytes;
  };
  need.weights = MostElements(layout, StateKind::kWeights) * kElementBytes;
  if (layout.GathersInPlace()) need.weights = part(need.weights);
  // Where gathered weights are freed, what a rank owns is rounded beside them.
  const std::int64_t copied = planned.plan.weights.elements,
                     source = layout.FreesWeights() ? LargestOwned(layout) : 0;
  if (layout.rounded()) need.rounded = part((copied + source) * SizeOf(config.Precision()));
  if (!layout.rounded() && layout.FreesWeights()) need.gathered = copied * kElementBytes;
  const auto slots = static_cast<std::int64_t>(StateNames(config.optimizer).size());
  need.moments =
      slots * MostElements(layout, StateKind::kMoments) * kElementBytes +
      TensorSquaresOf(layout, config.optimizer) * static_cast<std::int64_t>(sizeof(double));
  need.gradients = planned.plan.gradients.elements * GradientBytes(config);
  if (layout.Divides(StateKind::kGradients))
    need.gradients += MostElements(layout, StateKind::kGradients) * GradientBytes(config);
  need.gradients += StagingBytes(config, layout);
  if (divided || KeepsShort(config))
    need.gradients += BlocksOf(layout) * static_cast<std::int64_t>(sizeof(double));
  ASSIGN_OR_RETURN(const std::size_t activations,
                   ActivationBytes(planned.model, extent, config.recompute));
  need.activations =
      static_cast<std::int64_t>(activations + WideningBytes(config, planned, extent)) +
      OptimizerWorkspaceBytes();
  if (!config.checkpoint_dir.empty()) {
    const std::int64_t copied = divided ? LargestOwned(layout) : layout.param_elements(),
                       writers = divided ? layout.groups() : world;
    const std::int64_t saved = (copied + writers - 1) / writers;
    need.snapshots = 2 * (1 + slots) * saved * kElementBytes;
  }
  return need;
}

absl::StatusOr<MemoryNeed> NeedOf(const TrainConfig& config, const RanksOnHosts& ranks,
                                  Strategy strategy) {
  ASSIGN_OR_RETURN(const Planned planned, PlanFor(config, ranks, strategy));
  return NeedOf(config, planned);
}

std::array<MemoryNeed, 3> NeedOverStep(const TrainConfig& config, const Planned& planned,
                                       const MemoryNeed& need) {
  const std::vector<std::int64_t> kept = KeptBytes(config, planned);
  // What of the activations no unit has for itself: scratch, mostly, which computing takes.
  const std::int64_t shared =
      need.activations - std::accumulate(kept.begin(), kept.end(), std::int64_t{0});
  const std::int64_t source = planned.layout.FreesWeights() ? LargestOwned(planned.layout) : 0;
  const StepUses uses = UseOverStep(planned.layout, planned.plan, kept);
  std::array<MemoryNeed, 3> parts;
  for (std::size_t p = 0; p < uses.size(); ++p) {
    const auto use = [&](BufferKind kind) { return uses[p][static_cast<std::size_t>(kind)]; };
    const std::int64_t copied = use(BufferKind::kWeights),
                       activations = use(BufferKind::kActivations);
    const bool rounded = planned.layout.rounded();
    const std::int64_t gradients = use(BufferKind::kGradients) + use(BufferKind::kReduced);
    parts[p] = {
        .weights = need.weights,
        .gathered = rounded ? 0 : copied * kElementBytes,
        .gradients = gradients > 0
                         ? gradients * GradientBytes(config) + StagingBytes(config, planned.layout)
                         : 0,
        .moments = need.moments,
        .activations = activations > 0 ? activations + shared : 0,
        .rounded = !rounded                        ? 0
                   : SharesWeights(planned.layout) ? need.rounded
                                                   : (copied + source) * SizeOf(config.Precision()),
        .snapshots = 0};
  }
  return parts;
}

std::vector<BufferNeed> BuffersOf(const TrainConfig& config, const Planned& planned) {
  const std::vector<std::int64_t> kept = KeptBytes(config, planned);
  const auto bytes_of = [&](BufferKind kind) -> std::int64_t {
    switch (kind) {
      case BufferKind::kWeights:
        return planned.layout.rounded() ? SizeOf(config.Precision()) : kElementBytes;
      case BufferKind::kGradients:
      case BufferKind::kReduced: return GradientBytes(config);
      case BufferKind::kActivations: return 1;
    }
    CHECK(false);
  };
  std::vector<BufferNeed> needs;
  for (const StepBuffer& buffer : BuffersOf(planned.layout, planned.plan, kept))
    needs.push_back({buffer, buffer.size * bytes_of(buffer.kind)});
  return needs;
}

TrainedSize TrainedSizeOf(const TrainConfig& config, const ParamLayout& layout) {
  return {.parameters = layout.param_elements(),
          .layers = config.layers,
          .width = config.width,
          .context = config.context};
}

StepWork WorkOf(const TrainConfig& config, const Planned& planned) {
  const ParamLayout& layout = planned.layout;
  const double tokens = static_cast<double>(SamplesOfRank0(config, layout.world())) *
                        static_cast<double>(config.context);
  // Of each element the gradient is read, the weight read and written, and so is all state.
  const auto slots = static_cast<std::int64_t>(StateNames(config.optimizer).size());
  const std::int64_t touched = (1 + 2 + 2 * slots) * kElementBytes;
  return {
      .flops = tokens * CausalFlopsPerToken(TrainedSizeOf(config, layout)),
      .computed_again = config.recompute == Recompute::kFull ? 1.0 / 3 : 0,
      .moved_bytes =
          static_cast<double>(MovedBytes(planned, config.Precision(), config.ReduceType())),
      .optimizer_bytes = static_cast<double>(touched * MostElements(layout, StateKind::kMoments))};
}

}  // namespace regroup::worker
