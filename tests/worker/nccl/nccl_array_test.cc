// The array of tests/worker/train/array_test.cc on GPUs that are none, over NCCL that is none: each
// cell's gradients are those of one rank with floats, to the tolerance of its numbers.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <mutex>
#include <vector>

#include "tests/worker/golden/golden.h"
#include "tests/worker/nccl/nccl_ranks.h"
#include "tests/worker/train/array_cells.h"
#include "tests/worker/train/step_ranks.h"

namespace regroup::worker {
namespace {

// By tensor: what the optimizer has made of the first gradients, its first state.
struct Gradients {
  std::vector<std::vector<float>> of;
  double loss = 0, norm = 0;
};

void TakeSlot(const Rank& rank, Gradients& gradients) {
  ASSERT_EQ(rank.state.CopyToHost(), absl::OkStatus());
  const std::vector<StateTensor> tensors = rank.state.Tensors(rank.layout);
  const std::size_t params = rank.layout.params().size();
  gradients.of.resize(params);
  for (std::size_t p = 0; p < params; ++p) {
    const StateTensor& tensor = tensors[params + p];
    gradients.of[p].resize(static_cast<std::size_t>(tensor.info.elements()),
                           std::numeric_limits<float>::quiet_NaN());
    for (const StateSlice& slice : tensor.slices)
      std::copy(slice.data.begin(), slice.data.end(), gradients.of[p].begin() + slice.begin);
  }
}

StepRunnerOptions OptionsOf(OptimizerKind optimizer) {
  StepRunnerOptions options = Options();
  options.optimizer.kind = optimizer;
  if (optimizer == OptimizerKind::kLars) options.schedule.lr = 1;  // As TrainBy.
  return options;
}

const Gradients& OfOneRank(OptimizerKind optimizer) {
  static std::map<OptimizerKind, Gradients> known;
  const bool fresh = !known.contains(optimizer);
  Gradients& gradients = known[optimizer];
  if (!fresh) return gradients;
  const TextDataset dataset(RandomText(), 8);
  OnEveryRank(1, [&](Communicator& ranks) {
    const StepRunnerOptions options = OptionsOf(optimizer);
    Rank rank(ranks, dataset, options);
    const auto result = rank.Step(0, options.batch);
    ASSERT_TRUE(result.ok()) << result.status();
    gradients.loss = result->loss;
    gradients.norm = result->gradient_norm;
    TakeSlot(rank, gradients);
  });
  return gradients;
}

Gradients OnNccl(NcclRanks& ranks, const Cell& cell) {
  const auto& [world, sharding] = Placements()[cell[kPlacement]];
  const Numbers& numbers = kNumbers[cell[kNumber]];
  StepRunnerOptions options = With(numbers, OptionsOf(kOptimizers[cell[kOptimizer]]));
  options.micro_batch = MicroBatchOf(world, cell[kAccumulates] != 0);
  options.recompute = kRecomputes[cell[kRecompute]];
  ranks.options.group = sharding.group > 0 ? sharding.group : 1;
  Gradients gradients;
  std::mutex mutex;
  const TextDataset dataset(RandomText(), 8);
  ranks.Run([&, &sharding = sharding](NcclRanks::Rank& at) {
    ASSERT_TRUE(at.nccl.ok()) << at.nccl.status();
    Rank rank({at.group, *at, at.device}, dataset, options, sharding, numbers.type);
    const auto result = rank.Step(0, options.batch);
    ASSERT_TRUE(result.ok()) << result.status();
    const std::scoped_lock lock(mutex);
    gradients.loss = result->loss;
    gradients.norm = result->gradient_norm;
    TakeSlot(rank, gradients);
  });
  return gradients;
}

// REGROUP_ARRAY=whole: every cell, but what NCCL has no choice of: its calls always overlap.
TEST(NcclArray, GradientsOfEveryCellAreThoseOfOneRank) {
  const bool whole = std::getenv("REGROUP_ARRAY") != nullptr;
  const std::vector<Cell> cells = whole ? AllCells() : PairwiseCells();
  std::size_t seen = 0;
  for (std::size_t i = 0; i < cells.size(); i += whole ? 1 : 11) {
    const Cell& cell = cells[i];
    const int world = Placements()[cell[kPlacement]].first;
    if (world > 7 || (whole && cell[kOverlaps] != 0)) continue;
    ++seen;
    SCOPED_TRACE(Describe(cell));
    const Gradients& expected = OfOneRank(kOptimizers[cell[kOptimizer]]);
    NcclRanks ranks(world);
    const Gradients got = OnNccl(ranks, cell);
    const DType type = kNumbers[cell[kNumber]].type;
    const double near = type == DType::kF32 ? 1e-5 : type == DType::kBF16 ? 5e-2 : 1e-2;
    ASSERT_EQ(got.of.size(), expected.of.size());
    for (std::size_t p = 0; p < got.of.size(); ++p)
      ASSERT_LE(DeviationOf(got.of[p], expected.of[p]).norm, near) << "tensor " << p;
    ASSERT_LE(std::abs(got.loss - expected.loss), near * expected.loss);
    ASSERT_LE(std::abs(got.norm - expected.norm), near * expected.norm);
    ASSERT_EQ(ranks.gpu.Refusals(), "");
    ASSERT_EQ(ranks.gpu.live(), 0);
  }
  EXPECT_GT(seen, whole ? 2000u : 10u);
}

}  // namespace
}  // namespace regroup::worker
