// How ranks end, and how it is told.

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/io/files.h"
#include "common/io/proc.h"
#include "tests/agent/shim/shim_fixture.h"

namespace regroup::shim {
namespace {

using testing::HasSubstr;

TEST_F(ShimTest, ExitCodesAreExact) {
  for (int code : {0, 1, 77, 126, 127, 255}) {
    Group group = Run(ShellSpec(absl::StrCat("exit ", code)));
    ASSERT_TRUE(group.WaitForEnd()) << ShimLog(group);
    EXPECT_EQ(group.rank().phase, RankPhase::kEnded);
    EXPECT_EQ(group.rank().exit_kind, ExitKind::kExited);  // 127 too: the program ran.
    EXPECT_EQ(group.rank().code, code);
    EXPECT_FALSE(group.rank().after_stop);
    EXPECT_GT(group.rank().start_ticks, 0u);
    EXPECT_GE(group.rank().ended_at, group.rank().started_at);
    EXPECT_EQ(group.rank().rank, 10);
  }
}

// The host counts its kills for lack of memory, so that of a test beside this one is no evidence.
io::UniqueFd LockOomKills(int how) {
  io::UniqueFd lock(::open(ShimProgram().c_str(), O_RDONLY | O_CLOEXEC));
  CHECK(lock && ::flock(lock.get(), how) == 0);
  return lock;
}

TEST_F(ShimTest, EverySignalIsTold) {
  const io::UniqueFd lock = LockOomKills(LOCK_SH);
  for (int signal = 1; signal < 32; ++signal) {
    if (signal == SIGSTOP || signal == SIGTSTP || signal == SIGTTIN || signal == SIGTTOU ||
        signal == SIGCHLD || signal == SIGCONT || signal == SIGURG || signal == SIGWINCH) {
      continue;  // These end nobody.
    }
    Group group = Run(ShellSpec(absl::StrCat("kill -", signal, " $$")));
    ASSERT_TRUE(group.WaitForEnd()) << signal;
    EXPECT_EQ(group.rank().exit_kind, ExitKind::kSignaled) << signal;
    EXPECT_EQ(group.rank().code, signal);
    EXPECT_FALSE(group.rank().after_stop);
    EXPECT_EQ(group.rank().oom, OomEvidence::kNone);
  }
}

// A cgroup with a memory limit that a process may enter; empty: this host has none to give.
class MemoryCgroup {
 public:
  explicit MemoryCgroup(std::size_t limit_bytes) {
    for (const auto& [base, limit] : {std::pair{"/sys/fs/cgroup/memory", "memory.limit_in_bytes"},
                                      std::pair{"/sys/fs/cgroup", "memory.max"}}) {
      const std::string path = absl::StrCat(base, "/regroup-test-oom-", getpid());
      if (::mkdir(path.c_str(), 0700) != 0) continue;
      std::ofstream file(absl::StrCat(path, "/", limit));
      file << limit_bytes << std::flush;
      path_ = path;
      if (file) return;
      Remove();
    }
  }
  ~MemoryCgroup() { Remove(); }
  const std::string& path() const { return path_; }

 private:
  void Remove() {
    if (!path_.empty()) ::rmdir(path_.c_str());
    path_.clear();
  }
  std::string path_;
};

TEST_F(ShimTest, AKillForLackOfMemoryIsSuspected) {
  const MemoryCgroup small(16 << 20);
  if (small.path().empty()) GTEST_SKIP() << "no memory cgroup can be made here";
  const io::UniqueFd lock = LockOomKills(LOCK_EX);
  Group group = Run(
      ShellSpec(absl::StrCat("echo $$ > ", small.path(), "/cgroup.procs && exec tail /dev/zero")));
  ASSERT_TRUE(group.WaitForEnd()) << ShimLog(group);
  EXPECT_EQ(group.rank().exit_kind, ExitKind::kSignaled);
  EXPECT_EQ(group.rank().code, SIGKILL);
  EXPECT_EQ(group.rank().oom, OomEvidence::kProbable);
}

// Its own signal ended it, whatever was killed beside it.
TEST_F(ShimTest, ANodeCheckThatCrashesIsNotOutOfMemory) {
  const MemoryCgroup small(16 << 20);
  if (small.path().empty()) GTEST_SKIP() << "no memory cgroup can be made here";
  const io::UniqueFd lock = LockOomKills(LOCK_EX);
  const std::string eats =
      absl::StrCat("(sh -c 'echo $$ > ", small.path(), "/cgroup.procs && exec tail /dev/zero'); ");
  for (const auto& [signal, told] :
       {std::pair{"SEGV", "its node check was ended by signal 11"},
        std::pair{"KILL", "its node check was ended by signal 9, out of memory"}}) {
    Spec spec = ShellSpec("true");
    spec.node_check = {absl::StrCat(eats, "kill -", signal, " $$"), std::chrono::seconds(20)};
    Group group = Spawn(std::move(spec));
    ASSERT_TRUE(group.WaitForEnd()) << ShimLog(group);
    EXPECT_THAT(group.state.check_failed, testing::StartsWith(told));
    EXPECT_EQ(group.state.check_failed.find("out of memory") != std::string::npos,
              std::string_view(signal) == "KILL");
  }
}

TEST_F(ShimTest, RanksAreStartedOnce) {
  const std::string started = work_ / "started";
  Group group = Run(ShellSpec(
      absl::StrCat("echo $LOCAL_RANK >> ", started, "; [ $LOCAL_RANK = 0 ] || exec sleep 600"), 2));
  const auto lines = [&] {
    const absl::StatusOr<std::string> text = io::ReadFile(started, 100);
    return text.ok() ? text->size() / 2 : 0;
  };
  ASSERT_TRUE(group.WaitFor(
      [](const State& state) { return state.ranks.at(0).phase == RankPhase::kEnded; }));
  ASSERT_TRUE(Eventually([&] { return lines() == 2; }));
  group.Start();
  ::usleep(200'000);
  group.Stop(Duration{}, SIGKILL);
  ASSERT_TRUE(group.WaitForEnd());
  EXPECT_EQ(lines(), 2u);
}

// Whoever finds no mark may be sure that nothing ran.
TEST_F(ShimTest, NothingRunsWithoutTheMark) {
  const std::string ran = work_ / "ran";
  Group group = Spawn(ShellSpec("echo > " + ran));
  ASSERT_EQ(::mkdir((group.directory.path + "/started").c_str(), 0700), 0);  // In its place.
  group.Start();
  ASSERT_TRUE(group.WaitForEnd()) << ShimLog(group);
  EXPECT_EQ(group.rank().exit_kind, ExitKind::kExecFailed);
  EXPECT_EQ(group.rank().code, EISDIR);
  EXPECT_NE(::access(ran.c_str(), F_OK), 0);
}

struct Unstartable {
  const char* name;
  std::string program;
  int error;
  const char* stage = "exec";
};
TEST_F(ShimTest, WhatCannotBeExecutedIsNoExit) {
  auto write = [&](const std::string& name, std::string_view bytes, mode_t mode) {
    CHECK(io::ReplaceFile(work_ / name, bytes, io::Durability::kVolatile, mode).ok());
    CHECK(::chmod((work_ / name).c_str(), mode) == 0);
    return work_ / name;
  };
  std::string foreign(64, '\0');
  foreign.replace(0, 20,
                  std::string("\x7f"
                              "ELF\2\1\1\0\0\0\0\0\0\0\0\0\2\0\xf7\xf7",
                              20));  // No such machine.
  const std::vector<Unstartable> table = {
      {"missing", work_ / "none", ENOENT},
      {"missing in PATH", "no-such-program-of-ours", ENOENT},
      {"not executable", write("plain", "#!/bin/sh\n", 0644), EACCES},
      {"directory", work_.path(), EACCES},
      {"no interpreter line", write("text", "echo hello\n", 0755), ENOEXEC},
      {"interpreter missing", write("script", "#!/no/such/interpreter\n", 0755), ENOENT,
       "interpreter"},
      {"other architecture", write("foreign", foreign, 0755), ENOEXEC},
      {"empty", write("empty", "", 0755), ENOEXEC},
  };
  for (const Unstartable& row : table) {
    Group group = Run(CommandSpec({row.program}));
    ASSERT_TRUE(group.WaitForEnd()) << row.name;
    EXPECT_EQ(group.rank().exit_kind, ExitKind::kExecFailed) << row.name;
    EXPECT_EQ(group.rank().code, row.error) << row.name;
    EXPECT_EQ(group.rank().exec_stage, row.stage) << row.name;
  }
}

TEST_F(ShimTest, StagesBeforeTheExecAreNamed) {
  Spec spec = ShellSpec("true");
  spec.directory = work_ / "missing";
  Group group = Run(spec);
  ASSERT_TRUE(group.WaitForEnd());
  EXPECT_EQ(group.rank().exec_stage, "chdir");
  EXPECT_EQ(group.rank().code, ENOENT);

  Spec limited = ShellSpec("true");
  limited.limits = {{RLIMIT_NOFILE, 100, 50}};
  Group other = Run(limited);
  ASSERT_TRUE(other.WaitForEnd());
  EXPECT_EQ(other.rank().exec_stage, "setrlimit");
  EXPECT_EQ(other.rank().code, EINVAL);
}

TEST_F(ShimTest, ALaterExecutableOfThePathIsFound) {
  ASSERT_TRUE(io::MakeDirectories(work_ / "a").ok());
  ASSERT_TRUE(
      io::ReplaceFile(work_ / "a/tool", "not for us", io::Durability::kVolatile, 0644).ok());
  ASSERT_TRUE(io::MakeDirectories(work_ / "b").ok());
  ASSERT_TRUE(io::ReplaceFile(work_ / "b/tool", "#!/bin/sh\necho found $1\n",
                              io::Durability::kVolatile, 0755)
                  .ok());
  Spec spec = CommandSpec({"tool", "it"});
  spec.environment = {absl::StrCat("PATH=", work_ / "a", ":", work_ / "b")};
  Group group = Run(spec);
  ASSERT_TRUE(group.WaitForEnd());
  EXPECT_EQ(group.rank().code, 0);
  EXPECT_EQ(Log(group), "found it\n");
}

TEST_F(ShimTest, AWorkerStartsClean) {
  // What the agent has (blocked and ignored signals, umask, descriptors, limits) does not leak.
  sigset_t blocked, before;
  ::sigemptyset(&blocked);
  ::sigaddset(&blocked, SIGTERM);
  ::sigaddset(&blocked, SIGUSR1);
  ::sigprocmask(SIG_BLOCK, &blocked, &before);
  auto old_handler = ::signal(SIGPIPE, SIG_IGN);
  int leaky = ::open("/dev/null", O_RDONLY);  // Not close-on-exec.
  Spec spec = CommandSpec({"/bin/sh", "-c",
                           "grep -E '^(SigBlk|SigIgn)' /proc/self/status; umask; pwd; ulimit -c; "
                           "ls /proc/self/fd | tr '\\n' ' ';"
                           "echo; ps -o pid=,pgid=,sid= -p $$; echo in=$(cat)"});
  spec.umask = 027;
  Group group = Run(spec);
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  ::signal(SIGPIPE, old_handler);
  ::close(leaky);
  ASSERT_TRUE(group.WaitForEnd());
  const std::string pid = absl::StrCat(group.rank().pid);
  const std::string log = Log(group);
  EXPECT_THAT(log, HasSubstr("SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n0027\n"));
  EXPECT_THAT(log, HasSubstr(work_.path() + "\n0\n0 1 2 3 \n"));  // 3 is ls's own.
  EXPECT_THAT(log, HasSubstr("in=\n"));                           // stdin is /dev/null.
  EXPECT_THAT(log, testing::ContainsRegex(
                       absl::StrCat(pid, " +", pid, " +", pid, "\n")));  // Leads its session.
}

TEST_F(ShimTest, EnvironmentIsWhatTheSpecSays) {
  Spec spec = CommandSpec({"/usr/bin/env"}, 2);
  spec.environment = {"A=1", "RANK=wrong"};
  Group group = Run(spec);
  ASSERT_TRUE(group.WaitForEnd());
  EXPECT_EQ(Log(group, 11), absl::StrCat("A=1\nLOCAL_RANK=1\nRANK=11\nREGROUP_GROUP=", spec.nonce,
                                         "\nREGROUP_LOCAL_RANK=1\n"));
}

TEST_F(ShimTest, StandardInputReachesLocalRankZeroOnly) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  Group group = Spawn(ShellSpec("read line; echo got:$line", 2), -1, ends[0]);
  ::close(ends[0]);
  group.Start();
  ASSERT_EQ(::write(ends[1], "hello\n", 6), 6);
  ASSERT_TRUE(group.WaitForEnd());
  ::close(ends[1]);
  EXPECT_EQ(Log(group, 10), "got:hello\n");
  EXPECT_EQ(Log(group, 11), "got:\n");
}

TEST_F(ShimTest, AffinityIsSet) {
  Group group = Spawn(ShellSpec("grep Cpus_allowed_list /proc/self/status"));
  ASSERT_TRUE(group.link->Send(StartRanks{{{0, 3, {}, {0}}}}).ok());
  ASSERT_TRUE(group.WaitForEnd());
  EXPECT_EQ(Log(group, 3), "Cpus_allowed_list:\t0\n");
}

TEST_F(ShimTest, StartsOnceEver) {
  Group group = Spawn(ShellSpec("echo ran >> $WORK/ran; exit 3"));
  ASSERT_TRUE(group.WaitForPhase(Phase::kPrepared));
  EXPECT_FALSE(ReadRunDirectory(group.directory.path)->started);
  group.Start();
  group.Start();
  group.Start();
  ASSERT_TRUE(group.WaitForEnd());
  EXPECT_EQ(*io::ReadFile(work_ / "ran", 100), "ran\n");
  RunRecord record = *ReadRunDirectory(group.directory.path);
  EXPECT_TRUE(record.started);
  EXPECT_FALSE(record.shim_alive);
  EXPECT_FALSE(record.supervisor_lost());
  ASSERT_TRUE(record.state);
  EXPECT_EQ(*record.state, group.state);  // What was told is what lies there.
  EXPECT_EQ(record.state->ranks[0].code, 3);
}

TEST_F(ShimTest, StopBeforeStartFreesAndStartsNothingAfter) {
  Group group = Spawn(ShellSpec("echo ran >> $WORK/ran"));
  group.Stop(std::chrono::seconds(30));
  group.Start();
  ASSERT_TRUE(group.WaitForEnd());
  EXPECT_FALSE(group.state.ever_started);
  EXPECT_TRUE(absl::IsNotFound(io::ReadFile(work_ / "ran", 100).status()));
}

TEST_F(ShimTest, OneRanksEndLeavesTheOthers) {
  Group group = Run(ShellSpec("if [ $LOCAL_RANK = 1 ]; then exit 9; fi; exec sleep 1000", 3));
  ASSERT_TRUE(group.WaitFor(
      [](const State& s) { return s.ranks[1].logs_complete && s.phase == Phase::kRunning; }));
  EXPECT_EQ(group.rank(1).phase, RankPhase::kEnded);
  EXPECT_EQ(group.rank(0).phase, RankPhase::kRunning);
  group.Stop(std::chrono::seconds(10));
  ASSERT_TRUE(group.WaitForEnd());
  EXPECT_EQ(group.rank(0).exit_kind, ExitKind::kSignaled);
  EXPECT_EQ(group.rank(0).code, SIGTERM);
  EXPECT_TRUE(group.rank(0).after_stop);
  EXPECT_FALSE(group.rank(1).after_stop);
}

// The first of two system calls that a stopped process makes, from now on; -1: neither.
long FirstCallOf(pid_t pid, const std::set<long>& calls) {
  for (;;) {
    if (::ptrace(PTRACE_SYSCALL, pid, nullptr, nullptr) != 0) return -1;
    int status = 0;
    if (::waitpid(pid, &status, __WALL) != pid || !WIFSTOPPED(status)) return -1;
    __ptrace_syscall_info info{};
    if (::ptrace(PTRACE_GET_SYSCALL_INFO, pid, sizeof(info), &info) < 0) return -1;
    if (info.op != PTRACE_SYSCALL_INFO_ENTRY) continue;
    if (const auto call = static_cast<long>(info.entry.nr); calls.contains(call)) return call;
  }
}

TEST_F(ShimTest, AnExitIsReportedBeforeItIsWritten) {
  Group group = Run(ShellSpec("while [ ! -e $WORK/go ]; do sleep 0.01; done; exit 4"));
  ASSERT_TRUE(group.WaitForPhase(Phase::kRunning));
  const std::string path = group.directory.path;
  ASSERT_TRUE(
      Eventually([&] { return ReadRunDirectory(path)->state->ranks == group.state.ranks; }));
  if (::ptrace(PTRACE_SEIZE, group.shim.pid, nullptr, PTRACE_O_TRACESYSGOOD) != 0)
    GTEST_SKIP() << "needs the right to trace";
  ASSERT_EQ(::ptrace(PTRACE_INTERRUPT, group.shim.pid, nullptr, nullptr), 0);
  ASSERT_EQ(::waitpid(group.shim.pid, nullptr, __WALL), group.shim.pid);
  ASSERT_TRUE(io::ReplaceFile(work_ / "go", "", io::Durability::kVolatile).ok());
  EXPECT_EQ(FirstCallOf(group.shim.pid, {SYS_sendto, SYS_renameat}), SYS_sendto);
  EXPECT_EQ(FirstCallOf(group.shim.pid, {SYS_sendto, SYS_renameat}), SYS_renameat);
  ASSERT_EQ(::ptrace(PTRACE_DETACH, group.shim.pid, nullptr, nullptr), 0);
  ASSERT_TRUE(group.WaitForEnd());
  EXPECT_EQ(group.rank().code, 4);
}

TEST_F(ShimTest, StateFollowsTheOrderStartedThenEnded) {
  Group group = Spawn(ShellSpec("exit 0", 4));
  std::vector<Phase> phases;
  group.Start();
  ASSERT_TRUE(group.WaitFor([&](const State& s) {
    if (phases.empty() || phases.back() != s.phase) phases.push_back(s.phase);
    for (const RankState& rank : s.ranks) {
      EXPECT_EQ(rank.pid > 0, rank.phase != RankPhase::kWaiting);
    }
    return s.phase == Phase::kFree;
  }));
  EXPECT_EQ(phases.back(), Phase::kFree);
  EXPECT_TRUE(std::is_sorted(phases.begin(), phases.end()));
  ASSERT_TRUE(group.WaitForEnd());
}

}  // namespace
}  // namespace regroup::shim
