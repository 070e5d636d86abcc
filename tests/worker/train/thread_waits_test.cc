#include "worker/train/thread_waits.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <thread>
#include <vector>

#include "common/io/proc.h"
#include "worker/kernels/parallel_for.h"

namespace regroup::worker {
namespace {

using std::chrono::milliseconds;

TEST(ThreadWaits, OneIsCrowdedFromATenthOfTheTimeAndUntilThreeHundredths) {
  struct Row {
    bool before;
    int ran_ms, waited_ms;
    bool crowded;
  };
  for (const Row& row :
       {Row{false, 1000, 0, false}, Row{false, 901, 99, false}, Row{false, 899, 101, true},
        Row{true, 969, 31, true}, Row{true, 971, 29, false}, Row{true, 1, 1000, true},
        // It slept: nothing is learned from that.
        Row{false, 0, 0, false}, Row{true, 0, 0, true}, Row{false, 10, 9, false},
        Row{true, 19, 0, true}, Row{false, 10, 10, true}, Row{true, 20, 0, false}}) {
    EXPECT_EQ(IsCrowded(row.before, {milliseconds(row.ran_ms), milliseconds(row.waited_ms)}),
              row.crowded)
        << row.before << " " << row.ran_ms << " " << row.waited_ms;
  }
}

TEST(ThreadWaits, APoolMakesTheThreadsOneMoreThanTheCores) {
  struct Row {
    int cores, threads, pool;
  };
  for (const Row& row : {Row{2, 2, 2}, Row{64, 64, 2}, Row{8, 4, 6}, Row{8, 2, 8}, Row{9, 2, 0},
                         Row{2, 1, 0}, Row{1, 1, 0}, Row{2, 3, 0}}) {
    EXPECT_EQ(SparePool(row.cores, row.threads), row.pool) << row.cores << " " << row.threads;
  }
}

Duration ProcessTime() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

// What the other threads of ten regions take of cores while they wait 30 ms for the one that
// sleeps.
Duration TimeOfWaiting() {
  const Duration before = ProcessTime();
  for (int i = 0; i < 10; ++i) {
    ParallelFor(ThreadCount(), [](std::int64_t task, int) {
      if (task == 0) usleep(30000);
    });
  }
  return ProcessTime() - before;
}

TEST(ThreadWaits, WaitsAreShortWhileOthersWantTheCores) {
  if (CoreCount() < 2) return;  // libgomp waits for a moment only where threads share one core.
  SetThreadCount(CoreCount());
  std::optional<CoreTime> now = CoreTime();
  ThreadWaits waits([&now] { return now; });
  Instant time{};
  const auto look = [&](int ran_ms, int waited_ms, int after_ms = 200) {
    now = CoreTime{.ran = now->ran + milliseconds(ran_ms),
                   .waited = now->waited + milliseconds(waited_ms)};
    waits.Look(time += milliseconds(after_ms));
  };
  look(5000, 5000);  // From before it was looked at.
  EXPECT_FALSE(waits.crowded());
  const Duration alone = TimeOfWaiting();

  look(100, 100, 199);
  EXPECT_FALSE(waits.crowded()) << "looked too soon";
  look(0, 0, 1);
  EXPECT_TRUE(waits.crowded()) << "what was counted until then is forgotten";
  const Duration crowded = TimeOfWaiting();
  EXPECT_LT(crowded, alone / 4);
  look(100, 100);
  look(200, 0);
  EXPECT_FALSE(waits.crowded());
  EXPECT_LT(crowded, TimeOfWaiting() / 4);

  now.reset();
  waits.Look(time += milliseconds(200));
  EXPECT_TRUE(waits.crowded()) << "where nothing is counted";
  now = CoreTime{.ran = std::chrono::seconds(60)};
  waits.Look(time += milliseconds(200));
  EXPECT_TRUE(waits.crowded()) << "since when is not known";
  look(200, 0);
  EXPECT_FALSE(waits.crowded());
}

// There is room for the stack of one thread more, and two are needed: the exit status.
int LookWithoutRoom() {
  alarm(20);
  SetThreadCount(CoreCount());
  rlimit stack{};
  getrlimit(RLIMIT_STACK, &stack);
  std::FILE* file = std::fopen("/proc/self/statm", "re");
  std::uint64_t pages = 0;
  if (file == nullptr || std::fscanf(file, "%" SCNu64, &pages) != 1) return 2;
  std::fclose(file);
  const rlim_t room = pages * static_cast<rlim_t>(getpagesize()) + stack.rlim_cur * 3 / 2;
  const rlimit limit{.rlim_cur = room, .rlim_max = room};
  if (setrlimit(RLIMIT_AS, &limit) != 0) return 3;
  ThreadWaits waits([] { return std::nullopt; });
  waits.Look(Instant());
  return waits.crowded() ? 0 : 4;
}

// libgomp ends a program that it gets no thread for.
TEST(ThreadWaits, AHostWithoutThreadsIsLeftAlone) {
  if (CoreCount() < 2) return;
  const pid_t child = fork();
  if (child == 0) _exit(LookWithoutRoom());
  ASSERT_GT(child, 0);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(ThreadWaits, AThreadIsSeenToShareItsCore) {
  std::atomic<bool> end{false};
  std::vector<std::thread> others(2 * static_cast<std::size_t>(CoreCount()));
  for (std::thread& other : others) {
    other = std::thread([&end] {
      while (!end.load(std::memory_order_relaxed)) {
      }
    });
  }
  ThreadWaits waits;
  const Instant begin = io::MonotonicNow();
  while (!waits.crowded() && io::MonotonicNow() - begin < std::chrono::seconds(20))
    waits.Look(io::MonotonicNow());
  end = true;
  for (std::thread& other : others) other.join();
  EXPECT_TRUE(waits.crowded());
  const std::optional<CoreTime> counted = ReadCoreTime();
  ASSERT_TRUE(counted.has_value());
  EXPECT_GT(counted->waited, Duration::zero());
}

}  // namespace
}  // namespace regroup::worker
