// The half of Supervisor that takes a group into the next generation of its job.

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/shim/leftovers.h"
#include "agent/shim/spawn_fds.h"
#include "agent/shim/supervisor.h"
#include "common/base/status_macros.h"
#include "common/io/files.h"
#include "common/io/proc.h"

namespace regroup::shim {
namespace {

using std::chrono::milliseconds;

constexpr auto kFirstSweep = milliseconds(5), kLastSweep = milliseconds(1000);
// A log thread that hangs on a disk holds no rank up for longer.
constexpr auto kMoveLimit = milliseconds(1000);

}  // namespace

void Supervisor::OnAdopt(const Adopt& adopt, std::vector<io::UniqueFd> fds) {
  ReapChildren();  // Who has ended by now belongs to what was.
  absl::StatusOr<Next> next = Understand(adopt, std::move(fds));
  const absl::Status turned = next.ok() ? TurnTo(*next) : next.status();
  if (!turned.ok()) {
    std::fprintf(stderr, "the next generation is refused: %s\n",
                 std::string(turned.message()).c_str());
    return;
  }
  Take(*std::move(next));
}

absl::StatusOr<Supervisor::Next> Supervisor::Understand(const Adopt& adopt,
                                                        std::vector<io::UniqueFd> fds) {
  if (stop_deadline_ || free_ || check_) return absl::FailedPreconditionError("it ends, or checks");
  const std::size_t expected = adopt.with_stdin ? 4 : 3;
  if (fds.size() != expected)
    return absl::InvalidArgumentError(absl::StrCat(fds.size(), " descriptors"));
  Next next;
  next.directory.fd = std::move(fds[0]);
  next.lock = std::move(fds[1]);
  if (adopt.with_stdin) next.rank0_stdin = std::move(fds[3]);
  ASSIGN_OR_RETURN(next.spec, ReadSpec(next.directory));
  const Spec& spec = next.spec;
  const bool fits = spec.nonce == spec_.nonce && spec.role == spec_.role &&
                    spec.boot == spec_.boot && spec.job == spec_.job &&
                    spec.generation > spec_.generation && spec.workers == spec_.workers &&
                    spec.cgroup == spec_.cgroup;
  if (!fits) return absl::InvalidArgumentError("its spec does not fit");
  // Without it another agent would take the directory for one that no process has.
  ASSIGN_OR_RETURN(const bool locked, io::IsLocked(next.directory.fd.get(), kLockFile));
  if (!locked) return absl::InvalidArgumentError("its directory is not locked");
  ASSIGN_OR_RETURN(next.control, ControlSocket::Open(epoll_.get(), std::move(fds[2]), spec_.nonce));
  return next;
}

// First the new directory says what lives, then the old one that nothing of it does any more. So
// whoever looks in between, after this process was killed, finds a supervisor that was lost, and
// ends what it has left by the nonce, which both have.
absl::Status Supervisor::TurnTo(const Next& next) {
  State last = Compose(logs_->Look());
  State first = last;
  last.phase = Phase::kFree;
  last.left.clear();
  first.phase = Phase::kPrepared;
  first.ever_started = false;
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    if (ranks_[i].lives()) {
      last.ranks[i].phase = RankPhase::kKept;
      first.ranks[i].phase = RankPhase::kRunning;
      first.ranks[i].rank = -1;
      first.ranks[i].inherited = true;
    } else {
      first.ranks[i] = RankState{};
      first.ranks[i].local_rank = last.ranks[i].local_rank;
    }
  }
  RETURN_IF_ERROR(io::ReplaceFileAt(next.directory.fd.get(), kStateFile, Encode(first),
                                    io::Durability::kVolatile));
  absl::Status ended =
      io::ReplaceFileAt(fds_.directory.get(), kStateFile, Encode(last), io::Durability::kVolatile);
  if (!ended.ok()) ::unlinkat(next.directory.fd.get(), kStateFile, 0);
  return ended;
}

void Supervisor::Take(Next next) {
  spec_ = std::move(next.spec);
  ever_started_ = false;
  for (Rank& rank : ranks_) {
    if (!rank.lives()) {
      AwaitSuccessor(rank);
      continue;
    }
    rank.state.rank = -1;
    rank.state.inherited = true;
    rank.moving = false;
    if (!rank.exec_status) rank.state.phase = RankPhase::kRunning;
  }
  reported_ = {};
  fds_.directory = std::move(next.directory.fd);
  if (next.rank0_stdin) fds_.rank0_stdin = std::move(next.rank0_stdin);
  const absl::StatusOr<io::UniqueFd> log =
      io::OpenRegularAt(fds_.directory.get(), kShimLogFile, O_WRONLY | O_CREAT | O_APPEND);
  if (log.ok()) ::dup2(log->get(), STDERR_FILENO);
  // Whoever shows output has connected before it asked for this: as one reader, without a gap.
  std::vector<ControlSocket::Received> said = next.control->OnAll();
  ::dup3(next.lock.get(), kLockFd, O_CLOEXEC);  // The old one is let go of by the same call.
  control_ = std::move(next.control);
  for (ControlSocket::Received& received : said) OnCommand(std::move(received));
}

// What its predecessor was is told already. Also of one that ends before it has seen the new
// generation.
void Supervisor::AwaitSuccessor(Rank& rank) {
  if (rank.lives()) logs_->RankEnded(rank.log_id);
  if (rank.log_id > 0) logs_->Forget(rank.log_id);
  const pid_t predecessor = rank.state.pid > 0 ? rank.state.pid : rank.predecessor;
  const int local_rank = rank.state.local_rank;
  rank = Rank{};
  rank.state.local_rank = local_rank;
  rank.predecessor = predecessor;
  if (predecessor == 0) return;
  sweep_wait_ = kFirstSweep;
  sweep_due_ = io::BootNow();
}

// ---- what is there by StartRanks ---------------------------------------------------------------

void Supervisor::KeepRank(Rank& rank) {
  const int before = rank.log_id;
  rank.log_id = ++last_log_id_;
  rank.moving = true;
  rank.state.phase = RankPhase::kStarting;
  rank.state.started_at = io::BootNow();
  // Where a reader stands is told of the new folder from here on.
  for (const auto stream : {io::LogStream::kStdout, io::LogStream::kStderr})
    reader_.shown.erase({rank.state.local_rank, stream});
  logs_->SetReader(reader_);
  logs_->MoveRank(before, LogPlaceOf(rank));
  moves_due_ = io::BootNow() + kMoveLimit;
}

void Supervisor::OnMoved(const std::set<int>& moved) {
  for (Rank& rank : ranks_) {
    if (!rank.moving || !moved.contains(rank.log_id)) continue;
    rank.moving = false;
    if (!rank.exec_status) rank.state.phase = RankPhase::kRunning;
  }
}

void Supervisor::OnMovesDue() {
  moves_due_.reset();
  std::set<int> all;
  for (const Rank& rank : ranks_) all.insert(rank.log_id);
  OnMoved(all);
}

// Whether nothing is left of those whose place is to be taken.
bool Supervisor::EndLeftovers() {
  ReapChildren();
  std::multimap<int, pid_t> ended;
  std::set<pid_t> others;
  if (warm_) others.insert(warm_->pid());
  for (const Rank& rank : ranks_) {
    if (rank.lives()) others.insert(rank.state.pid);
    if (!rank.lives() && rank.predecessor > 0)
      ended.emplace(rank.state.local_rank, rank.predecessor);
  }
  if (ended.empty()) return true;
  for (const io::ProcessStat& process : LeftBehindBy(ended, others)) {
    io::SignalProcess(process.pid, process.start_ticks, SIGKILL).IgnoreError();
    swept_[process.pid] = process.start_ticks;
  }
  // A process that is dead may have threads that are not: it is gone once it was reaped.
  std::erase_if(swept_, [](const auto& entry) {
    const std::optional<io::ProcessStat> now = io::ReadProcessStat(entry.first);
    return !now || now->start_ticks != entry.second;
  });
  if (!swept_.empty() && !sweep_due_) sweep_due_ = io::BootNow() + sweep_wait_;
  return swept_.empty();
}

void Supervisor::OnSweepDue() {
  sweep_due_.reset();
  if (stop_deadline_ || free_) return;
  sweep_wait_ = std::min<Duration>(2 * sweep_wait_, kLastSweep);
  // What cannot be killed keeps its rank from starting; whoever waits for that stops the group.
  if (EndLeftovers() && pending_start_) OnStartRanks(*std::exchange(pending_start_, std::nullopt));
}

}  // namespace regroup::shim
