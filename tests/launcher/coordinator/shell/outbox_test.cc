#include "launcher/coordinator/shell/outbox.h"

#include <gtest/gtest.h>

namespace regroup::coordinator {
namespace {

pb::CoordinatorMessage Order(std::uint64_t number) {
  pb::CoordinatorMessage message;
  message.mutable_order()->set_number(number);
  return message;
}

TEST(Outbox, ANewerOrderTakesThePlaceOfTheOneThatWaits) {
  Outbox outbox;
  outbox.AddOrder(JobId("a-1"), Order(1));
  outbox.AddOrder(JobId("b-1"), Order(2));
  ASSERT_TRUE(outbox.AddAnswer({}));
  for (std::uint64_t number = 3; number <= 1'000; ++number)
    outbox.AddOrder(JobId("a-1"), Order(number));
  ASSERT_EQ(outbox.size(), 3u);
  EXPECT_EQ(outbox.Next().order().number(), 1'000u);
  EXPECT_EQ(outbox.Next().order().number(), 2u);
  outbox.AddOrder(JobId("a-1"), Order(1'001));  // What has left is not replaced.
  EXPECT_FALSE(outbox.Next().has_order());
  EXPECT_EQ(outbox.Next().order().number(), 1'001u);
  EXPECT_TRUE(outbox.empty());
}

TEST(Outbox, AnswersAndNewsAreBoundedEachByThemselves) {
  Outbox outbox;
  for (std::size_t i = 0; i < kMaxPendingAnswers; ++i) EXPECT_TRUE(outbox.AddAnswer({}));
  EXPECT_FALSE(outbox.AddAnswer({}));
  for (std::size_t i = 0; i < kMaxPendingNews; ++i) EXPECT_TRUE(outbox.AddNews({}));
  EXPECT_FALSE(outbox.AddNews({}));
  EXPECT_EQ(outbox.size(), kMaxPendingAnswers + kMaxPendingNews);
  outbox.Next();
  EXPECT_TRUE(outbox.AddAnswer({}));
  EXPECT_FALSE(outbox.AddAnswer({}));
  outbox.Clear();
  EXPECT_TRUE(outbox.empty());
  EXPECT_TRUE(outbox.AddAnswer({}));
}

}  // namespace
}  // namespace regroup::coordinator
