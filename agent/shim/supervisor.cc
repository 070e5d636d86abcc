#include "agent/shim/supervisor.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "agent/shim/leftovers.h"
#include "agent/shim/run_directory.h"
#include "agent/shim/spawn_fds.h"
#include "agent/shim/spawn_rank.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/io/files.h"
#include "common/io/proc.h"

namespace regroup::shim {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr auto kKillAgain = milliseconds(20);  // A fork bomb is faster than one walk.
constexpr auto kCheckLeftovers = seconds(1);   // To end them, once the check has passed.
constexpr auto kUnkillableAgain = seconds(1);
constexpr auto kOutputInterval = milliseconds(10);
constexpr auto kLogPatience = seconds(5);  // With an agent that waits.
constexpr auto kEndsByItself = milliseconds(100);
constexpr std::size_t kMaxLeft = 16;
constexpr int kPipeBytes = 256 << 10;

struct OutputPipe {
  io::UniqueFd read_end, write_end;
};
absl::StatusOr<OutputPipe> MakeOutputPipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) < 0) return io::ErrnoStatus(errno, "make output pipe");
  OutputPipe pipe{io::UniqueFd(ends[0]), io::UniqueFd(ends[1])};
  RETURN_IF_ERROR(io::SetNonBlocking(ends[0], true));
  ::fcntl(ends[1], F_SETPIPE_SZ,
          kPipeBytes);  // Users have a limit; the default size works as well.
  return pipe;
}

int ReadOwnOomScore() {
  int score = 0;
  absl::StatusOr<std::string> text = io::ReadFile("/proc/self/oom_score_adj", 64);
  if (text.ok() && absl::SimpleAtoi(absl::StripAsciiWhitespace(*text), &score)) return score;
  return 0;
}

// The supervisor shall outlive what it supervises. Refused without the right to.
void LowerOwnOomScore() {
  io::UniqueFd fd(::open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC));
  if (fd) io::WriteAll(fd.get(), "-900").IgnoreError();
}

void MoveToParent(const std::string& cgroup, pid_t pid) {
  const std::string parent = cgroup.substr(0, cgroup.find_last_of('/'));
  io::UniqueFd fd(::open(absl::StrCat(parent, "/cgroup.procs").c_str(), O_WRONLY | O_CLOEXEC));
  if (fd) io::WriteAll(fd.get(), absl::StrCat(pid)).IgnoreError();  // Else it is gone already.
}

}  // namespace

void AcceptAndClose(int listener_fd) {
  for (int i = 0; i < 256; ++i) {  // Others wait for their turn too.
    int fd = ::accept4(listener_fd, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) return;
    ::close(fd);
  }
}

absl::StatusOr<std::unique_ptr<Supervisor>> Supervisor::Create(Spec spec, SupervisorFds fds,
                                                               std::optional<WarmStart> warm) {
  std::unique_ptr<Supervisor> supervisor(new Supervisor(std::move(spec), std::move(fds)));
  supervisor->warm_ = std::move(warm);
  RETURN_IF_ERROR(supervisor->SetUp());
  return supervisor;
}

absl::Status Supervisor::Watch(int fd, std::uint32_t events) {
  return io::Watch(epoll_.get(), fd, events);
}

absl::Status Supervisor::SetUp() {
  if (spec_.workers < 1) return absl::InvalidArgumentError(absl::StrCat(spec_.workers, " workers"));
  for (int local_rank = 0; local_rank < spec_.workers; ++local_rank) {
    ranks_.emplace_back().state.local_rank = local_rank;
  }
  sigset_t child;
  ::sigemptyset(&child);
  ::sigaddset(&child, SIGCHLD);
  epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
  signals_.reset(::signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK));
  timer_.reset(::timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK));
  logs_ready_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  dev_null_.reset(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!epoll_ || !signals_ || !timer_ || !logs_ready_ || !dev_null_)
    return io::ErrnoStatus(errno, "set up supervisor");
  for (int fd : {signals_.get(), timer_.get(), logs_ready_.get(), fds_.witness.get()}) {
    RETURN_IF_ERROR(Watch(fd, EPOLLIN));
  }
  RETURN_IF_ERROR(io::SetNonBlocking(fds_.witness.get(), true));
  if (fds_.lifeline) RETURN_IF_ERROR(Watch(fds_.lifeline.get(), EPOLLIN));
  if (!spec_.cgroup.empty()) {
    absl::StatusOr<Cgroup> cgroup = Cgroup::Open(spec_.cgroup);
    if (cgroup.ok()) {
      cgroup_ = *std::move(cgroup);
      RETURN_IF_ERROR(Watch(cgroup_->events_fd(), EPOLLPRI));
      cgroup_oom_kills_seen_ = cgroup_->OomKills().value_or(0);
      cgroup_used_ = true;
    } else {
      std::fprintf(stderr, "without cgroup: %s\n", std::string(cgroup.status().message()).c_str());
    }
  }
  oom_kills_seen_ = HostOomKills();
  own_oom_score_adj_ = ReadOwnOomScore();
  LowerOwnOomScore();
  ASSIGN_OR_RETURN(logs_, LogDrain::Start(logs_ready_.get()));
  ASSIGN_OR_RETURN(control_,
                   ControlSocket::Open(epoll_.get(), std::move(fds_.socket), spec_.nonce));
  if (spec_.node_check.wanted()) StartCheck();
  return absl::OkStatus();
}

bool Supervisor::Run() {
  for (;;) {
    TellReader();
    WatchForAgent();
    EndIfReleased();  // Before it is told: whoever dials then is refused.
    const bool logs_done = Report();
    if (released_ && logs_done) return true;
    if (released_ && io::BootNow() >= *logs_deadline_) return WriteLate();
    ArmTimer();
    epoll_event events[32];
    int n = ::epoll_wait(epoll_.get(), events, 32, -1);
    if (n < 0 && errno == EINTR) continue;
    CHECK(n > 0);
    for (int i = 0; i < n; ++i) OnEvent(events[i].data.fd, events[i].events);
    CheckFree();
  }
}

void Supervisor::OnEvent(int fd, std::uint32_t events) {
  if (fd == signals_.get()) return ReapChildren();
  if (fd == timer_.get()) {
    std::uint64_t count = 0;
    [[maybe_unused]] ssize_t ignored = ::read(fd, &count, sizeof(count));
    return OnDue(io::BootNow());
  }
  if (fds_.witness && fd == fds_.witness.get()) return AcceptAndClose(fd);
  if (fds_.lifeline && fd == fds_.lifeline.get()) return OnLifeline();
  if (fd == logs_ready_.get()) {
    std::uint64_t count = 0;
    [[maybe_unused]] ssize_t ignored = ::read(fd, &count, sizeof(count));
    return;  // Report looks.
  }
  if (check_ && fd == check_->output_fd()) return check_->ReadOutput();
  if (cgroup_ && fd == cgroup_->events_fd()) {
    cgroup_->Populated().IgnoreError();  // Reading clears the event; CheckFree looks.
    return;
  }
  if (control_->Owns(fd)) {
    const Generation generation = spec_.generation;
    for (ControlSocket::Received& received : control_->OnEvent(fd, events)) {
      // What follows an Adopt is of a generation that is over.
      if (spec_.generation == generation) OnCommand(std::move(received));
    }
    return;
  }
  for (Rank& rank : ranks_) {
    if (rank.exec_status && rank.exec_status.get() == fd) return OnExecStatus(rank);
  }
}

void Supervisor::OnCommand(ControlSocket::Received received) {
  const Command& command = received.command;
  TellReader();  // Before the first rank says its first word.
  if (const auto* adopt = std::get_if<Adopt>(&command)) OnAdopt(*adopt, std::move(received.fds));
  if (const auto* start = std::get_if<StartRanks>(&command)) OnStartRanks(*start);
  if (const auto* stop = std::get_if<Stop>(&command)) OnStop(*stop);
  const bool kill = std::holds_alternative<Kill>(command);
  if (kill || (free_ && std::holds_alternative<Release>(command))) dismissed_ = true;
  if (kill) OnStop({io::BootNow(), SIGKILL});
  if (const auto* shown = std::get_if<Shown>(&command)) OnShown(*shown);
}

void Supervisor::OnShown(const Shown& shown) {
  reader_.room_bytes = shown.room_bytes;
  reader_.shown.clear();
  for (const Shown::Stream& stream : shown.streams) {
    const auto kind = stream.is_stderr ? io::LogStream::kStderr : io::LogStream::kStdout;
    reader_.shown[{stream.local_rank, kind}] = stream.position;
  }
  logs_->SetReader(reader_);
}

// Whoever shows output has come or gone; or a stop was signalled.
void Supervisor::TellReader() {
  const bool present = control_->OutputWanted(), waits = !stop_deadline_;
  if (present == reader_.present && waits == reader_.waits) return;
  if (!present) reader_ = {};  // Whoever comes next says itself where it stands.
  reader_.present = present;
  reader_.waits = waits;
  logs_->SetReader(reader_);
}

void Supervisor::OnLifeline() {
  char bytes[256];
  ssize_t n = ::read(fds_.lifeline.get(), bytes, sizeof(bytes));
  if (n > 0 || (n < 0 && (errno == EINTR || errno == EAGAIN))) return;
  fds_.lifeline.reset();
  lifeline_closed_ = true;
  if (free_) dismissed_ = true;
  if (!stop_deadline_) OnStop({io::BootNow() + spec_.lifeline_grace, SIGTERM});
}

// ---- node check --------------------------------------------------------------------------------

void Supervisor::StartCheck() {
  absl::StatusOr<NodeCheckProcess> started = NodeCheckProcess::Start(
      spec_, dev_null_.get(), cgroup_ ? cgroup_->fd() : -1, own_oom_score_adj_);
  if (!started.ok())
    return FailCheck(absl::StrCat("its node check could not be started: ",
                                  std::string(started.status().message())));
  check_ = *std::move(started);
  check_due_ = check_->deadline();
  cgroup_used_ = cgroup_used_ && check_->in_cgroup();
  CHECK(Watch(check_->output_fd(), EPOLLIN).ok());
}

// The check has taken too long; or it has passed, and what it left running would be in the way of
// the ranks.
void Supervisor::OnCheckDue(Instant now) {
  ReapChildren();
  if (!check_ || now < *check_due_) return;
  if (!check_passed_) return FailCheck(check_->TimedOut());
  // Without a cgroup nothing tells for certain the child that forks ranks from what is left.
  if (!check_->in_cgroup()) EndWarmStart();
  if (NothingLeft()) {
    check_.reset();
    check_due_.reset();
    left_.clear();
  } else if (now >= *check_limit_) {
    FailCheck("what its node check has started cannot be ended");
  } else {
    // Not by the cgroup: Linux 6.18 also kills whatever is cloned into it later.
    KillDescendants();
    check_due_ = now + kKillAgain;
  }
}

void Supervisor::FailCheck(std::string how) {
  check_failed_ = std::move(how);
  OnStop({io::BootNow(), SIGKILL});
}

// ---- start -------------------------------------------------------------------------------------

void Supervisor::OnStartRanks(const StartRanks& start) {
  if (ever_started_ || stop_deadline_ || free_ || check_) return;  // Once, ever.
  if (start.ranks.size() != ranks_.size()) {
    std::fprintf(stderr, "StartRanks names %zu ranks, this group has %zu\n", start.ranks.size(),
                 ranks_.size());
    return;
  }
  if (!EndLeftovers()) {
    pending_start_ = start;
    return;
  }
  ever_started_ = true;
  // The mark before the first rank: whoever finds none may be sure that nothing ran.
  absl::Status marked = io::ReplaceFileAt(fds_.directory.get(), kStartedFile,
                                          Encode(Command(start)), io::Durability::kVolatile);
  bool any = false;
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    ranks_[i].state.rank = start.ranks[i].rank;
    if (ranks_[i].lives()) {
      KeepRank(ranks_[i]);
    } else if (marked.ok()) {
      // Before the first one: it is not to be forked inside the cgroup.
      if (!std::exchange(any, true) && warm_ && spec_.keeps_ranks) AskForSpare();
      StartRank(ranks_[i], start.ranks[i]);
    } else {
      EndRank(ranks_[i], ExitKind::kExecFailed, io::ErrnoOf(marked), "started mark");
    }
  }
  if (any) LetWarmRanksBegin();
  fds_.rank0_stdin.reset();  // The rank alone holds it, so that whoever writes there sees it close.
}

void Supervisor::StartRank(Rank& rank, const RankPlan& plan) {
  rank.state.started_at = io::BootNow();
  absl::StatusOr<OutputPipe> output = MakeOutputPipe();
  absl::StatusOr<OutputPipe> error = MakeOutputPipe();
  for (const absl::Status& status : {output.status(), error.status()}) {
    if (!status.ok()) return EndRank(rank, ExitKind::kExecFailed, io::ErrnoOf(status), "pipe");
  }
  const bool has_input = rank.state.local_rank == 0 && fds_.rank0_stdin;
  RankFds fds{.standard_input = has_input ? fds_.rank0_stdin.get() : dev_null_.get(),
              .standard_output = output->write_end.get(),
              .standard_error = error->write_end.get(),
              .cgroup = cgroup_ ? cgroup_->fd() : -1};
  absl::StatusOr<SpawnedRank> spawned = SpawnWarmOrCold(plan, fds);
  if (!spawned.ok())
    return EndRank(rank, ExitKind::kExecFailed, io::ErrnoOf(spawned.status()), "clone");
  rank.state.phase = RankPhase::kStarting;
  rank.state.pid = spawned->pid;
  rank.state.start_ticks = spawned->start_ticks;
  rank.exec_status = std::move(spawned->exec_status);
  cgroup_used_ = cgroup_used_ && spawned->in_cgroup;
  CHECK(Watch(rank.exec_status.get(), EPOLLIN).ok());
  rank.log_id = ++last_log_id_;
  logs_->AddRank(LogPlaceOf(rank), std::move(output->read_end), std::move(error->read_end));
}

LogDrain::Place Supervisor::LogPlaceOf(const Rank& rank) const {
  const int number = rank.state.rank;
  return {.id = rank.log_id,
          .local_rank = rank.state.local_rank,
          .directory = io::LogDirectory(spec_.log_root, spec_.job, spec_.generation, number),
          .passing = spec_.passing.empty() ? "" : absl::StrCat(spec_.passing, "/", number),
          .limits = spec_.log_limits};
}

absl::StatusOr<SpawnedRank> Supervisor::SpawnWarmOrCold(const RankPlan& plan, const RankFds& fds) {
  if (warm_) {
    absl::StatusOr<SpawnedRank> warm = warm_->SpawnRank(spec_, plan, fds, own_oom_score_adj_);
    if (warm.ok()) return warm;
    std::fprintf(stderr, "a rank starts cold: %s\n", std::string(warm.status().message()).c_str());
  }
  return SpawnRank(spec_, plan, fds, own_oom_score_adj_);
}

void Supervisor::AskForSpare() {
  const absl::Status asked = warm_->AskForSpare();
  if (asked.ok()) return;
  std::fprintf(stderr, "ranks that replace these start cold: %s\n",
               std::string(asked.message()).c_str());
}

void Supervisor::LetWarmRanksBegin() {
  if (!warm_) return;
  warm_->Finish();
  std::optional<WarmStart> spare = warm_->TakeSpare();
  warm_.reset();
  if (spare) warm_.emplace(*std::move(spare));
}

void Supervisor::EndWarmStart() {
  if (warm_) warm_->Finish();
  warm_.reset();
}

void Supervisor::OnExecStatus(Rank& rank) {
  std::optional<ExecStatus> status = ReadExecStatus(rank.exec_status.get());
  if (!status) return;
  rank.exec_status.reset();
  if (!status->failed_stage.empty()) {
    EndRank(rank, ExitKind::kExecFailed, status->error, status->failed_stage);
  } else if (rank.state.phase == RankPhase::kStarting && !rank.moving) {
    rank.state.phase = RankPhase::kRunning;
  }
}

// ---- end ---------------------------------------------------------------------------------------

void Supervisor::EndRank(Rank& rank, ExitKind kind, int code, std::string exec_stage) {
  if (rank.state.phase == RankPhase::kEnded) return;
  // It has lived through a generation and did not see the next one begin: another one takes its
  // place there.
  if (!ever_started_ && !stop_deadline_) return AwaitSuccessor(rank);
  rank.state.phase = RankPhase::kEnded;
  rank.state.ended_at = io::BootNow();
  rank.state.exit_kind = kind;
  rank.state.code = code;
  rank.state.exec_stage = std::move(exec_stage);
  rank.state.after_stop = stop_signal_ != 0;
  rank.exec_status.reset();
  rank.moving = false;
  logs_->RankEnded(rank.log_id);
}

Supervisor::Rank* Supervisor::FindByPid(pid_t pid) {
  for (Rank& rank : ranks_) {
    if (rank.state.pid == pid) return &rank;
  }
  return nullptr;
}

// All children: ranks, and orphans that the kernel gave to this subreaper.
void Supervisor::ReapChildren() {
  signalfd_siginfo info;
  while (::read(signals_.get(), &info, sizeof(info)) > 0) {
  }
  for (;;) {
    siginfo_t child{};
    if (::waitid(P_ALL, 0, &child, WEXITED | WNOHANG) < 0 && errno == EINTR) continue;
    if (child.si_pid == 0) return;
    if (check_ && child.si_pid == check_->pid() && !check_passed_) {
      const bool killed = child.si_code != CLD_EXITED && child.si_status == SIGKILL;
      const std::string failed =
          check_->Judge(child.si_code, child.si_status, killed ? LookForOom() : OomEvidence::kNone);
      if (!failed.empty()) {
        FailCheck(failed);
        continue;
      }
      check_passed_ = true;
      check_due_ = io::BootNow();
      check_limit_ = *check_due_ + kCheckLeftovers;
    }
    if (warm_ && child.si_pid == warm_->pid()) warm_.reset();
    Rank* rank = FindByPid(child.si_pid);
    if (rank != nullptr) OnRankExit(*rank, child.si_code, child.si_status);
  }
}

void Supervisor::OnRankExit(Rank& rank, int code, int status) {
  if (rank.exec_status)
    OnExecStatus(rank);  // Did it ever run its program? The pipe holds the answer by now.
  if (rank.state.phase == RankPhase::kEnded) return;
  const bool exited = code == CLD_EXITED;
  EndRank(rank, exited ? ExitKind::kExited : ExitKind::kSignaled, status, "");
  if (!exited && status == SIGKILL) rank.state.oom = LookForOom();
}

OomEvidence Supervisor::LookForOom() {
  const long host = HostOomKills();
  const bool host_counted = host > oom_kills_seen_;
  oom_kills_seen_ = host;
  if (cgroup_) {
    absl::StatusOr<long> own = cgroup_->OomKills();
    if (own.ok()) {
      const bool counted = *own > cgroup_oom_kills_seen_;
      cgroup_oom_kills_seen_ = *own;
      return counted ? OomEvidence::kCounted : OomEvidence::kNone;
    }
  }
  return host_counted ? OomEvidence::kProbable : OomEvidence::kNone;
}

// ---- stop --------------------------------------------------------------------------------------

void Supervisor::OnStop(const Stop& stop) {
  if (free_) return;
  Instant deadline = stop.deadline;
  const int signal = stop.signal;
  const bool first = !stop_deadline_;
  const bool any_rank = std::any_of(ranks_.begin(), ranks_.end(), [this](const Rank& rank) {
    return ever_started_ || rank.lives();
  });
  pending_start_.reset();
  sweep_due_.reset();
  if (check_) {  // Nobody needs what it would have said.
    check_.reset();
    check_due_.reset();
    deadline = std::min(deadline, io::BootNow());
  }
  if (!stop_deadline_ || deadline < *stop_deadline_) stop_deadline_ = deadline;
  EndWarmStart();
  if (first && (stop.name_leftovers || stop.keep_leftovers) && LeavesOnlyOthers()) {
    keep_leftovers_ = stop.keep_leftovers;
    leftovers_due_ = io::BootNow() + kEndsByItself;
    return;
  }
  leftovers_due_.reset();
  if (signal != stop_signal_ && any_rank && !first_kill_) SignalGroup(signal);
  stop_signal_ = signal;
  if (*stop_deadline_ <= io::BootNow()) OnDue(io::BootNow());
}

bool Supervisor::LeavesOnlyOthers() const {
  return ever_started_ && std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) {
           return rank.state.phase == RankPhase::kEnded &&
                  rank.state.exit_kind == ExitKind::kExited && rank.state.code == 0;
         });
}

// The helpers of a library end soon after their rank: whoever is here now means to stay.
void Supervisor::OnLeftovers() {
  leftovers_due_.reset();
  ReapChildren();
  CheckFree();
  if (free_) return;
  for (const io::ProcessStat& process : LiveDescendants()) {
    ++left_behind_count_;
    if (left_behind_.size() < kMaxLeft) left_behind_.push_back(DescribeProcess(process.pid));
  }
  disowned_ = keep_leftovers_ && Disown();
  if (disowned_) return CheckFree();
  SignalGroup(SIGTERM);
  stop_signal_ = SIGTERM;
}

// Into the cgroup that this group's own lies in. False where some can't be moved.
bool Supervisor::Disown() {
  if (!cgroup_) return true;
  constexpr int kRounds = 100;  // They may fork meanwhile.
  for (int round = 0; round < kRounds; ++round) {
    const std::vector<pid_t> inside = cgroup_->Processes();
    if (inside.empty()) return !cgroup_->Populated().value_or(true);
    for (const pid_t pid : inside) MoveToParent(spec_.cgroup, pid);
  }
  return false;
}

// Once per process: ranks by their group, others (orphans, those in sessions of their own) one by
// one.
void Supervisor::SignalGroup(int signal) {
  std::set<pid_t> groups, alone;
  for (const Rank& rank : ranks_) {
    if (!rank.lives()) continue;
    if (::kill(-rank.state.pid, signal) == 0) {
      groups.insert(rank.state.pid);
    } else {
      // Before its setsid it was still in this process's group. By now it may have a group of its
      // own and processes in there, whom this does not reach.
      ::kill(rank.state.pid, signal);
      alone.insert(rank.state.pid);
    }
  }
  for (const io::ProcessStat& process : LiveDescendants()) {
    if (groups.contains(process.group) || alone.contains(process.pid)) continue;
    io::SignalProcess(process.pid, process.start_ticks, signal).IgnoreError();
  }
}

void Supervisor::KillAll(Instant now) {
  if (!first_kill_) first_kill_ = now;
  stop_signal_ = SIGKILL;
  if (cgroup_)
    cgroup_->KillAll().IgnoreError();  // The walk below reaches the same ones, only later.
  KillDescendants();
  next_kill_ =
      now + (now - *first_kill_ < spec_.unkillable_after ? kKillAgain : Duration(kUnkillableAgain));
}

void Supervisor::KillDescendants() {
  left_.clear();
  for (const io::ProcessStat& process : LiveDescendants()) {
    if (warm_ && process.pid == warm_->pid()) continue;  // A stop has ended it before.
    io::SignalProcess(process.pid, process.start_ticks, SIGKILL).IgnoreError();
    if (left_.size() < kMaxLeft) left_.push_back(process.pid);
  }
}

void Supervisor::OnDue(Instant now) {
  if (check_due_ && now >= *check_due_) OnCheckDue(now);
  if (output_due_ && now >= *output_due_) output_due_.reset();
  if (!free_ && orphan_due_ && now >= *orphan_due_) {
    orphan_due_.reset();
    OnStop({now, SIGKILL});
  }
  if (leftovers_due_ && now >= *leftovers_due_) OnLeftovers();
  if (sweep_due_ && now >= *sweep_due_) OnSweepDue();
  if (moves_due_ && now >= *moves_due_) OnMovesDue();
  if (free_ || !stop_deadline_ || now < *stop_deadline_) return;
  if (!next_kill_ || now >= *next_kill_) {
    ReapChildren();
    CheckFree();
    if (!free_) KillAll(now);
  }
}

// A subreaper is the root of all it started, however they forked: it has no child; and, with a
// cgroup, that is empty too. The child that forks ranks is none of them, and not in there.
bool Supervisor::NothingLeft() const {
  if (warm_) {
    for (const io::ProcessStat& process : LiveDescendants())
      if (process.pid != warm_->pid()) return false;
  } else {
    siginfo_t child{};
    if (::waitid(P_ALL, 0, &child, WEXITED | WNOHANG | WNOWAIT) == 0 || errno != ECHILD)
      return false;
  }
  if (!cgroup_) return true;
  const absl::StatusOr<bool> populated = cgroup_->Populated();
  return populated.ok() && !*populated;
}

void Supervisor::CheckFree() {
  if (free_) return;
  for (const Rank& rank : ranks_) {
    const bool over = rank.state.phase == RankPhase::kEnded ||
                      (rank.state.phase == RankPhase::kWaiting && stop_deadline_);
    if (!over) return;
  }
  if (!disowned_ && !NothingLeft()) return;
  free_ = true;
  EndWarmStart();
  left_.clear();
  // Without its launch command no agent will ever ask.
  if (lifeline_closed_) dismissed_ = true;
  if (cgroup_) {
    absl::Status removed = cgroup_->Remove();
    if (!removed.ok()) std::fprintf(stderr, "%s\n", std::string(removed.message()).c_str());
    cgroup_.reset();
  }
  logs_->Finish();
  logs_deadline_ = io::BootNow() + kLogPatience;
}

void Supervisor::EndIfReleased() {
  const bool alone = orphan_due_ && io::BootNow() >= *orphan_due_;
  if (!free_ || released_ || !(dismissed_ || alone)) return;
  released_ = true;
  fds_.witness.reset();
}

// A group that only an agent can start, or whose end only an agent can tell, ends without one for
// long. One that is there may itself wait for a coordinator.
void Supervisor::WatchForAgent() {
  const bool awaits_agent = free_ ? !dismissed_ : !ever_started_ && !stop_deadline_;
  if (!awaits_agent || control_->HasAgent()) {
    orphan_due_.reset();
  } else if (!orphan_due_) {
    orphan_due_ = io::BootNow() + spec_.agent_patience;
  }
}

// ---- report ------------------------------------------------------------------------------------

Phase Supervisor::PhaseNow() const {
  if (free_) return Phase::kFree;
  if (first_kill_ && io::BootNow() - *first_kill_ >= spec_.unkillable_after)
    return Phase::kUnkillable;
  if (stop_deadline_) return Phase::kStopping;
  if (check_) return Phase::kPreparing;
  if (!ever_started_) return Phase::kPrepared;
  const bool starting = std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) {
    return rank.state.phase == RankPhase::kStarting;
  });
  return starting ? Phase::kStarting : Phase::kRunning;
}

State Supervisor::Compose(const LogDrain::Progress& logs) {
  for (Rank& rank : ranks_) {
    const bool ended = rank.state.phase == RankPhase::kEnded;
    if (ended && logs.complete.contains(rank.log_id)) rank.state.logs_complete = true;
  }
  State now;
  now.nonce = spec_.nonce;
  now.shim_pid = ::getpid();
  now.phase = PhaseNow();
  now.check_failed = check_failed_;
  now.ever_started = ever_started_;
  for (const Rank& rank : ranks_) now.ranks.push_back(rank.state);
  now.stop_deadline = stop_deadline_;
  now.left = left_;
  now.cgroup_used = cgroup_used_;
  now.output_bytes = reported_.output_bytes;
  now.unshown_bytes = reported_.unshown_bytes;
  now.disk_full = logs.disk_full;
  now.lost_log_bytes = logs.lost_bytes;
  now.log_trouble = logs.trouble;
  now.left_behind = left_behind_;
  now.left_behind_count = left_behind_count_;
  now.left_behind_kept = disowned_;
  return now;
}

// Tells what changed since the last time; then, and only then, writes it down. Returns whether all
// logs are written.
bool Supervisor::Report() {
  // Watched before it is looked at: what comes in between is seen or signalled.
  if (control_->OutputWanted() && !output_due_) logs_->WatchOutput();
  const LogDrain::Progress logs = logs_->Look();
  OnMoved(logs.moved);
  State now = Compose(logs);
  const bool changed = !(now == reported_);
  const bool output =
      logs.output_bytes != now.output_bytes && control_->OutputWanted() && !output_due_;
  now.output_bytes = logs.output_bytes;
  now.unshown_bytes = logs.unshown_bytes;
  if (changed || output || control_->Asked()) {
    using To = ControlSocket::To;
    control_->Send(now, changed ? To::kAll : output ? To::kOutputWanting : To::kAsking);
    reported_ = now;
  }
  if (output) output_due_ = io::BootNow() + kOutputInterval;
  if (changed) {
    // One that can not be written (a full tmpfs) is made good by the next change.
    absl::Status saved =
        io::ReplaceFileAt(fds_.directory.get(), kStateFile, Encode(now), io::Durability::kVolatile);
    if (!saved.ok()) std::fprintf(stderr, "%s\n", std::string(saved.message()).c_str());
  }
  return logs.done;
}

// A disk may hang for minutes, and the last words of a rank say why it failed.
bool Supervisor::WriteLate() {
  control_.reset();
  fds_.lifeline.reset();
  fds_.rank0_stdin.reset();
  ::signal(SIGCHLD, SIG_IGN);  // Of what its ranks were allowed to leave behind.
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
  ::close(kLockFd);
  for (const Instant limit = io::BootNow() + spec_.log_patience; !logs_->Look().done;) {
    const Instant now = io::BootNow();
    if (now >= limit) {
      logs_->Abandon();
      return false;
    }
    pollfd ready{logs_ready_.get(), POLLIN, 0};
    ::poll(&ready, 1, static_cast<int>(std::chrono::ceil<milliseconds>(limit - now).count()));
    std::uint64_t count = 0;
    [[maybe_unused]] ssize_t ignored = ::read(logs_ready_.get(), &count, sizeof(count));
  }
  return true;
}

// ---- time --------------------------------------------------------------------------------------

std::optional<Instant> Supervisor::NextDue() const {
  std::optional<Instant> next;
  auto consider = [&](const std::optional<Instant>& due) {
    if (due && (!next || *due < *next)) next = due;
  };
  consider(output_due_);
  consider(released_ ? logs_deadline_ : orphan_due_);
  consider(check_due_);
  consider(leftovers_due_);
  consider(sweep_due_);
  consider(moves_due_);
  if (!free_) consider(next_kill_ ? next_kill_ : stop_deadline_);
  return next;
}

void Supervisor::ArmTimer() {
  itimerspec spec{};
  if (std::optional<Instant> due = NextDue()) {
    const auto nanos = std::max<std::int64_t>(1, due->time_since_epoch().count());
    spec.it_value.tv_sec = nanos / 1'000'000'000;
    spec.it_value.tv_nsec = nanos % 1'000'000'000;
  }
  CHECK(::timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &spec, nullptr) == 0);
}

}  // namespace regroup::shim
