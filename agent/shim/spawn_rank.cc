#include "agent/shim/spawn_rank.h"

#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/io/proc.h"

#ifndef CLOSE_RANGE_CLOEXEC
#define CLOSE_RANGE_CLOEXEC (1U << 2)
#endif

namespace regroup::shim {
namespace {

enum class Stage : int {
  kOom,
  kLimit,
  kAffinity,
  kDirectory,
  kStandardStreams,
  kDescriptors,
  kExec,
  kInterpreter
};
constexpr const char* kStageNames[] = {"oom_score_adj", "setrlimit",        "affinity",
                                       kStageDirectory, "standard streams", "descriptors",
                                       "exec",          kStageInterpreter};
struct StatusMessage {
  Stage stage;
  int error;
};

// Everything the child uses, laid out before the clone: after it, another thread's locks may be
// held for ever, so the child only makes system calls.
struct ChildPlan {
  std::vector<std::string> words, environment, candidates;
  std::vector<char*> argv, envp;
  std::vector<const char*> programs;
  std::vector<ResourceLimit> limits;
  std::string directory, oom_text;
  mode_t umask = 022;
  std::optional<cpu_set_t> cpus;
  RankFds fds;
  int status_fd = -1;
  pid_t parent = 0;
};

// What execvp would try, in its order; with the PATH of the worker, not of the shim.
std::vector<std::string> Candidates(const std::string& program,
                                    const std::vector<std::string>& environment) {
  if (program.empty() || program.find('/') != std::string::npos) return {program};
  std::string path = "/bin:/usr/bin";
  for (const std::string& entry : environment) {
    if (entry.rfind("PATH=", 0) == 0) path = entry.substr(5);
  }
  std::vector<std::string> candidates;
  for (const std::string& folder : std::vector<std::string>(absl::StrSplit(path, ':'))) {
    candidates.push_back(folder.empty() ? program : absl::StrCat(folder, "/", program));
  }
  return candidates;
}

absl::StatusOr<ChildPlan> MakeChildPlan(const Spec& spec, const RankPlan& plan, const RankFds& fds,
                                        int default_oom_score_adj) {
  ChildPlan child;
  child.words = plan.command.empty() ? spec.command : plan.command;
  if (child.words.empty()) return absl::InvalidArgumentError("the command is empty");
  child.environment = RankEnvironment(spec, plan);
  child.candidates =
      Candidates(spec.program.empty() ? child.words[0] : spec.program, child.environment);
  for (std::string& word : child.words) child.argv.push_back(word.data());
  for (std::string& entry : child.environment) child.envp.push_back(entry.data());
  child.argv.push_back(nullptr);
  child.envp.push_back(nullptr);
  for (const std::string& candidate : child.candidates) child.programs.push_back(candidate.c_str());
  child.limits = spec.limits;
  child.directory = spec.directory;
  child.oom_text = absl::StrCat(spec.oom_score_adj.value_or(default_oom_score_adj));
  child.umask = spec.umask;
  if (!plan.cpus.empty()) {
    cpu_set_t& set = child.cpus.emplace();
    CPU_ZERO(&set);
    for (int cpu : plan.cpus) {
      if (cpu >= 0 && cpu < CPU_SETSIZE) CPU_SET(cpu, &set);
    }
  }
  child.fds = fds;
  child.parent = ::getpid();
  return child;
}

[[noreturn]] void Fail(const ChildPlan& plan, Stage stage, int error) {
  const StatusMessage message{stage, error};
  // A pipe takes this many bytes whole or not at all.
  if (::write(plan.status_fd, &message, sizeof(message)) < 0) ::_exit(126);
  ::_exit(127);
}

// By the kernel's own call: the library's leaves out the two signals that it keeps for itself, and
// a parent may have ignored those as well.
void ResetSignals() {
  const std::uint64_t standard[4] = {};  // Handler SIG_DFL, no flags, no restorer, empty mask.
  for (int signal = 1; signal <= 64; ++signal)
    ::syscall(SYS_rt_sigaction, signal, standard, nullptr, 8);
}

// 0, 1 and 2 are never among the sources: the shim keeps them open itself.
void TakeStandardStreams(const ChildPlan& plan) {
  if (::dup2(plan.fds.standard_input, 0) < 0 || ::dup2(plan.fds.standard_output, 1) < 0 ||
      ::dup2(plan.fds.standard_error, 2) < 0) {
    Fail(plan, Stage::kStandardStreams, errno);
  }
  // Marked, not closed: the status pipe must live until the exec.
  if (::syscall(SYS_close_range, 3u, ~0u, CLOSE_RANGE_CLOEXEC) < 0 && errno != ENOSYS &&
      errno != EINVAL) {
    Fail(plan, Stage::kDescriptors, errno);
  }
}

void ApplyLimits(const ChildPlan& plan) {
  int oom = ::open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
  if (oom >= 0) {
    // Refused where it lowers the inherited value without the right to: then that one stays.
    [[maybe_unused]] ssize_t ignored = ::write(oom, plan.oom_text.data(), plan.oom_text.size());
    ::close(oom);
  }
  for (const ResourceLimit& limit : plan.limits) {
    const rlimit value{limit.soft, limit.hard};
    if (::setrlimit(static_cast<__rlimit_resource>(limit.resource), &value) < 0)
      Fail(plan, Stage::kLimit, errno);
  }
  if (plan.cpus && ::sched_setaffinity(0, sizeof(*plan.cpus), &*plan.cpus) < 0)
    Fail(plan, Stage::kAffinity, errno);
}

[[noreturn]] void RunChild(const ChildPlan& plan) {
  ::setsid();
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != plan.parent)
    ::_exit(127);  // The shim died before: the signal would never come.
  ResetSignals();
  ApplyLimits(plan);
  ::umask(plan.umask);
  if (!plan.directory.empty() && ::chdir(plan.directory.c_str()) < 0)
    Fail(plan, Stage::kDirectory, errno);
  TakeStandardStreams(plan);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);  // A stop that came meanwhile acts here.
  int error = ENOENT;
  for (const char* program : plan.programs) {
    ::execve(program, plan.argv.data(), plan.envp.data());
    if (errno != ENOENT && errno != ENOTDIR && errno != EACCES) Fail(plan, Stage::kExec, errno);
    if (error != EACCES) error = errno;  // "Not executable" tells more than "not found" further on.
  }
  // The program is there: what its first line names, or its loader, is not.
  for (const char* program : plan.programs) {
    if (error == ENOENT && ::access(program, F_OK) == 0) Fail(plan, Stage::kInterpreter, error);
  }
  Fail(plan, Stage::kExec, error);
}

// A plain copy of the process (no CLONE_VM): the shim is small, and the child can not disturb its
// memory.
pid_t Clone(int cgroup_fd) {
  clone_args args{};
  args.exit_signal = SIGCHLD;
  if (cgroup_fd >= 0) {
    args.flags = CLONE_INTO_CGROUP;
    args.cgroup = static_cast<std::uint64_t>(cgroup_fd);
  }
  return static_cast<pid_t>(::syscall(SYS_clone3, &args, sizeof(args)));
}

struct Cloned {
  pid_t pid = -1;
  bool in_cgroup = false;
};
Cloned CloneOrFork(int cgroup_fd) {
  if (cgroup_fd >= 0) {
    pid_t pid = Clone(cgroup_fd);
    if (pid >= 0 || errno == EAGAIN || errno == ENOMEM) return {pid, true};
  }
  pid_t pid = Clone(-1);
  // Filters of older container engines answer EPERM or ENOSYS to what they do not know.
  if (pid < 0 && (errno == ENOSYS || errno == EPERM)) pid = ::fork();
  return {pid, false};
}

}  // namespace

absl::StatusOr<SpawnedRank> SpawnRank(const Spec& spec, const RankPlan& plan, const RankFds& fds,
                                      int default_oom_score_adj) {
  ASSIGN_OR_RETURN(ChildPlan child, MakeChildPlan(spec, plan, fds, default_oom_score_adj));
  int status[2];
  if (::pipe2(status, O_CLOEXEC) < 0) return io::ErrnoStatus(errno, "make status pipe");
  io::UniqueFd read_end(status[0]), write_end(status[1]);
  RETURN_IF_ERROR(io::SetNonBlocking(read_end.get(), true));
  child.status_fd = write_end.get();
  const Cloned cloned = CloneOrFork(fds.cgroup);
  if (cloned.pid == 0) RunChild(child);
  if (cloned.pid < 0) return io::ErrnoStatus(errno, "clone");
  SpawnedRank rank;
  rank.pid = cloned.pid;
  rank.in_cgroup = cloned.in_cgroup;
  rank.exec_status = std::move(read_end);
  if (std::optional<io::ProcessStat> stat = io::ReadProcessStat(rank.pid))
    rank.start_ticks = stat->start_ticks;
  return rank;
}

std::optional<ExecStatus> ReadExecStatus(int exec_status_fd) {
  StatusMessage message{};
  ssize_t n;
  do {
    n = ::read(exec_status_fd, &message, sizeof(message));
  } while (n < 0 && errno == EINTR);
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return std::nullopt;
  if (n != sizeof(message)) return ExecStatus{};
  return ExecStatus{.failed_stage = kStageNames[static_cast<int>(message.stage)],
                    .error = message.error};
}

}  // namespace regroup::shim
