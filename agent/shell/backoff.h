#pragma once

#include <algorithm>

#include "common/base/rng.h"
#include "common/base/time.h"

namespace regroup::agent {

// When to dial again: 50 ms doubling to 2 s, each wait uniform in (0, bound] so that a fleet does
// not come back at once; flat where the coordinator is on this host. PROTOCOL §4. A coordinator
// that fell silent is asked at least each second: nobody says when a network heals.
class Backoff {
 public:
  explicit Backoff(std::uint64_t seed) : rng_(seed) {}
  Duration Next(bool loopback) {
    if (loopback) return kFirst;
    const Duration bound = bound_;
    bound_ = std::min(bound_ * 2, most_);
    return Duration(
        1 + static_cast<Duration::rep>(rng_.Below(static_cast<std::uint64_t>(bound.count()))));
  }
  void Reset() {
    bound_ = kFirst;
    most_ = kMost;
  }
  void Hurry() {
    most_ = kMostHurried;
    bound_ = std::min(bound_, most_);
  }

  static constexpr Duration kFirst = std::chrono::milliseconds(50), kMost = std::chrono::seconds(2);
  static constexpr Duration kMostHurried = std::chrono::seconds(1);

 private:
  Rng rng_;
  Duration bound_ = kFirst, most_ = kMost;
};

}  // namespace regroup::agent
