// What ranks tell of their progress is absolute: it may come twice, late, and from several ranks.

#include "launcher/coordinator/core/progress.h"

#include <gtest/gtest.h>

namespace regroup::coordinator {
namespace {

using namespace std::chrono_literals;  // NOLINT

constexpr Instant kStart{10s};

WorkerProgress At(std::int64_t step) {
  WorkerProgress told;
  told.step = step;
  told.samples = step * 100;
  told.tokens = step * 1000;
  return told;
}

TEST(Progress, NeverGoesBack) {
  Progress progress;
  EXPECT_FALSE(progress.spoke);
  progress.Tell(At(7), kStart);
  progress.Tell(At(5), kStart + 1s);
  progress.Tell(WorkerProgress{}, kStart + 2s);
  EXPECT_TRUE(progress.spoke);
  EXPECT_EQ(progress.first_step, 7);
  EXPECT_EQ(progress.last_step, 7);
  EXPECT_EQ(progress.samples, 700);
  EXPECT_EQ(progress.tokens, 7000);
}

// The last two rises vouch for ranks that are silent (leases.h), so a repetition is none.
TEST(Progress, OnlyARiseCountsAsAStep) {
  Progress progress;
  progress.Tell(At(1), kStart);
  progress.Tell(At(1), kStart + 1s);
  EXPECT_EQ(progress.last_step_at, kStart);
  EXPECT_FALSE(progress.step_before_at);
  progress.Tell(At(2), kStart + 2s);
  EXPECT_EQ(progress.last_step_at, kStart + 2s);
  EXPECT_EQ(progress.step_before_at, kStart);
}

// One rank was restored sooner than another: the job waited for the slower one.
TEST(Progress, OfPhasesTheLongestCounts) {
  Progress progress;
  WorkerProgress told = At(1);
  told.init = 3s;
  told.restore = 1s;
  progress.Tell(told, kStart);
  told.init = 2s;
  told.restore = 4s;
  progress.Tell(told, kStart);
  EXPECT_EQ(progress.init, Duration(3s));
  EXPECT_EQ(progress.restore, Duration(4s));
  EXPECT_FALSE(progress.checkpoint);
}

}  // namespace
}  // namespace regroup::coordinator
