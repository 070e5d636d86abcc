#include "worker/plan/step_use.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "common/base/check.h"

namespace regroup::worker {
namespace {

// Units that are in use for one purpose, and the most that they have been together.
class InUse {
 public:
  explicit InUse(std::vector<std::int64_t> sizes)
      : sizes_(std::move(sizes)), used_(sizes_.size(), false) {}

  void Begin(UnitId unit) { Set(unit, true); }
  void End(UnitId unit) { Set(unit, false); }
  std::int64_t now() const { return now_; }

 private:
  void Set(UnitId unit, bool used) {
    const auto at = static_cast<std::size_t>(unit);
    if (used_[at] == used) return;
    used_[at] = used;
    now_ += used ? sizes_[at] : -sizes_[at];
  }

  std::vector<std::int64_t> sizes_;
  std::vector<bool> used_;
  std::int64_t now_ = 0;
};

std::vector<std::int64_t> WholeUnits(const ParamLayout& layout) {
  std::vector<std::int64_t> sizes;
  for (const UnitPlace& unit : layout.units()) sizes.push_back(unit.flat.size);
  return sizes;
}

std::vector<std::int64_t> OwnedOfUnits(const ParamLayout& layout, int rank) {
  std::vector<std::int64_t> sizes;
  for (const UnitPlace& unit : layout.units()) {
    std::int64_t owned = 0;
    for (const ParamId p : unit.params) {
      for (const Share& share : layout.Shares(p))
        owned += share.owner == layout.PlaceOf(rank) ? share.flat.size : 0;
    }
    sizes.push_back(owned);
  }
  return sizes;
}

class UseWalk {
 public:
  UseWalk(const ParamLayout& layout, const Plan& plan, std::span<const std::int64_t> kept_bytes)
      : layout_(layout),
        plan_(plan),
        copied_(WholeUnits(layout)),
        gradients_(copied_),
        owned_(OwnedOfUnits(layout, plan.rank)),
        activations_({kept_bytes.begin(), kept_bytes.end()}) {}

  StepUses Run() {
    for (const Instruction& instruction : plan_.instructions) {
      if (instruction.op == Op::kBackward || instruction.op == Op::kZeroGrad)
        part_ = StepPart::kBackward;
      if (instruction.op == Op::kVote) part_ = StepPart::kStep;
      Begin(instruction);
      Note();
      End(instruction);
    }
    return uses_;
  }

 private:
  void Begin(const Instruction& i) {
    const bool copies =
        layout_.Divides(StateKind::kWeights) ? i.op == Op::kGather : i.op == Op::kRound;
    if (copies && !layout_.GathersInPlace()) copied_.Begin(i.unit);
    if (i.op == Op::kForward) activations_.Begin(i.unit);
    if (i.op == Op::kBackward) {
      for (const UnitId u : UnitsReadBy(layout_, i.unit)) gradients_.Begin(u);
    }
    if (i.op == Op::kZeroGrad) ForBucket(i.bucket, [this](UnitId u) { gradients_.Begin(u); });
    if (i.op == Op::kReduceGrad && layout_.Divides(StateKind::kGradients))
      ForBucket(i.bucket, [this](UnitId u) { owned_.Begin(u); });
  }

  void End(const Instruction& i) {
    if (i.op == Op::kFree) copied_.End(i.unit);
    if (i.op == Op::kBackward && i.part <= 0) activations_.End(i.unit);  // Of a unit, or its last.
    if (i.op == (plan_.overlaps ? Op::kAwaitGrad : Op::kReduceGrad) &&
        layout_.Divides(StateKind::kGradients))
      ForBucket(i.bucket, [this](UnitId u) { gradients_.End(u); });
    if (i.op == Op::kStep) {
      gradients_.End(i.unit);
      owned_.End(i.unit);
    }
  }

  template <typename Use>
  void ForBucket(int bucket, const Use& use) {
    const Bucket& units = plan_.buckets[static_cast<std::size_t>(bucket)];
    for (UnitId u = units.first_unit; u <= units.last_unit; ++u) use(u);
  }

  void Note() {
    StepUse& use = uses_[static_cast<std::size_t>(part_)];
    use.copied_elements = std::max(use.copied_elements, copied_.now());
    use.gradient_elements = std::max(use.gradient_elements, gradients_.now());
    use.owned_elements = std::max(use.owned_elements, owned_.now());
    use.activation_bytes = std::max(use.activation_bytes, activations_.now());
  }

  const ParamLayout& layout_;
  const Plan& plan_;
  StepPart part_ = StepPart::kForward;
  InUse copied_, gradients_, owned_, activations_;
  StepUses uses_{};
};

}  // namespace

const char* NameOf(StepPart part) {
  switch (part) {
    case StepPart::kForward: return "forward";
    case StepPart::kBackward: return "backward";
    case StepPart::kStep: return "step";
  }
  CHECK(false);
}

StepUses UseOverStep(const ParamLayout& layout, const Plan& plan,
                     std::span<const std::int64_t> kept_bytes) {
  CHECK(kept_bytes.size() == layout.units().size());
  return UseWalk(layout, plan, kept_bytes).Run();
}

}  // namespace regroup::worker
