#include "launcher/coordinator/core/stall.h"

#include <algorithm>
#include <optional>
#include <variant>

#include "launcher/coordinator/core/events.h"
#include "launcher/coordinator/core/job.h"
#include "launcher/coordinator/core/step.h"

namespace regroup::coordinator {
namespace {

struct Longer {
  Duration gap;
  Instant until;
  // What is waited for until then.
  void Until(Instant& at) const { at += gap; }
  // What is waited for since then: it may have begun within the gap.
  void Since(Instant& at) const { at = std::max(at, std::min(at + gap, until)); }
  void Until(std::optional<Instant>& at) const {
    if (at) Until(*at);
  }
  void Since(std::optional<Instant>& at) const {
    if (at) Since(*at);
  }
};

// What a generation waits for that its members were told, or are to be told.
struct AnswersOf {
  const Longer& longer;
  void operator()(Proposed& proposed) const {
    longer.Since(proposed.wait_began);
    longer.Until(proposed.ack_deadline);
  }
  void operator()(Formed& formed) const {
    // A notice's time passes by itself.
    if (formed.saving && formed.saving->node.empty()) longer.Until(formed.saving->until);
  }
  void operator()(Ending& ending) const { longer.Until(ending.give_up); }
  void operator()(Over&) const {}
};

// And what it waits to hear.
struct SignsOf {
  const Longer& longer;
  void operator()(Proposed&) const {}
  void operator()(Formed& formed) const {
    longer.Until(formed.silence.return_until);
    for (auto& lost : formed.lost) longer.Since(lost.second);
    for (auto& member : formed.starts.returned) longer.Since(member.second);
  }
  void operator()(Ending&) const {}
  void operator()(Over& over) const { longer.Until(over.close_by); }
};

// Every soft instant that waits for somebody's answer to what is decided.
void ForEachAnswer(Step& step, const Longer& longer) {
  longer.Since(step.state.retention.last_told);
  for (auto& [id, job] : step.state.jobs) {
    longer.Since(job.times.over_at);
    longer.Until(job.gather.awaited_until);
    longer.Until(job.wait.until);
    if (job.stop) longer.Until(job.stop->give_up);
    for (auto& [generation, soft] : job.soft) {
      longer.Since(soft.since);
      std::visit(AnswersOf{longer}, soft.state);
    }
  }
}

// Of a node nothing was heard but its Hello: it says no more before its welcome has come.
void ForEachWelcome(Step& step, const Longer& longer) {
  for (auto& [id, node] : step.state.nodes) {
    const auto* attached = std::get_if<Attached>(&node.link);
    if (attached && node.lease.last_heard <= attached->since) longer.Since(node.lease.from);
  }
}

// And every one that waits for a sign of life. In neither list: what passes by itself (a notice's
// time), and deadlines that agents keep on clocks of their own.
void ForEachSign(Step& step, const Longer& longer) {
  longer.Since(step.state.recovered_at);
  longer.Until(step.state.fleet.brake.until);
  longer.Since(step.state.fleet.last_join);
  longer.Since(step.state.retention.idle_since);
  for (auto& [id, node] : step.state.nodes) {
    longer.Since(node.lease.from);
    longer.Until(node.lease.kept_until);
    if (auto* attached = std::get_if<Attached>(&node.link)) longer.Since(attached->since);
    if (auto* lost = std::get_if<Lost>(&node.link)) longer.Since(lost->at);
    if (Away* away = AwayOf(node.link)) {
      longer.Since(away->broken_at);
      longer.Until(away->awaited_until);
    }
  }
  for (auto& [id, job] : step.state.jobs) {
    for (auto* at : {&job.gather.below_since, &job.gather.enough_since, &job.launch.last_join})
      longer.Since(*at);
    for (auto& trial : job.unsteady.trials) longer.Until(trial.second.until);
    for (auto& newcomer : job.unsteady.newcomers) longer.Since(newcomer.second.since);
    for (auto& [generation, soft] : job.soft) std::visit(SignsOf{longer}, soft.state);
  }
}

}  // namespace

void On(Step& step, const Stalled& event) {
  const Longer longer{event.gap, event.until};
  ForEachAnswer(step, longer);
  if (event.heard) return ForEachWelcome(step, longer);
  ForEachSign(step, longer);
}

}  // namespace regroup::coordinator
