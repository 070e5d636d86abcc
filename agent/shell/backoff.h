#pragma once

#include <algorithm>

#include "common/base/rng.h"
#include "common/base/time.h"

namespace regroup::agent {

// When to dial again: 50 ms doubling to 2 s, each wait uniform in (0, bound] so that a fleet does
// not come back at once; flat where the coordinator is on this host. PROTOCOL §4.
class Backoff {
 public:
  explicit Backoff(std::uint64_t seed) : rng_(seed) {}
  Duration Next(bool loopback) {
    if (loopback) return kFirst;
    const Duration bound = bound_;
    bound_ = std::min(bound_ * 2, kMost);
    return Duration(
        1 + static_cast<Duration::rep>(rng_.Below(static_cast<std::uint64_t>(bound.count()))));
  }
  void Reset() { bound_ = kFirst; }

  static constexpr Duration kFirst = std::chrono::milliseconds(50), kMost = std::chrono::seconds(2);

 private:
  Rng rng_;
  Duration bound_ = kFirst;
};

}  // namespace regroup::agent
