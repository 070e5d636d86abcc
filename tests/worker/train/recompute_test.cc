// Activations that a step computes twice.

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <variant>
#include <vector>

#include "tests/worker/train/step_ranks.h"
#include "worker/model/runner.h"

namespace regroup::worker {
namespace {

// Of 12 blocks: per token and in units of the width, 16 with the output; 10 and 6 that all blocks
// share; 1 and 15 that they share. Statistics and what is no block come on top.
TEST(Recomputation, RecomputationTakesLessMemory) {
  const GptConfig config{.layers = 12, .width = 384, .heads = 6, .context = 128};
  const Extent extent{.batch = 4, .time = 128};
  const auto blocks = [&]<typename T>(const Model<T>& model, Recompute recompute) {
    const auto bytes = [&](const GptConfig& c) {
      return static_cast<double>(*UnitRunner<T>::ActivationBytes(MakeGpt<T>(c), extent, recompute));
    };
    GptConfig more = config;
    more.layers = 24;
    (void)model;
    return (bytes(more) - bytes(config)) / 12 / sizeof(T) / (4 * 128 * 384);
  };
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    std::visit(
        [&](const auto& model) {
          EXPECT_NEAR(blocks(model, Recompute::kNone), 16, 0.2);
          EXPECT_NEAR(blocks(model, Recompute::kSelective), 10, 0.2);
          EXPECT_NEAR(blocks(model, Recompute::kFull), 1, 0.05);
        },
        MakeGpt(config, type));
  }
}

}  // namespace
}  // namespace regroup::worker
