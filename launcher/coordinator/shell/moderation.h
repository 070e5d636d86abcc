#pragma once

// When a thread that receives from many peers lets some more come before it asks the kernel again,
// as network cards moderate their interrupts: at 10,000 heartbeats a second it costs more to sleep
// and be woken for each than to hear them.

#include "common/base/time.h"

namespace regroup::coordinator {

inline constexpr Duration kFastMessages = std::chrono::milliseconds(1);  // From one to the next.
inline constexpr Duration kPauseForMore = std::chrono::milliseconds(2);

// Of one thread.
class Moderation {
 public:
  // After each message. `waits`: how often this thread has slept so far (getrusage: ru_nvcsw).
  // True: it slept for this message, so hardly anything is left behind it, and the one before came
  // less than kFastMessages ago; it pauses, then calls Paused.
  [[nodiscard]] bool IsDue(Instant now, long waits);
  void Paused(Instant now, long waits);

 private:
  Instant last_{};
  long waits_ = 0;
};

// The calling thread's, and its pause.
void ModerateThisThread();

}  // namespace regroup::coordinator
