#pragma once

// Memory is allocated once, for a whole training. This is when a step has what in it.

#include <array>
#include <cstdint>
#include <span>

#include "worker/plan/plan.h"

namespace regroup::worker {

// Up to the first backward; then up to the vote; then the rest.
enum class StepPart : std::uint8_t { kForward, kBackward, kStep };
inline constexpr StepPart kStepParts[] = {StepPart::kForward, StepPart::kBackward, StepPart::kStep};
const char* NameOf(StepPart part);  // "forward", "backward", "step".

// The most that is in use at one time in a part of the step, of each kind by itself. What is held
// all the time (weights, moments) is not in it.
struct StepUse {
  // Of weights, where a step computes with a copy of what is held: from Gather, or Round where they
  // are not divided, to Free, or for the rest of the step.
  std::int64_t copied_elements = 0;
  std::int64_t gradient_elements = 0;  // Not yet reduced, or where not divided, not yet stepped.
  std::int64_t owned_elements = 0;     // Of divided gradients: reduced and not yet stepped.
  std::int64_t activation_bytes = 0;   // From Forward to Backward.
};
using StepUses = std::array<StepUse, 3>;  // By part.

// `kept_bytes[u]` is what unit u keeps from its forward to its backward.
StepUses UseOverStep(const ParamLayout& layout, const Plan& plan,
                     std::span<const std::int64_t> kept_bytes);

}  // namespace regroup::worker
