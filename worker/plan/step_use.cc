#include "worker/plan/step_use.h"

#include <algorithm>
#include <vector>

#include "common/base/check.h"

namespace regroup::worker {

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
  std::vector<StepUse> changes(plan.instructions.size() + 1);  // Before each instruction.
  for (const StepBuffer& buffer : BuffersOf(layout, plan, kept_bytes)) {
    const auto kind = static_cast<std::size_t>(buffer.kind);
    changes[buffer.first_use][kind] += buffer.size;
    changes[buffer.last_use + 1][kind] -= buffer.size;
  }
  StepUses uses{};
  StepUse now{};
  StepPart part = StepPart::kForward;
  for (std::size_t at = 0; at < plan.instructions.size(); ++at) {
    const Op op = plan.instructions[at].op;
    if (op == Op::kBackward || op == Op::kZeroGrad) part = StepPart::kBackward;
    if (op == Op::kVote) part = StepPart::kStep;
    for (std::size_t kind = 0; kind < now.size(); ++kind) {
      now[kind] += changes[at][kind];
      std::int64_t& most = uses[static_cast<std::size_t>(part)][kind];
      most = std::max(most, now[kind]);
    }
  }
  return uses;
}

}  // namespace regroup::worker
