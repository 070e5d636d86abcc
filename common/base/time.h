#pragma once

#include <chrono>
#include <cstdint>

namespace regroup {

// Times inside a core are injected. An Instant comes from one monotonic clock of one process and
// never leaves it: what crosses the wire or is written to a row is a Duration (PROTOCOL §4).
struct InjectedClock {
  using duration = std::chrono::nanoseconds;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<InjectedClock>;
  static constexpr bool is_steady = true;
};
using Duration = InjectedClock::duration;
using Instant = InjectedClock::time_point;
// For display only: microseconds since 1970 in UTC.
using WallTime = std::chrono::time_point<std::chrono::system_clock, std::chrono::microseconds>;

inline constexpr double Seconds(Duration d) { return std::chrono::duration<double>(d).count(); }
inline constexpr Duration FromSeconds(double s) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(s));
}

}  // namespace regroup
