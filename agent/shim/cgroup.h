#pragma once

// One cgroup v2 folder that holds the ranks of one group.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/io/fd.h"

namespace regroup::shim {

class Cgroup {
 public:
  // NOT_FOUND when there is no such folder.
  static absl::StatusOr<Cgroup> Open(const std::string& path);

  int fd() const { return fd_.get(); }  // For CLONE_INTO_CGROUP.
  // For epoll: EPOLLPRI when `populated` changes.
  int events_fd() const { return events_.get(); }
  // Does a live process exist in it or below?
  absl::StatusOr<bool> Populated() const;
  std::vector<pid_t> Processes() const;  // Of this folder only.
  // SIGKILL to everything in it and below, also to what is being forked.
  absl::Status KillAll() const;
  // Processes of this cgroup that the kernel killed for memory; NOT_FOUND without the memory
  // controller.
  absl::StatusOr<long> OomKills() const;
  absl::Status Remove();  // REQUIRES: not populated.

 private:
  Cgroup(std::string path, io::UniqueFd fd, io::UniqueFd events)
      : path_(std::move(path)), fd_(std::move(fd)), events_(std::move(events)) {}
  std::string path_;
  io::UniqueFd fd_, events_;
};

// Whether a kernel of this release ("5.14.0-70.el9") can end all processes of a cgroup at once.
bool HasCgroupKill(const std::string& release);

// Sum over the whole host, of all cgroups: /proc/vmstat's oom_kill.
long HostOomKills();

}  // namespace regroup::shim
