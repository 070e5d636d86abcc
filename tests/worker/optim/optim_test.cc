#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "worker/optim/optimizer.h"
#include "worker/optim/schedule.h"

namespace regroup::worker {
namespace {

TEST(Schedule, WarmsUpThenFallsAlongHalfACosine) {
  const Schedule schedule = {.lr = 1, .min_lr = 0.1, .warmup_steps = 4, .total_steps = 14};
  EXPECT_DOUBLE_EQ(LearningRate(schedule, 0), 0.25);
  EXPECT_DOUBLE_EQ(LearningRate(schedule, 3), 1);
  EXPECT_DOUBLE_EQ(LearningRate(schedule, 4), 1);
  EXPECT_DOUBLE_EQ(LearningRate(schedule, 9), 0.55);
  EXPECT_DOUBLE_EQ(LearningRate(schedule, 14), 0.1);
  EXPECT_DOUBLE_EQ(LearningRate(schedule, 1'000'000), 0.1);
}

TEST(Schedule, NeitherWarmUpNorLengthIsNeeded) {
  const Schedule flat = {.lr = 2, .min_lr = 2, .warmup_steps = 0, .total_steps = 0};
  EXPECT_DOUBLE_EQ(LearningRate(flat, 0), 2);
  const Schedule all_warmup = {.lr = 2, .min_lr = 1, .warmup_steps = 2, .total_steps = 2};
  EXPECT_DOUBLE_EQ(LearningRate(all_warmup, 1), 2);
  EXPECT_DOUBLE_EQ(LearningRate(all_warmup, 2), 1);
}

TEST(ClipScale, LimitsTheNorm) {
  EXPECT_EQ(ClipScale(0.25, 1), 1);
  EXPECT_NEAR(ClipScale(4, 1), 0.5, 1e-6);
  EXPECT_EQ(ClipScale(1e6, 0), 1);
  EXPECT_TRUE(std::isnan(ClipScale(std::nan(""), 1)));
}

TEST(AdamW, DecaysOnlyWhatSaysSoAndLeavesPaddingAndOtherUnitsAlone) {
  const ParamSpec matrix = {.name = "m", .shape = {2, 3}, .decay = true};
  const ParamSpec vector = {.name = "v", .shape = {3}, .decay = false};
  const ParamSpec other = {.name = "o", .shape = {4}, .decay = true};
  const ParamLayout layout =
      *ParamLayout::Replicated({{"u", {matrix, vector}, {}}, {"w", {other}, {}}}, 1);
  const auto n = static_cast<std::size_t>(layout.flat_elements());
  std::vector<double> weights(n, 1), gradients(n, 0), first(n), second(n);
  AdamW<double> optimizer(layout, {.weight_decay = 0.5}, ReferenceKernels<double>(),
                          {weights, gradients, first, second});
  EXPECT_EQ(optimizer.SumSquares(), 0);
  optimizer.Step(0, {.step = 0, .lr = 0.1, .grad_scale = 1});
  for (std::size_t i = 0; i < n; ++i) EXPECT_DOUBLE_EQ(weights[i], i < 6 ? 0.95 : 1.0) << i;
}

TEST(AdamW, TheFirstUpdateIsTheLearningRateWhateverTheScale) {
  const ParamLayout layout =
      *ParamLayout::Replicated({{"u", {{.name = "v", .shape = {2}}}, {}}}, 1);
  const auto n = static_cast<std::size_t>(layout.flat_elements());
  for (const double scale : {1.0, 0.001}) {
    std::vector<double> weights(n), gradients(n), first(n), second(n);
    gradients[0] = 5;
    gradients[1] = -0.2;
    AdamW<double> optimizer(layout, {.epsilon = 0}, ReferenceKernels<double>(),
                            {weights, gradients, first, second});
    EXPECT_DOUBLE_EQ(optimizer.SumSquares(), 25.04);
    gradients[2] = 1;  // Padding: never read by a step.
    optimizer.Step(0, {.step = 0, .lr = 0.1, .grad_scale = scale});
    EXPECT_NEAR(weights[0], -0.1, 1e-12);
    EXPECT_NEAR(weights[1], 0.1, 1e-12);
    EXPECT_EQ(weights[2], 0);
  }
}

}  // namespace
}  // namespace regroup::worker
