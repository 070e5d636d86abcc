#pragma once

// What the core decided, as text: every row, action and note of every step, every field of each.
// Two builds that print equal hashes for the same seeds decided the same, so that a change which
// only moves code is shown to be one.

#include <cstdint>
#include <string>

#include "launcher/coordinator/core/actions.h"
#include "tests/sim/chaos.h"

namespace regroup::sim {

// One line for each row, action and note; every field in the order of its declaration.
std::string TextOf(const coordinator::Effects& effects);

struct Recording {
  std::uint64_t steps = 0;
  std::uint64_t hash = 0;  // Of all that was decided from the first event on; equal everywhere.
  std::string text;        // Only where it was asked for.
};

// Lives of several kinds, by seed: short and long ones, with rests, and with limits so small that
// purges, rings and windows are reached.
ChaosOptions RecordedLife(std::uint64_t seed);

Recording Record(std::uint64_t seed, const ChaosOptions& options, bool keep_text);

}  // namespace regroup::sim
