// Fifty steps have the bits that they have always had: whatever is rebuilt, reordered or made
// quicker. Who means to change them records new ones here, and says why.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <span>
#include <string>

#include "tests/worker/train/step_ranks.h"
#include "worker/checkpoint/checksum.h"

namespace regroup::worker {
namespace {

struct Row {
  int world;
  Sharding sharding;
  OptimizerKind optimizer;
  Isa kernels;
};

// Of all losses and norms, and of what rank 0 steps.
std::string BitsAfterFiftySteps(const Row& row) {
  std::string bits;
  const TextDataset dataset(RandomText(), 8);
  OnEveryRank(row.world, [&](Communicator& ranks) {
    StepRunnerOptions options = Options();
    options.optimizer.kind = row.optimizer;
    options.schedule.total_steps = 50;
    Rank rank({ranks, ranks, Rank::Host(), KernelTablesOf(row.kernels)}, dataset, options,
              row.sharding);
    Xxh3Stream hash;
    for (std::int64_t step = 0; step < 50; ++step) {
      const auto result = rank.Step(step, options.batch);
      ASSERT_TRUE(result.ok()) << result.status();
      hash.Update(std::as_bytes(std::span(&result->loss, 1)));
      hash.Update(std::as_bytes(std::span(&result->gradient_norm, 1)));
    }
    if (ranks.rank() > 0) return;
    for (const StateTensor& tensor : rank.state.Tensors(rank.layout)) {
      for (const StateSlice& slice : tensor.slices) hash.Update(std::as_bytes(slice.data));
    }
    bits = hash.Hex();
  });
  return bits;
}

// Of one kind of CPU: oneDNN sums products in another order on others.
struct Recorded {
  const char *amd, *intel;  // EPYC of family 26; Xeon with AMX.
};

TEST(Bits, OfFiftyStepsAreThoseRecorded) {
  for (const auto& [row, bits] : {
           std::pair(
               Row{1, Strategy::kReplicated, OptimizerKind::kAdamW, Isa::kBaseline},
               Recorded{"0a2a538d60620d4ca3609509ed8a2a82", "1dc7735e068c6f5ab321c1c45965c835"}),
           {Row{3, Strategy::kZero2, OptimizerKind::kLamb, Isa::kBaseline},
            {"8f08c896d557493956c97cf7fa3ff385", "f4d13f3a368a0add21190c14eced70a9"}},
           {Row{4, {Strategy::kZero3, 2}, OptimizerKind::kSgd, Isa::kBaseline},
            {"7319cd0667d9b757dd91ac6968039f78", "4c218a0d8dd154aaba61dda173fd66d3"}},
           {Row{1, Strategy::kReplicated, OptimizerKind::kAdamW, Isa::kV3},
            {"193792e197da4328ff381d001be56c8c", "617d2fe1b1d3d269715e5b6f41c018b4"}},
       }) {
    if (row.kernels > BestIsa()) continue;
    EXPECT_THAT(BitsAfterFiftySteps(row), ::testing::AnyOf(bits.amd, bits.intel))
        << row.sharding.Name() << " on " << row.world << ", " << NameOf(row.kernels);
  }
}

}  // namespace
}  // namespace regroup::worker
