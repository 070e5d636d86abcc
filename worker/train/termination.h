#pragma once

#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace regroup::worker {

// SIGTERM. It ends the process at once, by the signal itself: everything on disk is safe to leave
// at any time. Only while a save for a notice is under way is it put off until that is over. At
// most one object per process, made before any other thread; never destroyed while threads run.
class Termination {
 public:
  Termination();  // Blocks the signal in this thread, and so in all threads made later.
  ~Termination();

  // Called before the signal ends the process. Returns soon, whatever disks and networks do.
  void AtEnd(std::function<void()> last) {
    const std::scoped_lock lock(mutex_);
    last_ = std::move(last);
  }
  void BeginSaving();
  // Ends the process if the signal has come meanwhile.
  void EndSaving();

 private:
  void Run();
  [[noreturn]] void End();

  std::mutex mutex_;
  bool saving_ = false, received_ = false, stop_ = false;
  std::function<void()> last_;
  std::thread thread_;
};

}  // namespace regroup::worker
