#pragma once

// --event-log-handler console: what happens to this node's workers, as torchelastic's events say
// it, one JSON object a line with the keys, their order and the states of PyTorch 2.15. Pure.

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "common/base/time.h"
#include "common/base/views.h"
#include "common/config/launch_config.h"

namespace regroup::agent {

class TorchEvents {
 public:
  TorchEvents(const LaunchConfig& launch, std::string host);

  void JobKnown(const JobId& job);
  // RENDEZVOUS and ASSIGN_WORKER_RANKS of each generation that this node is in. `age`: of the
  // launch command, here and below.
  std::string On(const JobEventBody& event, const std::string& node, Duration age);
  // START of a worker.
  std::string Started(int rank, int local_rank, pid_t pid, Duration age) const;
  // SUCCEEDED, FAILED or TERMINATED of every worker of the last generation, and of this node.
  std::string Ended(const JobView& job, const std::string& node, Duration age) const;

 private:
  struct Worker {
    int rank = 0, local_rank = 0;
    std::int64_t pid = 0;
    const RankCause* failed = nullptr;
  };
  std::string Line(std::string_view state, const Worker* worker, std::optional<double> took_ms,
                   Duration age) const;

  std::string run_id_, role_, host_, backend_, program_;
  int group_rank_ = -1, nodes_ = 0, world_ = 0, restarts_ = 0;  // -1: not yet in a group.
};

}  // namespace regroup::agent
