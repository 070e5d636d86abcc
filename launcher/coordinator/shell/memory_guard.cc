#include "launcher/coordinator/shell/memory_guard.h"

#include <malloc.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "common/io/proc.h"

namespace regroup::coordinator {
namespace {

constexpr auto kInterval = std::chrono::milliseconds(500);
// Trimming walks every free list. It is worth it when this much has come since the last time, and
// the floods are over: less than that came within an interval.
constexpr std::uint64_t kWorthTrimming = 8u << 20;

}  // namespace

MemoryGuard::MemoryGuard(std::uint64_t limit_bytes)
    : limit_bytes_(limit_bytes),
      resident_bytes_(io::ResidentBytes(::getpid())),
      thread_([this] { Watch(); }) {}

MemoryGuard::~MemoryGuard() {
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void MemoryGuard::Watch() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  std::uint64_t trimmed = resident_bytes_;  // What was left then.
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, kInterval, [this] { return stopping_; })) {
    const std::uint64_t before = resident_bytes_, now = io::ResidentBytes(::getpid());
    resident_bytes_ = now;
    trimmed = std::min(trimmed, now);
    if (now < trimmed + kWorthTrimming || now > before + kWorthTrimming) continue;
    ::malloc_trim(0);
    resident_bytes_ = trimmed = io::ResidentBytes(::getpid());
  }
}

}  // namespace regroup::coordinator
