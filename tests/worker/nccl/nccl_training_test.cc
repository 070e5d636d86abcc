// Whole training steps on a GPU that is none, over NCCL that is none: every sharding trains as the
// host does, and whichever collective hangs, every rank is told and a next generation goes on.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <mutex>
#include <string>
#include <vector>

#include "tests/worker/nccl/nccl_ranks.h"
#include "tests/worker/train/step_ranks.h"

namespace regroup::worker {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

struct Cell {
  int world;
  Sharding sharding;
  DType type = DType::kF32;
  DType reduced = DType::kF32;
};

struct Steps {
  std::vector<double> losses, norms;
  absl::Status status;
};

std::vector<Steps> TrainOn(NcclRanks& ranks, const Cell& cell, int steps) {
  std::vector<Steps> all(static_cast<std::size_t>(cell.world));
  const TextDataset dataset(RandomText(), 8);
  ranks.options.group = cell.sharding.group > 0 ? cell.sharding.group : 1;
  ranks.Run([&](NcclRanks::Rank& at) {
    Steps& mine = all[static_cast<std::size_t>(at.rank())];
    mine.status = at.nccl.status();
    if (!mine.status.ok()) return;
    StepRunnerOptions options = Options();
    options.reduce_type = cell.reduced;
    Rank rank({at.group, *at, at.device}, dataset, options, cell.sharding, cell.type);
    for (std::int64_t step = 0; step < steps && mine.status.ok(); ++step) {
      const auto result = rank.Step(step, options.batch);
      mine.status = result.status();
      if (!result.ok()) break;
      EXPECT_TRUE(result->done);
      mine.losses.push_back(result->loss);
      mine.norms.push_back(result->gradient_norm);
    }
  });
  return all;
}

double Apart(const std::vector<double>& a, const std::vector<double>& b) {
  double apart = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    apart = std::max(apart, std::abs(a[i] - b[i]) / std::abs(b[i]));
  return apart;
}

TEST(NcclTraining, EveryShardingTrainsAsTheHostDoes) {
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const int world : {1, 2, 3, 4, 6}) {
      const std::vector<Trained> host = Train(world, 1, type);
      for (const Sharding& sharding : ShardingsOf(world)) {
        SCOPED_TRACE(testing::Message()
                     << sharding.Name() << " on " << world << ", " << NameOf(type));
        NcclRanks ranks(world);
        for (const Steps& rank : TrainOn(ranks, {world, sharding, type}, 3)) {
          ASSERT_TRUE(rank.status.ok()) << rank.status;
          const auto& expected = host[0];
          const double near = type == DType::kF32 ? 1e-5 : 1e-3;
          EXPECT_LE(Apart(rank.losses, {expected.losses.begin(), expected.losses.begin() + 3}),
                    near);
          EXPECT_LE(Apart(rank.norms, {expected.norms.begin(), expected.norms.begin() + 3}),
                    10 * near);
        }
        EXPECT_EQ(ranks.gpu.Refusals(), "");
        EXPECT_EQ(ranks.gpu.live(), 0);
        EXPECT_EQ(ranks.gpu.comms(), 0);
      }
    }
  }
}

// Each of them in turn, by each rank in turn.
TEST(NcclTraining, WhicheverCollectiveHangsEveryRankIsToldAndTheNextGenerationTrains) {
  constexpr Duration kDeadline = milliseconds(600);
  for (const Sharding& sharding :
       {Sharding(Strategy::kReplicated), Sharding(Strategy::kZero1), Sharding(Strategy::kZero2),
        Sharding(Strategy::kZero3), Sharding(Strategy::kZero3, 2)}) {
    const Cell cell{sharding.group > 0 ? 4 : 3, sharding};
    int hung = 0;
    for (int op = 0;; ++op) {
      SCOPED_TRACE(testing::Message() << sharding.Name() << ", collective " << op);
      NcclRanks ranks(cell.world);
      ranks.options.deadline = kDeadline;
      ranks.options.init_deadline = seconds(20);
      const FakeScript script{FakeFault::kOpHangs, op % cell.world, op};
      ranks.gpu.play(&script);
      const auto begin = std::chrono::steady_clock::now();
      const std::vector<Steps> all = TrainOn(ranks, cell, 1);
      const Duration took = std::chrono::steady_clock::now() - begin;
      ranks.gpu.play(nullptr);
      ranks.options.deadline = seconds(20);
      if (all[0].status.ok()) break;  // There are no more in a step.
      ++hung;
      int all_told = 0;
      for (const Steps& steps : all) {
        ASSERT_TRUE(IsCommunicatorFailure(steps.status)) << steps.status;
        const std::string text(steps.status.message());
        const bool told = text.find("; every rank has begun it") != std::string::npos;
        all_told += told ? 1 : 0;
        // Who takes no part in it may be at the vote.
        EXPECT_TRUE(told || text.find(" failed and ended the group") != std::string::npos) << text;
        EXPECT_EQ(steps.losses, all[0].losses);  // All are at the same step.
      }
      EXPECT_GE(all_told, cell.sharding.group > 0 ? cell.sharding.group : cell.world);
      EXPECT_LT(Seconds(took), 20);
      for (const Steps& rank : TrainOn(ranks, cell, 1)) EXPECT_TRUE(rank.status.ok());
      EXPECT_EQ(ranks.gpu.Refusals(), "");
      EXPECT_EQ(ranks.gpu.comms(), 0);
    }
    EXPECT_GE(hung, sharding.strategy == Strategy::kReplicated ? 1 : 5) << sharding.Name();
  }
}

}  // namespace
}  // namespace regroup::worker
