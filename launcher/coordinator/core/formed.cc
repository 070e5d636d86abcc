#include "launcher/coordinator/core/formed.h"

#include <algorithm>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "launcher/coordinator/core/accounts.h"
#include "launcher/coordinator/core/candidates.h"
#include "launcher/coordinator/core/decide_generation.h"
#include "launcher/coordinator/core/ending.h"
#include "launcher/coordinator/core/failure_policy.h"
#include "launcher/coordinator/core/job.h"
#include "launcher/coordinator/core/leases.h"
#include "launcher/coordinator/core/members.h"
#include "launcher/coordinator/core/news.h"
#include "launcher/coordinator/core/node.h"
#include "launcher/coordinator/core/node_in_job.h"
#include "launcher/coordinator/core/proposal.h"
#include "launcher/coordinator/core/rows.h"
#include "launcher/coordinator/core/slots.h"
#include "launcher/coordinator/core/step.h"
#include "launcher/coordinator/core/verdict.h"

namespace regroup::coordinator {
namespace {

RestartPhases PhasesOf(const Outage& outage, Instant running_at) {
  RestartPhases phases;
  // A first generation was no outage; its time counts from its proposal.
  const std::optional<Instant> begin = outage.event_at ? outage.event_at : outage.detected_at;
  const std::optional<Instant> first = begin ? begin : outage.proposed_at;
  if (!first) return phases;
  phases.down = running_at - *first;
  if (outage.event_at && outage.detected_at) phases.detect = *outage.detected_at - *outage.event_at;
  if (outage.detected_at && outage.free_at) phases.stop = *outage.free_at - *outage.detected_at;
  if (outage.free_at && outage.proposed_at) phases.decide = *outage.proposed_at - *outage.free_at;
  if (outage.proposed_at && outage.formed_at) phases.form = *outage.formed_at - *outage.proposed_at;
  if (outage.formed_at) phases.spawn = running_at - *outage.formed_at;
  return phases;
}

void EnterRunning(Step& step, Job& job, const GenerationSoft& soft, Formed& formed) {
  const Generation generation = job.state.last_formed;
  // Workers know how old they are: after a restart of the coordinator the clock goes on.
  Duration age = Duration::max();
  for (const auto& entry : formed.starts.started)
    for (const RankStart& start : entry.second) age = std::min(age, start.age);
  const bool first = job.state.phase != JobPhase::kRunning;
  // Agents tell how long ago they started a rank, as durations: their clocks are none of ours. No
  // start can be older than the generation.
  const bool known = age != Duration::max();
  age = std::min(age, GenerationAge(step.state, job.generations.at(generation), soft.since));
  formed.course.running_at = first || !known ? step.now() : step.now() - age;
  SetWait(step, job, std::nullopt, std::nullopt);
  // This coordinator was restarted under a running generation: what follows stands in
  // the rows already.
  if (!first) return;
  // Who is still out of it has not shown that it can take part.
  std::erase_if(job.unsteady.trials, [&](const auto& trial) {
    return soft.members.contains(trial.first) || step.state.FindNode(trial.first) == nullptr;
  });
  const RestartPhases phases = PhasesOf(job.outage, step.now());
  const OpenAccount outage = OutageAccount(job, step.now());
  int kept = 0;
  step.UpdateGeneration(job, generation, [&](GenerationRow& row) {
    row.phases = phases;
    for (GenerationMember& member : row.members) {
      member.pids.assign(member.workers, 0);
      for (const RankStart& start : formed.starts.started[member.node])
        if (start.local_rank >= 0 && start.local_rank < member.workers) {
          member.pids[start.local_rank] = start.pid;
          kept += start.kept ? 1 : 0;
        }
      const Node* node = step.state.FindNode(member.node);
      if (node == nullptr) continue;
      const auto seen = node->watches.find(job.id());
      if (seen != node->watches.end() && seen->second.generation == generation)
        member.witness_verified = seen->second.verified;
    }
    FitRow(row);
  });
  step.UpdateState(job, [&](JobStateRow& state) {
    state.phase = JobPhase::kRunning;
    Book(outage, state);
  });
  AddEvent(step, job, GenerationRunning{generation, phases, kept});
  job.outage = Outage{};
}

bool CheckDone(Step& step, Job& job, const Course& course) {
  const int done = course.done.ranks;
  if (done == 0 || done < WorldOf(*FormedOf(job))) return false;
  SetVerdict(step, job, Verdict{VerdictState::kSucceeded, 0, std::nullopt}, Finished{},
             StopReason::kElective, step.config().ending.failure_grace);
  return true;
}

// While no member is heard, their silence tells as much about our network as about them, and the
// generation may train on unseen: it stays until one is proved dead, or for `unreachable_hold` from
// when the last was lost. Once one is heard again, the others have a lease to follow it.
bool HoldsForSilence(Step& step, Job& job, const GenerationRow& row, Formed& formed,
                     const std::vector<NodeId>& lost) {
  std::vector<std::string> names;
  for (const NodeId& id : lost) {
    const Node* node = step.state.FindNode(id);
    const bool silent = node && node->lost() && !node->lost()->proved;
    // A launched agent that was away for longer than its grace has no workers left.
    if (!silent || formed.notices.leaving.contains(id) ||
        (node->row.launched && node->row.lost_how == kHowAway))
      return false;
    if (names.size() < kMaxNames) names.push_back(node->row.name);
  }
  bool heard = false;
  Instant until{};
  for (const GenerationMember& member : row.members) {
    heard = heard || IsHeard(step.state, member.node);
    const Node* node = step.state.FindNode(member.node);
    if (const Lost* loss = node ? node->lost() : nullptr; loss && !loss->proved)
      until = std::max(until, loss->at + step.config().holds.unreachable);
  }
  if (heard) {
    if (formed.silence.unheard)
      formed.silence.return_until = step.now() + step.config().leases.lease;
    formed.silence.unheard = false;
    if (step.now() >= formed.silence.return_until) return false;
    SetWait(step, job, AwaitReattach{names, Duration{}}, formed.silence.return_until);
    step.Wake(job, formed.silence.return_until);
    return true;
  }
  if (step.now() >= until) return false;
  formed.silence.unheard = true;
  SetWait(step, job, UnreachableHold{names, Duration{}}, until);
  // A heartbeat alone makes no job look again.
  const bool others = formed.lost.size() < row.members.size();
  step.Wake(job, others ? std::min(until, step.now() + step.config().leases.heartbeat) : until);
  return true;
}

bool FinishHolds(Step& step, Job& job, const GenerationSoft& soft, const Formed& formed,
                 const std::vector<NodeId>& lost) {
  const GenerationRow& row = *FormedOf(job);
  int undone = 0;
  Instant first = Instant::max();
  for (const NodeId& id : lost) {
    undone += row.members[soft.members.at(id)].workers - DoneRanksOf(job, row.generation, id);
    first = std::min(first, formed.lost.at(id));
  }
  const bool others_done =
      formed.course.done.ranks > 0 && formed.course.done.ranks + undone == WorldOf(row);
  if (!others_done || step.now() >= first + step.config().holds.finish) return false;
  SetWait(step, job, FinishHold{step.state.NameOf(lost.front()), Duration{}},
          first + step.config().holds.finish);
  step.Wake(job, first + step.config().holds.finish);
  return true;
}

// A loss ends the generation, unless every rank that can still be heard is done: then the lost node
// may come back with the same news. And unless no member at all is heard.
bool CheckLost(Step& step, Job& job, const GenerationSoft& soft, Formed& formed) {
  const GenerationRow& row = *FormedOf(job);
  std::vector<NodeId> undone;  // Lost members whose ranks are not all done.
  for (const auto& entry : formed.lost) {
    const GenerationMember& member = row.members[soft.members.at(entry.first)];
    if (DoneRanksOf(job, row.generation, entry.first) < member.workers)
      undone.push_back(entry.first);
  }
  // Where an earlier look held it and this one does not, the reason to wait is taken back below.
  const bool held = formed.silence.held;
  formed.silence.held = !undone.empty() && (HoldsForSilence(step, job, row, formed, undone) ||
                                            FinishHolds(step, job, soft, formed, undone));
  if (held && !formed.silence.held) SetWait(step, job, std::nullopt, std::nullopt);
  if (undone.empty() || formed.silence.held) return false;
  for (const NodeId& id : undone) {
    const Node* node = step.state.FindNode(id);
    const GenerationMember& member = row.members[soft.members.at(id)];
    // The cause is dated to the last sign of life: whatever failed after it may be its consequence.
    const Instant heard = node ? node->lease.last_heard : formed.lost.at(id);
    if (formed.notices.leaving.contains(id)) {
      formed.course.causes.Fold(
          {Preempted{member.name, formed.saving && formed.saving->saved}, heard});
    } else {
      const std::string how = node && node->Is<Lost>() ? node->row.lost_how : kHowRefused;
      formed.course.causes.Fold({NodeLost{member.name, how, step.now() - heard}, heard});
    }
  }
  BeginEnding(step, job, StopReason::kFailure, step.config().ending.failure_grace);
  return true;
}

bool CheckStart(Step& step, Job& job, const GenerationSoft& soft, Formed& formed) {
  const Duration limit = job.spec.spec.start_timeout;
  if (formed.starts.not_started.empty()) return false;
  if (step.now() < soft.since + limit) {
    step.Wake(job, soft.since + limit);
    return false;
  }
  for (const NodeId& id : formed.starts.not_started) {
    const Node* node = step.state.FindNode(id);
    if (node == nullptr || !node->Is<Attached>()) continue;  // Its lease decides.
    // Here too; its ranks may run, and only the word of it be on its way.
    if (!IsHeard(step.state, id)) {
      formed.starts.returned.try_emplace(id);
      step.Wake(job, step.now() + step.config().leases.heartbeat);
      continue;
    }
    // An agent that has come back gets the whole limit: it may have had to adopt its group first,
    // or to read that it shall run.
    Instant due = std::max(soft.since, node->attached()->since) + limit;
    if (const auto found = formed.starts.returned.find(id); found != formed.starts.returned.end()) {
      if (!found->second) found->second = step.now();
      due = std::max(due, *found->second + limit);
    }
    if (step.now() < due) {
      step.Wake(job, due);
      continue;
    }
    formed.course.causes.Fold({StartTimedOut{node->row.name, limit}, step.now()});
    BeginEnding(step, job, StopReason::kFailure, step.config().ending.failure_grace);
    return true;
  }
  return false;
}

bool CheckNotices(Step& step, Job& job, const GenerationSoft& soft, Formed& formed) {
  if (formed.notices.leaving.empty()) return false;
  Instant until = Instant::max();
  bool now = false;
  for (const NodeId& id : formed.notices.leaving) {
    const Node* node = step.state.FindNode(id);
    if (node == nullptr) continue;
    if (node->leaving) until = std::min(until, node->leaving->until);
    now = now || (node->leaving && node->leaving->until <= step.now());
    if (formed.notices.told.insert(id).second && node->leaving)
      AddEvent(step, job, NodeWillLeave{node->row.name, node->leaving->notice});
  }
  if (until == Instant::max()) until = step.now() + job.spec.spec.grace;
  const std::string name = step.state.NameOf(*formed.notices.leaving.begin());
  if (formed.saving) {
    // Several may be told to leave: the save has to be over in time for the first that goes.
    formed.saving->until =
        std::min(formed.saving->until, until - step.config().ending.notice_margin);
    if (formed.saving->node.empty()) formed.saving->node = name;
    return false;
  }
  // While ranks finish, or save, the generation goes on until the notice's last moment.
  if (!now && (formed.course.progress.spoke || formed.course.done.ranks > 0)) {
    formed.saving = Saving{name, until - step.config().ending.notice_margin, false};
    SetWait(step, job, SavingBeforeLeave{name, Duration{}}, formed.saving->until);
    step.ReorderMembers(job, soft);
    return false;
  }
  formed.course.causes.Fold({Preempted{name, false}, step.now()});
  const Duration left = std::max(until - step.now(), Duration{});
  BeginEnding(step, job, StopReason::kNotice,
              now ? std::min(step.config().ending.failure_grace, job.spec.spec.grace)
                  : std::min(job.spec.spec.grace, left));
  return true;
}

// What is elective waits for members that are away or silent: whether they stay is not known yet,
// and they would not hear of it.
bool AllCanBeTold(Step& step, Job& job, const GenerationSoft& soft) {
  for (const auto& member : soft.members) {
    const Node* node = step.state.FindNode(member.first);
    if (node && node->Is<Attached>() && IsHeard(step.state, member.first)) continue;
    // A heartbeat alone makes no job look again.
    step.Wake(job, step.now() + step.config().leases.heartbeat);
    return false;
  }
  return true;
}

bool CheckSaving(Step& step, Job& job, const GenerationSoft& soft, Formed& formed) {
  if (!formed.saving) return false;
  if (!formed.saving->saved && !formed.saving->stopped && step.now() < formed.saving->until) {
    step.Wake(job, formed.saving->until);
    return false;
  }
  // The save is there, can come no more, or its time is up: now the generation ends for what it
  // waited for, a notice before a growth.
  const bool saved = formed.saving->saved;
  const int nodes = static_cast<int>(soft.members.size());
  Duration grace = job.spec.spec.grace;
  if (!formed.notices.leaving.empty()) {
    formed.course.causes.Fold(
        {Preempted{step.state.NameOf(*formed.notices.leaving.begin()), saved}, step.now()});
    for (const NodeId& id : formed.notices.leaving) {
      const Node* node = step.state.FindNode(id);
      if (node && node->leaving)
        grace = std::min(grace, std::max(node->leaving->until - step.now(), Duration{}));
    }
    BeginEnding(step, job, StopReason::kNotice, grace);
    return true;
  }
  if (!AllCanBeTold(step, job, soft)) return false;
  Resized resized{nodes, nodes, {}};
  if (const GenerationRow* next = ProposedOf(job)) {
    resized.to = static_cast<int>(next->members.size());
    for (const GenerationMember& member : next->members)
      if (!soft.members.contains(member.node)) resized.joined.push_back(member.name);
  }
  formed.course.causes.Fold({resized, step.now()});
  BeginEnding(step, job, StopReason::kElective, grace);
  return true;
}

std::vector<NodeId> Newcomers(Step& step, Job& job, const GenerationSoft& soft) {
  std::vector<Candidate> ready;
  if (!job.launched()) CountFreeSlots(step);
  for (const NodeId& id : job.launched() ? job.launch.nodes : NodesToLookAt(step.state, job)) {
    if (soft.members.contains(id)) continue;
    const Node* node = step.state.FindNode(id);
    if (node == nullptr || !node->Is<Attached>()) continue;
    const std::optional<Candidate> candidate = CandidateOf(step.state, job, *node, false);
    if (!candidate) continue;
    if (candidate->readiness == Readiness::kReady) ready.push_back(*candidate);
    if (candidate->readiness != Readiness::kReady && candidate->until > step.now())
      step.Wake(job, candidate->until);
  }
  std::sort(ready.begin(), ready.end(), Preferred);
  std::vector<NodeId> newcomers;
  for (const Candidate& candidate : ready) newcomers.push_back(candidate.node);
  return newcomers;
}

bool CheckGrowth(Step& step, Job& job, const GenerationSoft& soft, Formed& formed) {
  const JobSpec& spec = job.spec.spec;
  const int nodes = static_cast<int>(soft.members.size());
  if (const GenerationRow* next = ProposedOf(job)) {
    // Newcomers have acked: now the old generation may save and stop.
    const Proposed& proposed = As<Proposed>(job.soft.at(next->generation));
    if (!proposed.unacked.empty() || formed.saving) return false;
    if (proposed.failed.empty() && proposed.recovered) return false;
    if (!AllCanBeTold(step, job, soft)) return false;
    // Who keeps its process loses nothing that a save could keep.
    const bool saves = formed.course.progress.spoke && !spec.keeps_ranks();
    const Instant until = saves ? step.now() + spec.grace : step.now();
    formed.saving = Saving{"", until, false};
    step.ReorderMembers(job, soft);
    return CheckSaving(step, job, soft, formed);
  }
  const std::optional<Duration> settle =
      SettleTime(spec.scale_up, job.state.growths, job.unsteady.lost_newcomers, step.config());
  if (!settle || nodes >= MaxNodesNow(job) || formed.course.done.ranks > 0 ||
      !formed.course.running_at)
    return false;
  // What is free belongs to jobs that wait, which may have begun to after this one could grow.
  if (!job.launched() && !step.state.placement.MayGrow(job.spec.sequence)) return false;
  if (job.launched() && static_cast<int>(job.launch.nodes.size()) <= nodes) return false;
  Instant due = job.times.last_change.value_or(step.state.recovered_at) + *settle;
  const std::optional<Instant> last_join =
      job.launched() ? job.launch.last_join : step.state.fleet.last_join;
  if (last_join) due = std::max(due, *last_join + step.config().forming.join_batch);
  if (due > step.now()) {
    step.Wake(job, due);
    return false;
  }
  // The last test, because it looks at nodes: all before it cost no more than the job itself.
  const std::vector<NodeId> newcomers = Newcomers(step, job, soft);
  const int size = UsableSize(nodes + static_cast<int>(newcomers.size()), spec.min_nodes,
                              MaxNodesNow(job), spec.unit);
  if (size <= nodes || !AllCanBeTold(step, job, soft)) return false;
  std::vector<NodeId> chosen;
  for (const auto& member : soft.members) chosen.push_back(member.first);
  chosen.insert(chosen.end(), newcomers.begin(), newcomers.begin() + (size - nodes));
  std::sort(chosen.begin(), chosen.end());
  Propose(step, job, chosen, true);
  return true;
}

}  // namespace

bool AdvanceFormed(Step& step, Job& job) {
  GenerationSoft& soft = job.soft.at(job.state.last_formed);
  // Ranks may all have been done before the stop for a growth or a notice reached them.
  if (const auto* ending = std::get_if<Ending>(&soft.state))
    return CheckDone(step, job, ending->course) || AdvanceEnding(step, job);
  Formed& formed = As<Formed>(soft);
  if (formed.starts.not_started.empty() && !formed.course.running_at)
    EnterRunning(step, job, soft, formed);
  // The order says what wins where several are true in one step: success, a cause that is known, a
  // loss, and only then what can wait for another look.
  if (CheckDone(step, job, formed.course)) return true;
  if (formed.course.causes.known()) {
    BeginEnding(step, job, StopReason::kFailure, step.config().ending.failure_grace);
    return true;
  }
  if (CheckLost(step, job, soft, formed)) return true;
  if (formed.silence.held) return false;
  return CheckStart(step, job, soft, formed) || CheckNotices(step, job, soft, formed) ||
         CheckSaving(step, job, soft, formed) || CheckGrowth(step, job, soft, formed);
}

}  // namespace regroup::coordinator
