#include "common/io/proc.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

namespace regroup::io {
namespace {

TEST(Processes, AreNamedByPidAndStartTime) {
  pid_t child = ::fork();
  if (child == 0) {
    pid_t grandchild = ::fork();
    if (grandchild == 0) ::setsid();
    for (;;) ::pause();
  }
  std::optional<ProcessStat> stat = ReadProcessStat(child);
  ASSERT_TRUE(stat);
  EXPECT_EQ(stat->parent, ::getpid());
  EXPECT_TRUE(IsAlive(child, stat->start_ticks));
  EXPECT_FALSE(IsAlive(child, stat->start_ticks + 1));
  std::vector<ProcessStat> below;
  while (below.size() < 2) below = DescendantsOf(::getpid());
  EXPECT_EQ(below[0].pid, child);
  EXPECT_EQ(below[1].parent, child);
  EXPECT_TRUE(absl::IsNotFound(SignalProcess(child, stat->start_ticks + 1, SIGKILL)));
  EXPECT_TRUE(SignalProcess(below[1].pid, below[1].start_ticks, SIGKILL).ok());
  UniqueFd pidfd = std::move(*OpenPidfd(child));
  EXPECT_TRUE(SignalPidfd(pidfd.get(), SIGKILL).ok());
  pollfd poll{pidfd.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&poll, 1, 10000), 1);
  EXPECT_FALSE(IsAlive(child, stat->start_ticks));  // A zombie is dead.
  EXPECT_TRUE(ReadProcessStat(child)->dead());
  EXPECT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_FALSE(ReadProcessStat(child));
  EXPECT_TRUE(absl::IsNotFound(OpenPidfd(child).status()));
}

TEST(Processes, TakeMemory) {
  const std::uint64_t before = ResidentBytes(::getpid());
  EXPECT_GT(before, 100u << 10);
  const std::string more(64 << 20, 'x');
  EXPECT_GE(ResidentBytes(::getpid()), before + more.size() / 2);
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  EXPECT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_EQ(ResidentBytes(child), 0u);
}

TEST(Processes, NameMayHoldAnything) {
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  pid_t child = ::fork();
  if (child == 0) {
    FILE* comm = ::fopen("/proc/self/comm", "w");
    ::fputs(") Z 1 (", comm);
    ::fclose(comm);
    ::close(ready[1]);
    for (;;) ::pause();
  }
  ::close(ready[1]);
  char byte;
  EXPECT_EQ(::read(ready[0], &byte, 1), 0);
  std::optional<ProcessStat> stat = ReadProcessStat(child);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ::close(ready[0]);
  ASSERT_TRUE(stat);
  EXPECT_EQ(stat->parent, ::getpid());
  EXPECT_FALSE(stat->dead());
}

TEST(Clocks, BootIdAndTime) {
  EXPECT_EQ(ReadBootId()->value().size(), 36u);
  Instant before = BootNow();
  EXPECT_LE(before, BootNow());
}

}  // namespace
}  // namespace regroup::io
