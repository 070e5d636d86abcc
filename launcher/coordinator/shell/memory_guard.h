#pragma once

// Watches this process's resident memory on a thread of its own. What was freed goes back to the
// system once nothing grows any more: glibc keeps the free lists of a flood for good. Beyond the
// limit no stranger is let in.

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

#include "common/base/views.h"

namespace regroup::coordinator {

class MemoryGuard {
 public:
  explicit MemoryGuard(std::uint64_t limit_bytes);
  ~MemoryGuard();
  // Whether a stranger must stay outside, who is counted then. Any thread, as is Now.
  bool Refuses() {
    if (resident_bytes_ <= limit_bytes_) return false;
    ++refused_;
    return true;
  }
  MemoryUse Now() const { return {resident_bytes_, limit_bytes_, refused_}; }

 private:
  void Watch();

  const std::uint64_t limit_bytes_;
  std::atomic<std::uint64_t> resident_bytes_, refused_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  std::thread thread_;  // Last: it uses all of the above.
};

}  // namespace regroup::coordinator
