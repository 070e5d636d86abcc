// Which calls of NCCL move a set of stretches: as few as can, and the result is the same.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/worker/comm/collective_data.h"
#include "tests/worker/nccl/nccl_ranks.h"

namespace regroup::worker {
namespace {

constexpr int kWorld = 4;
constexpr std::size_t kCount = 900;

struct Row {
  const char* name;
  int group;
  std::vector<Stretch> stretches;
  // By each rank: ncclReduceScatter and ncclAllGather, or ncclReduce and ncclBroadcast.
  int whole, parts;
};

TEST(NcclCalls, PartsOfEqualSizeAreOneCallAndNeighboursToo) {
  const std::vector<Row> rows = {
      {"equal parts",
       4,
       {{0, 10, 10, 64}, {1, 74, 74, 64}, {2, 138, 138, 64}, {3, 202, 202, 64}},
       1,
       0},
      {"in another order, some in two",
       4,
       {{3, 202, 202, 64}, {1, 90, 90, 48}, {0, 10, 10, 64}, {1, 74, 74, 16}, {2, 138, 138, 64}},
       1,
       0},
      {"of groups", 2, {{0, 0, 0, 450}, {1, 450, 450, 450}}, 1, 0},
      {"of one size, with a gap", 2, {{0, 0, 0, 100}, {1, 101, 101, 100}}, 0, 2},
      {"owners in another order", 2, {{1, 0, 0, 100}, {0, 100, 100, 100}}, 0, 2},
      {"of two sizes", 2, {{0, 0, 0, 100}, {1, 100, 100, 101}}, 0, 2},
      {"an owner of none",
       4,
       {{0, 0, 0, 64}, {1, 64, 64, 64}, {2, 128, 128, 64}, {3, 192, 192, 0}},
       0,
       3},
      {"neighbours", 2, {{0, 0, 0, 10}, {0, 10, 10, 20}, {0, 30, 30, 5}, {1, 35, 35, 90}}, 0, 2},
      {"nothing", 2, {{0, 0, 0, 0}}, 0, 0},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    NcclRanks ranks(kWorld);
    ranks.options.group = row.group;
    std::vector<double> sums(kCount);
    for (int r = 0; r < kWorld; ++r) {
      const std::vector<float> data = Data<float>(r, kCount);
      for (std::size_t i = 0; i < kCount; ++i) sums[i] += static_cast<double>(data[i]);
    }
    ranks.Run([&](NcclRanks::Rank& rank) {
      const auto stream = rank.device.NewStream(StreamKind::kMove);
      const Tensor arena = *(*rank).AllocateTensor(DType::kF32, kCount);
      const Tensor owned = *(*rank).AllocateTensor(DType::kF32, kCount);
      const std::vector<float> mine = Data<float>(rank.rank(), kCount);
      for (const Tensor& out : {arena, owned}) {  // In place, and elsewhere.
        stream->Copy(arena.data, mine.data(), arena.bytes());
        (*rank).ReduceScatter(*stream, arena, row.stretches, out, row.group);
        ASSERT_TRUE(rank.group.Barrier().ok());
        (*rank).AllGather(*stream, out, row.stretches, arena, row.group);
        std::vector<float> got(kCount);
        stream->Copy(got.data(), arena.data, arena.bytes());
        ASSERT_EQ(stream->Await(), absl::OkStatus());
        std::vector<double> expected(mine.begin(), mine.end());
        for (const Stretch& s : row.stretches)
          std::copy_n(sums.begin() + s.from, s.size, expected.begin() + s.to);
        for (std::size_t i = 0; i < kCount; ++i) ASSERT_NEAR(got[i], expected[i], 1e-5) << i;
        ASSERT_TRUE(rank.group.Barrier().ok());
      }
    });
    EXPECT_EQ(ranks.gpu.Refusals(), "");
    EXPECT_EQ(ranks.gpu.calls("ncclReduceScatter"), 2 * kWorld * row.whole);
    EXPECT_EQ(ranks.gpu.calls("ncclAllGather"), 2 * kWorld * row.whole);
    EXPECT_EQ(ranks.gpu.calls("ncclReduce"), 2 * kWorld * row.parts);
    EXPECT_EQ(ranks.gpu.calls("ncclBroadcast"), 2 * kWorld * row.parts);
  }
}

// One call where parts lie one behind the other on the side of all ranks, wherever a rank has its
// own.
TEST(NcclCalls, ARanksOwnPartMayLieElsewhere) {
  NcclRanks ranks(2);
  const std::vector<Stretch> reduced = {{0, 0, 500, 100}, {1, 100, 300, 100}},
                             gathered = {{0, 500, 0, 100}, {1, 300, 100, 100}};
  ranks.Run([&](NcclRanks::Rank& rank) {
    const auto stream = rank.device.NewStream(StreamKind::kMove);
    const Tensor arena = *(*rank).AllocateTensor(DType::kF32, kCount);
    const Tensor owned = *(*rank).AllocateTensor(DType::kF32, kCount);
    const std::vector<float> mine = Data<float>(rank.rank(), kCount),
                             other = Data<float>(1 - rank.rank(), kCount);
    stream->Copy(arena.data, mine.data(), arena.bytes());
    (*rank).ReduceScatter(*stream, arena, reduced, owned, 2);
    ASSERT_TRUE(rank.group.Barrier().ok());
    (*rank).AllGather(*stream, owned, gathered, arena, 2);
    std::vector<float> got(kCount);
    stream->Copy(got.data(), arena.data, arena.bytes());
    ASSERT_EQ(stream->Await(), absl::OkStatus());
    for (std::size_t i = 0; i < 200; ++i) ASSERT_NEAR(got[i], mine[i] + other[i], 1e-5) << i;
  });
  EXPECT_EQ(ranks.gpu.Refusals(), "");
  EXPECT_EQ(ranks.gpu.calls("ncclReduceScatter"), 2);
  EXPECT_EQ(ranks.gpu.calls("ncclAllGather"), 2);
}

}  // namespace
}  // namespace regroup::worker
