// What workers write, whatever it is, reaches the log files and stalls nobody.

#include <poll.h>
#include <sys/mount.h>

#include "absl/strings/str_cat.h"
#include "common/io/proc.h"
#include "tests/agent/shim/shim_fixture.h"

namespace regroup::shim {
namespace {

TEST_F(ShimTest, OutputIsByteExact) {
  Group group =
      Run(ShellSpec("printf 'a\\0\\377\\303(\\033[31m\\r\\nno newline'; printf 'err' >&2"));
  ASSERT_TRUE(group.WaitForEnd());
  EXPECT_TRUE(group.rank().logs_complete);
  EXPECT_EQ(Log(group), std::string("a\0\xff\xc3(\033[31m\r\nno newline", 22));
  EXPECT_EQ(Log(group, 10, io::LogStream::kStderr), "err");
  EXPECT_EQ(group.state.output_bytes, 25u);
}

TEST_F(ShimTest, AFastWriterIsNotLostAndNotKept) {
  Spec spec = ShellSpec("head -c 50000000 /dev/zero; echo; echo end");
  spec.log_limits = {.segment_bytes = 4 << 20, .segments = 3};
  Group group = Run(spec);
  ASSERT_TRUE(group.WaitForEnd());
  EXPECT_EQ(group.state.output_bytes, 50000005u);
  EXPECT_EQ(group.state.lost_log_bytes, 0u);
  const std::string kept = Log(group);
  EXPECT_LE(kept.size(), 12u << 20);
  EXPECT_GE(kept.size(), 8u << 20);
  EXPECT_EQ(kept.substr(kept.size() - 5), "\nend\n");
}

TEST_F(ShimTest, ClosedStreamsAreNoExit) {
  Group group = Run(ShellSpec("exec >&- 2>&-; sleep 0.1; exit 8"));
  ASSERT_TRUE(group.WaitForEnd());
  EXPECT_EQ(group.rank().code, 8);
}

TEST_F(ShimTest, AnOrphanThatKeepsWritingDoesNotDelayTheRanksLog) {
  Group group =
      Run(ShellSpec("(setsid sh -c 'while :; do echo noise; done' &); echo mine; exit 1"));
  ASSERT_TRUE(group.WaitFor([](const State& s) { return s.ranks[0].logs_complete; }));
  EXPECT_EQ(group.state.phase, Phase::kRunning);
  ASSERT_TRUE(group.link->Send(Kill{}).ok());
  ASSERT_TRUE(group.WaitForEnd());
  EXPECT_THAT(Log(group), testing::HasSubstr("mine\n"));
}

TEST_F(ShimTest, WhoWantsOutputIsToldWithinMilliseconds) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  Group talker = Spawn(ShellSpec("while read line; do echo $line; done"), -1, ends[0], true);
  ::close(ends[0]);
  talker.Start();
  ASSERT_TRUE(talker.WaitForPhase(Phase::kRunning));
  for (std::uint64_t i = 1; i <= 20; ++i) {
    const Instant asked = io::BootNow();
    ASSERT_EQ(::write(ends[1], "x\n", 2), 2);
    ASSERT_TRUE(talker.WaitFor([i](const State& s) { return s.output_bytes >= 2 * i; }));
    EXPECT_LT(io::BootNow() - asked, std::chrono::seconds(5));
  }
  ::close(ends[1]);
  ASSERT_TRUE(talker.WaitForEnd());
  EXPECT_EQ(Log(talker).size(), 40u);
}

TEST_F(ShimTest, AFullDiskStallsNobody) {
  ASSERT_TRUE(io::MakeDirectories(work_ / "small").ok());
  if (::mount("regroup-test", (work_ / "small").c_str(), "tmpfs", 0, "size=64k") < 0) {
    GTEST_SKIP() << "needs the right to mount a small tmpfs";
  }
  Spec spec = ShellSpec("head -c 3000000 /dev/zero; exit 3");
  spec.log_root = work_ / "small";
  Group group = Run(spec);
  EXPECT_TRUE(group.WaitForEnd());
  EXPECT_EQ(group.rank().code, 3);
  EXPECT_EQ(group.state.output_bytes + group.state.lost_log_bytes, 3000000u);
  EXPECT_GT(group.state.lost_log_bytes, 2900000u);
  EXPECT_THAT(group.state.log_trouble, testing::HasSubstr("No space left"));
  ::umount2((work_ / "small").c_str(), MNT_DETACH);
}

TEST_F(ShimTest, AnUnwritableLogDirectoryStallsNobody) {
  ASSERT_TRUE(io::ReplaceFile(work_ / "file", "", io::Durability::kVolatile).ok());
  Spec spec = ShellSpec("head -c 1000000 /dev/zero; exit 0");
  spec.log_root = work_ / "file";
  Group group = Run(spec);
  ASSERT_TRUE(group.WaitForEnd());
  EXPECT_EQ(group.state.lost_log_bytes, 1000000u);
  EXPECT_FALSE(group.state.log_trouble.empty());
}

}  // namespace
}  // namespace regroup::shim
