#pragma once

#include <mutex>
#include <thread>

namespace regroup::worker {

// SIGTERM. It ends the process at once, by the signal itself: everything on disk is safe to leave
// at any time. Only while a save for a notice is under way is it put off until that is over. At
// most one object per process, made before any other thread; never destroyed while threads run.
class Termination {
 public:
  Termination();  // Blocks the signal in this thread, and so in all threads made later.
  ~Termination();

  void BeginSaving();
  // Ends the process if the signal has come meanwhile.
  void EndSaving();

 private:
  void Run();

  std::mutex mutex_;
  bool saving_ = false, received_ = false, stop_ = false;
  std::thread thread_;
};

}  // namespace regroup::worker
