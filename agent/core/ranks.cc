#include "agent/core/ranks.h"

#include <csignal>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/core/group.h"
#include "agent/core/notices.h"
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

}  // namespace

void On(Step& step, const RanksStarted& started) {
  Group* group = step.state.Find(started.key);
  if (group == nullptr) return;
  for (const RankStarted& start : started.starts) {
    group->report.dirty |= group->ranks.starts.emplace(start.local_rank, start).second;
  }
  if (!started.starts.empty() && !group->started) {
    // An earlier life of this agent told the shim and died; the shim's mark is the proof.
    group->started = step.state.ever_ran = true;
    if (group->phase == Phase::kPreparing || group->phase == Phase::kPrepared)
      group->phase = Phase::kStarting;
  }
  if (group->phase == Phase::kStarting &&
      static_cast<int>(group->ranks.starts.size()) >= group->workers) {
    group->phase = Phase::kRunning;
    group->report.dirty = true;
    // A notice that came while they were being started.
    if (group->notice.deadline) NotifyWorkers(step, started.key, *group);
  }
}

void On(Step& step, const RankExited& exited) {
  Group* group = step.state.Find(exited.key);
  if (group == nullptr || group->ranks.exits.contains(exited.exit.local_rank)) return;
  RankEnded exit = exited.exit;
  const int local_rank = exit.local_rank;
  exit.after_stop |= WasSignalled(*group, exit);
  const auto failed = group->ranks.communicator_failed.find(local_rank);
  if (failed != group->ranks.communicator_failed.end()) {
    exit.evidence = EvidenceFor(exit, ErrorEvidence::kCommunicator);
    if (exit.error.empty()) exit.error = failed->second;
  }
  if (exit.error.size() > kMaxErrorBytes) exit.error.resize(kMaxErrorBytes);
  group->ranks.exits.emplace(local_rank, std::move(exit));
  group->report.dirty = true;
  // How far it came is judged together with how it ended.
  FlushProgress(step, exited.key);
}

void On(Step& step, const RankErrorRead& read) {
  Group* group = step.state.Find(read.key);
  if (group == nullptr) return;
  const auto exit = group->ranks.exits.find(read.local_rank);
  if (exit == group->ranks.exits.end() || read.error.empty() || exit->second.error == read.error)
    return;
  exit->second.error = read.error.substr(0, kMaxErrorBytes);
  // That its peers were lost is the better explanation: the rest of its words follow from it.
  if (exit->second.evidence != ErrorEvidence::kCommunicator)
    exit->second.evidence = EvidenceFor(exit->second, read.evidence);
  group->report.dirty = true;
}

void On(Step& step, const GroupEmpty& empty) {
  if (Group* group = step.state.Find(empty.key); group != nullptr) MarkFree(*group);
}

void On(Step& step, const GroupStuck& stuck) {
  Group* group = step.state.Find(stuck.key);
  if (group == nullptr || group->phase == Phase::kFree || group->phase == Phase::kUnkillable)
    return;
  step.Note(absl::StrCat(NameOf(stuck.key), " was killed and is not gone: its ", group->workers,
                         " slots stay taken"));
  group->phase = Phase::kUnkillable;
  group->report.dirty = true;
}

void On(Step& step, const ShimGone& gone) {
  Group* group = step.state.Find(gone.key);
  if (group == nullptr || group->shim.stage == ShimStage::kGone) return;
  group->shim.stage = ShimStage::kGone;
  if (group->phase == Phase::kFree) return;
  group->report.dirty = true;
  step.Note(absl::StrCat("the shim of ", NameOf(gone.key), " is gone"));
  // The shim of a voided Prepare had nobody to supervise.
  group->supervisor_lost = group->started || !group->stop_deadline;
  // Its ranks die with it: not by themselves.
  if (!group->signalled_at) group->signalled_at = step.now();
  if (group->phase != Phase::kUnkillable) group->phase = Phase::kStopping;
  step.Do(KillGroup{gone.key});
}

void On(Step& step, const StoreGone& gone) {
  Group* group = step.state.Find(gone.key);
  if (group == nullptr || !group->store.hosted || group->store.closed || group->store.lost) return;
  if (group->phase == Phase::kFree) return;
  group->store.lost = true;
  group->report.dirty = true;
}

}  // namespace regroup::agent
