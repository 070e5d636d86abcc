#include "launcher/coordinator/shell/moderation.h"

#include <gtest/gtest.h>

namespace regroup::coordinator {
namespace {

constexpr Instant kBegin = Instant(std::chrono::hours(1));

TEST(ModerationTest, WhoSleptForEachOfManyPauses) {
  Moderation moderation;
  EXPECT_FALSE(moderation.IsDue(kBegin, 1));  // The first: nothing says that they come fast.
  EXPECT_TRUE(moderation.IsDue(kBegin + kFastMessages / 2, 2));
}

TEST(ModerationTest, WhileMoreWaitItGoesOn) {
  Moderation moderation;
  (void)moderation.IsDue(kBegin, 1);
  for (int i = 1; i < 100; ++i) EXPECT_FALSE(moderation.IsDue(kBegin + i * kFastMessages / 10, 1));
}

TEST(ModerationTest, WhatComesSeldomIsNeverKept) {
  Moderation moderation;
  for (int i = 1; i < 100; ++i) EXPECT_FALSE(moderation.IsDue(kBegin + i * kFastMessages, i));
}

// The pause itself is no sleep for a message.
TEST(ModerationTest, AfterAPauseItTakesWhatHasCome) {
  Moderation moderation;
  (void)moderation.IsDue(kBegin, 1);
  ASSERT_TRUE(moderation.IsDue(kBegin + kFastMessages / 2, 2));
  const Instant after = kBegin + kFastMessages / 2 + kPauseForMore;
  moderation.Paused(after, 3);
  EXPECT_FALSE(moderation.IsDue(after, 3));
  EXPECT_TRUE(moderation.IsDue(after + kFastMessages / 2, 4));
}

}  // namespace
}  // namespace regroup::coordinator
