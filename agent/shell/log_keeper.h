#pragma once

// What is kept of the output of this node's groups, and for whom: shims hear how far a launch
// command has shown it, old generations are pruned, a full disk is told. Loop thread; files are
// touched on `disk` only.

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "agent/core/events.h"
#include "agent/shim/protocol.h"
#include "common/base/job_spec.h"
#include "common/io/log_files.h"

namespace regroup::agent {

// What a job keeps of its output. `kept_apart`: in a folder that was named for it (--log-dir),
// which has no limit unless one is given.
io::LogLimits LimitsOf(const JobSpec& job, bool kept_apart);

class LogKeeper {
 public:
  struct Handler {
    std::function<void(const GroupKey&, const shim::Shown&)> send;  // To its shim, if that lives.
    std::function<void(std::string)> tell;                          // May be empty.
  };
  LogKeeper(boost::asio::io_context& loop, boost::asio::thread_pool& disk, std::string log_root,
            Handler handler);
  ~LogKeeper();

  // How far a launch command is with every group whose output it has not shown to the end. Such a
  // group's logs are not pruned; its shim is told, with what room is left beside the other
  // generations of the job.
  void SetShown(std::map<GroupKey, shim::Shown> shown);
  // Unshown, of all generations of a job together: more, and workers wait.
  static constexpr std::uint64_t kUnshownBytesPerJob = 4ull << 30;

  void OnState(const GroupKey& key, const shim::State& state);
  void OnGone(const GroupKey& key);     // Its shim is gone; nothing more is written.
  void OnRemoved(const GroupKey& key);  // So is its run directory.

  // Before a group starts: the first failure and the last one stay readable, however often a job
  // restarts.
  void Prune(const GroupKey& current, io::LogLimits limits);

 private:
  struct Group {
    std::uint64_t unshown_bytes = 0;
    bool disk_full = false, removed = false;
  };
  std::uint64_t RoomFor(const GroupKey& key) const;
  void TellFullDisk();

  boost::asio::thread_pool& disk_;
  const std::string log_root_;
  const Handler handler_;
  std::map<GroupKey, shim::Shown> shown_;
  std::map<GroupKey, Group> groups_;
  boost::asio::steady_timer full_disk_timer_;
  bool full_disk_told_ = false;  // Less than kFullDiskInterval ago.
};

}  // namespace regroup::agent
