#include "worker/plan/plan.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "worker/plan/step_buffers.h"

namespace regroup::worker {
namespace {

constexpr std::int64_t kElementBytes = 4, kRoundedBytes = 2;

const UnitPlace& UnitOf(const ParamLayout& layout, UnitId unit) {
  CHECK(unit >= 0 && unit < static_cast<UnitId>(layout.units().size()));
  return layout.units()[static_cast<std::size_t>(unit)];
}

// What ranks own of a unit is reduced in one call. What all of them have is divided anywhere, and
// sooner begun if that is between the parts of a unit.
bool ReducesParts(const ParamLayout& layout, const PlanOptions& options) {
  return options.overlap && !layout.Divides(StateKind::kMoments);
}

// In backward order. A unit's gradients are complete after its own backward, since those that share
// its parameters come later in the model, so earlier in the backward pass: a bucket is full after
// the backward of its first unit, or of the part with which it begins.
std::vector<Bucket> MakeBuckets(const ParamLayout& layout, const PlanOptions& options) {
  std::vector<Bucket> buckets;
  bool open = false;
  for (UnitId u = static_cast<UnitId>(layout.units().size()) - 1; u >= 0; --u) {
    const UnitPlace& unit = UnitOf(layout, u);
    const std::vector<Range> whole{unit.flat};
    const std::vector<Range>& parts = ReducesParts(layout, options) ? unit.parts : whole;
    for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
      if (!open) buckets.push_back({.first_unit = u, .last_unit = u, .flat = {part->end(), 0}});
      Bucket& bucket = buckets.back();
      bucket.first_unit = u;
      bucket.flat = {part->begin, bucket.flat.end() - part->begin};
      open = bucket.flat.size * kElementBytes < options.bucket_bytes;
    }
  }
  return buckets;
}

// Whoever comes first in the backward pass: of a tied embedding that is the head.
std::vector<UnitId> FirstWriters(const ParamLayout& layout) {
  std::vector<UnitId> first(layout.params().size());
  for (UnitId u = 0; u < static_cast<UnitId>(layout.units().size()); ++u) {
    const UnitPlace& unit = UnitOf(layout, u);
    for (const auto& touched : {unit.params, unit.shared}) {
      for (ParamId p : touched) first[static_cast<std::size_t>(p)] = u;
    }
  }
  return first;
}

// Units have places in the memory of gradients one after the other.
bool SharesGradients(const ParamLayout& layout, const PlanOptions& options) {
  return layout.Divides(StateKind::kGradients) &&
         std::max(options.micro_batches, options.rounds) <= 1;
}

// By unit: what any unit of its group reads, in order.
std::vector<std::vector<UnitId>> ReadByGroups(const ParamLayout& layout,
                                              const std::vector<UnitId>& wrapped) {
  std::map<UnitId, std::set<UnitId>> read;  // By the first of a group.
  for (std::size_t u = 0; u < wrapped.size(); ++u)
    for (const UnitId other : UnitsReadBy(layout, static_cast<UnitId>(u)))
      read[wrapped[u]].insert(other);
  std::vector<std::vector<UnitId>> by_unit;
  for (const UnitId first : wrapped) by_unit.emplace_back(read[first].begin(), read[first].end());
  return by_unit;
}

// Makes the instructions of one rank, front to back.
class Planner {
 public:
  Planner(const ParamLayout& layout, const PlanOptions& options, const std::vector<UnitId>& wrapped,
          Plan& plan)
      : layout_(layout),
        options_(options),
        wrapped_(wrapped),
        read_by_group_of_(ReadByGroups(layout, wrapped)),
        plan_(plan),
        units_(static_cast<UnitId>(layout.units().size())),
        divided_(layout.Divides(StateKind::kWeights)),
        gathered_(layout.units().size(), Gathered::kNot),
        rounded_(layout.units().size(), false) {}

  void Run() {
    // Where weights are gathered once at most, a rank has no part in the others' micro-batches.
    const int own = std::max(1, options_.micro_batches);
    const int rounds = layout_.FreesWeights() ? std::max(own, options_.rounds) : own;
    if (divided_ && !layout_.FreesWeights() && !options_.overlap) GatherAll();
    for (int round = 0; round < rounds; ++round) Round(round, rounds);
    Free({}, 0, {});
    while (options_.overlap && awaited_ < static_cast<int>(plan_.buckets.size())) Await();
    Add({.op = Op::kSumSquares});
    Add({.op = Op::kVote});
    for (UnitId u = 0; u < units_; ++u) Add({.op = Op::kStep, .unit = u});
    Add({.op = Op::kCommit});
  }

 private:
  void Add(const Instruction& instruction) { plan_.instructions.push_back(instruction); }

  // The rank's own micro-batches come in the last rounds, so that all ranks reduce in the last.
  void Round(int round, int rounds) {
    const int micro_batch = round - (rounds - options_.micro_batches);
    for (UnitId u = 0; u < units_; ++u) {
      Use(ReadByGroupOf(u), options_.reshard_after_forward ? 0 : units_,
          ReadByGroupOf(std::min(LastOfGroup(u) + 1, units_ - 1)));
      if (micro_batch < 0) continue;
      if (!divided_) RoundOnce(UnitsReadBy(layout_, u));
      Add({.op = Op::kForward, .unit = u, .micro_batch = micro_batch});
      if (IsRecomputed(u)) holder_ = u;
    }
    int bucket = 0;
    for (UnitId u = units_ - 1; u >= 0; --u) {
      const bool last = u == 0 && round + 1 == rounds;
      Use(ReadByGroupOf(u), options_.reshard_after_forward ? 0 : u,
          last ? std::vector<UnitId>() : ReadByGroupOf(std::max(FirstOfGroup(u) - 1, 0)));
      // Behind the gathers that the next backward waits for, which take their turn.
      ReduceFull();
      if (micro_batch >= 0 && IsRecomputed(u) && holder_ != u) {
        Add({.op = Op::kRecompute, .unit = u, .micro_batch = micro_batch});
        holder_ = u;
      }
      Backward(u, micro_batch, round + 1 == rounds, bucket);
    }
    ReduceFull();
  }

  // The backward of a unit: in parts in the round that `reduces`, if parts are reduced at all.
  // `bucket` is the next to be full, and counted up here.
  void Backward(UnitId unit, int micro_batch, bool reduces, int& bucket) {
    const UnitPlace& place = UnitOf(layout_, unit);
    const bool in_parts = reduces && ReducesParts(layout_, options_) && place.parts.size() > 1;
    for (int part = in_parts ? static_cast<int>(place.parts.size()) - 1 : 0; part >= 0; --part) {
      ReduceFull();
      if (micro_batch >= 0) {
        Add({.op = Op::kBackward,
             .unit = unit,
             .micro_batch = micro_batch,
             .part = in_parts ? part : kWholeUnit});
      }
      const Bucket& next = plan_.buckets[static_cast<std::size_t>(bucket)];
      if (!reduces || next.first_unit != unit ||
          next.flat.begin != place.parts[static_cast<std::size_t>(part)].begin)
        continue;
      full_ = bucket++;
      if (!options_.overlap) ReduceFull();
    }
  }

  void ReduceFull() {
    if (full_ >= 0) Reduce(std::exchange(full_, -1));
  }

  UnitId FirstOfGroup(UnitId unit) const { return wrapped_[static_cast<std::size_t>(unit)]; }
  UnitId LastOfGroup(UnitId unit) const {
    const UnitId first = FirstOfGroup(unit);
    while (unit + 1 < units_ && FirstOfGroup(unit + 1) == first) ++unit;
    return unit;
  }
  const std::vector<UnitId>& ReadByGroupOf(UnitId unit) const {
    return read_by_group_of_[static_cast<std::size_t>(unit)];
  }

  bool IsRecomputed(UnitId unit) const { return std::ranges::count(plan_.recomputed, unit) > 0; }

  void Reduce(int bucket) {
    if (options_.micro_batches == 0) Add({.op = Op::kZeroGrad, .bucket = bucket});
    Add({.op = Op::kReduceGrad, .bucket = bucket});
    // The one before: two are in memory then, and this one goes on while that is waited for.
    if (options_.overlap && SharesGradients(layout_, options_) && awaited_ < bucket) Await();
  }

  // They come to their end in the order in which they began.
  void Await() { Add({.op = Op::kAwaitGrad, .bucket = awaited_++}); }

  // One after the other: ranks wait for each other once, and not at each unit.
  void GatherAll() {
    for (UnitId u = 0; u < units_; ++u) RoundOnce({u});
    for (UnitId u = 0; u < units_; ++u) {
      Begin(u);
      End(u);
    }
  }

  // From here on the weights of the units `read` are in place, and where the plan overlaps those of
  // `next`, which are read after them, on their way; where they are freed, of no others but those
  // below `kept` that are in place already. A unit's own backward is the last that reads it.
  void Use(const std::vector<UnitId>& read, UnitId kept, const std::vector<UnitId>& next) {
    if (!divided_) return;
    Free(read, kept, next);
    for (UnitId u : read) {
      Begin(u);
      if (!options_.overlap) End(u);
    }
    for (UnitId u : read) End(u);
    for (UnitId u : next)
      if (options_.overlap) Begin(u);
  }

  void Free(const std::vector<UnitId>& read, UnitId kept, const std::vector<UnitId>& next) {
    if (!layout_.FreesWeights()) return;
    for (UnitId u = kept; u < units_; ++u) {
      const bool used =
          std::ranges::count(read, u) > 0 || (options_.overlap && std::ranges::count(next, u) > 0);
      if (Of(u) == Gathered::kNot || used) continue;
      Add({.op = Op::kFree, .unit = u});
      Of(u) = Gathered::kNot;
    }
  }

  enum class Gathered : std::uint8_t { kNot, kBegun, kThere };
  Gathered& Of(UnitId unit) { return gathered_[static_cast<std::size_t>(unit)]; }
  void Begin(UnitId unit) {
    if (Of(unit) != Gathered::kNot) return;
    RoundOnce({unit});
    Add({.op = Op::kGather, .unit = unit});
    Of(unit) = Gathered::kBegun;
  }
  void End(UnitId unit) {
    if (Of(unit) == Gathered::kThere) return;
    if (options_.overlap) Add({.op = Op::kAwaitGather, .unit = unit});
    Of(unit) = Gathered::kThere;
  }

  void RoundOnce(const std::vector<UnitId>& units) {
    for (UnitId u : units) {
      if (!layout_.rounded() || rounded_[static_cast<std::size_t>(u)]) continue;
      Add({.op = Op::kRound, .unit = u});
      rounded_[static_cast<std::size_t>(u)] = true;
    }
  }

  const ParamLayout& layout_;
  const PlanOptions& options_;
  const std::vector<UnitId>& wrapped_;
  const std::vector<std::vector<UnitId>> read_by_group_of_;
  Plan& plan_;
  const UnitId units_;
  const bool divided_;              // Weights are.
  std::vector<Gathered> gathered_;  // By unit; only where they are.
  std::vector<bool> rounded_;       // By unit.
  int full_ = -1;                   // A bucket whose reduction begins with the next backward.
  int awaited_ = 0;                 // Buckets.
  UnitId holder_ = -1;              // Of the recomputed units, whose activations are there.
};

Windows InFlatOrder(const ParamLayout& layout) {
  Windows windows{.at = {}, .elements = layout.flat_elements()};
  for (const UnitPlace& unit : layout.units()) windows.at.push_back(unit.flat.begin);
  return windows;
}

bool Meet(const std::vector<StepBuffer>& a, const std::vector<StepBuffer>& b) {
  return std::ranges::any_of(a, [&](const StepBuffer& x) {
    return std::ranges::any_of(b, [&](const StepBuffer& y) {
      return x.first_use <= y.last_use && y.first_use <= x.last_use;
    });
  });
}

// The largest units first, each at the lowest place that is free whenever it is in use for `kind`.
Windows Place(const ParamLayout& layout, BufferKind kind, const std::vector<StepBuffer>& buffers) {
  const std::vector<UnitPlace>& units = layout.units();
  std::vector<std::vector<StepBuffer>> of_unit(units.size());
  for (const StepBuffer& buffer : buffers)
    if (buffer.kind == kind) of_unit[static_cast<std::size_t>(buffer.unit)].push_back(buffer);
  Windows windows{.at = std::vector<std::int64_t>(units.size()), .elements = 0};
  std::vector<std::size_t> order(units.size()), placed;
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(
      order, [&](std::size_t a, std::size_t b) { return units[a].flat.size > units[b].flat.size; });
  for (const std::size_t u : order) {
    std::vector<Range> taken;
    for (const std::size_t other : placed) {
      if (Meet(of_unit[u], of_unit[other]))
        taken.push_back({windows.at[other], units[other].flat.size});
    }
    std::ranges::sort(taken, {}, &Range::begin);
    std::int64_t at = 0;
    for (const Range& range : taken) {
      if (at + units[u].flat.size <= range.begin) break;
      at = std::max(at, range.end());
    }
    windows.at[u] = at;
    windows.elements = std::max(windows.elements, at + units[u].flat.size);
    placed.push_back(u);
  }
  return windows;
}

// By the step of a rank that has one micro-batch, which is the same on all: others gather as it
// does, and touch gradients at most when it does.
void PlaceWindows(const ParamLayout& layout, const PlanOptions& options,
                  const std::vector<UnitId>& wrapped, Plan& plan) {
  plan.weights = plan.gradients = InFlatOrder(layout);
  if (!layout.Divides(StateKind::kGradients)) return;
  Plan one = plan;
  const PlanOptions alone{.micro_batches = 1,
                          .rounds = 1,
                          .overlap = plan.overlaps,
                          .reshard_after_forward = options.reshard_after_forward};
  Planner(layout, alone, wrapped, one).Run();
  const std::vector<StepBuffer> buffers = BuffersOf(layout, one);
  if (layout.FreesWeights()) plan.weights = Place(layout, BufferKind::kWeights, buffers);
  if (SharesGradients(layout, options))
    plan.gradients = Place(layout, BufferKind::kGradients, buffers);
}

}  // namespace

Windows StagingOf(const ParamLayout& layout) {
  std::set<UnitId> owners;  // Of what other units write too.
  for (const UnitPlace& unit : layout.units()) {
    for (const ParamId p : unit.shared)
      owners.insert(layout.params()[static_cast<std::size_t>(p)].unit);
  }
  Windows staging;
  staging.at.resize(layout.units().size());
  std::int64_t owned = 0;
  for (const UnitId u : owners) {
    staging.at[static_cast<std::size_t>(u)] = owned;
    owned += UnitOf(layout, u).flat.size;
  }
  staging.elements = std::max(owned, ParamLayout::kBlockElements);
  for (UnitId u = 0; u < static_cast<UnitId>(layout.units().size()); ++u) {
    if (owners.contains(u)) continue;
    const UnitPlace& unit = UnitOf(layout, u);
    std::int64_t& at = staging.at[static_cast<std::size_t>(u)];
    at = unit.shared.empty() ? 0 : owned;
    staging.elements = std::max(staging.elements, at + unit.flat.size);
  }
  return staging;
}

AddMask AddsOf(const Plan& plan, const ParamLayout& layout, UnitId unit, int micro_batch) {
  const UnitPlace& place = UnitOf(layout, unit);
  AddMask adds = 0, bit = 1;
  for (const std::vector<ParamId>* touched : {&place.params, &place.shared}) {
    for (ParamId p : *touched) {
      if (micro_batch > 0 || plan.first_writers[static_cast<std::size_t>(p)] != unit) adds |= bit;
      bit <<= 1;
    }
  }
  return adds;
}

std::vector<UnitId> UnitsReadBy(const ParamLayout& layout, UnitId unit) {
  std::vector<UnitId> read{unit};
  for (ParamId p : UnitOf(layout, unit).shared)
    read.push_back(layout.params()[static_cast<std::size_t>(p)].unit);
  std::ranges::sort(read);
  read.erase(std::unique(read.begin(), read.end()), read.end());
  return read;
}

absl::StatusOr<Plan> MakePlan(const ParamLayout& layout, const PlanOptions& options) {
  if (options.rank < 0 || options.rank >= layout.world()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a plan for rank ", options.rank, " of world ", layout.world()));
  }
  const bool more = options.rounds != 0 && options.micro_batches > options.rounds;
  if (options.micro_batches < 0 || options.bucket_bytes < 1 || more) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a plan for rank ", options.rank, " with ", options.micro_batches, " of ", options.rounds,
        " micro-batches and buckets of ", options.bucket_bytes, " bytes"));
  }
  ASSIGN_OR_RETURN(const std::vector<UnitId> wrapped, WrapUnits(layout, options.wrap));
  Plan plan{.rank = options.rank,
            .micro_batches = options.micro_batches,
            .buckets = MakeBuckets(layout, options),
            .first_writers = FirstWriters(layout),
            .weights = {},
            .gradients = {},
            .recomputed = options.recomputed,
            .overlaps = options.overlap,
            .instructions = {}};
  PlaceWindows(layout, options, wrapped, plan);
  Planner(layout, options, wrapped, plan).Run();
  return plan;
}

absl::StatusOr<std::vector<Plan>> MakePlans(const ParamLayout& layout, PlanOptions options,
                                            std::span<const int> micro_batches) {
  CHECK(static_cast<int>(micro_batches.size()) == layout.world());
  std::vector<Plan> plans;
  for (int r = 0; r < layout.world(); ++r) {
    options.rank = r;
    options.micro_batches = micro_batches[static_cast<std::size_t>(r)];
    if (r > 0 && options.micro_batches == plans.back().micro_batches) continue;
    ASSIGN_OR_RETURN(Plan plan, MakePlan(layout, options));
    plans.push_back(std::move(plan));
  }
  return plans;
}

Plan PlanOf(std::span<const Plan> plans, int rank) {
  const auto next = std::ranges::upper_bound(plans, rank, {}, &Plan::rank);
  CHECK(next != plans.begin());
  Plan plan = *std::prev(next);
  plan.rank = rank;
  return plan;
}

namespace {
std::string PartOf(const Instruction& instruction) {
  return instruction.part == kWholeUnit ? "" : absl::StrCat(" part ", instruction.part);
}
}  // namespace

std::string ToString(const Instruction& instruction) {
  switch (instruction.op) {
    case Op::kGather: return absl::StrCat("Gather unit ", instruction.unit);
    case Op::kAwaitGather: return absl::StrCat("AwaitGather unit ", instruction.unit);
    case Op::kFree: return absl::StrCat("Free unit ", instruction.unit);
    case Op::kRound: return absl::StrCat("Round unit ", instruction.unit);
    case Op::kForward:
      return absl::StrCat("Forward unit ", instruction.unit, " micro-batch ",
                          instruction.micro_batch);
    case Op::kRecompute:
      return absl::StrCat("Recompute unit ", instruction.unit, " micro-batch ",
                          instruction.micro_batch);
    case Op::kBackward:
      return absl::StrCat("Backward unit ", instruction.unit, PartOf(instruction), " micro-batch ",
                          instruction.micro_batch);
    case Op::kZeroGrad: return absl::StrCat("ZeroGrad bucket ", instruction.bucket);
    case Op::kReduceGrad: return absl::StrCat("ReduceGrad bucket ", instruction.bucket);
    case Op::kAwaitGrad: return absl::StrCat("AwaitGrad bucket ", instruction.bucket);
    case Op::kSumSquares: return "SumSquares";
    case Op::kVote: return "Vote";
    case Op::kStep: return absl::StrCat("Step unit ", instruction.unit);
    case Op::kCommit: return "Commit";
  }
  CHECK(false);
}

StepStream StreamOf(const Plan& plan, Op op) {
  switch (op) {
    case Op::kGather:
    case Op::kReduceGrad: return plan.overlaps ? StepStream::kMove : StepStream::kCompute;
    case Op::kAwaitGather:
    case Op::kAwaitGrad:
    case Op::kRound:
    case Op::kForward:
    case Op::kRecompute:
    case Op::kBackward:
    case Op::kZeroGrad:
    case Op::kSumSquares:
    case Op::kStep: return StepStream::kCompute;
    case Op::kFree:
    case Op::kVote:
    case Op::kCommit: return StepStream::kNone;
  }
  CHECK(false);
}

const char* NameOf(StepStream stream) {
  switch (stream) {
    case StepStream::kNone: return "";
    case StepStream::kCompute: return "compute";
    case StepStream::kMove: return "move";
  }
  CHECK(false);
}

std::string ToString(const Plan& plan, const ParamLayout& layout) {
  std::string text = absl::StrCat("rank ", plan.rank, " of ", layout.world(), ", ",
                                  plan.micro_batches, " micro-batches\n");
  const auto describe = [&](const char* what, const Windows& windows,
                            std::int64_t element_bytes = kElementBytes) {
    absl::StrAppend(&text, "  ", what, " in ", windows.elements * element_bytes,
                    " bytes, units at ", absl::StrJoin(windows.at, ", "), "\n");
  };
  if (layout.strategy() != Strategy::kReplicated) {
    absl::StrAppend(&text, "  ", NameOf(layout.strategy()), "\n");
    describe(layout.rounded() ? "rounded weights" : "weights", plan.weights,
             layout.rounded() ? kRoundedBytes : kElementBytes);
    describe("gradients", plan.gradients);
  } else if (layout.rounded()) {
    describe("rounded weights", plan.weights, kRoundedBytes);
  }
  if (!plan.recomputed.empty())
    absl::StrAppend(&text, "  recomputes units ", absl::StrJoin(plan.recomputed, ", "), "\n");
  for (std::size_t p = 0; p < plan.first_writers.size(); ++p) {
    const ParamPlace& param = layout.params()[p];
    if (plan.first_writers[p] == param.unit) continue;
    absl::StrAppend(&text, "  ", UnitOf(layout, plan.first_writers[p]).name,
                    " writes the gradient of ", param.spec.name, " first, ",
                    UnitOf(layout, param.unit).name, " adds\n");
  }
  for (std::size_t at = 0; at < plan.instructions.size(); ++at) {
    const Instruction& instruction = plan.instructions[at];
    absl::StrAppendFormat(&text, "  %4d  %-7s  %s", at, NameOf(StreamOf(plan, instruction.op)),
                          ToString(instruction));
    if (instruction.unit >= 0) {
      absl::StrAppend(&text, " (", UnitOf(layout, instruction.unit).name, ")");
    } else if (instruction.bucket >= 0) {
      const Bucket& bucket = plan.buckets[static_cast<std::size_t>(instruction.bucket)];
      absl::StrAppend(&text, " (", UnitOf(layout, bucket.last_unit).name, " to ",
                      UnitOf(layout, bucket.first_unit).name, ", ",
                      bucket.flat.size * kElementBytes, " bytes)");
    }
    text += '\n';
  }
  return text;
}

}  // namespace regroup::worker
