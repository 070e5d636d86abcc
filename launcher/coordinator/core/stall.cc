#include "launcher/coordinator/core/stall.h"

#include <functional>
#include <optional>
#include <variant>

#include "launcher/coordinator/core/events.h"
#include "launcher/coordinator/core/job.h"
#include "launcher/coordinator/core/step.h"

namespace regroup::coordinator {
namespace {

// What a generation waits for in each state.
struct WaitsOf {
  const std::function<void(Instant&)>& extend;
  void operator()(Proposed& proposed) const { extend(proposed.ack_deadline); }
  void operator()(Formed& formed) const {
    extend(formed.silence.return_until);
    for (auto& lost : formed.lost) extend(lost.second);
    for (auto& member : formed.starts.returned)
      if (member.second) extend(*member.second);
    // A notice's time passes by itself.
    if (formed.saving && formed.saving->node.empty()) extend(formed.saving->until);
  }
  void operator()(Ending& ending) const { extend(ending.give_up); }
  void operator()(Over& over) const { extend(over.close_by); }
};

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
    extend(node.lease.from);
    extend_if(node.lease.kept_until);
    if (auto* attached = std::get_if<Attached>(&node.link)) extend(attached->since);
    if (auto* lost = std::get_if<Lost>(&node.link)) extend(lost->at);
    if (Away* away = AwayOf(node.link)) {
      extend(away->broken_at);
      extend(away->awaited_until);
    }
  }
  for (auto& [id, job] : step.state.jobs) {
    extend(job.gather.awaited_until);
    for (auto* at : {&job.gather.below_since, &job.gather.enough_since, &job.launch.last_join,
                     &job.wait.until})
      extend_if(*at);
    for (auto& trial : job.unsteady.trials) extend(trial.second.until);
    for (auto& newcomer : job.unsteady.newcomers) extend(newcomer.second.since);
    if (job.stop) extend(job.stop->give_up);
    for (auto& [generation, soft] : job.soft) {
      extend(soft.since);
      std::visit(WaitsOf{extend}, soft.state);
    }
  }
}

}  // namespace

void On(Step& step, const Stalled& event) {
  ForEachWait(step, [&](Instant& at) { at += event.gap; });
}

}  // namespace regroup::coordinator
