#pragma once

// The shim's side of warm ranks: a child of this process (nursery.py, become_shim) that has
// imported what the ranks need forks them, and ends before they begin, so that they are this
// process's own.

#include <sys/types.h>

#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "agent/shim/spawn_rank.h"

namespace regroup::shim {

// Between a fork of a rank and its first instruction lies Finish: until then it does nothing, and
// ends by itself when this object is gone. Main thread.
class WarmStart {
 public:
  // `socket` leads to the child `pid` of this process.
  WarmStart(io::UniqueFd socket, pid_t pid) : socket_(std::move(socket)), pid_(pid) {}

  pid_t pid() const { return pid_; }
  // As SpawnRank, and of its guarantees none is missing once Finish has returned. After an error
  // further calls fail at once, and no process of that rank will ever run. Waits a second at most.
  absl::StatusOr<SpawnedRank> SpawnRank(const Spec& spec, const RankPlan& plan, const RankFds& fds,
                                        int default_oom_score_adj);
  // Has it fork its like, which can fork the ranks that replace those of now: see TakeSpare. Before
  // the first SpawnRank, since afterwards the child may be in the group's cgroup. An error: there
  // will be none. Waits a second at most.
  absl::Status AskForSpare();
  // Ends and reaps the child, then lets all that were forked begin.
  void Finish();
  // What AskForSpare has asked for, a child of this process after Finish. It ends by itself when
  // the result is gone.
  std::optional<WarmStart> TakeSpare();

 private:
  io::UniqueFd socket_;
  pid_t pid_;
  io::UniqueFd spare_socket_;
  pid_t spare_pid_ = 0;
  std::vector<io::UniqueFd> go_;
};

}  // namespace regroup::shim
