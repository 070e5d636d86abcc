#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/time.h"
#include "common/io/fd.h"
#include "common/io/log_files.h"

namespace regroup::shim {

// One thread that moves what ranks write from their pipes into log files. It alone touches the
// disk; whoever owns this object never waits for it.
//
// The log is also the queue of a launch command that shows the output, so:
//   - While a reader is connected, nothing that it has not shown is removed. What it has shown is
//     told by it, absolutely and again and again (SetReader); of a stream that it has not named yet
//     it has shown nothing. The position dies with the connection: a launch command ends its
//     workers when it ends, so nobody comes back for the rest, and a reader that does come back
//     says itself where it stands.
//   - More than `room_bytes` unshown: pipes are no longer read, so that workers wait, as under a
//     plain pipe. A rank that ended and a stop that was signalled wait for nobody.
//   - Less than max(64 MiB, 10 %) of the disk free: output is not kept, so that the coordinator's
//     journal can always commit. With a reader it goes through segments in memory, at most
//     kMemoryBytes a stream, then workers wait; without one it is lost, counted and told.
//   - What the disk refuses for another reason goes the same ways.
//   - Without a reader workers never wait.
class LogDrain {
 public:
  static constexpr std::uint64_t kMemoryBytes = 1 << 20;  // Of a stream, before its rank waits.
  // Of one whose rank is not to wait any more: beyond it output is lost.
  static constexpr std::uint64_t kMostMemoryBytes = 16 << 20;
  static constexpr std::uint64_t kLeastFreeBytes = 64 << 20;
  // Pure. `full`: what it was before; it takes an eighth more than the least to become free again.
  static bool DiskIsFull(std::uint64_t free_bytes, std::uint64_t total_bytes, bool full);

  // `notify_fd` (an eventfd) is written when Look() would show a new trouble, `complete` or `done`;
  // and, once after each WatchOutput, more output.
  static absl::StatusOr<std::unique_ptr<LogDrain>> Start(int notify_fd);
  ~LogDrain();  // REQUIRES: done() or Abandon() before.

  // Where the output of one rank goes. `id`: of this process of it in this generation, never used
  // for another one. `passing`: its folder for what is only shown; empty: none.
  struct Place {
    int id = 0, local_rank = 0;
    std::string directory, passing{};
    io::LogLimits limits{};
  };
  // Read ends of the pipes of one rank.
  void AddRank(const Place& place, io::UniqueFd standard_output, io::UniqueFd standard_error);
  // The rank goes on in another generation: what it has written by now belongs to `id`, what
  // follows to `place`. A line that has begun is finished first, where that takes no longer than
  // kLineLimit from its last byte. Then `place` is `moved`.
  void MoveRank(int id, const Place& place);
  static constexpr std::chrono::milliseconds kLineLimit{100};
  // The rank has ended: what its pipes hold now is all that is waited for, though a process it left
  // may hold them open.
  void RankEnded(int id);
  void Forget(int id);  // It is not asked for in `complete` and `moved` any more.
  // Nobody is left who could write: the thread ends after what the pipes hold now. A reader that
  // leaves from here on has got what it waited for, the end of the group, and reads the rest of the
  // files by itself: nothing that it has not shown is removed.
  void Finish();

  // All that is known of whoever shows the output; replaces what was said before.
  struct Reader {
    bool present = false;
    bool waits = true;                                               // False: a stop was signalled.
    std::uint64_t room_bytes = 4ull << 30;                           // Of all ranks together.
    std::map<std::pair<int, io::LogStream>, io::LogPosition> shown;  // By local rank.
    friend bool operator==(const Reader&, const Reader&) = default;
  };
  void SetReader(Reader reader);

  struct Progress {
    std::uint64_t output_bytes = 0, lost_bytes = 0;
    std::uint64_t unshown_bytes = 0;  // 0 without a reader.
    bool disk_full = false;           // Output is not kept now.
    std::string trouble;
    std::set<int> complete;  // Of ranks that ended and whose output is written.
    std::set<int> moved;     // What they write from now on goes there.
    bool done = false;       // After Finish.
  };
  Progress Look() const;
  void WatchOutput() { output_watched_ = true; }
  // Leaves a thread that hangs on a disk behind. Only before _exit.
  void Abandon() { thread_.detach(); }

 private:
  struct Pipe {
    int id = 0, local_rank = 0;
    io::LogStream stream = io::LogStream::kStdout;
    io::UniqueFd fd;
    std::unique_ptr<io::LogWriter> writer;
    bool paused = false;                    // Not in the epoll set.
    bool in_line = false;                   // What was read last has no end of a line yet.
    Instant read_at{};                      // When that was.
    int next_id = 0;                        // With `next`.
    std::unique_ptr<io::LogWriter> next{};  // At the end of the line.
  };
  struct Order {
    enum Kind { kAdd, kMove, kRankEnded, kForget, kFinish } kind = kAdd;
    int id = 0;
    std::vector<Pipe> pipes;  // Of kMove: without descriptors.
    std::string directory{};
    bool passing = false;
  };

  explicit LogDrain(int notify_fd) : notify_fd_(notify_fd) {}
  static Order OrderFor(Order::Kind kind, const Place& place);
  void Post(Order order);
  void Run();
  int WaitMilliseconds() const;
  void TakeOrders();
  void Add(Order& order);
  void Move(Order& order);
  void FinishMove(Pipe& pipe);
  void FinishMoves();
  void Watch(Pipe& pipe, bool watched);
  void ApplyReader();
  bool MustWait(const Pipe& pipe) const;
  void WaitOrGoOn();
  bool ReadOnce(Pipe& pipe);
  void ReadWhatIsThere(Pipe& pipe);
  void Write(Pipe& pipe, std::string_view bytes);
  void LookAtDisk(std::size_t about_to_write);
  void Publish();

  const int notify_fd_;
  io::UniqueFd epoll_, wake_;
  std::thread thread_;

  std::atomic<bool> output_watched_{false};
  mutable std::mutex mutex_;  // Guards these; never held over I/O.
  std::vector<Order> orders_;
  Reader told_;
  Progress progress_;
  bool finishing_ = false;

  // The thread's own.
  std::map<int, Pipe> pipes_;  // By descriptor.
  std::set<int> moving_;       // Not yet `moved`.
  std::string buffer_;
  Progress local_;
  Reader reader_;
  std::string log_directory_;  // Of some rank: all lie on one disk.
  bool passes_ = false;
  Instant disk_seen_{};
  std::uint64_t written_since_ = 0;  // Since then.
};

}  // namespace regroup::shim
