#include "agent/core/workers.h"

#include <variant>

#include "agent/core/commits.h"
#include "agent/core/group.h"
#include "agent/core/in_place.h"
#include "agent/core/notices.h"
#include "agent/core/progress.h"
#include "common/base/control.h"

namespace regroup::agent {

void On(Step& step, const WorkerSaid& said) {
  Group* group = step.state.Find(said.key);
  if (group == nullptr || said.local_rank < 0 || said.local_rank >= group->workers) return;
  if (const auto* hello = std::get_if<WorkerHello>(&said.what)) {
    group->notice.speaking[said.local_rank] = hello->takes_notice;
    group->notice.told.erase(said.local_rank);
    if (hello->in_place) {
      group->in_place.able.insert(said.local_rank);
      group->in_place.were_able.insert(said.local_rank);
    } else {
      group->in_place.able.erase(said.local_rank);
      group->in_place.were_able.erase(said.local_rank);
    }
    group->in_place.awaited.erase(said.local_rank);
    TellToRetire(step, said.key, *group, said.local_rank);
    // It may have reconnected, or come late: what it missed is told again.
    if (group->notice.deadline && hello->takes_notice) NotifyWorkers(step, said.key, *group);
  } else if (const auto* progress = std::get_if<WorkerProgress>(&said.what)) {
    KeepProgress(step, said.key, said.local_rank, *progress);
  } else if (const auto* request = std::get_if<CommitRequest>(&said.what)) {
    AskCommit(step, said.key, *request);
  } else if (const auto* failed = std::get_if<CommunicatorFailed>(&said.what)) {
    group->ranks.communicator_failed[said.local_rank] = failed->text.substr(0, kMaxErrorBytes);
  } else if (std::holds_alternative<WorkerRetired>(said.what)) {
    RankHasRetired(step, said.key, *group, said.local_rank);
  } else if (const auto* unable = std::get_if<WorkerCannotGoOn>(&said.what)) {
    RankCannotGoOn(step, said.key, *group, said.local_rank, unable->why.substr(0, kMaxErrorBytes));
  }
}

void On(Step& step, const WorkerHungUp& hung_up) {
  Group* group = step.state.Find(hung_up.key);
  if (group == nullptr) return;
  // Without a connection only a signal reaches it; one that dials again is told again.
  group->notice.speaking.erase(hung_up.local_rank);
  group->in_place.able.erase(hung_up.local_rank);
  group->notice.told.erase(hung_up.local_rank);
}

}  // namespace regroup::agent
