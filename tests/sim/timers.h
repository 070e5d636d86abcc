#pragma once

// Which timers and limits of the two cores decide something in a life. One is reached where the
// same life takes another course once its value is doubled: a core then decides something else, or
// at another time. A value that is only told to somebody changes no course.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tests/sim/chaos.h"

namespace regroup::sim {

// Of all numbers in both configurations, in the order of their declaration. A new field without a
// name does not compile.
std::vector<std::string> TimerNames();

// Doubles one of them. REQUIRES: timer < TimerNames().size().
void DoubleTimer(std::size_t timer, ChaosOptions& options);

// The course of a life: one hash for each step of a core that decided anything, of when it was,
// which rows it wrote and which kinds of actions it ordered.
using Course = std::vector<std::uint64_t>;
Course CourseOf(std::uint64_t seed, const ChaosOptions& options);

// Whether the life leaves that course. It is lived no further than that.
bool Leaves(const Course& course, std::uint64_t seed, const ChaosOptions& options);

// How many of the lives each timer decided something in.
class TimerCoverage {
 public:
  TimerCoverage();
  // Lives that life once for each timer, or each of `only`, that fewer than `enough` lives have
  // reached.
  void Add(std::uint64_t seed, const ChaosOptions& options, std::size_t enough,
           const std::vector<std::string>& only = {});
  bool AllReached(std::size_t enough) const;  // But for those of which timers.cc says why none can.

  std::string Table() const;
  // What no life has reached and could, and what was reached although timers.cc says otherwise.
  std::vector<std::string> Missing() const;

 private:
  struct Timer {
    std::string name;
    std::vector<std::uint64_t> seeds;  // Of the lives that reached it.
  };

  std::vector<Timer> timers_;
  int lives_ = 0;
};

}  // namespace regroup::sim
