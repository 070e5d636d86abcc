#include "agent/core/ranks.h"

#include <csignal>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/core/group.h"
#include "agent/core/in_place.h"
#include "agent/core/leftovers.h"
#include "agent/core/notices.h"
#include "agent/core/prepare.h"
#include "agent/core/progress.h"
#include "common/base/control.h"

namespace regroup::agent {
namespace {

// NCCL's watchdog aborts a rank whose peers are gone; of any other signal a rank's words know
// nothing.
ErrorEvidence EvidenceFor(const RankEnded& exit, ErrorEvidence told) {
  const bool spoke =
      exit.kind == ExitKind::kExited || (exit.kind == ExitKind::kSignaled && exit.code == SIGABRT);
  return spoke ? told : ErrorEvidence::kNone;
}

// A signal of ours came first: the end that it caused is no failure of the rank.
bool WasSignalled(const Group& group, const RankEnded& exit) {
  const auto own = group.notice.signalled_at.find(exit.local_rank);
  return (group.signalled_at && exit.at >= *group.signalled_at) ||
         (own != group.notice.signalled_at.end() && exit.at >= own->second);
}

// It died before its shim was told to start this generation, and a new process has its place.
void ReplaceKept(Group& group, int local_rank) {
  group.ranks.kept.erase(local_rank);
  group.ranks.starts.erase(local_rank);
  group.ranks.exits.erase(local_rank);  // Of the one that died.
  group.in_place.awaited.erase(local_rank);
  group.in_place.were_able.erase(local_rank);
  group.notice.signalled_at.erase(local_rank);
}

void RunningIfStarted(Step& step, const GroupKey& key, Group& group) {
  if (group.phase != Phase::kStarting ||
      static_cast<int>(group.ranks.starts.size()) < group.workers)
    return;
  group.phase = Phase::kRunning;
  group.report.dirty = true;
  // A notice that came while they were being started.
  if (group.notice.deadline) NotifyWorkers(step, key, group);
}

}  // namespace

void BeginRanks(Step& step, const GroupKey& key, Group& group) {
  group.started = step.state.ever_ran = true;
  AwaitKept(step, group);
  if (group.phase == Phase::kPreparing || group.phase == Phase::kPrepared)
    group.phase = Phase::kStarting;
  group.report.dirty = true;
  RunningIfStarted(step, key, group);
}

void SeeStarts(Step& step, Group& group, const RunRecord& record) {
  if (!record.started) return;  // Kept ranks, which live on whether this generation begins or not.
  bool new_ranks = false;
  for (const RankStarted& start : record.starts) {
    const auto kept = group.ranks.kept.find(start.local_rank);
    if (kept != group.ranks.kept.end() && kept->second.pid == start.pid) continue;
    if (kept != group.ranks.kept.end()) ReplaceKept(group, start.local_rank);
    group.report.dirty |= group.ranks.starts.emplace(start.local_rank, start).second;
    new_ranks = true;
  }
  // An earlier life of this agent told the shim and died; what it has started is the proof.
  if (new_ranks && !group.started) BeginRanks(step, record.key, group);
  RunningIfStarted(step, record.key, group);
}

namespace {

void SeeExit(Step& step, const GroupKey& key, Group& group, RankEnded exit) {
  const int local_rank = exit.local_rank;
  if (!group.started && !group.signalled_at && group.ranks.kept.erase(local_rank) > 0) {
    // It has not been told of this generation, which starts another process in its place.
    step.Note(
        absl::StrCat("kept local rank ", local_rank, " has ended before ", NameOf(key), " began"));
    return;
  }
  exit.after_stop |= WasSignalled(group, exit);
  const auto failed = group.ranks.communicator_failed.find(local_rank);
  if (failed != group.ranks.communicator_failed.end()) {
    exit.evidence = EvidenceFor(exit, ErrorEvidence::kCommunicator);
    if (exit.error.empty()) exit.error = failed->second;
  }
  const auto given_up = group.in_place.given_up.find(local_rank);
  const bool killed = exit.kind == ExitKind::kSignaled && exit.code == SIGKILL && !exit.after_stop;
  exit.given_up = killed && given_up != group.in_place.given_up.end();
  if (exit.given_up) {
    exit.error = given_up->second;
    exit.oom = OomEvidence::kNone;  // Another one's.
  }
  if (exit.error.size() > kMaxErrorBytes) exit.error.resize(kMaxErrorBytes);
  group.ranks.exits.emplace(local_rank, std::move(exit));
  group.report.dirty = true;
  // How far it came is judged together with how it ended.
  FlushProgress(step, key);
  RankIsGone(step, key, group, local_rank);
}

}  // namespace

void SeeExits(Step& step, Group& group, const RunRecord& record) {
  for (const RankEnded& exit : record.exits) {
    if (group.ranks.exits.contains(exit.local_rank)) continue;
    // As long as nothing was started only kept ranks can end, and each of them once.
    if (!record.started && !group.ranks.kept.contains(exit.local_rank)) continue;
    SeeExit(step, record.key, group, exit);
  }
}

void On(Step& step, const RankErrorRead& read) {
  Group* group = step.state.Find(read.key);
  if (group == nullptr) return;
  const auto exit = group->ranks.exits.find(read.local_rank);
  if (exit == group->ranks.exits.end() || read.error.empty() || exit->second.error == read.error)
    return;
  // It was killed for what this agent knows better.
  if (exit->second.given_up) return;
  exit->second.error = read.error.substr(0, kMaxErrorBytes);
  // That its peers were lost is the better explanation: the rest of its words follow from it.
  if (exit->second.evidence != ErrorEvidence::kCommunicator)
    exit->second.evidence = EvidenceFor(exit->second, read.evidence);
  group->report.dirty = true;
}

void SeeShimGone(Step& step, Group& group, const RunRecord& record) {
  const GroupKey& key = record.key;
  if (record.shim_alive || record.unheard || group.shim.stage == ShimStage::kGone) return;
  if (group.shim.stage < ShimStage::kSpawned) return;
  group.shim.stage = ShimStage::kGone;
  if (group.phase == Phase::kFree || record.empty) return;
  group.report.dirty = true;
  step.Note(absl::StrCat("the shim of ", NameOf(key), " is gone"));
  // The shim of a voided Prepare had nobody to supervise.
  group.supervisor_lost = group.started || !group.stop_deadline;
  // Its ranks die with it: not by themselves.
  if (!group.signalled_at) group.signalled_at = step.now();
  if (group.phase != Phase::kUnkillable) group.phase = Phase::kStopping;
  ForsakeRanks(group);
  const std::optional<GroupKey> heir = step.state.HeirOf(key);
  const bool asked = heir && step.state.Find(*heir)->shim.stage == ShimStage::kSpawned;
  KillLeftovers(step, key, group);
  if (asked) On(step, PrepareFailed{*heir, "the supervisor that was to go on with it has ended"});
}

void SeeStoreGone(Group& group, const RunRecord& record) {
  if (!record.store.address || record.store.alive) return;
  if (!group.store.hosted || group.store.closed || group.store.lost) return;
  if (group.phase == Phase::kFree) return;
  group.store.lost = true;
  group.report.dirty = true;
}

}  // namespace regroup::agent
