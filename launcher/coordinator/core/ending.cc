#include "launcher/coordinator/core/ending.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "launcher/coordinator/core/accounts.h"
#include "launcher/coordinator/core/actions.h"
#include "launcher/coordinator/core/budget.h"
#include "launcher/coordinator/core/failure_policy.h"
#include "launcher/coordinator/core/job.h"
#include "launcher/coordinator/core/members.h"
#include "launcher/coordinator/core/news.h"
#include "launcher/coordinator/core/node.h"
#include "launcher/coordinator/core/node_in_job.h"
#include "launcher/coordinator/core/proposal.h"
#include "launcher/coordinator/core/rows.h"
#include "launcher/coordinator/core/step.h"

namespace regroup::coordinator {
namespace {

struct MarkSaved {
  bool saved;
  void operator()(Preempted& reason) const { reason.saved = reason.saved || saved; }
  template <class R>
  void operator()(R&) const {}
};

// Whoever is lost is on trial: lost again within it, it flaps.
void PutOnTrial(Step& step, Job& job, const Formed& was) {
  std::erase_if(job.unsteady.newcomers, [&](const auto& newcomer) {
    return newcomer.second.since + step.config().forming.newcomer_trial <= step.now();
  });
  std::set<NodeId> lost = was.blinked;
  for (const auto& entry : was.lost) lost.insert(entry.first);
  for (const NodeId& id : lost) {
    auto [newcomer, first] = job.unsteady.newcomers.try_emplace(id);
    newcomer->second.since = step.now();
    newcomer->second.flaps = !first;
    if (!first) ++job.unsteady.lost_newcomers;
  }
}

// Progress ends a row of failures, and with it the back-off: PROTOCOL §3.
bool HasProgressed(const State& state, const Job& job, const Course& course) {
  if (course.progress.last_step && *course.progress.last_step > job.state.reached.step) return true;
  if (job.commit && course.running_at && job.commit->generation == job.state.last_formed)
    return true;
  // A script may ask for notices and tell of no step: of its progress that says nothing.
  return !course.progress.first_step && course.running_at &&
         state.now - *course.running_at >= state.config.retries.silent_progress;
}

// Ends that somebody wanted are not looked at, nor proposals that came to nothing.
bool HadProgressedBefore(const Job& job) {
  for (auto at = job.generations.rbegin(); at != job.generations.rend(); ++at) {
    const GenerationRow& row = at->second;
    if (row.generation >= job.state.last_formed || row.voided || !row.ended) continue;
    if (row.progressed || KindOf(*row.ended) != EndKind::kNeutral) return row.progressed;
  }
  return false;
}

// A loss may follow another one before anybody has come to a step. Ranks that failed without
// progress a second time in a row may have been kept once too often: then all start anew.
bool EndsInPlace(const State& state, const Job& job, StopReason reason, const Course& course) {
  if (!job.spec.spec.keeps_ranks() || job.state.verdict) return false;
  if (reason == StopReason::kElective) return true;
  return reason == StopReason::kFailure &&
         (HasProgressed(state, job, course) || HadProgressedBefore(job));
}

// All survivors are free or given up: the generation's row says why it ended as far as that is
// known, and the job gathers again. Its verdict stays open until the last member has told.
void EndGeneration(Step& step, Job& job, Generation generation, const Ending& ending) {
  const EndReason reason = ending.course.causes.Reason();
  const Instant give_up = ending.give_up;
  JobStateRow state = job.state;
  PutEnded(step, job, generation, state);  // From here on it is no longer `ending`.
  const GenerationRow& row = job.generations.at(generation);
  state.phase = JobPhase::kRegrouping;
  step.UpdateState(job, [&](JobStateRow& next) { next = state; });
  const Streak streak = StreakWith(job, row);
  const GenerationRow* next = ProposedOf(job);
  // Newcomers have prepared for a growth of what has now failed; whoever is left gathers anew.
  if (next && !std::holds_alternative<Resized>(reason))
    VoidProposal(step, job, next->generation, {});
  // From the detection on, so that a slow stop counts as part of the wait.
  job.gather.not_before = *job.outage.detected_at + BackOffAfter(step.state, job, row, streak);
  job.gather.awaited_until = give_up;
  job.outage.free_at = step.now();
  job.gather.below_since.reset();
  job.times.last_change = step.now();
  job.nodes.claims_dirty = true;
}

}  // namespace

void BeginEnding(Step& step, Job& job, StopReason reason, Duration grace) {
  const Generation generation = job.state.last_formed;
  GenerationSoft& soft = job.soft.at(generation);
  Formed was = std::move(As<Formed>(soft));
  Ending& ending = soft.state.emplace<Ending>();
  ending.course = std::move(was.course);
  std::optional<CauseAt>& worst = ending.course.causes.worst;
  if (was.saving && worst) std::visit(MarkSaved{was.saving->saved}, worst->reason);
  job.outage = Outage{};
  const bool elective = reason == StopReason::kElective || reason == StopReason::kNotice;
  // A change that somebody wanted has no cause in time: nothing was down before it was noticed.
  const Instant oldest =
      step.now() - GenerationAge(step.state, job.generations.at(generation), soft.since);
  if (!elective)
    job.outage.event_at = worst ? std::clamp(worst->at, oldest, step.now()) : step.now();
  job.outage.detected_at = job.outage.held_until = step.now();
  job.outage.nodes = static_cast<int>(soft.members.size());
  const Instant deadline = step.now() + grace;
  ending.give_up = deadline + step.config().ending.stop_margin;
  job.stop = StopOrder{generation, reason, deadline, ending.give_up,
                       EndsInPlace(step.state, job, reason, ending.course)};
  for (const auto& member : soft.members) {
    // Who is lost or has shown its slots free already has nothing more to tell.
    if (!IsSettled(step.state, job, generation, member.first)) ending.waiting.insert(member.first);
  }
  job.gather.membership_known = true;
  if (const GenerationRow* next = ProposedOf(job); next && reason != StopReason::kElective)
    VoidProposal(step, job, next->generation, {});
  PutOnTrial(step, job, was);
  step.ReorderMembers(job, soft);
  step.Say(Severity::kInfo, "generation ends",
           {{"job", job.id().value()},
            {"generation", absl::StrCat(generation.value())},
            {"stop_s", absl::StrCat(Seconds(grace))}});
}

bool AdvanceEnding(Step& step, Job& job) {
  const Generation generation = job.state.last_formed;
  const Ending& ending = As<Ending>(job.soft.at(generation));
  // A rank of the old generation that still ran beside the new one could write its checkpoints: so
  // the next generation waits for free slots, or until the agents have killed what did not stop.
  if (!ending.waiting.empty() && step.now() < ending.give_up) {
    std::vector<std::string> names;
    for (const NodeId& id : ending.waiting)
      if (names.size() < kMaxNames) names.push_back(step.state.NameOf(id));
    SetWait(step, job, SlotsStopping{names, Duration{}}, ending.give_up);
    step.Wake(job, ending.give_up);
    return false;
  }
  EndGeneration(step, job, generation, ending);
  return true;
}

void PutEnded(Step& step, Job& job, Generation generation, JobStateRow& state) {
  GenerationSoft& soft = job.soft.at(generation);
  Ending& ending = As<Ending>(soft);
  GenerationRow row = job.generations.at(generation);
  row.phase = GenerationPhase::kOver;
  row.ended_at = step.wall();
  row.ended = ending.course.causes.Reason();
  row.verdict_open = true;
  row.progressed = HasProgressed(step.state, job, ending.course);
  CloseAccount(step.state, job, soft, row, state);
  FitRow(row);
  step.Put(row);
  // A member that never tells must not keep the verdict, and with it a budget, open for ever.
  const Instant close_by =
      std::max(step.now(), ending.give_up) + step.config().ending.verdict_limit;
  soft.state = Over{std::move(ending.course.causes), std::move(ending.waiting), close_by};
}

void CloseAccount(const State& state, const Job& job, const GenerationSoft& soft,
                  GenerationRow& row, JobStateRow& total) {
  const Progress& progress = CourseOf(soft)->progress;
  row.steps.first = progress.first_step;
  row.steps.last = progress.last_step;
  row.steps.restored = progress.restored_step;
  row.phases.init = progress.init;
  row.phases.restore = progress.restore;
  row.phases.first_step = progress.first_step_took;
  if (progress.last_step)
    // Totals only rise: a generation that restored an older checkpoint has still been
    // further before.
    total.reached.step = std::max(total.reached.step, *progress.last_step);
  total.reached.samples = std::max(total.reached.samples, progress.samples);
  total.reached.tokens = std::max(total.reached.tokens, progress.tokens);
  Book(RunAccount(job, row, soft, state.now), total);
}

}  // namespace regroup::coordinator
