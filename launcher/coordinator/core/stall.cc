#include "launcher/coordinator/core/stall.h"

#include <functional>
#include <optional>

#include "launcher/coordinator/core/events.h"
#include "launcher/coordinator/core/step.h"

namespace regroup::coordinator {
namespace {

// Every soft instant that waits for somebody else: nobody could be heard while the loop stood
// still. Not here: what passes by itself (back-off, settling, a notice's time), and deadlines that
// agents keep on clocks of their own.
void ForEachWait(Step& step, const std::function<void(Instant&)>& extend) {
  const auto extend_if = [&](std::optional<Instant>& at) {
    if (at) extend(*at);
  };
  extend(step.state.recovered_at);
  extend(step.state.fleet.brake.until);
  extend_if(step.state.fleet.last_join);
  extend_if(step.state.retention.idle_since);
  for (auto& [id, node] : step.state.nodes) {
    for (Instant* at :
         {&node.lease_from, &node.broken_at, &node.awaited_until, &node.attached_at, &node.lost_at})
      extend(*at);
    extend_if(node.kept_until);
  }
  for (auto& [id, job] : step.state.jobs) {
    extend(job.awaited_until);
    for (auto* at : {&job.below_since, &job.enough_since, &job.last_join, &job.wait_until})
      extend_if(*at);
    for (auto& trial : job.trials) extend(trial.second.until);
    for (auto& newcomer : job.newcomers) extend(newcomer.second.since);
    if (job.stop) extend(job.stop->give_up);
    for (auto& [generation, soft] : job.soft) {
      extend(soft.proposal.ack_deadline);
      extend(soft.since);
      extend(soft.silence.return_until);
      extend(soft.close_by);
      for (auto& lost : soft.lost) extend(lost.second);
      if (soft.ending) extend(soft.ending->give_up);
      if (soft.saving && soft.saving->node.empty()) extend(soft.saving->until);
    }
  }
}

}  // namespace

void On(Step& step, const Stalled& event) {
  ForEachWait(step, [&](Instant& at) { at += event.gap; });
}

}  // namespace regroup::coordinator
