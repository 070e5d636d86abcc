#include "launcher/coordinator/core/news.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>

#include "launcher/coordinator/core/actions.h"
#include "launcher/coordinator/core/job.h"
#include "launcher/coordinator/core/node.h"
#include "launcher/coordinator/core/rows.h"
#include "launcher/coordinator/core/step.h"
#include "launcher/coordinator/core/views.h"

namespace regroup::coordinator {

void AddEvent(Step& step, Job& job, JobEventBody body) {
  // Of thousands of launch commands each would print thousands of joins; one of them
  // prints those for all.
  const bool minor =
      std::holds_alternative<NodeJoined>(body) || std::holds_alternative<Waits>(body) ||
      std::holds_alternative<CommitAccepted>(body) || std::holds_alternative<NodeLeft>(body);
  JobEvent event{job.events.empty() ? 1 : job.events.back().number + 1, step.wall(),
                 std::move(body)};
  const bool to_first = minor && job.launch.nodes.size() > kFewLaunchers && job.launch.first;
  auto tell = [&](const NodeId& id) {
    const Node* node = step.state.FindNode(id);
    if (node && node->attached()) step.Do(SendNews{node->attached()->session, job.id(), event});
  };
  if (to_first) {
    tell(*job.launch.first);
  } else {
    for (const NodeId& id : job.launch.nodes) tell(id);
  }
  step.Put(JobEventRow{job.id(), std::move(event)});
}

void SetWait(Step& step, Job& job, std::optional<WaitReason> reason, std::optional<Instant> until) {
  // The same kind with other numbers is one wait: it keeps its beginning, and is told once.
  const bool same = reason && job.wait.reason && reason->index() == job.wait.reason->index();
  job.wait.reason = std::move(reason);
  job.wait.until = until;
  if (same) return;
  job.wait.since = step.now();
  if (!job.wait.reason) return;
  const bool regroups = job.state.last_formed > Generation();
  const bool worth_telling =
      std::holds_alternative<BackingOff>(*job.wait.reason) ||
      std::holds_alternative<UnreachableHold>(*job.wait.reason) ||
      std::holds_alternative<FinishHold>(*job.wait.reason) ||
      std::holds_alternative<SavingBeforeLeave>(*job.wait.reason) ||
      (std::holds_alternative<BelowMinimum>(*job.wait.reason) && (regroups || job.launched()));
  if (!worth_telling) return;
  const Duration left = until ? std::max(*until - step.now(), Duration{}) : Duration{};
  AddEvent(step, job, Waits{WithLeft(*job.wait.reason, left)});
}

}  // namespace regroup::coordinator
