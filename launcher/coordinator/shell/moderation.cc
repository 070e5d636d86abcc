#include "launcher/coordinator/shell/moderation.h"

#include <sys/resource.h>

#include <thread>

#include "common/io/proc.h"

namespace regroup::coordinator {
namespace {

long WaitsOfThisThread() {
  rusage use{};
  getrusage(RUSAGE_THREAD, &use);  // Of Linux; fails for no argument that is given here.
  return use.ru_nvcsw;
}

}  // namespace

bool Moderation::IsDue(Instant now, long waits) {
  const bool slept = waits != waits_, fast = now - last_ < kFastMessages;
  Paused(now, waits);
  return slept && fast;
}

void Moderation::Paused(Instant now, long waits) {
  last_ = now;
  waits_ = waits;
}

void ModerateThisThread() {
  thread_local Moderation moderation;
  if (!moderation.IsDue(io::MonotonicNow(), WaitsOfThisThread())) return;
  std::this_thread::sleep_for(kPauseForMore);
  moderation.Paused(io::MonotonicNow(), WaitsOfThisThread());
}

}  // namespace regroup::coordinator
