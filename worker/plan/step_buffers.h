#pragma once

// What a step declares of its memory: which buffer is in use from which instruction to which. From
// this a plan places those that may lie where others have been, and tells what is in use together.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "worker/plan/plan.h"

namespace regroup::worker {

enum class BufferKind : std::uint8_t {
  // Weights, where a step computes with a copy of what is held: from Gather, or Round where they
  // are not divided, to Free, or for the rest of the step.
  kWeights,
  kGradients,    // Until they are reduced, or where they are not divided, stepped.
  kReduced,      // What the rank owns of divided gradients, until it is stepped.
  kActivations,  // From Forward to Backward.
};
inline constexpr BufferKind kBufferKinds[] = {BufferKind::kWeights, BufferKind::kGradients,
                                              BufferKind::kReduced, BufferKind::kActivations};
const char* NameOf(BufferKind kind);  // "weights", "gradients", "reduced", "activations".

// Of one unit.
struct StepBuffer {
  BufferKind kind = BufferKind::kWeights;
  UnitId unit = 0;
  std::int64_t size = 0;                    // Elements; of activations, bytes.
  std::size_t first_use = 0, last_use = 0;  // Indices into Plan::instructions.
  friend bool operator==(const StepBuffer&, const StepBuffer&) = default;
};

// In the order of their first uses. What is held all the time (weights, moments) is not in it.
// `kept_bytes[u]` is what unit u keeps from its forward to its backward; empty: no activations.
std::vector<StepBuffer> BuffersOf(const ParamLayout& layout, const Plan& plan,
                                  std::span<const std::int64_t> kept_bytes = {});

}  // namespace regroup::worker
