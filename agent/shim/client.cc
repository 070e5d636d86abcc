#include "agent/shim/client.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "agent/shim/cgroup.h"
#include "agent/shim/nursery_exec.h"
#include "agent/shim/spawn_fds.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/io/files.h"
#include "common/io/proc.h"
#include "common/io/unix_socket.h"

namespace regroup::shim {
namespace {

constexpr std::size_t kReadBytes = 64 << 10, kMaxEnvironmentBytes = 4 << 20;

// File actions and attributes of posix_spawn, freed together.
class SpawnSetup {
 public:
  SpawnSetup() {
    CHECK(::posix_spawn_file_actions_init(&actions_) == 0);
    CHECK(::posix_spawnattr_init(&attributes_) == 0);
  }
  ~SpawnSetup() {
    ::posix_spawn_file_actions_destroy(&actions_);
    ::posix_spawnattr_destroy(&attributes_);
  }
  SpawnSetup(const SpawnSetup&) = delete;

  // Makes `fd` the child's descriptor `target`. A copy above all targets comes first, so that no
  // target overwrites a source that is still needed.
  absl::Status Pass(int fd, int target) {
    io::UniqueFd copy(::fcntl(fd, F_DUPFD_CLOEXEC, 64));
    if (!copy) return io::ErrnoStatus(errno, absl::StrCat("duplicate descriptor ", fd));
    CHECK(::posix_spawn_file_actions_adddup2(&actions_, copy.get(), target) == 0);
    copies_.push_back(std::move(copy));
    return absl::OkStatus();
  }
  // Session of its own, default dispositions; what would end a daemon is blocked from its first
  // instruction on.
  void Detach() {
    sigset_t all, blocked;
    ::sigfillset(&all);
    ::sigemptyset(&blocked);
    for (int signal : {SIGHUP, SIGINT, SIGTERM, SIGQUIT, SIGPIPE, SIGUSR1, SIGUSR2})
      ::sigaddset(&blocked, signal);
    ::posix_spawnattr_setsigdefault(&attributes_, &all);
    ::posix_spawnattr_setsigmask(&attributes_, &blocked);
    ::posix_spawnattr_setflags(&attributes_,
                               POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
  }
  absl::StatusOr<SpawnedShim> Spawn(const std::vector<std::string>& words,
                                    const std::vector<std::string>& environment = {}) {
    std::vector<char*> argv = PointersTo(words), envp = PointersTo(environment);
    SpawnedShim spawned;
    const int error =
        ::posix_spawn(&spawned.pid, argv[0], &actions_, &attributes_, argv.data(), envp.data());
    if (error != 0) return io::ErrnoStatus(error, absl::StrCat("start ", words[0]));
    absl::StatusOr<io::UniqueFd> pidfd =
        io::OpenPidfd(spawned.pid);  // Not reaped yet, so it is our child.
    if (!pidfd.ok()) {
      ::kill(spawned.pid, SIGKILL);
      return pidfd.status();
    }
    spawned.process = *std::move(pidfd);
    return spawned;
  }

 private:
  static std::vector<char*> PointersTo(const std::vector<std::string>& words) {
    std::vector<char*> pointers;
    for (const std::string& word : words) pointers.push_back(const_cast<char*>(word.c_str()));
    pointers.push_back(nullptr);
    return pointers;
  }
  posix_spawn_file_actions_t actions_;
  posix_spawnattr_t attributes_;
  std::vector<io::UniqueFd> copies_;
};

bool EnvironmentHas(pid_t pid, const std::string& entry) {
  absl::StatusOr<std::string> text =
      io::ReadFile(absl::StrCat("/proc/", pid, "/environ"), kMaxEnvironmentBytes);
  if (!text.ok()) return false;
  const std::string zero(1, '\0');
  return (zero + *text + zero).find(zero + entry + zero) != std::string::npos;
}

// Sessions and pids of ranks whose process can not be another one by now.
std::set<pid_t> KnownRanks(const RunRecord& record) {
  std::set<pid_t> pids;
  if (!record.state) return pids;
  for (const RankState& rank : record.state->ranks) {
    if (rank.pid <= 0) continue;
    std::optional<io::ProcessStat> stat = io::ReadProcessStat(rank.pid);
    // While a session has members its number is not given to a new process; a process of that pid
    // that started at another time shows that the session is gone.
    if (!stat || stat->start_ticks == rank.start_ticks) pids.insert(rank.pid);
  }
  return pids;
}

}  // namespace

namespace {

// Returns how many of them lived.
absl::StatusOr<int> KillAll(const std::vector<io::ProcessStat>& processes) {
  int found = 0;
  for (const io::ProcessStat& process : processes) {
    if (process.dead()) continue;
    ++found;
    absl::Status killed = io::SignalProcess(process.pid, process.start_ticks, SIGKILL);
    if (!killed.ok() && !absl::IsNotFound(killed)) return killed;
  }
  return found;
}

// The kernel names no holder of an flock; a shim has its lock at a descriptor of its own.
std::vector<io::ProcessStat> HoldersOfLock(const std::string& path) {
  struct stat lock {};
  if (::stat(absl::StrCat(path, "/", kLockFile).c_str(), &lock) < 0) return {};
  std::vector<io::ProcessStat> processes = io::ListProcesses();
  std::erase_if(processes, [&](const io::ProcessStat& process) {
    struct stat held {};
    const std::string at = absl::StrCat("/proc/", process.pid, "/fd/", kLockFd);
    const bool holds = process.pid != ::getpid() && ::stat(at.c_str(), &held) == 0 &&
                       held.st_dev == lock.st_dev && held.st_ino == lock.st_ino;
    return !holds;
  });
  return processes;
}

// Those of any nonce: which one was this group's can't be read.
absl::StatusOr<int> KillCgroupsOf(const UnreadableRun& run, const std::string& cgroup_base) {
  if (cgroup_base.empty() || run.role == Role::kStore) return 0;
  const std::string prefix =
      GroupCgroupPrefix(run.path.substr(0, run.path.rfind('/')), run.job, run.generation);
  ASSIGN_OR_RETURN(const std::vector<std::string> names, io::ListDirectory(cgroup_base));
  int found = 0;
  for (const std::string& name : names) {
    const bool ours = name.size() > prefix.size() && name.compare(0, prefix.size(), prefix) == 0 &&
                      name.find('.', prefix.size()) == std::string::npos;
    if (!ours) continue;
    absl::StatusOr<Cgroup> cgroup = Cgroup::Open(absl::StrCat(cgroup_base, "/", name));
    if (absl::IsNotFound(cgroup.status())) continue;
    RETURN_IF_ERROR(cgroup.status());
    ASSIGN_OR_RETURN(const bool populated, cgroup->Populated());
    if (populated) {
      ++found;
      RETURN_IF_ERROR(cgroup->KillAll());
    } else {
      cgroup->Remove().IgnoreError();  // Its shim may be about to.
    }
  }
  return found;
}

}  // namespace

absl::StatusOr<Lifeline> MakeLifeline() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) < 0)
    return io::ErrnoStatus(errno, "make lifeline pipe");
  return Lifeline{io::UniqueFd(ends[0]), io::UniqueFd(ends[1])};
}

absl::StatusOr<ShimStart> PrepareShim(const std::string& program, const RunDirectory& directory,
                                      Role role, const ShimFds& fds) {
  CHECK(fds.witness >= 0);
  ASSIGN_OR_RETURN(io::FileLock lock,
                   io::FileLock::TryAcquire(absl::StrCat(directory.path, "/", kLockFile)));
  ASSIGN_OR_RETURN(io::UniqueFd socket, io::ListenUnix(directory.fd.get(), kSocketFile));
  ASSIGN_OR_RETURN(const io::UniqueFd log, io::OpenRegularAt(directory.fd.get(), kShimLogFile,
                                                             O_WRONLY | O_CREAT | O_APPEND));
  io::UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!null) return io::ErrnoStatus(errno, "open /dev/null");

  const std::size_t slash = directory.path.find_last_of('/');
  ShimStart start;
  start.words = {program, role == Role::kStore ? kStoreMode : kGroupMode,
                 directory.path.substr(slash == std::string::npos ? 0 : slash + 1)};
  std::vector<std::pair<int, int>> passed = {{null.get(), 0},
                                             {null.get(), 1},
                                             {log.get(), 2},
                                             {directory.fd.get(), kDirectoryFd},
                                             {lock.fd(), kLockFd},
                                             {socket.get(), kSocketFd},
                                             {fds.witness, kListenerFd}};
  if (fds.lifeline >= 0) {
    passed.push_back({fds.lifeline, kLifelineFd});
    start.words.push_back(kWithLifeline);
  }
  if (fds.rank0_stdin >= 0) {
    passed.push_back({fds.rank0_stdin, kStdinFd});
    start.words.push_back(kWithStdin);
  }
  for (const auto& [fd, target] : passed) {
    io::UniqueFd copy(::fcntl(fd, F_DUPFD_CLOEXEC, 3));
    if (!copy) return io::ErrnoStatus(errno, absl::StrCat("duplicate descriptor ", fd));
    start.passed.push_back({std::move(copy), target});
  }
  return start;
}

absl::StatusOr<Adoption> PrepareAdoption(const RunDirectory& directory) {
  Adoption adoption;
  adoption.directory.reset(::fcntl(directory.fd.get(), F_DUPFD_CLOEXEC, 3));
  if (!adoption.directory) return io::ErrnoStatus(errno, "duplicate descriptor");
  ASSIGN_OR_RETURN(io::FileLock lock,
                   io::FileLock::TryAcquire(absl::StrCat(directory.path, "/", kLockFile)));
  adoption.lock = lock.TakeFd();
  ASSIGN_OR_RETURN(adoption.socket, io::ListenUnix(directory.fd.get(), kSocketFile));
  return adoption;
}

absl::StatusOr<SpawnedShim> SpawnShim(const ShimStart& start) {
  SpawnSetup setup;
  for (const ShimStart::Passed& passed : start.passed)
    RETURN_IF_ERROR(setup.Pass(passed.fd.get(), passed.target));
  setup.Detach();
  return setup.Spawn(start.words);
}

absl::StatusOr<SpawnedShim> SpawnShim(const std::string& program, const RunDirectory& directory,
                                      Role role, const ShimFds& fds) {
  ASSIGN_OR_RETURN(const ShimStart start, PrepareShim(program, directory, role, fds));
  return SpawnShim(start);
}

// ---- nursery -----------------------------------------------------------------------------------

std::optional<int> WordsBeforeScript(const std::vector<std::string>& command) {
  const std::set<std::string_view> alone = {"-u", "-B", "-E",  "-s", "-S", "-I",
                                            "-O", "-P", "-OO", "-b", "-bb"};
  if (command.empty()) return std::nullopt;
  const std::string_view program = command[0];
  if (!program.substr(program.find_last_of('/') + 1).starts_with("python")) return std::nullopt;
  for (std::size_t i = 1; i < command.size(); ++i) {
    const std::string& word = command[i];
    if (word == "-X" || word == "-W") {
      ++i;
    } else if (!alone.contains(word)) {
      const bool module = word == "-m" && i + 1 < command.size();
      const bool script = !word.starts_with("-") && word.ends_with(".py");
      if (!module && !script) return std::nullopt;
      return static_cast<int>(i);
    }
  }
  return std::nullopt;
}

absl::StatusOr<SpawnedNursery> SpawnNursery(const std::string& program, const Spec& spec,
                                            const std::vector<std::string>& modules) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0)
    return io::ErrnoStatus(errno, "make socket pair");
  SpawnedNursery nursery;
  nursery.socket.reset(ends[0]);
  const io::UniqueFd theirs(ends[1]);
  RETURN_IF_ERROR(io::SetNonBlocking(nursery.socket.get(), true));
  const io::UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!null) return io::ErrnoStatus(errno, "open /dev/null");
  SpawnSetup setup;
  for (int target : {0, 1, 2}) RETURN_IF_ERROR(setup.Pass(null.get(), target));
  RETURN_IF_ERROR(setup.Pass(theirs.get(), kDirectoryFd));
  setup.Detach();
  std::vector<std::string> words = {program,
                                    kNurseryMode,
                                    spec.directory,
                                    absl::StrCat(WordsBeforeScript(spec.command).value_or(0)),
                                    absl::StrJoin(modules, ","),
                                    spec.program.empty() ? spec.command[0] : spec.program};
  words.insert(words.end(), spec.command.begin(), spec.command.end());
  std::vector<std::string> environment = spec.environment;
  environment.push_back(absl::StrCat(kEntriesRoomName, "=", std::string(kEntriesRoom, ' ')));
  ASSIGN_OR_RETURN(nursery.child, setup.Spawn(words, environment));
  return nursery;
}

absl::StatusOr<io::UniqueFd> AskForShim(int nursery_socket, const ShimStart& start) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0)
    return io::ErrnoStatus(errno, "make socket pair");
  io::UniqueFd ours(ends[0]);
  const io::UniqueFd theirs(ends[1]);
  RETURN_IF_ERROR(io::SetNonBlocking(ours.get(), true));
  std::vector<int> fds, targets;
  for (const ShimStart::Passed& passed : start.passed) {
    fds.push_back(passed.fd.get());
    targets.push_back(passed.target);
  }
  fds.push_back(theirs.get());
  const std::string zero(1, '\0');
  const std::string message = absl::StrCat("shim", zero, absl::StrJoin(targets, ","), zero,
                                           absl::StrJoin(start.words, zero), zero);
  RETURN_IF_ERROR(io::SendFds(nursery_socket, message, fds));
  return ours;
}

std::optional<bool> AllowShim(int answer_socket) {
  char pid[16];
  const ssize_t answered = ::recv(answer_socket, pid, sizeof(pid), 0);
  if (answered < 0 && (errno == EAGAIN || errno == EINTR)) return std::nullopt;
  return answered > 0 && ::send(answer_socket, "go", 2, MSG_NOSIGNAL) == 2;
}

bool TryReap(pid_t pid) {
  int status = 0;
  pid_t result;
  do {
    result = ::waitpid(pid, &status, WNOHANG);
  } while (result < 0 && errno == EINTR);
  return result != 0;
}

// ---- link --------------------------------------------------------------------------------------

absl::StatusOr<Link> Link::Connect(const RunDirectory& directory, const Spec& spec,
                                   bool wants_output) {
  ASSIGN_OR_RETURN(io::UniqueFd fd, io::ConnectUnix(directory.fd.get(), kSocketFile));
  Link link(std::move(fd), spec.nonce);
  RETURN_IF_ERROR(link.Send(
      Hello{.version = kShimProtocol, .nonce = spec.nonce, .wants_output = wants_output}));
  return link;
}

absl::Status Link::Send(const Command& command) {
  outgoing_ += Frame(Encode(command));
  return OnWritable();
}

absl::Status Link::SendAdopt(const Adoption& adoption, int rank0_stdin) {
  RETURN_IF_ERROR(OnWritable());
  if (!outgoing_.empty()) return absl::UnavailableError("the shim does not read");
  std::vector<int> fds = {adoption.directory.get(), adoption.lock.get(), adoption.socket.get()};
  if (rank0_stdin >= 0) fds.push_back(rank0_stdin);
  // A few bytes: they are sent whole or not at all.
  return io::SendFds(fd_.get(), Frame(Encode(Adopt{.with_stdin = rank0_stdin >= 0})), fds);
}

absl::Status Link::OnWritable() {
  while (!outgoing_.empty()) {
    ssize_t n = ::send(fd_.get(), outgoing_.data(), outgoing_.size(), MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (n < 0) return absl::UnavailableError(io::ErrnoStatus(errno, "send to shim").message());
    outgoing_.erase(0, static_cast<std::size_t>(n));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<State>> Link::OnReadable() {
  std::optional<State> newest;
  absl::Status end;
  while (end.ok()) {
    const std::size_t old_size = incoming_.size();
    incoming_.resize(old_size + kReadBytes);
    ssize_t n = ::recv(fd_.get(), incoming_.data() + old_size, kReadBytes, 0);
    const int error = n < 0 ? errno : 0;
    incoming_.resize(old_size + static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
    if (error == EINTR) continue;
    if (error == EAGAIN || error == EWOULDBLOCK) break;
    if (n == 0) end = absl::UnavailableError("the shim closed the connection");
    if (n < 0) end = absl::UnavailableError(io::ErrnoStatus(error, "receive from shim").message());
    ASSIGN_OR_RETURN(std::vector<std::string> bodies, TakeFrames(incoming_));
    if (bodies.empty()) continue;
    ASSIGN_OR_RETURN(State state, DecodeState(bodies.back()));  // Absolute: only the newest counts.
    if (state.nonce != nonce_)
      return absl::FailedPreconditionError("the shim belongs to another run directory");
    newest = std::move(state);
  }
  if (!newest && !end.ok()) return end;
  return newest;
}

// ---- clean up ----------------------------------------------------------------------------------

absl::StatusOr<int> KillLeftovers(const RunRecord& record) {
  CHECK(!record.shim_alive);
  int found = 0;
  if (!record.spec.cgroup.empty()) {
    absl::StatusOr<Cgroup> cgroup = Cgroup::Open(record.spec.cgroup);
    if (cgroup.ok()) {
      ASSIGN_OR_RETURN(bool populated, cgroup->Populated());
      if (populated) {
        RETURN_IF_ERROR(cgroup->KillAll());
        ++found;
      } else {
        RETURN_IF_ERROR(cgroup->Remove());
      }
    } else if (!absl::IsNotFound(cgroup.status())) {
      return cgroup.status();
    }
  }
  const std::string mark = "REGROUP_GROUP=" + record.spec.nonce;
  const std::set<pid_t> ranks = KnownRanks(record);
  std::vector<io::ProcessStat> processes = io::ListProcesses();
  std::set<pid_t> doomed;
  for (const io::ProcessStat& process : processes) {
    if (process.dead() || process.pid == ::getpid()) continue;
    if (ranks.contains(process.pid) || ranks.contains(process.session) ||
        EnvironmentHas(process.pid, mark)) {
      doomed.insert(process.pid);
    }
  }
  for (bool grown = true;
       grown;) {  // And their descendants, whatever they did to session and environment.
    grown = false;
    for (const io::ProcessStat& process : processes) {
      if (process.dead() || process.pid == ::getpid() || !doomed.contains(process.parent)) continue;
      grown = doomed.insert(process.pid).second || grown;
    }
  }
  std::erase_if(processes, [&](const auto& process) { return !doomed.contains(process.pid); });
  ASSIGN_OR_RETURN(const int killed, KillAll(processes));
  return found + killed;
}

absl::StatusOr<int> KillUnreadable(const UnreadableRun& run, const std::string& cgroup_base) {
  ASSIGN_OR_RETURN(const bool held, IsHeld(run.path));
  if (!held && run.spec) {
    RunRecord record;
    record.path = run.path;
    record.spec = *run.spec;
    return KillLeftovers(record);
  }
  const std::vector<io::ProcessStat> holders = HoldersOfLock(run.path);
  int found = 0;
  for (const io::ProcessStat& holder : holders) {
    ASSIGN_OR_RETURN(const int killed, KillAll(io::DescendantsOf(holder.pid)));
    found += killed;
  }
  ASSIGN_OR_RETURN(const int populated, KillCgroupsOf(run, cgroup_base));
  found += populated;
  // While its ranks end it stays: they are found as its descendants.
  if (found == 0) {
    ASSIGN_OR_RETURN(found, KillAll(holders));
  }
  return found > 0 || !held ? found : 1;  // Held by what can't be seen from here.
}

absl::Status KillShim(const RunRecord& record) {
  // The pid of a state may be old, and there may be no state yet: who holds the socket's other end
  // is asked, the kernel answers.
  ASSIGN_OR_RETURN(RunDirectory directory, OpenRunDirectory(record.path));
  absl::StatusOr<io::UniqueFd> connection = io::ConnectUnix(directory.fd.get(), kSocketFile);
  if (absl::IsUnavailable(connection.status()) || absl::IsNotFound(connection.status()))
    return absl::OkStatus();
  RETURN_IF_ERROR(connection.status());
  ASSIGN_OR_RETURN(io::PeerCredentials peer, io::PeerCredentialsOf(connection->get()));
  if (peer.pid == ::getpid()) return absl::UnavailableError("the shim has not started yet");
  absl::StatusOr<io::UniqueFd> pidfd = io::OpenPidfd(peer.pid);
  if (absl::IsNotFound(pidfd.status())) return absl::OkStatus();
  RETURN_IF_ERROR(pidfd.status());
  ASSIGN_OR_RETURN(bool locked, io::IsLocked(directory.fd.get(), kLockFile));
  if (!locked) return absl::OkStatus();  // It ended meanwhile; the pid may be another's.
  absl::Status killed = io::SignalPidfd(pidfd->get(), SIGKILL);
  return absl::IsNotFound(killed) ? absl::OkStatus() : killed;
}

}  // namespace regroup::shim
