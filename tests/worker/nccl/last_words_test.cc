#include "worker/nccl/last_words.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "tests/worker/comm/tiny_store.h"
#include "tests/worker/nccl/nccl_ranks.h"

namespace regroup::worker {
namespace {

using std::chrono::milliseconds;

class LastWordsTest : public testing::Test {
 protected:
  LastWordsTest() { store_.Start(); }
  LastWords Of(int rank) {
    return {*StoreClient::Connect("127.0.0.1", store_.port(), std::chrono::seconds(10)), "g", rank};
  }
  TinyStore store_;
};

TEST_F(LastWordsTest, OneOfAllAsks) {
  LastWords first = Of(2), second = Of(0);
  EXPECT_TRUE(first.IsFirstToAsk());
  EXPECT_FALSE(second.IsFirstToAsk());
  EXPECT_FALSE(first.IsFirstToAsk());
}

TEST_F(LastWordsTest, WhoHasNotBegunAndWhoDoesNotAnswerAreTold) {
  LastWords asks = Of(0), behind = Of(1), there = Of(2);
  there.Tell(5, "done");
  behind.Tell(4, "done");
  EXPECT_EQ(asks.WhoIsMissing(5, {0, 1, 2, 3}, milliseconds(50), std::chrono::hours(1)),
            "rank 3 does not answer; rank 1 has not begun it");
  EXPECT_EQ(asks.WhoIsMissing(5, {0, 2}, milliseconds(50), std::chrono::hours(1)),
            "every rank has begun it");
  EXPECT_EQ(there.Hear(5, milliseconds(50)), "done");
}

// A collective that was late may end well; what comes later is told all the same.
TEST_F(LastWordsTest, AStoreThatWasSlowOnceIsDialledAnew) {
  auto store = StoreClient::Connect("127.0.0.1", store_.port(), std::chrono::seconds(10));
  ASSERT_TRUE(store.ok());
  store->SetPatience(Duration::zero());
  while (store->Add("n", 1).ok()) continue;
  LastWords words(*std::move(store), "g", 0);
  EXPECT_TRUE(words.IsFirstToLook(7));
  words.Tell(7, "why");
  EXPECT_EQ(Of(1).Hear(7, std::chrono::seconds(10)), "why");
}

// However many there are, whoever waits for the answer has it in time.
TEST_F(LastWordsTest, WhoCouldNotBeLookedUpInTimeIsCounted) {
  LastWords asks = Of(0);
  std::vector<int> ranks(20);
  std::iota(ranks.begin(), ranks.end(), 0);
  EXPECT_EQ(asks.WhoIsMissing(5, ranks, milliseconds(50), Duration::zero()),
            "20 ranks could not be looked up in time");
  EXPECT_EQ(asks.WhoIsMissing(5, ranks, milliseconds(50), std::chrono::hours(1)),
            "ranks 1, 2, 3, 4, 5, 6, 7, 8 and 11 more do not answer");
}

// Where another rank asks already, one that reaches the deadline too asks nobody.
TEST(LastWordsOfNccl, WhoComesSecondHearsWhatTheFirstHasFound) {
  NcclRanks ranks(2, milliseconds(300));
  std::atomic<bool> over = false;
  ranks.Run([&](NcclRanks::Rank& rank) {
    ASSERT_TRUE(rank.nccl.ok()) << rank.nccl.status();
    const Tensor arena = *(*rank).AllocateTensor(DType::kF32, 100);
    if (rank.rank() == 1) {
      while (!over) std::this_thread::sleep_for(milliseconds(1));
      return;
    }
    LastWords other(
        *StoreClient::Connect("127.0.0.1", ranks.options.store_port, std::chrono::seconds(10)),
        "nccl/" + ranks.options.name, 7);
    EXPECT_TRUE(other.IsFirstToAsk());
    other.Tell(1, "rank 7 has found that rank 1 sleeps");
    const auto stream = rank.device.NewStream(StreamKind::kMove);
    (*rank).AllReduceSum(*stream, arena);
    const absl::Status status = stream->Await();
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_EQ(status.message(), "rank 7 has found that rank 1 sleeps");
    over = true;
  });
}

}  // namespace
}  // namespace regroup::worker
