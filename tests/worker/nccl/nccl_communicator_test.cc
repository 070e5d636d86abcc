// What NCCL's collectives give, over a strict fake of it: what every transport promises, but for
// the order of sums.

#include "worker/nccl/nccl_communicator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "common/base/rng.h"
#include "tests/worker/nccl/nccl_ranks.h"

namespace regroup::worker {
namespace {

class NcclTest : public testing::TestWithParam<int> {
 protected:
  ~NcclTest() override {
    EXPECT_EQ(ranks_.gpu.Refusals(), "");
    EXPECT_EQ(ranks_.gpu.live(), 0);
    EXPECT_EQ(ranks_.gpu.comms(), 0);
  }
  int World() const { return GetParam(); }
  NcclRanks ranks_{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(Worlds, NcclTest, testing::Values(1, 2, 3, 4, 6, 7));

template <typename T>
std::vector<T> Data(int rank, std::size_t count) {
  Rng rng(static_cast<std::uint64_t>(rank) * 1000 + count);
  std::vector<T> data(count);
  for (T& x : data) x = T(static_cast<float>(rng.Unit() - 0.5));
  return data;
}

// Each addition may round.
template <typename T>
void ExpectSum(std::span<const T> got, int world, std::size_t first, std::size_t count) {
  std::vector<double> sum(count);
  for (int r = 0; r < world; ++r) {
    const std::vector<T> data = Data<T>(r, first + count);
    for (std::size_t i = 0; i < count; ++i)
      sum[i] += static_cast<double>(static_cast<float>(data[first + i]));
  }
  const double ulp = sizeof(T) == 4 ? 1e-7 : std::is_same_v<T, Half> ? 1e-3 : 8e-3;
  for (std::size_t i = 0; i < count; ++i)
    ASSERT_NEAR(static_cast<double>(static_cast<float>(got[i])), sum[i], ulp * world * world) << i;
}

template <typename T>
void SumsEverywhere(NcclRanks& ranks, int world) {
  constexpr std::size_t kCount = 100003;
  ranks.Run([&](NcclRanks::Rank& rank) {
    ASSERT_TRUE(rank.nccl.ok()) << rank.nccl.status();
    const auto stream = rank.device.NewStream(StreamKind::kMove);
    const Tensor arena = *(*rank).AllocateTensor(DTypeOf<T>(), kCount + 8);
    const std::span<T> values = arena.Elements<T>();
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(values.data()) % 256, 0u);
    for (const T x : values) ASSERT_EQ(static_cast<float>(x), 0);
    for (int round = 0; round < 3; ++round) {
      const std::vector<T> mine = Data<T>(rank.rank(), kCount);
      stream->Copy(values.data() + 3, mine.data(), kCount * sizeof(T));
      (*rank).AllReduceSum(*stream, values.subspan(3, kCount));
      (*rank).AllReduceSum(*stream, values.subspan(3, 0));
      ASSERT_TRUE(stream->Await().ok()) << stream->Await();
      ExpectSum<T>(values.subspan(3, kCount), world, 0, kCount);
      EXPECT_EQ(static_cast<float>(values[2]) + static_cast<float>(values[kCount + 3]), 0);
    }
    ASSERT_TRUE(rank.group.Barrier().ok());
  });
}

TEST_P(NcclTest, SumsOnEveryRank) {
  SumsEverywhere<float>(ranks_, World());
  SumsEverywhere<BFloat16>(ranks_, World());
  SumsEverywhere<Half>(ranks_, World());
}

// Of all sizes, in an order of their own, with owners at random; some ranks own nothing.
std::vector<Stretch> SomeStretches(int group, bool in_place) {
  Rng rng(11);
  std::vector<Stretch> stretches;
  std::int64_t from = 5;
  std::vector<std::int64_t> room(static_cast<std::size_t>(group), 7);
  for (const std::int64_t size : {1, 15, 16, 1000, 0, 2049, 70000, 64}) {
    const int owner = static_cast<int>(rng.Below(static_cast<std::uint64_t>(group)));
    std::int64_t& to = room[static_cast<std::size_t>(owner)];
    stretches.push_back({owner, from, in_place ? from : to, size});
    from += size + 3;
    to += size + 1;
  }
  std::reverse(stretches.begin(), stretches.end());
  return stretches;
}
constexpr std::size_t kStretched = 80000;

template <typename T>
void ScattersAndGathers(NcclRanks& ranks, int world, int group, bool in_place) {
  ranks.options.group = group;
  const std::vector<Stretch> stretches = SomeStretches(group, in_place);
  ranks.Run([&](NcclRanks::Rank& rank) {
    ASSERT_TRUE(rank.nccl.ok()) << rank.nccl.status();
    const auto stream = rank.device.NewStream(StreamKind::kMove);
    const Tensor arena = *(*rank).AllocateTensor(DTypeOf<T>(), kStretched);
    const Tensor other = *(*rank).AllocateTensor(DTypeOf<T>(), kStretched);
    const Tensor out = in_place ? arena : other;
    const std::vector<T> mine = Data<T>(rank.rank(), kStretched);
    stream->Copy(arena.data, mine.data(), arena.bytes());
    (*rank).ReduceScatter(*stream, arena, stretches, out, group);
    ASSERT_TRUE(stream->Await().ok()) << stream->Await();
    const std::span<const T> got = out.Elements<T>();
    std::vector<double> sums(kStretched);
    for (int r = 0; r < world; ++r) {
      const std::vector<T> theirs = Data<T>(r, kStretched);
      for (std::size_t i = 0; i < kStretched; ++i)
        sums[i] += static_cast<double>(static_cast<float>(theirs[i]));
    }
    std::vector<double> expected(kStretched);
    if (in_place) std::copy(mine.begin(), mine.end(), expected.begin());
    for (const Stretch& s : stretches) {
      if (s.owner == rank.rank() % group)
        std::copy_n(sums.begin() + s.from, s.size, expected.begin() + s.to);
    }
    const double near = (sizeof(T) == 4 ? 1e-7 : 8e-3) * world * world;
    for (std::size_t i = 0; i < kStretched; ++i)
      ASSERT_NEAR(static_cast<double>(static_cast<float>(got[i])), expected[i], near) << i;
    ASSERT_TRUE(rank.group.Barrier().ok());
    // What owners at one place hold is equal now; all ranks get it back.
    std::vector<Stretch> packed = stretches;
    for (Stretch& s : packed) std::swap(s.from, s.to);
    const Tensor whole = in_place ? arena : *(*rank).AllocateTensor(DTypeOf<T>(), kStretched);
    (*rank).AllGather(*stream, out, packed, whole, group);
    ASSERT_TRUE(stream->Await().ok()) << stream->Await();
    for (const Stretch& s : stretches) {
      for (std::int64_t i = s.from; i < s.from + s.size; ++i) {
        const auto at = static_cast<std::size_t>(i);
        ASSERT_NEAR(static_cast<double>(static_cast<float>(whole.Elements<T>()[at])), sums[at],
                    near);
      }
    }
    ASSERT_TRUE(rank.group.Barrier().ok());
  });
}

TEST_P(NcclTest, OwnersGetTheSumAndAllGetItBack) {
  for (int group = std::min(2, World()); group <= World(); ++group) {
    if (World() % group != 0) continue;
    for (const bool in_place : {false, true}) {
      ScattersAndGathers<float>(ranks_, World(), group, in_place);
      ScattersAndGathers<BFloat16>(ranks_, World(), group, in_place);
    }
  }
}

// The next generation makes a new communicator by a new id.
TEST_P(NcclTest, GenerationsFollowEachOther) {
  for (int generation = 0; generation < 3; ++generation) SumsEverywhere<float>(ranks_, World());
}

TEST_P(NcclTest, ManyCallsInARowNeedNoWaitBetween) {
  ranks_.Run([&](NcclRanks::Rank& rank) {
    ASSERT_TRUE(rank.nccl.ok()) << rank.nccl.status();
    const auto compute = rank.device.NewStream(StreamKind::kCompute);
    const auto moves = rank.device.NewStream(StreamKind::kMove);
    const Tensor arena = *(*rank).AllocateTensor(DType::kF32, 1000);
    const std::span<float> values = arena.Elements<float>();
    for (int i = 0; i < 100; ++i) {
      compute->Run([values] { std::fill(values.begin(), values.end(), 1.0F); });
      moves->Wait(compute->Record());
      (*rank).AllReduceSum(*moves, values);
      compute->Wait(moves->Record());
      compute->Run([values, world = static_cast<float>(World())]() -> absl::Status {
        return values[999] == world ? absl::OkStatus() : absl::InternalError("another sum");
      });
    }
    ASSERT_TRUE(compute->Await().ok()) << compute->Await();
    ASSERT_TRUE(rank.group.Barrier().ok());
  });
}

}  // namespace
}  // namespace regroup::worker
