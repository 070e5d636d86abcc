#include "agent/core/notices.h"

#include <algorithm>
#include <csignal>

namespace regroup::agent {

void NotifyWorkers(Step& step, const GroupKey& key, Group& group) {
  Noticed& notice = group.notice;
  if (group.phase != Phase::kRunning || !notice.deadline) return;
  const Duration left = std::max(Duration::zero(), *notice.deadline - step.now());
  const bool signal = !notice.signals_sent;
  for (const auto& [local_rank, start] : group.ranks.starts) {
    if (group.ranks.exits.contains(local_rank)) continue;
    const auto speaker = notice.speaking.find(local_rank);
    if (speaker != notice.speaking.end() && speaker->second) {
      if (notice.told.insert(local_rank).second) step.Do(TellNotice{key, local_rank, left});
    } else if (signal) {
      // An end from then on is no failure of the rank.
      notice.signalled_at.emplace(local_rank, step.now());
      step.Do(SignalRank{key, local_rank, SIGTERM});
    }
  }
  notice.signals_sent = true;
}

}  // namespace regroup::agent
