#include "launcher/coordinator/core/answers.h"

#include <memory>

#include "launcher/coordinator/core/actions.h"
#include "launcher/coordinator/core/events.h"
#include "launcher/coordinator/core/job.h"
#include "launcher/coordinator/core/node.h"
#include "launcher/coordinator/core/step.h"
#include "launcher/coordinator/core/views.h"

namespace regroup::coordinator {

void On(Step& step, const CallDropped& event) {
  // The caller hung up. Its place is free for another one at once: there are only so many.
  auto waiting = step.state.waiting_calls.find(event.call);
  if (waiting == step.state.waiting_calls.end()) return;
  if (Job* job = step.state.FindJob(waiting->second)) job->waiters.erase(event.call);
  step.state.waiting_calls.erase(waiting);
}

void AnswerWaiters(Step& step, Job& job) {
  if (job.waiters.empty()) return;
  // Made once for all of them: thousands may wait for the same job.
  const JobView view = ViewOf(step.state, job, true, step.state.moment());
  for (CallId call : job.waiters) {
    step.state.waiting_calls.erase(call);
    step.Do(Answer{call, ReadReply{{view}, {}}});
  }
  job.waiters.clear();
}

void SendResults(Step& step, Job& job) {
  std::shared_ptr<const JobView> result;
  for (const NodeId& id : job.launch.nodes)
    if (Node* node = step.state.FindNode(id)) SendResultTo(step, job, *node, result);
}

void SendResultTo(Step& step, Job& job, Node& node, std::shared_ptr<const JobView>& result) {
  // Once per session: one that opens later asks with the same key and is told then (LaunchAsked).
  if (!node.attached() || node.told_result == job.id()) return;
  node.told_result = job.id();
  step.state.retention.last_told = step.now();
  if (!result) result = std::make_shared<const JobView>(ResultOf(step.state, job));
  step.Do(SendResult{node.attached()->session, result});
}

}  // namespace regroup::coordinator
