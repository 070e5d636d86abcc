// Gradients that are kept and added up in 16 bits. What they are under every sharding: array_test.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "tests/worker/train/array_cells.h"
#include "tests/worker/train/step_ranks.h"
#include "worker/train/plan_need.h"

namespace regroup::worker {
namespace {

constexpr Numbers kFloats{DType::kBF16}, kShorts{DType::kBF16, DType::kBF16};

// Nothing of a step is left for the next: the norms stay those of gradients in floats.
TEST(AccumulateType, EveryStepBeginsAnew) {
  for (const int micro_batch : {7, 1}) {
    const auto norms = [&](const Numbers& numbers) {
      return TrainBy(Strategy::kReplicated, 2, micro_batch, numbers.type, Recompute::kNone,
                     OptimizerKind::kAdamW, false, numbers.accumulated)[0]
          .norms;
    };
    const std::vector<double> floats = norms(kFloats), shorts = norms(kShorts);
    for (std::size_t step = 0; step < floats.size(); ++step)
      EXPECT_NEAR(shorts[step], floats[step], 2e-2 * floats[step]) << step;
    EXPECT_NE(shorts, floats);
  }
}

// A rank without a sample brings zeros, also where it had others' gradients before.
TEST(AccumulateType, RanksWithoutASampleAddNothing) {
  for (const Strategy strategy : kStrategies) {
    const auto course = TrainBy(strategy, 9, 1, DType::kBF16, Recompute::kNone,
                                OptimizerKind::kAdamW, false, DType::kBF16)[0];
    const auto alone = TrainBy(Strategy::kReplicated, 7, 1, DType::kBF16, Recompute::kNone,
                               OptimizerKind::kAdamW, false, DType::kBF16)[0];
    EXPECT_EQ(course.losses, alone.losses) << NameOf(strategy);
  }
}

TEST(AccumulateType, WhatOverflowsOnOneRankIsNoStepOnAny) {
  const TextDataset dataset(RandomText(), 8);
  for (const Strategy strategy : kStrategies) {
    OnEveryRank(3, [&](Communicator& ranks) {
      StepRunnerOptions options = With(kShorts, Options());
      if (ranks.rank() == 1) options.gradient_factor = kInfinity;
      Rank rank(ranks, dataset, options, strategy, DType::kBF16);
      const std::vector<float> before = rank.Weights();
      const auto result = rank.Step(0, options.batch);
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_FALSE(result->done || result->retry);
      EXPECT_EQ(rank.Weights(), before);
    });
  }
}

// Of the rank that owns most.
TEST(AccumulateType, TakesWhatThePlanSays) {
  constexpr int kWorld = 3;
  TrainConfig config;
  config.layers = kModel.layers, config.width = kModel.width, config.heads = kModel.heads;
  config.context = kModel.context, config.batch = Options().batch;
  config.precision = DType::kBF16;
  for (const Strategy strategy : kStrategies) {
    for (const int micro_batch : {7, 1}) {
      std::int64_t allocated[2] = {}, planned[2] = {};
      for (const Numbers& numbers : {kFloats, kShorts}) {
        const auto i = static_cast<std::size_t>(numbers.accumulated == DType::kBF16);
        for (const Course& rank :
             TrainBy(strategy, kWorld, micro_batch, numbers.type, Recompute::kNone,
                     OptimizerKind::kAdamW, false, numbers.accumulated, PlanOptions{}.bucket_bytes))
          allocated[i] = std::max(allocated[i], rank.step_bytes);
        config.accumulate_type = numbers.accumulated;
        config.micro_batch = micro_batch;
        planned[i] = NeedOf(config, RanksOnHosts{.world = kWorld}, strategy)->gradients;
      }
      EXPECT_NEAR(static_cast<double>(allocated[1] - allocated[0]),
                  static_cast<double>(planned[1] - planned[0]), 4 * 256)
          << NameOf(strategy) << " " << micro_batch;
    }
  }
}

}  // namespace
}  // namespace regroup::worker
