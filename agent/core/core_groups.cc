// The half of Core that hears from shims, stores and workers of this node.

#include <algorithm>
#include <csignal>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/core/core.h"

namespace regroup::agent {
namespace {

constexpr std::size_t kMaxRefusalBytes = 2048;

// NCCL's watchdog aborts a rank whose peers are gone; of any other signal a rank's words know
// nothing.
ErrorEvidence EvidenceFor(const RankEnded& exit, ErrorEvidence told) {
  const bool spoke =
      exit.kind == ExitKind::kExited || (exit.kind == ExitKind::kSignaled && exit.code == SIGABRT);
  return spoke ? told : ErrorEvidence::kNone;
}

// An attempt of a step is asked about with the same words each time.
bool IsSame(const CommitRequest& a, const CommitRequest& b) {
  return a.attempt == b.attempt && a.step == b.step;
}
bool IsAnswerTo(const CommitAnswer& answer, const CommitRequest& asked) {
  return answer.attempt == asked.attempt && answer.step == asked.step;
}

}  // namespace

// ---- prepare ------------------------------------------------------------------------------------

void Core::On(const RunDirectoryWritten& written) {
  Group* group = Find(written.key);
  if (group == nullptr || group->shim_spawned) return;
  if (group->stop_deadline) {  // Voided meanwhile: nothing was started, so nothing has to be
                               // stopped.
    MarkFree(*group);
    return;
  }
  group->shim_spawned = true;
  Do(SpawnShim{written.key});
  if (group->host_store) Do(SpawnStore{written.key});
}

void Core::On(const PrepareFailed& failed) {
  Group* group = Find(failed.key);
  if (group == nullptr || group->phase == Phase::kFree || group->started) return;
  Note(absl::StrCat("cannot prepare ", failed.key.job.value(), " generation ",
                    failed.key.generation.value(), ": ", failed.why));
  group->refused = failed.why.substr(0, kMaxRefusalBytes);
  group->dirty = true;
  if (group->shim_ready && !group->shim_gone) {
    StopGroup(failed.key, *group, now_, StopReason::kFailure);
  } else {
    // No rank was ever started: whatever there is of a shim or store ends with the run directory.
    MarkFree(*group);
  }
}

void Core::On(const ShimReady& ready) {
  Group* group = Find(ready.key);
  if (group == nullptr || group->shim_ready || group->phase == Phase::kFree) return;
  group->shim_ready = true;
  group->witness = ready.witness;
  group->checking = ready.checking;
  if (group->stop_deadline) {
    Do(StopRanks{ready.key, *group->stop_deadline});
  } else {
    MaybePrepared(*group);
  }
}

void Core::On(const NodeChecked& checked) {
  Group* group = Find(checked.key);
  if (group == nullptr) return;
  group->checking = false;
  MaybePrepared(*group);
}

void Core::On(const StoreBound& bound) {
  Group* group = Find(bound.key);
  if (group == nullptr || !group->host_store || group->store) return;
  group->store = bound.address;
  if (group->store_closed) Do(CloseStore{bound.key});  // Stopped before it was bound.
  MaybePrepared(*group);
}

void Core::MaybePrepared(Group& group) {
  if (group.phase != Phase::kPreparing || !group.shim_ready || group.checking ||
      (group.host_store && !group.store))
    return;
  group.phase = Phase::kPrepared;
  group.dirty = true;
}

// ---- what a shim saw ----------------------------------------------------------------------------

void Core::On(const RanksStarted& started) {
  Group* group = Find(started.key);
  if (group == nullptr) return;
  for (const RankStarted& start : started.starts) {
    group->dirty |= group->starts.emplace(start.local_rank, start).second;
  }
  if (!started.starts.empty() && !group->started) {
    // An earlier life of this agent told the shim and died; the shim's mark is the proof.
    group->started = ever_ran_ = true;
    if (group->phase == Phase::kPreparing || group->phase == Phase::kPrepared)
      group->phase = Phase::kStarting;
  }
  if (group->phase == Phase::kStarting &&
      static_cast<int>(group->starts.size()) >= group->workers) {
    group->phase = Phase::kRunning;
    group->dirty = true;
    // A notice that came while they were being started.
    if (group->notice_deadline) NotifyWorkers(started.key, *group);
  }
}

void Core::On(const RankExited& exited) {
  Group* group = Find(exited.key);
  if (group == nullptr || group->exits.contains(exited.exit.local_rank)) return;
  RankEnded exit = exited.exit;
  const int local_rank = exit.local_rank;
  const auto signalled = group->rank_signalled_at.find(local_rank);
  exit.after_stop |= (group->signalled_at && exit.at >= *group->signalled_at) ||
                     (signalled != group->rank_signalled_at.end() && exit.at >= signalled->second);
  const auto failed = group->communicator_failed.find(local_rank);
  if (failed != group->communicator_failed.end()) {
    exit.evidence = EvidenceFor(exit, ErrorEvidence::kCommunicator);
    if (exit.error.empty()) exit.error = failed->second;
  }
  if (exit.error.size() > kMaxErrorBytes) exit.error.resize(kMaxErrorBytes);
  group->exits.emplace(local_rank, std::move(exit));
  group->dirty = true;
  // How far it came is judged together with how it ended.
  FlushProgress(exited.key);
}

void Core::On(const RankErrorRead& read) {
  Group* group = Find(read.key);
  if (group == nullptr) return;
  const auto exit = group->exits.find(read.local_rank);
  if (exit == group->exits.end() || read.error.empty() || exit->second.error == read.error) return;
  exit->second.error = read.error.substr(0, kMaxErrorBytes);
  if (exit->second.evidence != ErrorEvidence::kCommunicator)
    exit->second.evidence = EvidenceFor(exit->second, read.evidence);
  group->dirty = true;
}

void Core::On(const GroupEmpty& empty) {
  if (Group* group = Find(empty.key); group != nullptr) MarkFree(*group);
}

void Core::On(const GroupStuck& stuck) {
  Group* group = Find(stuck.key);
  if (group == nullptr || group->phase == Phase::kFree || group->phase == Phase::kUnkillable)
    return;
  Note(absl::StrCat(stuck.key.job.value(), " generation ", stuck.key.generation.value(),
                    " was killed and is not gone: its ", group->workers, " slots stay taken"));
  group->phase = Phase::kUnkillable;
  group->dirty = true;
}

void Core::On(const ShimGone& gone) {
  Group* group = Find(gone.key);
  if (group == nullptr || group->shim_gone) return;
  group->shim_gone = true;
  if (group->phase == Phase::kFree) return;
  group->dirty = true;
  Note(absl::StrCat("the shim of ", gone.key.job.value(), " generation ",
                    gone.key.generation.value(), " is gone"));
  group->supervisor_lost = group->started || !group->stop_deadline;
  if (!group->signalled_at) group->signalled_at = now_;
  if (group->phase != Phase::kUnkillable) group->phase = Phase::kStopping;
  Do(KillGroup{gone.key});
}

void Core::On(const StoreGone& gone) {
  Group* group = Find(gone.key);
  if (group == nullptr || !group->host_store || group->store_closed || group->store_lost) return;
  if (group->phase == Phase::kFree) return;
  group->store_lost = true;
  group->dirty = true;
}

void Core::MarkFree(Group& group) {
  if (group.phase == Phase::kFree) return;
  group.phase = Phase::kFree;
  group.notice_deadline.reset();
  group.dirty = true;
}

// ---- workers ------------------------------------------------------------------------------------

void Core::On(const WorkerSaid& said) {
  Group* group = Find(said.key);
  if (group == nullptr || said.local_rank < 0 || said.local_rank >= group->workers) return;
  if (const auto* hello = std::get_if<WorkerHello>(&said.what)) {
    group->speaking[said.local_rank] = hello->takes_notice;
    group->told.erase(said.local_rank);
    // It may have reconnected, or come late: what it missed is told again.
    if (group->notice_deadline && hello->takes_notice) NotifyWorkers(said.key, *group);
  } else if (const auto* progress = std::get_if<WorkerProgress>(&said.what)) {
    Progress& kept = progress_[{said.key, said.local_rank}];
    kept.last = *progress;
    kept.unsent = true;
  } else if (const auto* request = std::get_if<CommitRequest>(&said.what)) {
    OnCommitAsked(said.key, *request);
  } else if (const auto* failed = std::get_if<CommunicatorFailed>(&said.what)) {
    group->communicator_failed[said.local_rank] = failed->text.substr(0, kMaxErrorBytes);
  }
}

void Core::On(const WorkerHungUp& hung_up) {
  Group* group = Find(hung_up.key);
  if (group == nullptr) return;
  group->speaking.erase(hung_up.local_rank);
  group->told.erase(hung_up.local_rank);
}

void Core::On(const CommitAnswered& answered) {
  const CommitAnswer& answer = answered.answer;
  const GroupKey key{answer.job, answer.generation};
  const auto asked = commits_.find(key);
  if (asked == commits_.end() || !asked->second.in_flight ||
      !IsAnswerTo(answer, *asked->second.in_flight))
    return;
  Do(TellCommit{key, answer});
  if (IsAnswerTo(answer, asked->second.newest)) {
    commits_.erase(asked);
  } else {
    AskCommit(asked->second);
  }
}

// While one is in flight the newest waits; what it displaces from there will not be asked.
void Core::OnCommitAsked(const GroupKey& key, const CommitRequest& request) {
  FlushProgress(key);
  const auto [at, first] = commits_.try_emplace(key, Commit{request, {}});
  Commit& commit = at->second;
  const CommitRequest displaced = std::exchange(commit.newest, request);
  const bool asked = commit.in_flight && IsSame(*commit.in_flight, displaced);
  if (!first && !asked && !IsSame(displaced, request)) {
    CommitAnswer busy;
    busy.job = key.job;
    busy.generation = key.generation;
    busy.attempt = displaced.attempt;
    busy.step = displaced.step;
    busy.why_not = "busy: a newer commit was asked for before this one could be";
    Do(TellCommit{key, busy});
  }
  if (attached_ && !commit.in_flight) AskCommit(commit);
}

void Core::AskCommit(Commit& commit) {
  commit.in_flight = commit.newest;
  Do(SendCommit{commit.newest});
}

// Workers that take a notice hear it once per connection; the others get SIGTERM, once ever, since
// a second one means "now" to many programs.
void Core::NotifyWorkers(const GroupKey& key, Group& group) {
  if (group.phase != Phase::kRunning || !group.notice_deadline) return;
  const Duration left = std::max(Duration::zero(), *group.notice_deadline - now_);
  const bool signal = !group.signals_sent;
  for (const auto& [local_rank, start] : group.starts) {
    if (group.exits.contains(local_rank)) continue;
    const auto speaker = group.speaking.find(local_rank);
    if (speaker != group.speaking.end() && speaker->second) {
      if (group.told.insert(local_rank).second) Do(TellNotice{key, local_rank, left});
    } else if (signal) {
      group.rank_signalled_at.emplace(local_rank, now_);
      Do(SignalRank{key, local_rank, SIGTERM});
    }
  }
  group.signals_sent = true;
}

void Core::FlushProgress(const GroupKey& key) {
  if (!attached_) return;
  for (auto& [owner, progress] : progress_) {
    if (owner.first != key || !progress.unsent) continue;
    progress.unsent = false;
    Do(SendProgress{progress.last});
  }
}

}  // namespace regroup::agent
