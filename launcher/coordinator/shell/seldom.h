#pragma once

// A line of the log that strangers may cause at any rate is written once in ten seconds; those
// between are counted. Of one thread.

#include <chrono>
#include <optional>
#include <utility>

#include "common/base/time.h"

namespace regroup::coordinator {

class Seldom {
 public:
  // When a line is due: how many were not written since the last one.
  std::optional<int> Due(Instant now) {
    if (last_ && now < *last_ + kInterval) {
      ++untold_;
      return std::nullopt;
    }
    last_ = now;
    return std::exchange(untold_, 0);
  }

 private:
  static constexpr Duration kInterval = std::chrono::seconds(10);
  std::optional<Instant> last_;
  int untold_ = 0;
};

}  // namespace regroup::coordinator
