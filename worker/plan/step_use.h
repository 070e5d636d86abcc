#pragma once

// Memory is allocated once, for a whole training. This is how much of it a step has in use.

#include <array>
#include <cstdint>
#include <span>

#include "worker/plan/step_buffers.h"

namespace regroup::worker {

// Up to the first backward; then up to the vote; then the rest.
enum class StepPart : std::uint8_t { kForward, kBackward, kStep };
inline constexpr StepPart kStepParts[] = {StepPart::kForward, StepPart::kBackward, StepPart::kStep};
const char* NameOf(StepPart part);  // "forward", "backward", "step".

// The most that is in use at one time in a part of the step, of each kind by itself: elements; of
// activations, bytes. By BufferKind.
using StepUse = std::array<std::int64_t, std::size(kBufferKinds)>;
using StepUses = std::array<StepUse, 3>;  // By part.

// `kept_bytes[u]` is what unit u keeps from its forward to its backward.
StepUses UseOverStep(const ParamLayout& layout, const Plan& plan,
                     std::span<const std::int64_t> kept_bytes);

}  // namespace regroup::worker
