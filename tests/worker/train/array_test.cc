// What may be put together: worlds and shardings, numbers, recomputation, accumulation, optimizers,
// overlap. Each cell trains to the bits of its replicated twin, whose gradients are those of one
// rank.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/worker/golden/golden.h"
#include "tests/worker/train/array_cells.h"
#include "tests/worker/train/step_ranks.h"

namespace regroup::worker {
namespace {

std::vector<Course> TrainCell(const Cell& cell) {
  const auto& [world, sharding] = Placements()[cell[kPlacement]];
  const Numbers& numbers = kNumbers[cell[kNumber]];
  return TrainBy(sharding, world, MicroBatchOf(world, cell[kAccumulates] != 0), numbers.type,
                 kRecomputes[cell[kRecompute]], kOptimizers[cell[kOptimizer]], cell[kOverlaps] != 0,
                 numbers.accumulated);
}

// Replicated, with everything kept, and one thing after the other.
const Course& TwinOf(Cell cell) {
  static std::map<Cell, Course> twins;
  const std::vector<std::pair<int, Sharding>>& placements = Placements();
  while (cell[kPlacement] > 0 &&
         placements[cell[kPlacement] - 1].first == placements[cell[kPlacement]].first)
    --cell[kPlacement];
  EXPECT_EQ(placements[cell[kPlacement]].second.strategy, Strategy::kReplicated);
  cell[kRecompute] = cell[kOverlaps] = 0;
  auto found = twins.find(cell);
  if (found == twins.end()) found = twins.emplace(cell, TrainCell(cell)[0]).first;
  return found->second;
}

// What all ranks hold together.
std::int64_t ElementsOf(int world, const Sharding& sharding, const Course& twin) {
  const bool divides = sharding.strategy != Strategy::kReplicated;
  const int copies = !divides ? world : sharding.group > 0 ? world / sharding.group : 1;
  return copies * twin.state_elements;
}

// REGROUP_ARRAY=whole: every cell.
TEST(Array, EveryCellTrainsToTheBitsOfItsReplicatedTwin) {
  const bool whole = std::getenv("REGROUP_ARRAY") != nullptr;
  const std::vector<Cell> cells = whole ? AllCells() : PairwiseCells();
  EXPECT_LT(cells.size(), whole ? 10000u : 300u);
  for (const Cell& cell : cells) {
    const auto& [world, sharding] = Placements()[cell[kPlacement]];
    SCOPED_TRACE(Describe(cell));
    const Course& twin = TwinOf(cell);
    std::int64_t elements = 0;
    for (const Course& rank : TrainCell(cell)) {
      elements += rank.state_elements;
      ASSERT_EQ(rank.losses, twin.losses);
      ASSERT_EQ(rank.norms, twin.norms);
      for (const Held& h : rank.held) {
        const std::vector<float>& whole_tensor = twin.held[h.tensor].data;
        ASSERT_TRUE(std::equal(h.data.begin(), h.data.end(), whole_tensor.begin() + h.begin))
            << "tensor " << h.tensor << " from element " << h.begin;
      }
    }
    EXPECT_EQ(elements, ElementsOf(world, sharding, twin));
  }
}

// By parameter, after one step of AdamW: its first moment is the clipped gradient times 1 - beta1.
std::vector<std::vector<float>> GradientsOf(int world, const Numbers& numbers, bool accumulates) {
  std::vector<std::vector<float>> gradients;
  const TextDataset dataset(RandomText(), 8);
  OnEveryRank(world, [&](Communicator& ranks) {
    StepRunnerOptions options = With(numbers, Options());
    options.micro_batch = MicroBatchOf(world, accumulates);
    Rank rank(ranks, dataset, options, Strategy::kReplicated, numbers.type);
    ASSERT_TRUE(rank.Step(0, options.batch).ok());
    if (ranks.rank() > 0) return;
    for (const ParamPlace& place : rank.layout.params())
      gradients.push_back(rank.Of(rank.state.slots[0], place));
  });
  return gradients;
}

double Furthest(const std::vector<std::vector<float>>& from,
                const std::vector<std::vector<float>>& to) {
  double furthest = 0;
  for (std::size_t p = 0; p < to.size(); ++p)
    furthest = std::max(furthest, DeviationOf(from[p], to[p]).norm);
  return furthest;
}

// Of any world: those of one rank with floats, as far as the numbers can tell, and those of one
// rank with the same numbers but for the order of sums. Where oneDNN sums smaller products in
// another order, some of them are rounded to another of two numbers of 16 bits: 5e-5 were measured.
// What is added up in bf16 is rounded for each micro-batch of each rank.
TEST(Array, GradientsAreThoseOfOneRank) {
  struct Row {
    Numbers numbers;
    double of_floats, of_alone;
  };
  const auto floats = GradientsOf(1, {DType::kF32}, false);
  for (const auto& [numbers, of_floats, of_alone] : {Row{{DType::kF32}, 1e-5, 1e-6},
                                                     {{DType::kBF16}, 5e-2, 1e-6},
                                                     {{DType::kF16}, 1e-2, 1e-4},
                                                     {{DType::kBF16, DType::kBF16}, 5e-2, 1e-2}}) {
    const auto alone = GradientsOf(1, numbers, false);
    for (const int world : kWorlds) {
      for (const bool accumulates : {false, true}) {
        SCOPED_TRACE(testing::Message() << numbers.Name() << " on " << world << accumulates);
        const auto gradients = GradientsOf(world, numbers, accumulates);
        EXPECT_LE(Furthest(gradients, floats), of_floats);
        EXPECT_LE(Furthest(gradients, alone), of_alone);
      }
    }
  }
}

}  // namespace
}  // namespace regroup::worker
