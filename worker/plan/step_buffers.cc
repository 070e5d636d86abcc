#include "worker/plan/step_buffers.h"

#include <array>
#include <utility>

#include "common/base/check.h"

namespace regroup::worker {
namespace {

std::int64_t OwnedOf(const ParamLayout& layout, const UnitPlace& unit, int rank) {
  std::int64_t owned = 0;
  for (const ParamId p : unit.params) {
    for (const Share& share : layout.Shares(p))
      owned += share.owner == layout.PlaceOf(rank) ? share.flat.size : 0;
  }
  return owned;
}

// Walks through a plan, and notes what begins before an instruction and ends after it.
class BufferWalk {
 public:
  BufferWalk(const ParamLayout& layout, const Plan& plan, std::span<const std::int64_t> kept_bytes)
      : layout_(layout), plan_(plan) {
    for (std::size_t u = 0; u < layout.units().size(); ++u) {
      const UnitPlace& unit = layout.units()[u];
      Of(BufferKind::kWeights).push_back({.size = unit.flat.size});
      Of(BufferKind::kGradients).push_back({.size = unit.flat.size});
      Of(BufferKind::kReduced).push_back({.size = OwnedOf(layout, unit, plan.rank)});
      Of(BufferKind::kActivations).push_back({.size = kept_bytes.empty() ? 0 : kept_bytes[u]});
    }
  }

  std::vector<StepBuffer> Run() {
    for (at_ = 0; at_ < plan_.instructions.size(); ++at_) {
      Begin(plan_.instructions[at_]);
      End(plan_.instructions[at_]);
    }
    return std::move(buffers_);
  }

 private:
  struct State {
    std::int64_t size = 0;
    int open = -1;  // Index into buffers_; -1: not in use.
  };
  std::vector<State>& Of(BufferKind kind) { return states_[static_cast<std::size_t>(kind)]; }

  void Begin(const Instruction& i) {
    const bool copies =
        layout_.Divides(StateKind::kWeights) ? i.op == Op::kGather : i.op == Op::kRound;
    if (copies && !layout_.GathersInPlace()) Open(BufferKind::kWeights, i.unit);
    if (i.op == Op::kForward) Open(BufferKind::kActivations, i.unit);
    if (i.op == Op::kBackward) {
      for (const UnitId u : UnitsReadBy(layout_, i.unit)) Open(BufferKind::kGradients, u);
    }
    if (i.op == Op::kZeroGrad)
      ForBucket(i.bucket, [this](UnitId u) { Open(BufferKind::kGradients, u); });
    if (i.op == Op::kReduceGrad && layout_.Divides(StateKind::kGradients))
      ForBucket(i.bucket, [this](UnitId u) { Open(BufferKind::kReduced, u); });
  }

  void End(const Instruction& i) {
    if (i.op == Op::kFree) Close(BufferKind::kWeights, i.unit);
    // Of a unit in parts, with the last that goes.
    if (i.op == Op::kBackward && i.part <= 0) Close(BufferKind::kActivations, i.unit);
    if (i.op == (plan_.overlaps ? Op::kAwaitGrad : Op::kReduceGrad) &&
        layout_.Divides(StateKind::kGradients))
      ForBucket(i.bucket, [this](UnitId u) { Close(BufferKind::kGradients, u); });
    if (i.op == Op::kStep) {
      Close(BufferKind::kGradients, i.unit);
      Close(BufferKind::kReduced, i.unit);
    }
  }

  // Until it is closed, or the step is over.
  void Open(BufferKind kind, UnitId unit) {
    State& state = Of(kind)[static_cast<std::size_t>(unit)];
    if (state.open >= 0 || state.size == 0) return;
    state.open = static_cast<int>(buffers_.size());
    buffers_.push_back({.kind = kind,
                        .unit = unit,
                        .size = state.size,
                        .first_use = at_,
                        .last_use = plan_.instructions.size() - 1});
  }
  void Close(BufferKind kind, UnitId unit) {
    State& state = Of(kind)[static_cast<std::size_t>(unit)];
    const int open = std::exchange(state.open, -1);
    if (open >= 0) buffers_[static_cast<std::size_t>(open)].last_use = at_;
  }

  template <typename Use>
  void ForBucket(int bucket, const Use& use) {
    const Bucket& units = plan_.buckets[static_cast<std::size_t>(bucket)];
    for (UnitId u = units.first_unit; u <= units.last_unit; ++u) use(u);
  }

  const ParamLayout& layout_;
  const Plan& plan_;
  std::size_t at_ = 0;
  std::array<std::vector<State>, std::size(kBufferKinds)> states_;  // By unit.
  std::vector<StepBuffer> buffers_;
};

}  // namespace

const char* NameOf(BufferKind kind) {
  switch (kind) {
    case BufferKind::kWeights: return "weights";
    case BufferKind::kGradients: return "gradients";
    case BufferKind::kReduced: return "reduced";
    case BufferKind::kActivations: return "activations";
  }
  CHECK(false);
}

std::vector<StepBuffer> BuffersOf(const ParamLayout& layout, const Plan& plan,
                                  std::span<const std::int64_t> kept_bytes) {
  CHECK(kept_bytes.empty() || kept_bytes.size() == layout.units().size());
  return BufferWalk(layout, plan, kept_bytes).Run();
}

}  // namespace regroup::worker
