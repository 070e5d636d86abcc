#include "agent/shell/log_keeper.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace regroup::agent {
namespace {

GroupKey Key(std::uint64_t generation, const char* job = "train-1") {
  return {JobId(job), Generation(generation)};
}

shim::State Unshown(std::uint64_t bytes) {
  shim::State state;
  state.unshown_bytes = bytes;
  return state;
}

shim::Shown At(int segment) { return {{{0, false, {segment, 0}}}}; }

class LogKeeperTest : public testing::Test {
 protected:
  // What was sent to that generation's shim last.
  const shim::Shown* LastTo(std::uint64_t generation) const {
    for (auto it = sent_.rbegin(); it != sent_.rend(); ++it) {
      if (it->first == Key(generation)) return &it->second;
    }
    return nullptr;
  }

  boost::asio::io_context loop_;
  boost::asio::thread_pool disk_{1};
  std::vector<std::pair<GroupKey, shim::Shown>> sent_;
  std::vector<std::string> told_;
  LogKeeper keeper_{
      loop_,
      disk_,
      "/logs",
      {[this](const GroupKey& key, const shim::Shown& shown) { sent_.emplace_back(key, shown); },
       [this](std::string text) { told_.push_back(std::move(text)); }}};
};

TEST_F(LogKeeperTest, GenerationsOfAJobShareTheRoom) {
  constexpr std::uint64_t kAll = LogKeeper::kUnshownBytesPerJob;
  keeper_.OnState(Key(1), Unshown(1000));
  keeper_.SetShown({{Key(1), At(3)}});
  EXPECT_EQ(LastTo(1)->room_bytes, kAll);
  EXPECT_EQ(LastTo(1)->streams, At(3).streams);
  keeper_.SetShown({{Key(1), At(3)}});
  EXPECT_EQ(sent_.size(), 1u) << "nothing new";
  // Its shim and its run directory go, its output is still being shown.
  keeper_.OnGone(Key(1));
  keeper_.OnRemoved(Key(1));
  keeper_.OnState(Key(2), Unshown(7));
  keeper_.OnState(Key(1, "other-1"), Unshown(500));
  keeper_.SetShown({{Key(1), At(3)}, {Key(2), At(0)}, {Key(1, "other-1"), At(0)}});
  EXPECT_EQ(LastTo(2)->room_bytes, kAll - 1000);
  keeper_.SetShown({{Key(2), At(0)}});
  EXPECT_EQ(LastTo(2)->room_bytes, kAll);
  EXPECT_EQ(LastTo(1)->streams[0].position, io::kNotAwaited) << "nobody waits for it any more";
}

TEST_F(LogKeeperTest, AnEarlierGenerationMayTakeAllOfIt) {
  keeper_.OnState(Key(1), Unshown(LogKeeper::kUnshownBytesPerJob + 1));
  keeper_.SetShown({{Key(1), At(0)}, {Key(2), At(0)}});
  EXPECT_EQ(LastTo(2)->room_bytes, 0u);
}

TEST_F(LogKeeperTest, AFullDiskIsToldOnceAtATime) {
  shim::State full;
  full.disk_full = true;
  keeper_.OnState(Key(1), full);
  keeper_.OnState(Key(2), full);
  ASSERT_EQ(told_.size(), 1u);
  EXPECT_EQ(told_[0],
            "the disk of /logs is full: output is not kept, workers run on · free some: "
            "regroup prune");
}

TEST(LimitsOf, APlaceOfItsOwnKeepsAllUnlessToldOtherwise) {
  JobSpec job;
  EXPECT_EQ(LimitsOf(job, false).segments, 10);
  EXPECT_TRUE(LimitsOf(job, true).keeps_all());
  job.log_keep_bytes = 1ull << 30;
  EXPECT_EQ(LimitsOf(job, true).segments, 103);
  job.log_keep_bytes = kKeepAllLogs;
  EXPECT_TRUE(LimitsOf(job, false).keeps_all());
}

}  // namespace
}  // namespace regroup::agent
