#include "worker/data/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "common/base/rng.h"

namespace regroup::worker {
namespace {

TEST(SamplePermutation, IsOneForEverySize) {
  for (std::int64_t size = 1; size <= 300; ++size) {
    const SamplePermutation order(9, 4, size);
    std::vector<bool> seen(static_cast<std::size_t>(size));
    for (std::int64_t i = 0; i < size; ++i) {
      const std::int64_t id = order(i);
      ASSERT_GE(id, 0);
      ASSERT_LT(id, size);
      ASSERT_FALSE(seen[static_cast<std::size_t>(id)]) << size;
      seen[static_cast<std::size_t>(id)] = true;
    }
  }
}

TEST(SamplePermutation, WorksFarBeyondMemory) {
  const std::int64_t size = (std::int64_t{1} << 40) + 12345;
  const SamplePermutation order(1, 0, size);
  for (const std::int64_t index : {std::int64_t{0}, size / 2, size - 1}) {
    EXPECT_GE(order(index), 0);
    EXPECT_LT(order(index), size);
  }
  EXPECT_NE(order(0), order(1));
}

TEST(SamplePermutation, MixesAndDiffersBySeedAndEpoch) {
  constexpr std::int64_t kSize = 4096;
  const SamplePermutation a(1, 0, kSize), other_seed(2, 0, kSize), other_epoch(1, 1, kSize);
  int fixed = 0, same_seed = 0, same_epoch = 0, neighbours = 0;
  for (std::int64_t i = 0; i < kSize; ++i) {
    fixed += a(i) == i;
    same_seed += a(i) == other_seed(i);
    same_epoch += a(i) == other_epoch(i);
    neighbours += i > 0 && a(i) == a(i - 1) + 1;
  }
  for (const int count : {fixed, same_seed, same_epoch, neighbours}) EXPECT_LT(count, 12);
}

TEST(RankSlice, SlicesTheBatchWithoutGapOrOverlap) {
  for (std::int64_t count = 0; count <= 40; ++count) {
    for (int world = 1; world <= 9; ++world) {
      std::int64_t next = 0, smallest = count, largest = 0;
      for (int rank = 0; rank < world; ++rank) {
        const Slice slice = RankSlice(count, rank, world);
        EXPECT_EQ(slice.begin, next);
        next += slice.size;
        smallest = std::min(smallest, slice.size);
        largest = std::max(largest, slice.size);
      }
      EXPECT_EQ(next, count);
      EXPECT_LE(largest - smallest, 1);
    }
  }
}

TEST(Sampler, OrderDependsOnThePositionOnly) {
  const Sampler sampler(5, 37);
  const std::vector<std::int64_t> all = sampler.Ids(0, 200);
  for (const std::int64_t position : {0, 1, 36, 37, 38, 74, 110}) {
    const std::vector<std::int64_t> part = sampler.Ids(position, 60);
    EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin() + position)) << position;
  }
  EXPECT_TRUE(sampler.Ids(3, 0).empty());
  EXPECT_EQ(sampler.DataEpoch(36), 0);
  EXPECT_EQ(sampler.DataEpoch(37), 1);
}

// Any history of sizes, failures and resumes: what the committed steps consumed is each sample
// exactly once per data epoch, whatever the world was when.
TEST(Sampler, NoLossAndNoRepeatOverAnyResizeHistory) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    Rng rng(seed);
    const auto samples = static_cast<std::int64_t>(1 + rng.Below(200));
    const auto global_batch = static_cast<std::int64_t>(1 + rng.Below(40));
    const Sampler sampler(seed, samples);
    std::vector<std::int64_t> consumed;  // Of the committed lineage, in order of steps.
    std::int64_t committed = 0;          // Position of the newest commit.
    while (committed < 3 * samples) {
      const int world = static_cast<int>(1 + rng.Below(7));
      std::int64_t position = committed;
      consumed.resize(static_cast<std::size_t>(committed));
      for (std::uint64_t steps = rng.Below(6); steps > 0; --steps) {
        const std::vector<std::int64_t> batch = sampler.Ids(position, global_batch);
        for (int rank = 0; rank < world; ++rank) {
          const Slice slice = RankSlice(global_batch, rank, world);
          consumed.insert(consumed.end(), batch.begin() + slice.begin,
                          batch.begin() + slice.begin + slice.size);
        }
        position += global_batch;
        if (rng.Below(3) == 0) committed = position;
      }
    }
    consumed.resize(static_cast<std::size_t>(committed));
    for (std::int64_t epoch = 0; (epoch + 1) * samples <= committed; ++epoch) {
      std::vector<std::int64_t> ids(consumed.begin() + epoch * samples,
                                    consumed.begin() + (epoch + 1) * samples);
      std::sort(ids.begin(), ids.end());
      std::vector<std::int64_t> expected(static_cast<std::size_t>(samples));
      std::iota(expected.begin(), expected.end(), 0);
      ASSERT_EQ(ids, expected) << "seed " << seed << " epoch " << epoch;
    }
  }
}

}  // namespace
}  // namespace regroup::worker
