#include "launcher/coordinator/core/members.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <set>
#include <string>
#include <utility>

#include "common/base/limits.h"
#include "launcher/coordinator/core/job.h"
#include "launcher/coordinator/core/node.h"
#include "launcher/coordinator/core/node_in_job.h"
#include "launcher/coordinator/core/rows.h"
#include "launcher/coordinator/core/step.h"

namespace regroup::coordinator {
namespace {

int FirstRankOf(const GenerationRow& row, int group_rank) {
  int first = 0;
  for (int i = 0; i < group_rank; ++i) first += row.members[i].workers;
  return first;
}

// An exit with 0 after our stop is obedience, not the end of the rank's work.
bool IsDone(const RankExit& exit) {
  return exit.kind == ExitKind::kExited && exit.code == 0 && !exit.after_stop;
}

bool IsFailure(const RankExit& exit) {
  return !exit.after_stop && !(exit.kind == ExitKind::kExited && exit.code == 0);
}

void RefreshProposed(Job& job, GenerationSoft& soft, Generation generation, Node& node) {
  const NodeId& id = node.row.node;
  if (node.link == Link::kLost) soft.proposal.failed[id] = node.row.lost_how;
  if (IsLeaving(job, node)) soft.proposal.failed[id] = "it is leaving";
  // What answers there now is another command, with a program of its own.
  if (job.launched() && !job.launch.nodes.contains(id))
    soft.proposal.failed[id] = "its launch command has ended";
  if (node.link != Link::kAttached || !soft.proposal.asked.contains(id)) return;
  const GroupReport* report = Shown(node, job.id(), generation);
  if (report == nullptr) {
    // The group is not there (any more): its agent came back without it, and is asked again.
    soft.proposal.unacked.insert(id);
    return;
  }
  const bool failed = report->phase == Phase::kFree || report->phase == Phase::kStopping ||
                      report->phase == Phase::kUnkillable || report->supervisor_lost ||
                      report->store_lost;
  if (failed) {
    soft.proposal.failed[id] =
        report->refused.empty() ? "its group ended while it was prepared" : report->refused;
  } else if (report->phase != Phase::kPreparing) {
    soft.proposal.unacked.erase(id);
    // Group rank 0 hosts the store of its generation.
    if (soft.members.at(id) == 0) soft.proposal.store = report->store;
  }
}

void RefreshLostMember(Step& step, Job& job, GenerationSoft& soft, Generation generation,
                       Node& node) {
  const bool dead = GroupIsDead(node, job.id(), generation);
  if (node.link != Link::kLost && !dead) return;
  const NodeId& id = node.row.node;
  const int workers = job.generations.at(generation).members[soft.members.at(id)].workers;
  if (DoneRanksOf(job, generation, id) >= workers) return;
  soft.lost.try_emplace(id, step.now());
  // Only while the cause is still weighed; else CheckLost dates and words the loss.
  if (!soft.waiting.contains(id)) return;
  const std::string how = node.link == Link::kLost ? node.row.lost_how : kHowRefused;
  soft.causes.Fold(
      {NodeLost{node.row.name, how, step.now() - node.lease.last_heard}, node.lease.last_heard});
}

void FoldExits(Step& step, Job& job, GenerationSoft& soft, Generation generation, Node& node,
               const GroupReport& report) {
  const GenerationRow& row = job.generations.at(generation);
  const int group_rank = soft.members.at(node.row.node);
  for (const RankExit& exit : report.exits) {
    if (exit.local_rank < 0 || exit.local_rank >= row.members[group_rank].workers) continue;
    if (exit.after_stop && node.leaving) soft.causes.ended_by_notice = node.row.name;
    if (!IsFailure(exit)) continue;
    // One that was left out of the consequences may turn out to be the cause.
    if (!soft.causes.seen_exits.emplace(node.row.node, exit.local_rank).second &&
        (soft.causes.Learn(node.row.name, exit) || exit.evidence != ErrorEvidence::kErrorFile))
      continue;
    RankCause cause;
    cause.node = node.row.name;
    cause.local_rank = exit.local_rank;
    cause.rank = FirstRankOf(row, group_rank) + exit.local_rank;
    cause.exit = exit;
    if (cause.exit.error.size() > kMaxErrorBytes) cause.exit.error.resize(kMaxErrorBytes);
    // No exit is older than its generation, whatever an agent's clock did.
    const Duration age = cause.exit.age = std::min(exit.age, GenerationAge(step.state, row, soft));
    cause.at = step.wall() - std::chrono::duration_cast<WallTime::duration>(age);
    EndReason reason = WorkerFailed{cause};
    if (exit.kind == ExitKind::kExecFailed) reason = ExecFailed{cause};
    soft.causes.Fold({reason, step.now() - age});
  }
}

void RecordDone(Step& step, Job& job, GenerationSoft& soft, Generation generation, Node& node,
                const GroupReport& report) {
  DoneRow row{job.id(), node.row.node, generation, {}};
  // One row for each node: the ranks of an older generation in it count no more and are replaced.
  auto known = job.done.find(node.row.node);
  if (known != job.done.end() && known->second.generation == generation) row = known->second;
  const std::size_t before = row.local_ranks.size();
  for (const RankExit& exit : report.exits) {
    const bool fresh = std::find(row.local_ranks.begin(), row.local_ranks.end(), exit.local_rank) ==
                       row.local_ranks.end();
    if (!IsDone(exit) || !fresh) continue;
    row.local_ranks.push_back(exit.local_rank);
    soft.done.at = std::max(soft.done.at.value_or(Instant::min()), step.now() - exit.age);
  }
  if (row.local_ranks.size() == before) return;
  std::sort(row.local_ranks.begin(), row.local_ranks.end());
  soft.done.ranks += static_cast<int>(row.local_ranks.size() - before);
  step.Put(std::move(row));
}

void RecordStarts(GenerationSoft& soft, int workers, Node& node, const GroupReport& report) {
  soft.starts.started[node.row.node] = report.started;
  const bool all_exited = static_cast<int>(report.exits.size()) >= workers;
  // Ranks that have all exited were never seen running, but they have started.
  if (report.phase == Phase::kRunning || all_exited) soft.starts.not_started.erase(node.row.node);
}

void RefreshFormed(Step& step, Job& job, GenerationSoft& soft, Generation generation, Node& node) {
  const NodeId& id = node.row.node;
  if (IsLeaving(job, node)) {
    soft.notices.leaving.insert(id);
  } else if (node.link == Link::kAttached) {
    soft.notices.leaving.erase(id);
  }
  const int workers = job.generations.at(generation).members[soft.members.at(id)].workers;
  if (node.link == Link::kLost || GroupIsDead(node, job.id(), generation)) {
    RefreshLostMember(step, job, soft, generation, node);
  } else if (node.link == Link::kAttached) {
    const GroupReport* report = Shown(node, job.id(), generation);
    const bool all_done = DoneRanksOf(job, generation, id) >= workers;
    if (report == nullptr) {
      // It came back without its group: whatever ended that left no trace, and the next generation
      // waits for this node as for a survivor.
      if (!all_done) soft.blinked.insert(id);
      if (!all_done && node.rebooted) soft.causes.Fold({NodeRebooted{node.row.name}, step.now()});
      if (!all_done && !node.rebooted)
        soft.causes.Fold({NodeLost{node.row.name, kHowWiped, Duration{}}, step.now()});
    } else {
      soft.lost.erase(id);
      FoldExits(step, job, soft, generation, node, *report);
      if (!soft.ending) RecordDone(step, job, soft, generation, node, *report);
      RecordStarts(soft, workers, node, *report);
      const bool undone = DoneRanksOf(job, generation, id) < workers;
      if (report->supervisor_lost && undone) {
        soft.blinked.insert(id);
        soft.causes.Fold({SupervisorLost{node.row.name}, step.now()});
      }
      if (report->store_lost && soft.members.at(id) == 0)
        soft.causes.Fold({StoreLost{node.row.name}, step.now()});
      const bool gone = report->phase == Phase::kFree && undone;
      if (gone && soft.saving) {
        // Its workers ended for the notice of the save itself: nobody failed.
        soft.saving->stopped = true;
      } else if (gone && !soft.ending && !soft.causes.worst) {
        // Stopped, but not by us: by its own launch command, or by us before a crash, and then
        // somebody else knows why.
        if (node.leaving) soft.causes.Fold({Preempted{node.row.name, false}, step.now()});
        if (!node.leaving && !soft.causes.fallback)
          soft.causes.fallback = SupervisorLost{node.row.name};
      }
    }
  }
  if (soft.ending && IsSettled(step.state, job, generation, id)) soft.waiting.erase(id);
}

}  // namespace

void RefreshJobs(Step& step, Node& node) {
  const std::set<JobId> jobs = node.jobs;
  for (const JobId& id : jobs) {
    Job* job = step.state.FindJob(id);
    if (job == nullptr) continue;
    RefreshMember(step, *job, node);
    step.LookAt(*job);
    step.Reorder(*job, node.row.node);
  }
}

bool KeepReport(Step& step, Node& node, const GroupReport& report) {
  auto groups = node.groups.find(report.job);
  if (groups == node.groups.end()) {
    const auto unknown = std::count_if(
        node.groups.begin(), node.groups.end(),
        [&](const auto& entry) { return step.state.FindJob(entry.first) == nullptr; });
    // A journal that was restored from an old copy meets groups that it does not know. They are
    // shown, and are left alone; but a node cannot fill our memory with them.
    if (step.state.FindJob(report.job) == nullptr &&
        static_cast<std::size_t>(unknown) >= kMaxUnknownJobsPerNode)
      return false;
    groups = node.groups.try_emplace(report.job).first;
  }
  if (groups->second.size() >= kMaxGroupsPerJob && !groups->second.contains(report.generation))
    return false;
  groups->second[report.generation] = report;
  return true;
}

void RefreshMember(Step& step, Job& job, Node& node) {
  for (auto& entry : job.soft) {
    GenerationSoft& soft = entry.second;
    if (!soft.members.contains(node.row.node)) continue;
    switch (job.generations.at(entry.first).phase) {
      case GenerationPhase::kProposed: RefreshProposed(job, soft, entry.first, node); break;
      case GenerationPhase::kFormed: RefreshFormed(step, job, soft, entry.first, node); break;
      case GenerationPhase::kOver:
        if (!soft.waiting.contains(node.row.node)) break;
        if (const GroupReport* report = Shown(node, job.id(), entry.first))
          FoldExits(step, job, soft, entry.first, node, *report);
        RefreshLostMember(step, job, soft, entry.first, node);
        if (IsSettled(step.state, job, entry.first, node.row.node))
          soft.waiting.erase(node.row.node);
        break;
    }
  }
}

Duration GenerationAge(const State& state, const GenerationRow& row, const GenerationSoft& soft) {
  return std::clamp<Duration>(state.wall - row.proposed_at,
                              std::max(state.now - soft.since, Duration{}), kMaxDuration);
}

}  // namespace regroup::coordinator
