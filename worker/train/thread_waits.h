#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "common/base/time.h"

namespace regroup::worker {

// What the scheduler has counted of one thread: on a core, and ready for one but without.
struct CoreTime {
  Duration ran{}, waited{};
};

// Of the calling thread since it began; none where the kernel does not count (CONFIG_SCHED_INFO).
std::optional<CoreTime> ReadCoreTime();

// Whether others want a thread's core too, from what was counted of it in some tenths of a second.
// Alone on a host it waits for less than one hundredth of the time, for daemons. As before where it
// slept for nearly all of that time.
bool IsCrowded(bool before, const CoreTime& counted);

// Threads of a pool with which a process that has `threads` in its regions has one more than cores.
// 0: nobody waits, there are more already, or that pool would have more than eight.
int SparePool(int cores, int threads);

// How long the threads of parallel regions spin for each other before they sleep. One that sleeps
// comes late by what waking it takes: 1 to 2 % of a step. One that spins on a core that others want
// keeps from it those for which it waits: two trainings of two threads on two cores then take twice
// their time. libgomp spins for GOMP_SPINCOUNT turns, which agents set to some milliseconds, and
// for 100 while a process has more threads in its pools than cores (its manual, GOMP_SPINCOUNT),
// but knows nothing of other processes. While those are there, this object holds threads in a pool
// of their own, asleep, of which there is one too many.
class ThreadWaits {
 public:
  explicit ThreadWaits(std::function<std::optional<CoreTime>()> read = ReadCoreTime);
  ~ThreadWaits();

  // Between steps, on the thread that enters the regions. Takes a moment each fifth of a second,
  // else nothing. Threads that the host does not give are done without: it was asked for them
  // before.
  void Look(Instant now);
  // As it was found last; true where the kernel does not count.
  bool crowded() const { return crowded_; }

 private:
  class SpareThreads;

  const std::function<std::optional<CoreTime>()> read_;
  std::optional<Instant> looked_;
  std::optional<CoreTime> counted_;  // Then.
  bool crowded_ = false;
  std::unique_ptr<SpareThreads> spare_;  // Not null: waits are short.
};

}  // namespace regroup::worker
