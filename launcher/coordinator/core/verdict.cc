#include "launcher/coordinator/core/verdict.h"

#include <algorithm>
#include <cstdint>
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
#include "launcher/coordinator/core/ending.h"
#include "launcher/coordinator/core/failure_policy.h"
#include "launcher/coordinator/core/job.h"
#include "launcher/coordinator/core/news.h"
#include "launcher/coordinator/core/node.h"
#include "launcher/coordinator/core/node_in_job.h"
#include "launcher/coordinator/core/proposal.h"
#include "launcher/coordinator/core/retention.h"
#include "launcher/coordinator/core/rows.h"
#include "launcher/coordinator/core/step.h"
#include "launcher/coordinator/core/views.h"

namespace regroup::coordinator {
namespace {

constexpr std::size_t kMaxCharges = 1'000;
// Of a consequence's error text; the root cause keeps kMaxErrorBytes.
constexpr std::size_t kMaxConsequenceBytes = 512;
constexpr int kTakenPerStep = 12;  // Rows of unreachable nodes written in one step.

void RecordVerdict(Step& step, Job& job, Generation generation, const Causes& causes,
                   bool charged) {
  std::vector<RankCause> consequences;
  for (const auto& entry : causes.consequences) {
    consequences.push_back(entry.second);
    std::string& error = consequences.back().exit.error;
    if (error.size() > kMaxConsequenceBytes) error.resize(kMaxConsequenceBytes);
  }
  step.UpdateGeneration(job, generation, [&](GenerationRow& next) {
    // With the last word about the cause. From here on it is final, and its groups
    // may be forgotten.
    next.ended = causes.Reason();
    next.consequences = consequences;
    next.verdict_open = false;
    next.charged = charged;
    FitRow(next);
  });
}

ExcludedNode ExcludedOf(const GenerationRow& row, const ExecFailed& failed) {
  ExcludedNode excluded{NodeId(), failed.cause.node, failed.cause.exit.code,
                        failed.cause.exit.obstacle};
  for (const GenerationMember& member : row.members)
    if (member.name == failed.cause.node) excluded.node = member.node;
  return excluded;
}

std::string ProgramOf(const Job& job) {
  return job.spec.spec.command.empty() ? job.spec.spec.name : job.spec.spec.command[0];
}

void FailJob(Step& step, Job& job, const FailReason& failed, const std::optional<EndReason>& root) {
  SetVerdict(step, job, Verdict{VerdictState::kFailed, ExitCodeOf(failed, root), failed},
             Cancelled{"the job has failed"}, StopReason::kFailure,
             step.config().ending.failure_grace);
}

void CloseVerdict(Step& step, Job& job, Generation generation, const Over& over) {
  const EndReason reason = over.causes.Reason();
  const GenerationRow& row = job.generations.at(generation);
  const Streak streak =
      AfterEnd({job.state.ends.own, job.state.ends.free}, row.progressed, KindOf(reason));
  std::vector<ExcludedNode> excluded = job.state.excluded;
  std::optional<FailReason> failed;
  if (std::holds_alternative<ExecFailed>(reason)) {
    // A node that cannot execute the program is left out of the job, so that one bad node costs one
    // restart; where no node can, the job fails at once.
    const ExecFailed& exec = std::get<ExecFailed>(reason);
    excluded.push_back(ExcludedOf(row, exec));
    const ExecObstacle obstacle = exec.cause.exit.obstacle;
    failed = FailsForExec(
        excluded, NodesLeft(step.state, job, excluded),
        obstacle == ExecObstacle::kDirectory ? job.spec.spec.directory : ProgramOf(job));
  } else {
    failed = FailsJob(job.spec.spec, reason, Charges(step.state, job), streak, step.config());
    if (!failed) failed = FailsForPreemption(job.spec.spec, reason, job.state.ends.preemptions);
  }
  const bool charged = ChargesBudget(reason) && !failed;
  RecordVerdict(step, job, generation, over.causes, charged);
  if (charged && job.spec.spec.restart_window) {
    // Only a window with a budget beyond a thousand could miss one, and it is the oldest.
    if (job.charge_times.size() >= kMaxCharges) job.charge_times.erase(job.charge_times.begin());
    job.charge_times.push_back(step.now());
  }
  step.UpdateState(job, [&](JobStateRow& state) {
    state.ends.own = streak.own;
    state.ends.free = streak.free;
    state.excluded = excluded;
    if (charged) ++state.ends.charged;
    if (std::holds_alternative<Preempted>(reason)) ++state.ends.preemptions;
  });
  step.ReorderMembers(job, job.soft.at(generation));
  job.soft.erase(generation);
  AddEvent(step, job,
           GenerationEnded{generation, reason, charged, job.state.ends.charged,
                           job.spec.spec.max_restarts});
  if (failed && !job.state.verdict) FailJob(step, job, *failed, reason);
}

// A generation that ran until the job's verdict.
void PutStopped(Step& step, Job& job, Generation generation, const EndReason& reason,
                JobStateRow& state) {
  GenerationRow row = job.generations.at(generation);
  row.phase = GenerationPhase::kOver;
  row.ended = reason;
  row.ended_at = step.wall();
  CloseAccount(step.state, job, job.soft.at(generation), row, state);
  FitRow(row);
  step.Put(row);
  job.soft.erase(generation);
  AddEvent(step, job,
           GenerationEnded{generation, reason, false, job.state.ends.charged,
                           job.spec.spec.max_restarts});
}

bool HasUnkillable(const Job& job, const Node& node) {
  auto groups = node.groups.find(job.id());
  if (groups == node.groups.end()) return false;
  return std::all_of(groups->second.begin(), groups->second.end(), [](const auto& entry) {
    return entry.second.phase == Phase::kFree || entry.second.phase == Phase::kUnkillable;
  });
}

// False: it is recorded already.
bool RecordTaken(Step& step, Job& job, Node& node, bool unkillable) {
  for (const TakenSlots& taken : node.row.taken)
    if (taken.job == job.id()) return false;
  NodeRow row = node.row;
  row.taken.push_back({job.id(), job.state.last_formed, WorkersOn(job, node), unkillable});
  step.Put(std::move(row));
  return true;
}

void EndJob(Step& step, Job& job) {
  const Verdict verdict = *job.state.verdict;
  step.UpdateState(job, [&](JobStateRow& state) {
    state.phase = JobPhase::kEnded;
    state.ended_at = step.wall();
    state.ran_for = AgeOf(job, step.state.moment());
  });
  AddEvent(step, job, JobEnded{verdict.exit_code, StateName(job)});
  for (const NodeId& id : job.nodes.touched) step.Reorder(job, id);
  job.times.ended = step.now();
  NoteOver(step, job);
  step.Say(Severity::kInfo, "job ended", {{"job", job.id().value()}, {"state", StateName(job)}});
}

void PreemptJob(Step& step, Job& job) {
  step.UpdateState(job, [&](JobStateRow& state) { state.phase = JobPhase::kPreempted; });
  AddEvent(step, job, JobEnded{143, "preempted"});
  SetWait(step, job, std::nullopt, std::nullopt);
  job.gather.membership_known = false;
  job.gather.enough_since.reset();
  NoteOver(step, job);
  step.Say(Severity::kInfo, "job preempted", {{"job", job.id().value()}});
}

}  // namespace

bool CloseVerdicts(Step& step, Job& job) {
  for (auto& entry : job.soft) {
    const Over* over = std::get_if<Over>(&entry.second.state);
    if (over == nullptr) continue;
    if (over->waiting.empty() || step.now() >= over->close_by) {
      CloseVerdict(step, job, entry.first, *over);
      return true;
    }
    step.Wake(job, over->close_by);
  }
  return false;
}

void SetVerdict(Step& step, Job& job, Verdict verdict, const EndReason& reason, StopReason stop,
                Duration grace) {
  if (const GenerationRow* next = ProposedOf(job)) VoidProposal(step, job, next->generation, {});
  const bool succeeded = verdict.state == VerdictState::kSucceeded;
  JobStateRow state = job.state;
  for (const auto& entry : job.soft) step.ReorderMembers(job, entry.second);
  if (const GenerationRow* formed = FormedOf(job)) {
    const Generation generation = formed->generation;
    if (IsEnding(job) &&
        !succeeded) {  // For a cause of its own, which the job's verdict does not change.
      PutEnded(step, job, generation, state);
    } else {
      PutStopped(step, job, generation, reason, state);
    }
  }
  Book(OutageAccount(job, step.now()), state);
  job.outage = Outage{};
  state.phase = JobPhase::kEnding;
  state.verdict = std::move(verdict);
  step.UpdateState(job, [&](JobStateRow& next) { next = state; });
  Instant deadline = step.now() + grace;
  // Workers that were told to stop already keep their deadline: a verdict gives them
  // no further grace.
  if (job.stop && job.stop->up_to == job.state.last_formed)
    deadline = std::min(deadline, job.stop->deadline);
  job.stop =
      StopOrder{job.state.last_number, stop, deadline, deadline + step.config().ending.stop_margin};
  for (const NodeId& id : job.nodes.touched) step.Reorder(job, id);
  SetWait(step, job, std::nullopt, std::nullopt);
  job.nodes.claims_dirty = true;
  step.Say(Severity::kInfo, "verdict",
           {{"job", job.id().value()}, {"exit_code", absl::StrCat(job.state.verdict->exit_code)}});
}

bool FinishEnding(Step& step, Job& job) {
  if (step.Rests(job)) return false;
  bool wait = false;
  int taken = 0;
  const std::set<NodeId> touched = job.nodes.touched;
  for (const NodeId& id : touched) {
    Node* node = step.state.FindNode(id);
    if (node == nullptr || node->Is<Lost>()) continue;  // Its row says what it may still hold.
    if (node->Is<Attached>() && SlotsFree(job, *node)) continue;
    const bool unkillable = node->Is<Attached>() && HasUnkillable(job, *node);
    if (!unkillable && step.now() < job.stop->give_up) {
      wait = true;
    } else if (RecordTaken(step, job, *node, unkillable) && ++taken >= kTakenPerStep) {
      step.LookAt(job);
      return false;
    }
  }
  if (wait) {
    step.Rest(job, static_cast<int>(touched.size()));
    step.Wake(job, job.stop->give_up);
    return false;
  }
  if (!job.soft.empty()) {  // Nothing more will be learned in time.
    const auto& [generation, soft] = *job.soft.begin();
    CloseVerdict(step, job, generation, As<Over>(soft));
    return true;
  }
  EndJob(step, job);
  return true;
}

bool CheckAbandoned(Step& step, Job& job) {
  // A job that is preempted can go on, one that failed cannot: which it is has to be known first.
  if (OpenPreemptionsFail(job)) return false;
  Instant lost_at{};
  bool any = false;
  for (const NodeId& id : job.launch.nodes) {
    const Node* node = step.state.FindNode(id);
    if (node == nullptr || IsLeaving(job, *node)) continue;
    if (!node->lost()) return false;
    any = true;
    lost_at = std::max(lost_at, node->lost()->at);
  }
  // Nobody can come back to a run without an endpoint.
  const Duration hold = job.spec.standalone ? Duration{} : step.config().holds.orphan;
  if (any && step.now() < lost_at + hold) {
    step.Wake(job, lost_at + hold);
    return false;
  }
  PreemptJob(step, job);
  return true;
}

}  // namespace regroup::coordinator
