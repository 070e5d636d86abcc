#pragma once

#include <sys/types.h>

#include <string>

#include "absl/status/statusor.h"
#include "agent/shim/protocol.h"
#include "common/base/time.h"
#include "common/io/fd.h"

namespace regroup::shim {

// The process that says whether this node may take part (JobSpec::node_check). It never waits: its
// owner, the thread that supervises, tells it what happened and ends what it leaves behind.
class NodeCheckProcess {
 public:
  // Clones `sh -c LINE` where ranks would run. What it prints is read from one pipe.
  // REQUIRES: spec.node_check.wanted().
  static absl::StatusOr<NodeCheckProcess> Start(const Spec& spec, int dev_null_fd, int cgroup_fd,
                                                int default_oom_score_adj);

  pid_t pid() const { return pid_; }
  bool in_cgroup() const { return in_cgroup_; }
  Instant deadline() const { return deadline_; }
  int output_fd() const { return output_.get(); }  // Readable: ReadOutput. -1: closed.

  void ReadOutput();
  // How it failed, any bytes; empty: it has passed. `code` and `status` are waitid's.
  std::string Judge(int code, int status, OomEvidence oom);
  std::string TimedOut();

 private:
  NodeCheckProcess() = default;
  std::string WithLastLine(const std::string& what);

  pid_t pid_ = 0;
  bool in_cgroup_ = false;
  Instant deadline_{};
  Duration timeout_{};
  io::UniqueFd output_, exec_status_;
  std::string tail_;  // Of what it has printed.
};

}  // namespace regroup::shim
