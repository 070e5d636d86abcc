#include "launcher/coordinator/core/reports.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "launcher/coordinator/core/actions.h"
#include "launcher/coordinator/core/events.h"
#include "launcher/coordinator/core/job.h"
#include "launcher/coordinator/core/links.h"
#include "launcher/coordinator/core/members.h"
#include "launcher/coordinator/core/news.h"
#include "launcher/coordinator/core/node.h"
#include "launcher/coordinator/core/node_in_job.h"
#include "launcher/coordinator/core/orders.h"
#include "launcher/coordinator/core/rows.h"
#include "launcher/coordinator/core/step.h"

namespace regroup::coordinator {
namespace {

// Empty: accept. `known`: the very same commit was accepted before. Only a member of the newest
// generation commits, and only forward: a worker that was cut off and has missed the end of its
// generation must not overwrite what its successors wrote.
std::string WhyNotCommit(const Job& job, const Node& node, const CommitRequest& request,
                         bool* known) {
  const JobStateRow& state = job.state;
  if (request.generation != state.last_formed)
    return absl::StrCat("generation ", request.generation.value(), " is over, the current one is ",
                        state.last_formed.value());
  if (state.phase == JobPhase::kEnded) return absl::StrCat(job.id().value(), " has ended");
  const GenerationRow& row = job.generations.at(request.generation);
  const bool member =
      std::any_of(row.members.begin(), row.members.end(),
                  [&](const GenerationMember& m) { return m.node == node.row.node; });
  if (!member)
    return absl::StrCat(node.row.name, " is no member of generation ", request.generation.value());
  if (job.commit && job.commit->generation == request.generation) {
    if (request.step > job.commit->step) return "";
    *known = request.step == job.commit->step && request.manifest_hash == job.commit->manifest_hash;
    if (*known) return "";
    return absl::StrCat("step ", job.commit->step, " was committed already, this is step ",
                        request.step);
  }
  // A generation that restored an older checkpoint than it was told to may commit from there on.
  std::int64_t floor = row.resume_step;
  const Course* course = CourseOf(job, request.generation);
  // While it runs its workers' words are newer than its row, which gets them at its end.
  const auto& restored = course != nullptr ? course->progress.restored_step : row.steps.restored;
  if (restored) floor = *restored;
  if (request.step > floor) return "";
  return absl::StrCat("generation ", request.generation.value(), " resumed from step ", floor,
                      ", this is step ", request.step);
}

}  // namespace

void On(Step& step, const Reported& event) {
  Node* node = step.state.NodeOf(event.session);
  if (node == nullptr) return;
  Heard(step, *node);
  const GroupReport& report = event.report;
  // Acknowledged whatever becomes of it: an agent repeats a report until then, and this one would
  // be judged alike each time.
  step.Do(AckReport{event.session, report.number});
  Job* job = step.state.FindJob(report.job);
  step.state.SlotsChanged(*node);
  const bool kept = (job == nullptr || report.generation <= job->state.last_number) &&
                    KeepReport(step, *node, report);
  if (kept && job == nullptr && StopUnknown(step, *node, report.job)) return;
  if (!kept || job == nullptr || report.generation > job->state.last_number) {
    step.Say(Severity::kWarning, "report of a group that this journal does not know",
             {{"node", node->row.name},
              {"job", report.job.value()},
              {"generation", absl::StrCat(report.generation.value())}});
    return;
  }
  // A report of a group as new as the one that was ordered answers the Prepare, also one that was
  // withdrawn since.
  const auto asked = node->orders.unanswered.find(report.job);
  if (asked != node->orders.unanswered.end() && report.generation >= asked->second)
    node->orders.unanswered.erase(asked);
  Touch(*job, *node);
  WatchGroup(step, *node, report);
  RefreshMember(step, *job, *node);
  step.LookAt(*job);
  step.Reorder(*job, node->row.node);
}

void On(Step& step, const Progressed& event) {
  Node* node = step.state.NodeOf(event.session);
  if (node == nullptr) return;
  Heard(step, *node);
  Job* job = step.state.FindJob(event.progress.job);
  if (job == nullptr) return;
  auto found = job->soft.find(event.progress.generation);
  if (found == job->soft.end() || !found->second.members.contains(node->row.node)) return;
  Course* course = CourseOf(found->second);
  if (course == nullptr) return;
  // Only the first word changes what may be decided (a notice waits for its save); the others come
  // with every step and must cost nothing.
  const bool first = !course->progress.spoke;
  course->progress.Tell(event.progress, step.now());
  if (first) step.LookAt(*job);
}

void On(Step& step, const CommitAsked& event) {
  Node* node = step.state.NodeOf(event.session);
  if (node == nullptr) return;
  Heard(step, *node);
  const CommitRequest& request = event.request;
  CommitAnswer answer{request.job, request.generation, request.attempt, request.step, false, ""};
  Job* job = step.state.FindJob(request.job);
  if (job == nullptr) {
    answer.why_not = absl::StrCat("no job ", request.job.value());
    step.Do(AnswerCommit{event.session, answer});
    return;
  }
  bool known = false;
  answer.why_not = WhyNotCommit(*job, *node, request, &known);
  answer.accepted = answer.why_not.empty();
  // Asked again it is accepted again and nothing is written: the worker did not hear
  // the first answer.
  if (answer.accepted && !known) {
    step.Put(CommitRow{job->id(), request.generation, request.attempt, request.step,
                       request.manifest_hash, request.path, request.for_notice, step.wall()});
    AddEvent(step, *job, CommitAccepted{request.generation, request.step});
  }
  step.Do(AnswerCommit{event.session, answer});
  Formed* formed = In<Formed>(*job, request.generation);
  if (!request.for_notice || formed == nullptr) return;
  // No step follows: whether this save was needed or not, its workers now wait to be stopped.
  if (!formed->saving) formed->saving = Saving{"", step.now()};
  formed->saving->saved = true;
  step.LookAt(*job);
}

}  // namespace regroup::coordinator
