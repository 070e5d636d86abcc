#include "worker/nccl/last_words.h"

#include <gtest/gtest.h>

#include <chrono>
#include <numeric>
#include <string>
#include <vector>

#include "tests/worker/comm/tiny_store.h"

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
  EXPECT_EQ(asks.WhoIsMissing(5, {0, 1, 2, 3}, milliseconds(50)),
            "rank 3 does not answer; rank 1 has not begun it");
  EXPECT_EQ(asks.WhoIsMissing(5, {0, 2}, milliseconds(50)), "every rank has begun it");
  EXPECT_EQ(there.Hear(5, milliseconds(50)), "done");
}

// However many there are, whoever waits for the answer has it in time.
TEST_F(LastWordsTest, WhoCouldNotBeLookedUpInTimeIsCounted) {
  LastWords asks = Of(0);
  std::vector<int> ranks(40'000);
  std::iota(ranks.begin(), ranks.end(), 0);
  const std::string text = asks.WhoIsMissing(5, ranks, milliseconds(400));
  EXPECT_NE(text.find(" ranks could not be looked up in time"), std::string::npos) << text;
  EXPECT_NE(text.find("ranks 1, 2, 3, 4, 5, 6, 7, 8 and "), std::string::npos) << text;
}

}  // namespace
}  // namespace regroup::worker
