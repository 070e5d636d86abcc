#include "launcher/coordinator/core/members.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/base/limits.h"
#include "launcher/coordinator/core/failure_policy.h"
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

// A node's part in one of the job's generations.
struct Part {
  Job& job;
  const GenerationRow& row;
  Instant since;  // GenerationSoft::since.
  Node& node;
  int group_rank;

  const NodeId& id() const { return node.row.node; }
  int workers() const { return row.members[group_rank].workers; }
  bool is_done() const { return DoneRanksOf(job, row.generation, id()) >= workers(); }
  bool is_lost() const { return node.Is<Lost>() || GroupIsDead(node, job.id(), row.generation); }
  const GroupReport* shown() const { return Shown(node, job.id(), row.generation); }
};

void RefreshProposed(const Part& part, Proposed& proposed) {
  const Job& job = part.job;
  const Node& node = part.node;
  if (node.Is<Lost>()) proposed.failed[part.id()] = node.row.lost_how;
  if (IsLeaving(job, node)) proposed.failed[part.id()] = "it is leaving";
  // What answers there now is another command, with a program of its own.
  if (job.launched() && !job.launch.nodes.contains(part.id()))
    proposed.failed[part.id()] = "its launch command has ended";
  if (!node.Is<Attached>() || !proposed.asked.contains(part.id())) return;
  const GroupReport* report = part.shown();
  if (report == nullptr) {
    // The group is not there (any more): its agent came back without it, and is asked again.
    proposed.unacked.insert(part.id());
    return;
  }
  const bool failed = report->phase == Phase::kFree || report->phase == Phase::kStopping ||
                      report->phase == Phase::kUnkillable || report->phase == Phase::kRetired ||
                      report->supervisor_lost || report->store_lost;
  if (failed) {
    proposed.failed[part.id()] =
        report->refused.empty() ? "its group ended while it was prepared" : report->refused;
  } else if (report->phase != Phase::kPreparing) {
    proposed.unacked.erase(part.id());
    // Group rank 0 hosts the store of its generation.
    if (part.group_rank == 0) proposed.store = report->store;
  }
}

// While the cause is still weighed; before that CheckLost dates and words a loss.
void FoldLoss(Step& step, const Part& part, Causes& causes) {
  const std::string how = part.node.Is<Lost>() ? part.node.row.lost_how : kHowRefused;
  const Instant heard = part.node.lease.last_heard;
  causes.Fold({NodeLost{part.node.row.name, how, step.now() - heard}, heard});
}

// Its node cannot execute the program, and the job goes on without it. Where only something is
// lacking for a moment and too few nodes would be left, the rank has failed like any other.
bool LeavesOut(const State& state, const Part& part, const RankExit& exit) {
  if (exit.kind != ExitKind::kExecFailed) return false;
  if (IsOfTheProgram(exit.code)) return true;
  std::vector<ExcludedNode> without = part.job.state.excluded;
  without.push_back({part.id(), part.node.row.name, exit.code, exit.obstacle});
  return NodesLeft(state, part.job, without) >= part.job.spec.spec.min_nodes;
}

void FoldExits(Step& step, const Part& part, const GroupReport& report, Causes& causes) {
  const Node& node = part.node;
  for (const RankExit& exit : report.exits) {
    if (exit.local_rank < 0 || exit.local_rank >= part.workers()) continue;
    if (exit.after_stop && node.leaving) causes.ended_by_notice = node.row.name;
    if (!IsFailure(exit)) continue;
    // One that was left out of the consequences may turn out to be the cause.
    if (!causes.seen_exits.emplace(node.row.node, exit.local_rank).second &&
        (causes.Learn(node.row.name, exit) || exit.evidence != ErrorEvidence::kErrorFile))
      continue;
    RankCause cause;
    cause.node = node.row.name;
    cause.local_rank = exit.local_rank;
    cause.rank = FirstRankOf(part.row, part.group_rank) + exit.local_rank;
    cause.exit = exit;
    if (cause.exit.error.size() > kMaxErrorBytes) cause.exit.error.resize(kMaxErrorBytes);
    // No exit is shown as older than its generation, whatever an agent's clock did.
    const Duration age = cause.exit.age =
        std::min(exit.age, GenerationAge(step.state, part.row, part.since));
    cause.at = step.wall() - std::chrono::duration_cast<WallTime::duration>(age);
    EndReason reason = WorkerFailed{cause};
    if (LeavesOut(step.state, part, exit)) reason = ExecFailed{cause};
    // As it was told: where the calendar was set back, two ages that are cut would be one.
    causes.Fold({reason, step.now() - exit.age});
  }
}

// What ended its group, where that is not a rank's exit.
void FoldGroup(Step& step, const Part& part, const GroupReport& report, Causes& causes) {
  if (report.supervisor_lost && !part.is_done())
    causes.Fold({SupervisorLost{part.node.row.name}, step.now()});
  if (report.store_lost && part.group_rank == 0)
    causes.Fold({StoreLost{part.node.row.name}, step.now()});
}

// It came back without its group: whatever ended that left no trace.
void FoldVanished(Step& step, const Part& part, Causes& causes) {
  if (part.node.rebooted) {
    causes.Fold({NodeRebooted{part.node.row.name}, step.now()});
  } else {
    causes.Fold({NodeLost{part.node.row.name, kHowWiped, Duration{}}, step.now()});
  }
}

void RecordDone(Step& step, const Part& part, const GroupReport& report, Done& done) {
  DoneRow row{part.job.id(), part.id(), part.row.generation, {}};
  // One row for each node: the ranks of an older generation in it count no more and are replaced.
  auto known = part.job.done.find(part.id());
  if (known != part.job.done.end() && known->second.generation == row.generation)
    row = known->second;
  const std::size_t before = row.local_ranks.size();
  for (const RankExit& exit : report.exits) {
    const bool fresh = std::find(row.local_ranks.begin(), row.local_ranks.end(), exit.local_rank) ==
                       row.local_ranks.end();
    if (!IsDone(exit) || !fresh) continue;
    row.local_ranks.push_back(exit.local_rank);
    done.at = std::max(done.at.value_or(Instant::min()), step.now() - exit.age);
  }
  if (row.local_ranks.size() == before) return;
  std::sort(row.local_ranks.begin(), row.local_ranks.end());
  done.ranks += static_cast<int>(row.local_ranks.size() - before);
  step.Put(std::move(row));
}

void RecordStarts(const Part& part, const GroupReport& report, Starts& starts) {
  starts.started[part.id()] = report.started;
  // Ranks that have all exited, or were stopped before a crash, were never seen running, but they
  // have started.
  const std::size_t known = std::max(report.started.size(), report.exits.size());
  const bool all_started = static_cast<int>(known) >= part.workers();
  if (report.phase == Phase::kRunning || all_started) starts.not_started.erase(part.id());
}

// Its workers have ended, and not all of them with their work done.
void RefreshGone(Step& step, const Part& part, Formed& formed) {
  Causes& causes = formed.course.causes;
  if (formed.saving) {
    // They ended for the notice of the save itself: nobody failed.
    formed.saving->stopped = true;
  } else if (!causes.worst) {
    // Stopped, but not by us: by its own launch command, or by us before a crash, and then
    // somebody else knows why.
    if (part.node.leaving) causes.Fold({Preempted{part.node.row.name, false}, step.now()});
    if (!part.node.leaving && !causes.fallback)
      causes.fallback = SupervisorLost{part.node.row.name, /*stopped=*/true};
  }
}

void RefreshFormed(Step& step, const Part& part, Formed& formed) {
  const Node& node = part.node;
  Causes& causes = formed.course.causes;
  if (IsLeaving(part.job, node)) {
    formed.notices.leaving.insert(part.id());
  } else if (node.Is<Attached>()) {
    formed.notices.leaving.erase(part.id());
  }
  if (part.is_lost() && !part.is_done()) formed.lost.try_emplace(part.id(), step.now());
  if (part.is_lost() || !node.Is<Attached>()) return;
  const GroupReport* report = part.shown();
  if (report == nullptr) {
    if (part.is_done()) return;
    // The next generation waits for this node as for a survivor.
    formed.blinked.insert(part.id());
    FoldVanished(step, part, causes);
    return;
  }
  formed.lost.erase(part.id());
  FoldExits(step, part, *report, causes);
  RecordDone(step, part, *report, formed.course.done);
  RecordStarts(part, *report, formed.starts);
  if (report->supervisor_lost && !part.is_done()) formed.blinked.insert(part.id());
  FoldGroup(step, part, *report, causes);
  // After a crash this generation may be formed again, though its ranks were told to retire.
  const bool gone = report->phase == Phase::kFree || report->phase == Phase::kRetired ||
                    report->phase == Phase::kUnkillable;
  if (gone && !part.is_done()) RefreshGone(step, part, formed);
}

void RefreshEnding(Step& step, const Part& part, Ending& ending) {
  Causes& causes = ending.course.causes;
  if (part.is_lost()) {
    if (!part.is_done() && ending.waiting.contains(part.id())) FoldLoss(step, part, causes);
  } else if (part.node.Is<Attached>()) {
    const GroupReport* report = part.shown();
    if (report != nullptr) {
      FoldExits(step, part, *report, causes);
      RecordDone(step, part, *report, ending.course.done);
      FoldGroup(step, part, *report, causes);
    } else if (!part.is_done()) {
      FoldVanished(step, part, causes);
    }
  }
  if (IsSettled(step.state, part.job, part.row.generation, part.id()))
    ending.waiting.erase(part.id());
}

void RefreshOver(Step& step, const Part& part, Over& over) {
  if (!over.waiting.contains(part.id())) return;
  if (const GroupReport* report = part.shown()) FoldExits(step, part, *report, over.causes);
  if (part.is_lost() && !part.is_done()) FoldLoss(step, part, over.causes);
  if (IsSettled(step.state, part.job, part.row.generation, part.id()))
    over.waiting.erase(part.id());
}

// Its last generation ended for a loss, and nothing has run since: who was lost may have been done.
void RefreshGathering(Step& step, Job& job, Node& node) {
  const auto last = job.generations.find(job.state.last_formed);
  if (last == job.generations.end() || FormedOf(job) || job.state.verdict) return;
  const GenerationRow& row = last->second;
  const GroupReport* report = Shown(node, job.id(), row.generation);
  const auto member = std::find_if(
      row.members.begin(), row.members.end(),
      [&](const GenerationMember& candidate) { return candidate.node == node.row.node; });
  if (report == nullptr || member == row.members.end()) return;
  Done late;
  RecordDone(step, {job, row, step.now(), node, static_cast<int>(member - row.members.begin())},
             *report, late);
  if (late.ranks == 0) return;
  int done = 0;
  for (const GenerationMember& each : row.members)
    done += DoneRanksOf(job, row.generation, each.node);
  if (done >= WorldOf(row)) job.gather.done = row.generation;
}

struct RefreshIn {
  Step& step;
  const Part& part;
  void operator()(Proposed& proposed) const { RefreshProposed(part, proposed); }
  void operator()(Formed& formed) const { RefreshFormed(step, part, formed); }
  void operator()(Ending& ending) const { RefreshEnding(step, part, ending); }
  void operator()(Over& over) const { RefreshOver(step, part, over); }
};

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
  for (auto& [generation, soft] : job.soft) {
    const auto member = soft.members.find(node.row.node);
    if (member == soft.members.end()) continue;
    const Part part{job, job.generations.at(generation), soft.since, node, member->second};
    std::visit(RefreshIn{step, part}, soft.state);
  }
  RefreshGathering(step, job, node);
}

Duration GenerationAge(const State& state, const GenerationRow& row, Instant since) {
  return std::clamp<Duration>(state.wall - row.proposed_at, std::max(state.now - since, Duration{}),
                              kMaxDuration);
}

}  // namespace regroup::coordinator
