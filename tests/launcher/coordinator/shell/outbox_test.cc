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

pb::CoordinatorMessage Opening(std::uint64_t stream) {
  pb::CoordinatorMessage message;
  message.mutable_open_logs()->set_stream_id(stream);
  return message;
}

TEST(Outbox, OpeningsOfLogsTakeNoAnswersPlace) {
  Outbox outbox;
  for (std::uint64_t stream = 1; stream <= kMaxPendingOpenings; ++stream)
    EXPECT_TRUE(outbox.AddOpening(stream, Opening(stream)));
  EXPECT_FALSE(outbox.AddOpening(kMaxPendingOpenings + 1, Opening(kMaxPendingOpenings + 1)));
  for (std::size_t i = 0; i < kMaxPendingAnswers; ++i) EXPECT_TRUE(outbox.AddAnswer({}));
  // The newest of one stream is what is wanted of it.
  pb::CoordinatorMessage last = Opening(1);
  last.mutable_open_logs()->mutable_selection()->set_job("job-1");
  EXPECT_TRUE(outbox.AddOpening(1, last));
  outbox.DropOpening(2);
  outbox.DropOpening(2);
  EXPECT_TRUE(outbox.AddOpening(kMaxPendingOpenings + 1, Opening(kMaxPendingOpenings + 1)));
  EXPECT_FALSE(outbox.AddOpening(kMaxPendingOpenings + 2, {}));
  EXPECT_EQ(outbox.Next().open_logs().selection().job(), "job-1");
  EXPECT_EQ(outbox.Next().open_logs().stream_id(), 3u);
  EXPECT_TRUE(outbox.AddOpening(kMaxPendingOpenings + 2, {}));
  EXPECT_EQ(outbox.size(), kMaxPendingOpenings - 1 + kMaxPendingAnswers);
}

}  // namespace
}  // namespace regroup::coordinator
