#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/shim/protocol.h"
#include "common/io/fd.h"

namespace regroup::shim {

// What a new rank's process needs beside its spec and plan.
struct RankFds {
  int standard_input = -1, standard_output = -1, standard_error = -1;
  int cgroup = -1;  // Folder to be born in; -1: none.
};

struct SpawnedRank {
  pid_t pid = 0;
  std::uint64_t start_ticks = 0;
  io::UniqueFd exec_status;  // Non-blocking; give what it holds to ReadExecStatus.
  bool in_cgroup = false;
};

// Clones and returns at once: whatever can hang on a disk (working directory, program) is done by
// the child. The child leads its own session and process group, dies with the calling *thread*
// (PDEATHSIG), has default dispositions and an empty signal mask, and no descriptors but 0, 1, 2.
// REQUIRES: the calling thread lives as long as the process.
absl::StatusOr<SpawnedRank> SpawnRank(const Spec& spec, const RankPlan& plan, const RankFds& fds,
                                      int default_oom_score_adj);

// Nothing yet; or the exec succeeded (failed_stage empty); or what failed with which errno.
struct ExecStatus {
  std::string failed_stage;
  int error = 0;
};
std::optional<ExecStatus> ReadExecStatus(int exec_status_fd);

}  // namespace regroup::shim
