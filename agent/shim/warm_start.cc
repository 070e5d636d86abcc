#include "agent/shim/warm_start.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/io/proc.h"
#include "common/io/unix_socket.h"

namespace regroup::shim {
namespace {

constexpr int kAnswerMilliseconds = 1000;

struct Answer {
  int pid = 0;  // Or -errno.
  int in_cgroup = 0;
};

// Items "<kind><value>\0": nursery.py's Plan reads them.
std::string Describe(const Spec& spec, const RankPlan& plan, int default_oom_score_adj) {
  std::string text;
  const auto add = [&text](char kind, std::string_view value) {
    text += kind;
    text += value;
    text += '\0';
  };
  add('d', spec.directory);
  add('u', absl::StrCat(spec.umask));
  add('o', absl::StrCat(spec.oom_score_adj.value_or(default_oom_score_adj)));
  add('p', absl::StrCat(::getpid()));
  for (const ResourceLimit& limit : spec.limits)
    add('l', absl::StrCat(limit.resource, ":", limit.soft, ":", limit.hard));
  for (int cpu : plan.cpus) {
    if (cpu >= 0 && cpu < CPU_SETSIZE) add('c', absl::StrCat(cpu));
  }
  for (const std::string& word : plan.command.empty() ? spec.command : plan.command) add('a', word);
  for (const std::string& entry : RankEnvironment(spec, plan)) add('e', entry);
  return text;
}

absl::StatusOr<io::UniqueFd> InMemory(const std::string& text) {
  io::UniqueFd fd(::memfd_create("regroup-rank", MFD_CLOEXEC));
  if (!fd) return io::ErrnoStatus(errno, "memfd_create");
  RETURN_IF_ERROR(io::WriteAll(fd.get(), text));
  return fd;
}

struct Pipe {
  io::UniqueFd read_end, write_end;
};
absl::StatusOr<Pipe> MakePipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) < 0) return io::ErrnoStatus(errno, "make pipe");
  return Pipe{io::UniqueFd(ends[0]), io::UniqueFd(ends[1])};
}

bool BecomesReadable(int fd) {
  pollfd ready{fd, POLLIN, 0};
  int n;
  do {
    n = ::poll(&ready, 1, kAnswerMilliseconds);
  } while (n < 0 && errno == EINTR);
  return n > 0;
}

absl::StatusOr<Answer> Receive(int socket) {
  if (!BecomesReadable(socket)) return absl::DeadlineExceededError("the nursery does not answer");
  Answer answer;
  if (::recv(socket, &answer, sizeof(answer), 0) != sizeof(answer))
    return absl::UnavailableError("the nursery has ended");
  if (answer.pid <= 0) return io::ErrnoStatus(-answer.pid, "fork");
  return answer;
}

}  // namespace

absl::StatusOr<SpawnedRank> WarmStart::SpawnRank(const Spec& spec, const RankPlan& plan,
                                                 const RankFds& fds, int default_oom_score_adj) {
  if (!socket_) return absl::UnavailableError("the nursery has failed before");
  io::UniqueFd socket = std::move(socket_);  // Put back once it has answered.
  ASSIGN_OR_RETURN(const io::UniqueFd text, InMemory(Describe(spec, plan, default_oom_score_adj)));
  ASSIGN_OR_RETURN(Pipe status, MakePipe());
  ASSIGN_OR_RETURN(Pipe go, MakePipe());
  RETURN_IF_ERROR(io::SetNonBlocking(status.read_end.get(), true));
  std::vector<int> passed = {text.get(),         fds.standard_input,     fds.standard_output,
                             fds.standard_error, status.write_end.get(), go.read_end.get()};
  if (fds.cgroup >= 0) passed.push_back(fds.cgroup);
  RETURN_IF_ERROR(io::SendFds(socket.get(), "rank", passed));
  ASSIGN_OR_RETURN(const Answer answer, Receive(socket.get()));
  SpawnedRank rank;
  rank.pid = answer.pid;
  rank.in_cgroup = answer.in_cgroup != 0;
  rank.exec_status = std::move(status.read_end);
  if (std::optional<io::ProcessStat> stat = io::ReadProcessStat(rank.pid))
    rank.start_ticks = stat->start_ticks;
  go_.push_back(std::move(go.write_end));
  socket_ = std::move(socket);
  return rank;
}

absl::Status WarmStart::AskForSpare() {
  if (!socket_) return absl::UnavailableError("the nursery has failed before");
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0)
    return io::ErrnoStatus(errno, "make socket pair");
  io::UniqueFd ours(ends[0]);
  const io::UniqueFd theirs(ends[1]);
  io::UniqueFd socket = std::move(socket_);
  RETURN_IF_ERROR(io::SendFds(socket.get(), "spare", std::vector<int>{theirs.get()}));
  ASSIGN_OR_RETURN(const Answer answer, Receive(socket.get()));
  spare_socket_ = std::move(ours);
  spare_pid_ = answer.pid;
  socket_ = std::move(socket);
  return absl::OkStatus();
}

std::optional<WarmStart> WarmStart::TakeSpare() {
  if (!spare_socket_) return std::nullopt;
  return WarmStart(std::move(spare_socket_), spare_pid_);
}

void WarmStart::Finish() {
  socket_.reset();
  // It has nothing to lose, and must not hold up its own children.
  ::kill(pid_, SIGKILL);
  absl::StatusOr<io::UniqueFd> process = io::OpenPidfd(pid_);  // Not reaped yet, so it is ours.
  if (!process.ok() || !BecomesReadable(process->get())) return go_.clear();  // They end unbegun.
  siginfo_t ended{};
  ::waitid(P_PID, static_cast<id_t>(pid_), &ended, WEXITED);
  for (const io::UniqueFd& go : go_) {
    if (::write(go.get(), "g", 1) < 0) continue;  // It is dead already; its exit is on the way.
  }
  go_.clear();
}

}  // namespace regroup::shim
