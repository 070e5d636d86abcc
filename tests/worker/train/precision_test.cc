// Steps with numbers of 16 bits.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/worker/golden/golden.h"
#include "tests/worker/train/step_ranks.h"
#include "worker/train/loss_scaler.h"

namespace regroup::worker {
namespace {

// Whatever is rounded on the way, the gradients of 16-bit numbers are those of floats on one rank,
// and so are the weights that the optimizer keeps.
TEST(Precision, ShortNumbersTakeTheStepsOfFloats) {
  const Trained floats = Train(1)[0];
  for (const auto& [type, tolerance] : {std::pair(DType::kBF16, 5e-2), {DType::kF16, 1e-2}}) {
    for (const int world : {1, 3}) {
      SCOPED_TRACE(testing::Message() << NameOf(type) << " on " << world);
      const std::vector<Trained> ranks = Train(world, 1, type);
      for (const Trained& rank : ranks) EXPECT_EQ(rank.flat, ranks[0].flat);
      double worst = 0;
      for (std::size_t p = 0; p < floats.gradients.size(); ++p)
        worst = std::max(worst, DeviationOf(ranks[0].gradients[p], floats.gradients[p]).norm);
      EXPECT_LT(worst, tolerance);
      EXPECT_GT(worst, tolerance / 1000);  // Something is rounded.
      for (std::size_t step = 0; step < 6; ++step)
        EXPECT_NEAR(ranks[0].losses[step], floats.losses[step], tolerance);
      EXPECT_NEAR(ranks[0].norms[0], floats.norms[0], tolerance * floats.norms[0]);
    }
  }
}

// The norms by which LAMB and LARS step their matrices are of gradients without the loss scale. Not
// of biases: one key's, whose gradient is nothing but rounding, may go anywhere.
TEST(Precision, EveryOptimizerTakesTheStepsOfFloatsUnderEveryStrategy) {
  const ParamLayout layout = *ParamLayout::Replicated(UnitSpecs(MakeGpt(kModel, DType::kF32)), 1);
  for (const OptimizerKind kind :
       {OptimizerKind::kSgd, OptimizerKind::kLamb, OptimizerKind::kLars}) {
    const Course floats =
        TrainBy(Strategy::kReplicated, 2, 2, DType::kF32, Recompute::kNone, kind)[0];
    const Course shorts =
        TrainBy(Strategy::kReplicated, 2, 2, DType::kF16, Recompute::kNone, kind)[0];
    for (std::size_t p = 0; p < layout.params().size(); ++p) {
      if (!layout.params()[p].spec.decay) continue;
      EXPECT_LT(DeviationOf(shorts.held[p].data, floats.held[p].data).norm, 2e-2)
          << NameOf(kind) << " " << layout.params()[p].spec.name;
    }
    for (std::size_t step = 0; step < 6; ++step)
      EXPECT_NEAR(shorts.losses[step], floats.losses[step], 1e-2) << NameOf(kind);
    for (const Strategy strategy : {Strategy::kZero1, Strategy::kZero3})
      EXPECT_EQ(TrainBy(strategy, 2, 2, DType::kF16, Recompute::kNone, kind)[1].losses,
                shorts.losses);
  }
}

// Gradients of one rank overflow: the step is void on all, and is made with a smaller scale.
TEST(Precision, AnOverflowHalvesTheLossScaleOfAllRanks) {
  const TextDataset dataset(RandomText(), 8);
  for (const Strategy strategy : kStrategies) {
    std::vector<int> tries(3);
    std::vector<double> scales(3);
    OnEveryRank(3, [&](Communicator& ranks) {
      StepRunnerOptions options = Options();
      if (ranks.rank() == 1) options.gradient_factor = 1e4;
      Rank rank(ranks, dataset, options, strategy, DType::kF16);
      const std::vector<float> before(rank.state.weights.begin(), rank.state.weights.end());
      const auto me = static_cast<std::size_t>(ranks.rank());
      for (;; ++tries[me]) {
        const auto result = rank.Step(0, options.batch);
        ASSERT_TRUE(result.ok()) << result.status();
        ASSERT_NE(result->done, result->retry);
        if (result->done) break;
        ASSERT_TRUE(std::equal(before.begin(), before.end(), rank.state.weights.begin()));
        for (const float moment : rank.state.slots[0]) ASSERT_EQ(moment, 0);
      }
      scales[me] = rank.runner->scaler().scale();
      EXPECT_FALSE(std::equal(before.begin(), before.end(), rank.state.weights.begin()));
    });
    EXPECT_GT(tries[0], 0);
    EXPECT_EQ(tries, std::vector<int>(3, tries[0]));
    EXPECT_EQ(scales, std::vector<double>(3, std::ldexp(1, LossScaler::kFirst - tries[0])));
  }
}

TEST(Precision, WhatOverflowsAtAnyScaleEndsTheStep) {
  const TextDataset dataset(RandomText(), 8);
  OnEveryRank(2, [&](Communicator& ranks) {
    StepRunnerOptions options = Options();
    if (ranks.rank() == 1) options.gradient_factor = kInfinity;
    Rank rank(ranks, dataset, options, Strategy::kZero2, DType::kF16);
    for (int tries = 0; tries <= LossScaler::kFirst; ++tries) {
      const auto result = rank.Step(0, options.batch);
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_FALSE(result->done);
      EXPECT_EQ(result->retry, tries < LossScaler::kFirst);
      EXPECT_TRUE(std::isfinite(result->loss));
    }
  });
}

TEST(LossScaler, GrowsAfterManyStepsAndComesBackFromACheckpoint) {
  LossScaler scaler(DType::kF16);
  EXPECT_EQ(scaler.scale(), 65536);
  for (std::int64_t step = 1; step < LossScaler::kGrowthSteps; ++step) scaler.NoteStep();
  EXPECT_EQ(scaler.scale(), 65536);
  std::map<std::string, std::int64_t> counters;
  scaler.Save(counters);
  LossScaler resumed(DType::kF16);
  ASSERT_TRUE(resumed.Restore(counters).ok());
  for (LossScaler* each : {&scaler, &resumed}) {
    each->NoteStep();
    EXPECT_EQ(each->scale(), 131072);
    EXPECT_TRUE(each->Halve());
    EXPECT_EQ(each->scale(), 65536);
  }
  for (std::int64_t step = 0; step < 20 * LossScaler::kGrowthSteps; ++step) scaler.NoteStep();
  EXPECT_EQ(scaler.scale(), std::ldexp(1, LossScaler::kLargest));
  for (const std::int64_t wrong : {-1, 25}) {
    counters["loss-scale-power"] = wrong;
    EXPECT_EQ(resumed.Restore(counters).code(), absl::StatusCode::kDataLoss);
  }
  EXPECT_TRUE(resumed.Restore({}).ok());
  for (const DType type : {DType::kF32, DType::kBF16}) {
    LossScaler none(type);
    EXPECT_TRUE(none.Restore(counters).ok());
    none.NoteStep();
    EXPECT_EQ(none.scale(), 1);
    EXPECT_FALSE(none.Halve());
    std::map<std::string, std::int64_t> nothing;
    none.Save(nothing);
    EXPECT_TRUE(nothing.empty());
  }
}

// Before the first update the weights are rounded alike.
TEST(Precision, ALookFindsTheLossThatAStepWouldFind) {
  const TextDataset dataset(RandomText(), 8);
  for (const DType type : {DType::kBF16, DType::kF16}) {
    for (const Strategy strategy : kStrategies) {
      OnEveryRank(3, [&](Communicator& ranks) {
        Rank rank(ranks, dataset, Options(), strategy, type);
        std::vector<std::int64_t> spread;
        for (std::int64_t i = 0; i < 7; ++i) spread.push_back(i * dataset.samples() / 7);
        const auto loss = rank.runner->Evaluate(dataset, 1);
        const auto step = rank.runner->Run(0, spread, {});
        ASSERT_TRUE(loss.ok() && step.ok()) << loss.status() << step.status();
        EXPECT_EQ(*loss, step->loss);
      });
    }
  }
}

}  // namespace
}  // namespace regroup::worker
