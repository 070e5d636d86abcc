#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/time.h"

namespace regroup::worker {

// Who writes to a directory of checkpoints: one job. Two jobs that were given the same directory
// would number their attempts alike, sweep each other's files away, and commit turns of two
// trainings as if they were one.
//
//   free ──Take──► held ──Release: the job is done──► free
//                   ├──Leave: this process ends, its job may go on──► held for 5 s more
//                   ├──the process dies──► held until the lease is over
//                   └──a later generation of the job, or take_over──► lost
//
// The owner is a small file, DIRECTORY/owner. A thread renews its modification time twelve times a
// lease. Ages are measured against a file made at that moment, so that the clocks of hosts that
// share the directory do not matter. Two processes that take a directory in the same instant may
// both believe to have it; the one that wrote first finds out when it renews, and before it
// publishes anything. A full disk keeps nobody from resuming: the file is written once there is
// room, and before anything is published.
struct OwnerClaim {
  std::string job;  // Empty without a launcher: then this process is its own job.
  std::uint64_t generation = 0;
  bool take_over = false;  // From whoever holds it.
  Duration lease = std::chrono::seconds(60);
};

class Owner {
 public:
  // Blocks while another job holds the directory and may yet turn out to be dead, at most for one
  // lease; `waiting` is told of it once. Failed precondition, naming the job, when the holder
  // renews meanwhile. REQUIRES: the directory exists and can be written. Rank 0 only.
  static absl::StatusOr<std::unique_ptr<Owner>> Take(
      const std::string& directory, const OwnerClaim& claim,
      const std::function<void(const std::string& holder, Duration left)>& waiting);
  ~Owner();

  // Any thread. Reads the file. Failed precondition, naming the new owner: the directory is lost.
  absl::Status Check();
  // Any thread. Whether the renewing thread or Check has found the directory lost.
  bool lost() const { return lost_; }
  void Release();
  void Leave();
  // Any thread of a process that is about to end: as Leave, but a disk that does not answer keeps
  // it no longer than that.
  void LeaveWithin(Duration at_most);

 private:
  Owner(std::string path, OwnerClaim claim, std::string record);
  void Run();
  absl::Status Renew();
  bool End();  // False: it was over already.

  const std::string path_;
  const OwnerClaim claim_;
  const std::string record_;  // What the file holds while it is ours.
  std::atomic<bool> lost_{false};
  std::atomic<bool> over_{false};  // Released or left: the file is not touched any more.
  std::mutex file_;                // A renewal must not undo what Leave has written.
  std::mutex mutex_;               // For changed_.
  std::condition_variable changed_;
  std::thread thread_;
};

}  // namespace regroup::worker
