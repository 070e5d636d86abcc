#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "common/io/fd.h"
#include "common/io/log_files.h"

namespace regroup::shim {

// One thread that moves what ranks write from their pipes into log files. It alone touches the
// disk; whoever owns this object never waits for it.
class LogDrain {
 public:
  // `notify_fd` (an eventfd) is written when Look() would show a new trouble, `complete` or `done`;
  // and, once after each WatchOutput, more output.
  static absl::StatusOr<std::unique_ptr<LogDrain>> Start(int notify_fd);
  ~LogDrain();  // REQUIRES: done() or Abandon() before.

  // Read ends of the pipes of one rank.
  void AddRank(int local_rank, const std::string& directory, io::LogLimits limits,
               io::UniqueFd standard_output, io::UniqueFd standard_error);
  // The rank has ended: what its pipes hold now is all that is waited for, though a process it left
  // may hold them open.
  void RankEnded(int local_rank);
  // Nobody is left who could write: the thread ends after what the pipes hold now.
  void Finish();

  struct Progress {
    std::uint64_t output_bytes = 0, lost_bytes = 0;
    std::string trouble;
    std::set<int> complete;  // Local ranks that ended and whose output is written.
    bool done = false;       // After Finish.
  };
  Progress Look() const;
  void WatchOutput() { output_watched_ = true; }
  // Leaves a thread that hangs on a disk behind. Only before _exit.
  void Abandon() { thread_.detach(); }

 private:
  struct Pipe {
    int local_rank = 0;
    io::UniqueFd fd;
    std::unique_ptr<io::LogWriter> writer;
  };
  struct Order {
    enum Kind { kAdd, kRankEnded, kFinish } kind = kAdd;
    int local_rank = 0;
    std::vector<Pipe> pipes;
  };

  explicit LogDrain(int notify_fd) : notify_fd_(notify_fd) {}
  void Post(Order order);
  void Run();
  void TakeOrders();
  bool ReadOnce(Pipe& pipe);
  void ReadWhatIsThere(Pipe& pipe);
  void Publish();

  const int notify_fd_;
  io::UniqueFd epoll_, wake_;
  std::thread thread_;

  std::atomic<bool> output_watched_{false};
  mutable std::mutex mutex_;  // Guards these two; never held over I/O.
  std::vector<Order> orders_;
  Progress progress_;

  // The thread's own.
  std::map<int, Pipe> pipes_;  // By descriptor.
  std::string buffer_;
  Progress local_;
};

}  // namespace regroup::shim
