#pragma once

// What no honest peer tells and no sum exceeds.

#include <cstdint>

#include "common/base/time.h"

namespace regroup {

// The longest time that is told or kept, a hundred years: two of them can be added.
inline constexpr Duration kMaxDuration = std::chrono::hours(24 * 366 * 100);
// What others told is summed up to that limit. REQUIRES: neither is beyond it.
inline constexpr Duration SaturatingSum(Duration a, Duration b) {
  return a + b > kMaxDuration ? kMaxDuration : a + b < -kMaxDuration ? -kMaxDuration : a + b;
}

// No cluster reaches it: an epoch above it was made up.
inline constexpr std::uint64_t kMaxEpoch = std::uint64_t{1} << 62;

}  // namespace regroup
