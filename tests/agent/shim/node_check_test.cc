// A command decides whether ranks may start: what it says, what it leaves, and who ends it.

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "common/io/proc.h"
#include "tests/agent/shim/shim_fixture.h"

namespace regroup::shim {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::StartsWith;

class NodeCheckTest : public ShimTest, public testing::WithParamInterface<bool> {
 protected:
  NodeCheckTest() { use_cgroup_ = GetParam(); }
  void SetUp() override {
    if (use_cgroup_ && !FindCgroupBase().ok()) GTEST_SKIP() << FindCgroupBase().status();
  }
  Spec Checked(const std::string& check, Duration timeout = seconds(20)) {
    Spec spec = ShellSpec("echo trained");
    spec.node_check = {check, timeout};
    return spec;
  }
  // Runs it to its end; returns how it failed.
  std::string Fails(const std::string& check, Duration timeout = seconds(20)) {
    return Fails(Checked(check, timeout));
  }
  std::string Fails(Spec spec) {
    Group group = Spawn(std::move(spec));
    EXPECT_TRUE(group.WaitForEnd()) << ShimLog(group);
    EXPECT_FALSE(group.state.ever_started);
    EXPECT_EQ(group.rank().phase, RankPhase::kWaiting);
    EXPECT_EQ(LiveWithMark(group.spec), 0);
    EXPECT_NE(::access(group.spec.cgroup.c_str(), F_OK), 0);
    return group.state.check_failed;
  }
  bool Made(const std::string& file) {
    return Eventually([&] { return ::access((work_ / file).c_str(), F_OK) == 0; });
  }
};

TEST_P(NodeCheckTest, RanksStartAfterItPassed) {
  Group group = Spawn(Checked("while [ ! -e go ]; do sleep 0.01; done; echo $REGROUP_GROUP >mark"));
  ASSERT_TRUE(group.WaitForPhase(Phase::kPreparing));
  group.Start();  // Too early: nobody may.
  ::close(::open((work_ / "go").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  ASSERT_TRUE(group.WaitForPhase(Phase::kPrepared));
  EXPECT_FALSE(group.state.ever_started);
  group.Start();
  ASSERT_TRUE(group.WaitForEnd());
  EXPECT_EQ(group.state.check_failed, "");
  EXPECT_EQ(group.rank().code, 0);
  EXPECT_FALSE(group.rank().after_stop);
  EXPECT_EQ(group.state.cgroup_used, use_cgroup_);
  EXPECT_EQ(Log(group), "trained\n");
  EXPECT_EQ(io::ReadFile(work_ / "mark", 100).value(), group.spec.nonce + "\n");
}

TEST_P(NodeCheckTest, SaysWhyItFailed) {
  EXPECT_EQ(Fails("echo first; echo '8 GPUs wanted, 7 found' >&2; exit 3"),
            "its node check exited with 3: 8 GPUs wanted, 7 found");
  EXPECT_EQ(Fails("exit 1"), "its node check exited with 1");
  EXPECT_EQ(Fails("kill -SEGV $$"), "its node check was ended by signal 11");
  EXPECT_THAT(Fails("no-such-program-anywhere"), StartsWith("its node check exited with 127: "));
  Spec nowhere = Checked("true");
  nowhere.directory = "/no/such/place";
  EXPECT_EQ(Fails(nowhere),
            "its node check could not be started: chdir: No such file or directory");
}

TEST_P(NodeCheckTest, OfMuchOutputTheLastLineCounts) {
  // More than a pipe holds; and a line that is too long for a reason.
  const std::string failed =
      Fails("head -c 3000000 /dev/zero; echo; printf 'x%.0s' $(seq 500); exit 9");
  EXPECT_EQ(failed, "its node check exited with 9: " + std::string(256, 'x'));
}

TEST_P(NodeCheckTest, TakesNoLongerThanItMay) {
  const Instant began = io::BootNow();
  const std::string failed =
      Fails("trap '' TERM; echo at 40 %; (setsid sleep 600 &) ; while :; do sleep 1; done",
            milliseconds(300));
  EXPECT_EQ(failed, "its node check did not end within 0.3 s: at 40 %");
  EXPECT_GE(io::BootNow() - began, milliseconds(300));
}

TEST_P(NodeCheckTest, WhatItLeavesRunningIsEndedBeforeTheRanks) {
  Group group = Spawn(Checked("setsid sleep 600 & sleep 600 & exec true"));
  ASSERT_TRUE(group.WaitForPhase(Phase::kPrepared));
  EXPECT_EQ(LiveWithMark(group.spec), 0);
  group.Start();
  ASSERT_TRUE(group.WaitForEnd());
  EXPECT_EQ(group.rank().code, 0);
  EXPECT_EQ(group.rank().oom, OomEvidence::kNone);
}

TEST_P(NodeCheckTest, AStopEndsItAtOnce) {
  Group group = Spawn(Checked("trap '' TERM; touch ready; while :; do sleep 1; done"));
  ASSERT_TRUE(Made("ready"));
  const Instant asked = io::BootNow();
  group.Stop(seconds(60));
  ASSERT_TRUE(group.WaitForEnd());
  EXPECT_LT(io::BootNow() - asked, seconds(20));
  EXPECT_EQ(group.state.check_failed, "");
  EXPECT_EQ(LiveWithMark(group.spec), 0);
}

TEST_P(NodeCheckTest, GoesWithItsLauncher) {
  int lifeline[2];
  ASSERT_EQ(::pipe2(lifeline, O_CLOEXEC), 0);
  Group group = Spawn(Checked("touch ready; while :; do sleep 1; done"), lifeline[0]);
  ::close(lifeline[0]);
  ASSERT_TRUE(Made("ready"));
  ::close(lifeline[1]);
  ASSERT_TRUE(group.WaitForEnd());
  EXPECT_EQ(LiveWithMark(group.spec), 0);
}

INSTANTIATE_TEST_SUITE_P(Mode, NodeCheckTest, testing::Bool(), [](const auto& info) {
  return std::string(info.param ? "Cgroup" : "Walk");
});

}  // namespace
}  // namespace regroup::shim
