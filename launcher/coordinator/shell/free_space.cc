#include "launcher/coordinator/shell/free_space.h"

#include <condition_variable>
#include <limits>
#include <mutex>
#include <thread>
#include <utility>

namespace regroup::coordinator {

struct FreeSpace::Shared {
  std::mutex mutex;  // Guards all below.
  std::condition_variable asked, answered;
  bool wanted = false, ended = false;
  bool late = false;  // Somebody has waited in vain for the answer that is out.
  std::uint64_t answers = 0;
  std::uint64_t bytes = std::numeric_limits<std::uint64_t>::max();  // The last one.
};

FreeSpace::FreeSpace(std::function<std::uint64_t()> look) : shared_(std::make_shared<Shared>()) {
  std::thread([shared = shared_, look = std::move(look)] {
    std::unique_lock lock(shared->mutex);
    for (;;) {
      shared->asked.wait(lock, [&] { return shared->wanted || shared->ended; });
      if (shared->ended) return;
      shared->wanted = false;
      lock.unlock();
      const std::uint64_t bytes = look();
      lock.lock();
      shared->bytes = bytes;
      shared->late = false;
      ++shared->answers;
      shared->answered.notify_all();
    }
  }).detach();
}

FreeSpace::~FreeSpace() {
  const std::scoped_lock lock(shared_->mutex);
  shared_->ended = true;
  shared_->asked.notify_all();
}

std::uint64_t FreeSpace::Bytes() {
  std::unique_lock lock(shared_->mutex);
  if (shared_->late) return shared_->bytes;
  const std::uint64_t before = shared_->answers;
  shared_->wanted = true;
  shared_->asked.notify_all();
  shared_->late = !shared_->answered.wait_for(lock, kFreeSpacePatience,
                                              [&] { return shared_->answers > before; });
  return shared_->bytes;
}

}  // namespace regroup::coordinator
