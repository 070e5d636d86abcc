// Whatever workers do, nothing of a group is left; with a cgroup and without.

#include <fcntl.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>

#include <atomic>
#include <optional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/io/proc.h"
#include "tests/agent/shim/shim_fixture.h"

namespace regroup::shim {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class StopTest : public ShimTest, public testing::WithParamInterface<bool> {
 protected:
  StopTest() { use_cgroup_ = GetParam(); }
  void SetUp() override {
    if (use_cgroup_ && !FindCgroupBase().ok()) GTEST_SKIP() << FindCgroupBase().status();
  }
  // Runs until the script has made $WORK/ready.
  Group RunUntilReady(const std::string& script) {
    Group group = Run(ShellSpec(script));
    EXPECT_TRUE(Eventually([&] { return ::access((work_ / "ready").c_str(), F_OK) == 0; }))
        << ShimLog(group);
    EXPECT_TRUE(group.WaitForPhase(Phase::kRunning));
    EXPECT_EQ(group.state.cgroup_used, use_cgroup_);
    return group;
  }
  void ExpectNothingLeft(const Group& group) {
    EXPECT_EQ(group.state.phase, Phase::kFree);
    EXPECT_EQ(LiveWithMark(group.spec), 0);
    EXPECT_NE(group.spec.cgroup.empty(), use_cgroup_);
    EXPECT_NE(::access(group.spec.cgroup.c_str(), F_OK), 0);
  }
};

TEST_P(StopTest, GraceLetsAWorkerFinish) {
  Group group =
      RunUntilReady("trap 'echo saved; exit 5' TERM; touch ready; while :; do sleep 0.01; done");
  group.Stop(seconds(30));
  ASSERT_TRUE(group.WaitForEnd());
  EXPECT_EQ(group.rank().exit_kind, ExitKind::kExited);
  EXPECT_EQ(group.rank().code, 5);
  EXPECT_TRUE(group.rank().after_stop);
  EXPECT_EQ(Log(group), "saved\n");
  ExpectNothingLeft(group);
}

TEST_P(StopTest, WhoIgnoresTheSignalIsKilledAtTheDeadline) {
  Group group = RunUntilReady("trap '' TERM; touch ready; while :; do sleep 0.01; done");
  const Instant asked = io::BootNow();
  group.Stop(milliseconds(150));
  ASSERT_TRUE(group.WaitForEnd());
  EXPECT_GE(group.rank().ended_at - asked, milliseconds(150));
  EXPECT_LT(group.rank().ended_at - asked, seconds(5));
  EXPECT_EQ(group.rank().code, SIGKILL);
  EXPECT_EQ(group.rank().oom, OomEvidence::kNone);
  ExpectNothingLeft(group);
}

TEST_P(StopTest, ADeadlineNeverMovesLater) {
  Group group = RunUntilReady("trap '' TERM; touch ready; while :; do sleep 0.01; done");
  group.Stop(seconds(25));
  group.Stop(milliseconds(100));
  group.Stop(seconds(25));
  ASSERT_TRUE(group.WaitForEnd());
  EXPECT_EQ(group.rank().code, SIGKILL);
}

TEST_P(StopTest, ASignalIsSentOnceAnotherOneToo) {
  Group group = RunUntilReady(
      "trap 'echo term' TERM; trap 'echo int; exit 0' INT; touch ready; while :; do sleep 0.01; "
      "done");
  group.Stop(seconds(20));
  group.Stop(seconds(20));
  group.Stop(seconds(20));
  ASSERT_TRUE(Eventually([&] { return !Log(group).empty(); }));
  group.Stop(seconds(20), SIGINT);
  ASSERT_TRUE(group.WaitForEnd());
  EXPECT_EQ(Log(group), "term\nint\n");
}

TEST_P(StopTest, DaemonsAndEscapedSessionsKeepTheSlotAndDieWithTheGroup) {
  // A double fork and a session of its own, both deaf, outlive the rank.
  Group group = RunUntilReady(
      "trap '' TERM; (setsid sh -c 'sleep 1000 & sleep 1000' &) ; (sh -c 'sleep 1000 &' &); sleep "
      "0.1; touch ready; exit 0");
  ASSERT_TRUE(group.WaitFor([](const State& s) {
    return s.ranks[0].phase == RankPhase::kEnded && s.ranks[0].logs_complete;
  }));
  EXPECT_EQ(group.rank().code, 0);
  EXPECT_EQ(group.state.phase, Phase::kRunning);  // Not free: a rank's own exit is not enough.
  EXPECT_GE(LiveWithMark(group.spec), 3);
  group.Stop(milliseconds(50));
  ASSERT_TRUE(group.WaitForEnd());
  ExpectNothingLeft(group);
}

TEST_P(StopTest, OrphansThatEndByThemselvesFreeTheGroup) {
  Group group = RunUntilReady("(setsid sh -c 'sleep 0.2' &); touch ready; exit 0");
  ASSERT_TRUE(group.WaitForEnd());  // Without any stop.
  ExpectNothingLeft(group);
}

TEST_P(StopTest, ABoundedForkBombIsKilled) {
  Group group = RunUntilReady(
      "trap '' TERM; i=0; while [ $i -lt 40 ]; do (trap '' TERM; setsid sleep 1000) & i=$((i+1)); "
      "done; touch ready; wait");
  group.Stop(milliseconds(10));
  ASSERT_TRUE(group.WaitForEnd());
  ExpectNothingLeft(group);
}

TEST_P(StopTest, StoppedProcessesDieToo) {
  Group group = RunUntilReady("touch ready; kill -STOP $$");
  ASSERT_TRUE(Eventually([&] { return io::ReadProcessStat(group.rank().pid)->state == 'T'; }));
  group.Stop(milliseconds(50));
  ASSERT_TRUE(group.WaitForEnd());
  EXPECT_EQ(group.rank().code, SIGKILL);
  ExpectNothingLeft(group);
}

// A frozen process stands for one in an uninterruptible wait: SIGKILL acts once it is thawed.
class Freezer {
 public:
  Freezer() : path_(absl::StrCat("/sys/fs/cgroup/freezer/regroup-test-", ::getpid())) {
    usable_ = ::mkdir(path_.c_str(), 0755) == 0 && Write("freezer.state", "THAWED");
  }
  ~Freezer() {
    Write("freezer.state", "THAWED");
    EXPECT_TRUE(!usable_ || Eventually([&] { return ::rmdir(path_.c_str()) == 0; }));
  }
  bool usable() const { return usable_; }
  bool Write(const std::string& file, const std::string& value) {
    io::UniqueFd fd(::open(absl::StrCat(path_, "/", file).c_str(), O_WRONLY | O_CLOEXEC));
    return fd && io::WriteAll(fd.get(), value).ok();
  }
  bool Frozen() { return io::ReadFile(path_ + "/freezer.state", 100).value_or("") == "FROZEN\n"; }

 private:
  const std::string path_;
  bool usable_ = false;
};

TEST_P(StopTest, WhatCannotBeKilledIsNamedAndFreedLater) {
  Freezer freezer;
  if (!freezer.usable()) GTEST_SKIP() << "needs a writable cgroup v1 freezer";
  Spec spec = ShellSpec("exec sleep 1000", 2);
  spec.unkillable_after = milliseconds(200);
  Group group = Run(spec);
  ASSERT_TRUE(group.WaitForPhase(Phase::kRunning));
  ASSERT_TRUE(freezer.Write("cgroup.procs", absl::StrCat(group.rank(1).pid)));
  ASSERT_TRUE(freezer.Write("freezer.state", "FROZEN"));
  ASSERT_TRUE(Eventually([&] { return freezer.Frozen(); }));
  group.Stop(milliseconds(10));
  ASSERT_TRUE(group.WaitForPhase(Phase::kUnkillable));
  EXPECT_EQ(group.state.left, std::vector<pid_t>{group.rank(1).pid});
  EXPECT_EQ(group.rank(0).phase, RankPhase::kEnded);
  EXPECT_EQ(group.rank(1).phase, RankPhase::kRunning);
  ASSERT_TRUE(freezer.Write("freezer.state", "THAWED"));
  ASSERT_TRUE(group.WaitForEnd());
  ExpectNothingLeft(group);
}

TEST_P(StopTest, KillNeedsNoGrace) {
  Group group = RunUntilReady("trap '' TERM; touch ready; sleep 1000");
  ASSERT_TRUE(group.link->Send(Kill{}).ok());
  ASSERT_TRUE(group.WaitForEnd());
  EXPECT_EQ(group.rank().code, SIGKILL);
  EXPECT_TRUE(group.rank().after_stop);
  ExpectNothingLeft(group);
}

TEST_P(StopTest, AKillByOthersIsNotAfterStop) {
  Group group = RunUntilReady("touch ready; exec sleep 1000");
  ASSERT_EQ(::kill(group.rank().pid, SIGKILL), 0);
  ASSERT_TRUE(group.WaitForEnd());
  EXPECT_EQ(group.rank().code, SIGKILL);
  EXPECT_FALSE(group.rank().after_stop);
}

TEST_P(StopTest, AStopRightAfterTheStartReachesEveryone) {
  for (int i = 0; i < 10; ++i) {
    Group group = Spawn(ShellSpec("sleep 1000", 4));
    group.Start();
    group.Stop(seconds(20));
    ASSERT_TRUE(group.WaitForEnd());
    for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(group.rank(rank).code, SIGTERM);
    ExpectNothingLeft(group);
  }
}

#ifdef __x86_64__
// Traces a shim and makes its next signal to a process group fail, as it does of a rank that has
// not yet a group of its own.
class NextGroupSignalFails {
 public:
  explicit NextGroupSignalFails(pid_t shim) : shim_(shim), thread_([this] { Run(); }) {
    EXPECT_TRUE(Eventually([this] { return phase_ != kBegins; }));
  }
  ~NextGroupSignalFails() { thread_.join(); }
  bool usable() const { return phase_ != kRefused; }
  bool done() const { return phase_ == kDone; }

 private:
  enum Phase { kBegins, kRefused, kTraces, kDone };

  // What its next stop was for; nothing once it has ended.
  std::optional<int> NextStop() {
    int status = 0;
    if (::waitpid(shim_, &status, __WALL) != shim_ || !WIFSTOPPED(status)) return std::nullopt;
    return WSTOPSIG(status);
  }
  void Run() {
    if (::ptrace(PTRACE_SEIZE, shim_, nullptr, PTRACE_O_TRACESYSGOOD) < 0) {
      phase_ = kRefused;
      return;
    }
    ::ptrace(PTRACE_INTERRUPT, shim_, nullptr, nullptr);
    while (NextStop()) {
      user_regs_struct registers{};
      ::ptrace(PTRACE_GETREGS, shim_, nullptr, &registers);
      if (registers.orig_rax == SYS_kill && static_cast<int>(registers.rdi) < 0) {
        registers.orig_rax = ~0ull;  // There is no such call.
        ::ptrace(PTRACE_SETREGS, shim_, nullptr, &registers);
        phase_ = kDone;
        ::ptrace(PTRACE_DETACH, shim_, nullptr, nullptr);
        return;
      }
      phase_ = kTraces;
      ::ptrace(PTRACE_SYSCALL, shim_, nullptr, nullptr);
    }
  }

  const pid_t shim_;
  std::atomic<Phase> phase_ = kBegins;
  std::thread thread_;
};

TEST_P(StopTest, AStopThatFoundNoGroupOfARankReachesWhatItHasStartedSince) {
  Group group = RunUntilReady("sleep 1000 & touch ready; wait");
  NextGroupSignalFails fails(group.shim.pid);
  if (!fails.usable()) GTEST_SKIP() << "needs the right to trace";
  group.Stop(seconds(1000));
  ASSERT_TRUE(group.WaitForEnd());
  EXPECT_TRUE(fails.done());
  EXPECT_EQ(group.rank().code, SIGTERM);
  ExpectNothingLeft(group);
}
#endif

INSTANTIATE_TEST_SUITE_P(Mode, StopTest, testing::Bool(), [](const auto& info) {
  return std::string(info.param ? "Cgroup" : "Walk");
});

}  // namespace
}  // namespace regroup::shim
