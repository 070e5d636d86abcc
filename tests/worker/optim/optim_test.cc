#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/worker/device/host_compute.h"
#include "tests/worker/golden/golden.h"
#include "worker/kernels/fixed_chunks.h"
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

TEST(Schedule, ALineGoesFromTheHighestToTheLowestRate) {
  const Schedule schedule = {
      .lr = 1, .min_lr = 0.1, .warmup_steps = 4, .total_steps = 14, .kind = ScheduleKind::kLinear};
  EXPECT_DOUBLE_EQ(LearningRate(schedule, 0), 0.25);
  EXPECT_DOUBLE_EQ(LearningRate(schedule, 4), 1);
  EXPECT_DOUBLE_EQ(LearningRate(schedule, 9), 0.55);
  EXPECT_DOUBLE_EQ(LearningRate(schedule, 13), 0.19);
  EXPECT_DOUBLE_EQ(LearningRate(schedule, 14), 0.1);
  EXPECT_DOUBLE_EQ(LearningRate(schedule, 99), 0.1);
}

TEST(Schedule, AConstantRateIsOneAfterItsWarmUp) {
  const Schedule schedule = {.lr = 2,
                             .min_lr = 0.1,
                             .warmup_steps = 4,
                             .total_steps = 14,
                             .kind = ScheduleKind::kConstant};
  EXPECT_DOUBLE_EQ(LearningRate(schedule, 1), 1);
  for (const std::int64_t step : {4, 13, 14, 1'000'000})
    EXPECT_DOUBLE_EQ(LearningRate(schedule, step), 2);
}

// gamma of WarmupLR and WarmupDecayLR, for lr 8 and from 0.
TEST(Schedule, DeepSpeedsWarmUpIsLogarithmic) {
  Schedule schedule = {.lr = 8,
                       .min_lr = 3,
                       .warmup_steps = 16,
                       .total_steps = 36,
                       .kind = ScheduleKind::kWarmupDecay};
  EXPECT_DOUBLE_EQ(LearningRate(schedule, 0), 0);
  EXPECT_DOUBLE_EQ(LearningRate(schedule, 1), 2);   // log 2 / log 16
  EXPECT_DOUBLE_EQ(LearningRate(schedule, 7), 6);   // log 8 / log 16
  EXPECT_DOUBLE_EQ(LearningRate(schedule, 15), 8);  // log 16 / log 16
  EXPECT_DOUBLE_EQ(LearningRate(schedule, 16), 8);  // (36 - 16) / (36 - 16)
  EXPECT_DOUBLE_EQ(LearningRate(schedule, 26), 4);
  EXPECT_DOUBLE_EQ(LearningRate(schedule, 36), 0);
  EXPECT_DOUBLE_EQ(LearningRate(schedule, 99), 0);
  schedule.kind = ScheduleKind::kWarmup;
  EXPECT_DOUBLE_EQ(LearningRate(schedule, 7), 6);
  EXPECT_DOUBLE_EQ(LearningRate(schedule, 99), 8);
  schedule.warmup_steps = 0;  // Taken for 2.
  EXPECT_DOUBLE_EQ(LearningRate(schedule, 0), 0);
  EXPECT_DOUBLE_EQ(LearningRate(schedule, 1), 8);
}

TEST(Schedule, ALargerBatchMayTakeALargerRate) {
  EXPECT_EQ(ScaleOf(ScalingRule::kNone, 1024, 256), 1);
  EXPECT_EQ(ScaleOf(ScalingRule::kLinear, 1024, 256), 4);
  EXPECT_EQ(ScaleOf(ScalingRule::kLinear, 64, 256), 0.25);
  EXPECT_EQ(ScaleOf(ScalingRule::kSquareRoot, 1024, 256), 2);
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
  HostCompute host;
  const auto optimizer = *Optimizer<double>::Create(layout, {.weight_decay = 0.5},
                                                    host.With(ReferenceKernels<double>()),
                                                    {weights, gradients, {first, second}});
  double sum = 1;
  optimizer->SumSquares(&sum);
  EXPECT_EQ(sum, 0);
  optimizer->Step(0, {.step = 0, .lr = 0.1, .grad_scale = 1});
  for (std::size_t i = 0; i < n; ++i) EXPECT_DOUBLE_EQ(weights[i], i < 6 ? 0.95 : 1.0) << i;
}

// A kernel that spreads a sum over a whole GPU needs it.
TEST(Optimizer, SumsOfSquaresHaveAWorkspace) {
  const ParamLayout layout =
      *ParamLayout::Replicated({{"u", {{.name = "v", .shape = {2}}}, {}}}, 1);
  const auto n = static_cast<std::size_t>(layout.flat_elements());
  std::vector<double> weights(n), gradients(n), first(n), second(n);
  HostCompute host;
  KernelTable<double> table = ReferenceKernels<double>();
  table.sum_squares = +[](const Launch& launch, const SumArgs<double>& args) {
    auto* chunks = static_cast<double*>(launch.workspace);
    ASSERT_NE(chunks, nullptr);
    std::fill_n(chunks, OptimizerWorkspaceBytes() / static_cast<std::int64_t>(sizeof(double)), 1.0);
    *args.sum = std::accumulate(chunks, chunks + kSumChunks, 0.0);
  };
  const auto optimizer = *Optimizer<double>::Create(layout, {}, host.With(table),
                                                    {weights, gradients, {first, second}});
  double sum = 0;
  optimizer->SumSquares(&sum);
  EXPECT_EQ(sum, kSumChunks);
}

// Gradients that are had piece by piece: pieces are never longer than asked for, and change no bit.
TEST(Optimizer, GradientsInPiecesStepToTheSameBits) {
  const ParamLayout layout = *ParamLayout::Create(
      {{"u", {{.name = "a", .shape = {37, 61}, .decay = true}, {.name = "b", .shape = {70}}}, {}},
       {"w", {{.name = "c", .shape = {3 * kSumBlock + 5}, .decay = true}}, {}}},
      2, Strategy::kReplicated);
  const auto n = static_cast<std::size_t>(layout.flat_elements());
  const std::vector<float> gradients = Given<float>("g", static_cast<std::int64_t>(n), 1);
  const StepInfo info{.step = 1, .lr = 0.1, .grad_scale = 0.5};
  HostCompute host;
  for (const OptimizerKind kind : kOptimizers) {
    const auto train = [&](std::int64_t at_once) {
      std::vector<float> weights = Given<float>("w", static_cast<std::int64_t>(n), 1);
      std::vector<std::vector<float>> state(StateNames(kind).size(), std::vector<float>(n, 0.25f));
      std::vector<float> piece(static_cast<std::size_t>(at_once));
      Optimizer<float>::Buffers buffers{weights, {}, {state.begin(), state.end()}};
      if (at_once == 0) {
        buffers.gradients = gradients;
      } else {
        buffers.widened_at_once = at_once;
        buffers.widened = [&](std::int64_t offset, std::int64_t elements) {
          EXPECT_LE(elements, at_once);
          std::copy_n(gradients.begin() + offset, elements, piece.begin());
          return piece.data();
        };
      }
      const auto optimizer = *Optimizer<float>::Create(
          layout, {.kind = kind}, host.With(KernelsFor(BestIsa())), std::move(buffers));
      std::vector<double> squares(static_cast<std::size_t>(BlocksOf(layout)));
      optimizer->SquareOwnedBlocks(squares);
      double sum = AddBlocks(layout.flat_elements(), squares.data()), whole = sum;
      if (at_once == 0) optimizer->SumSquares(&whole);
      EXPECT_EQ(sum, whole);
      optimizer->SquareTensors(info);
      for (const UnitId unit : {0, 1}) optimizer->Step(unit, info);
      weights.push_back(static_cast<float>(sum));
      for (const std::vector<float>& s : state) weights.insert(weights.end(), s.begin(), s.end());
      return weights;
    };
    const std::vector<float> whole = train(0);
    for (const std::int64_t at_once : {kSumBlock, kSumBlock + 300, 4 * kSumBlock})
      EXPECT_EQ(train(at_once), whole) << NameOf(kind) << " " << at_once;
  }
}

TEST(AdamW, TheFirstUpdateIsTheLearningRateWhateverTheScale) {
  const ParamLayout layout =
      *ParamLayout::Replicated({{"u", {{.name = "v", .shape = {2}}}, {}}}, 1);
  const auto n = static_cast<std::size_t>(layout.flat_elements());
  for (const double scale : {1.0, 0.001}) {
    std::vector<double> weights(n), gradients(n), first(n), second(n);
    gradients[0] = 5;
    gradients[1] = -0.2;
    HostCompute host;
    const auto optimizer =
        *Optimizer<double>::Create(layout, {.epsilon = 0}, host.With(ReferenceKernels<double>()),
                                   {weights, gradients, {first, second}});
    double sum = 0;
    optimizer->SumSquares(&sum);
    EXPECT_DOUBLE_EQ(sum, 25.04);
    gradients[2] = 1;  // Padding: never read by a step.
    optimizer->Step(0, {.step = 0, .lr = 0.1, .grad_scale = scale});
    EXPECT_NEAR(weights[0], -0.1, 1e-12);
    EXPECT_NEAR(weights[1], 0.1, 1e-12);
    EXPECT_EQ(weights[2], 0);
  }
}

// A tensor that begins within a block, behind one that does not decay and before another unit.
ParamLayout LayoutOf(std::int64_t elements, int world, Strategy strategy, int group) {
  const ParamSpec gain = {.name = "gain", .shape = {700}, .decay = false};
  const ParamSpec weight = {.name = "weight", .shape = {elements}, .decay = true};
  const ParamSpec other = {.name = "other", .shape = {3000}, .decay = true};
  return *ParamLayout::Create({{"u", {gain, weight}, {}}, {"w", {other}, {}}}, world, strategy,
                              group);
}

// The optimizers of all ranks of a world, without ranks: what they would sum, the test does.
template <typename T>
class Ranks {
 public:
  Ranks(std::int64_t elements, int world, Strategy strategy, const OptimizerConfig& config,
        int group = 0)
      : layout_(LayoutOf(elements, world, strategy, group)) {
    for (int r = 0; r < world; ++r) {
      Rank& rank = *ranks_.emplace_back(std::make_unique<Rank>());
      const auto make = [&](StateKind kind) {
        return std::vector<T>(static_cast<std::size_t>(layout_.Elements(kind, r)));
      };
      rank.weights = make(StateKind::kWeights);
      rank.gradients = make(StateKind::kGradients);
      typename Optimizer<T>::Buffers buffers{rank.weights, rank.gradients, {}};
      for (std::size_t s = 0; s < StateNames(config.kind).size(); ++s)
        rank.state.push_back(make(StateKind::kMoments));
      for (std::vector<T>& state : rank.state) buffers.state.emplace_back(state);
      rank.optimizer = *Optimizer<T>::Create(layout_, config, host_.With(ReferenceKernels<T>()),
                                             std::move(buffers), r);
    }
  }

  void Set(StateKind kind, const std::string& param, const std::vector<T>& values) {
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      Visit(kind, static_cast<int>(r), param, Buffer(kind, r, 0),
            [&](T& here, std::size_t i) { here = values[i]; });
    }
  }
  std::vector<T> Get(StateKind kind, const std::string& param, std::size_t slot = 0) {
    std::vector<T> values(static_cast<std::size_t>(Place(param).flat.size));
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      // What a rank has but does not own may be old: it would be gathered.
      const std::vector<Range>& owned = layout_.Owned(static_cast<int>(r));
      Visit(kind, static_cast<int>(r), param, Buffer(kind, r, slot), [&](T& here, std::size_t i) {
        const std::int64_t at = Place(param).flat.begin + static_cast<std::int64_t>(i);
        const bool own = std::ranges::any_of(
            owned, [&](const Range& box) { return box.begin <= at && at < box.end(); });
        if (own || !layout_.Divides(StateKind::kMoments)) values[i] = here;
      });
    }
    return values;
  }
  void Step(const StepInfo& info) {
    if (ranks_[0]->optimizer->needs_norms()) {
      std::vector<double> sum;
      for (const auto& rank : ranks_) {
        const std::span<double> squares = rank->optimizer->SquareTensors(info);
        sum.resize(squares.size());
        for (std::size_t i = 0; i < sum.size(); ++i)
          sum[i] = layout_.Divides(StateKind::kMoments) ? sum[i] + squares[i] : squares[i];
        totals_.push_back(squares);
      }
      for (const std::span<double> squares : totals_) std::ranges::copy(sum, squares.begin());
      totals_.clear();
    }
    for (const auto& rank : ranks_) {
      for (UnitId u = 0; u < 2; ++u) rank->optimizer->Step(u, info);
    }
  }

 private:
  struct Rank {
    std::vector<T> weights, gradients;
    std::vector<std::vector<T>> state;
    std::unique_ptr<Optimizer<T>> optimizer;
  };
  const ParamPlace& Place(const std::string& param) const {
    return layout_.params()[static_cast<std::size_t>(*layout_.Find(param))];
  }
  std::vector<T>& Buffer(StateKind kind, std::size_t rank, std::size_t slot) {
    return kind == StateKind::kWeights     ? ranks_[rank]->weights
           : kind == StateKind::kGradients ? ranks_[rank]->gradients
                                           : ranks_[rank]->state[slot];
  }
  // use(element of the buffer, element of the parameter).
  template <typename Use>
  void Visit(StateKind kind, int rank, const std::string& param, std::vector<T>& buffer,
             const Use& use) {
    const Range& flat = Place(param).flat;
    for (const Range& box : layout_.Boxes(kind, rank)) {
      for (std::int64_t at = std::max(box.begin, flat.begin); at < std::min(box.end(), flat.end());
           ++at) {
        use(buffer[static_cast<std::size_t>(layout_.Offset(kind, rank, at))],
            static_cast<std::size_t>(at - flat.begin));
      }
    }
  }

  const ParamLayout layout_;
  HostCompute host_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::vector<std::span<double>> totals_;
};

constexpr double kRates[] = {0.5, 0.25, 1.0, 0.125, 0.5};

template <typename T>
void CheckTrace(OptimizerKind kind, std::int64_t elements, double tolerance) {
  SCOPED_TRACE(NameOf(kind));
  const Golden golden(NameOf(kind));
  Ranks<T> ranks(elements, 1, Strategy::kReplicated, {.kind = kind, .weight_decay = 0.1});
  ranks.Set(StateKind::kWeights, "weight", Given<T>("weight", elements));
  for (int step = 0; step < 5; ++step) {
    // Twice as large, and halved by the clipping.
    const std::string name = "gradient " + std::to_string(step);
    ranks.Set(StateKind::kGradients, "weight", Given<T>(name, elements, 2 * std::pow(10.0, -step)));
    ranks.Step({.step = step, .lr = kRates[step], .grad_scale = 0.5});
    EXPECT_LT(RelativeError(ranks.Get(StateKind::kWeights, "weight"),
                            golden["weight " + std::to_string(step)]),
              tolerance)
        << step;
  }
  const auto names = StateNames(kind);
  for (std::size_t s = 0; s < names.size(); ++s) {
    EXPECT_LT(RelativeError(ranks.Get(StateKind::kMoments, "weight", s), golden[names[s]]),
              tolerance);
  }
}

TEST(Optimizer, FiveStepsAgreeWithTheGoldenTraces) {
  for (const auto& [kind, elements] : {std::pair(OptimizerKind::kSgd, 103),
                                       {OptimizerKind::kLamb, 2500},
                                       {OptimizerKind::kLars, 2500}}) {
    CheckTrace<double>(kind, elements, 1e-13);
    CheckTrace<float>(kind, elements, 2e-6);
  }
}

// Biases and gains have no norm that says how far to go: LAMB steps them as AdamW does, LARS as
// SGD.
TEST(Optimizer, WhatDoesNotDecayIsSteppedWithoutItsNorm) {
  for (const auto& [kind, plain] : {std::pair(OptimizerKind::kLamb, OptimizerKind::kAdamW),
                                    {OptimizerKind::kLars, OptimizerKind::kSgd}}) {
    std::vector<std::vector<double>> gains;
    for (const OptimizerKind each : {kind, plain}) {
      Ranks<double> ranks(100, 1, Strategy::kReplicated, {.kind = each});
      ranks.Set(StateKind::kWeights, "gain", Given<double>("gain", 700));
      ranks.Set(StateKind::kGradients, "gain", Given<double>("gradient", 700));
      for (int step = 0; step < 3; ++step) ranks.Step({.step = step, .lr = 0.1});
      gains.push_back(ranks.Get(StateKind::kWeights, "gain"));
    }
    EXPECT_LT(RelativeError(gains[0], gains[1]), 1e-13);
  }
}

// A new tensor of zeros has no norm: it takes the step that AdamW or SGD would take, or it would
// stay where it is for ever.
TEST(Optimizer, ATensorOfZerosLeavesZero) {
  for (const OptimizerKind kind : {OptimizerKind::kLamb, OptimizerKind::kLars}) {
    Ranks<double> ranks(100, 1, Strategy::kReplicated, {.kind = kind});
    ranks.Set(StateKind::kGradients, "weight", Given<double>("gradient", 100));
    ranks.Step({.step = 0, .lr = 0.1});
    for (const double weight : ranks.Get(StateKind::kWeights, "weight")) EXPECT_NE(weight, 0);
    for (const double weight : ranks.Get(StateKind::kWeights, "other")) EXPECT_EQ(weight, 0);
  }
}

TEST(Optimizer, ShardsAreSteppedToTheBitsOfTheWhole) {
  for (const OptimizerKind kind : kOptimizers) {
    const auto train = [&](int world, Strategy strategy, int group = 0) {
      Ranks<float> ranks(5000, world, strategy, {.kind = kind}, group);
      std::vector<float> all;
      for (const auto& [name, size] : {std::pair("gain", 700), {"weight", 5000}, {"other", 3000}})
        ranks.Set(StateKind::kWeights, name, Given<float>(name, size));
      for (int step = 0; step < 4; ++step) {
        for (const auto& [name, size] : {std::pair("gain", 700), {"weight", 5000}, {"other", 3000}})
          ranks.Set(StateKind::kGradients, name, Given<float>(name + std::to_string(step), size));
        ranks.Step({.step = step, .lr = 0.1, .grad_scale = 0.7});
      }
      for (const char* name : {"gain", "weight", "other"}) {
        const auto weights = ranks.Get(StateKind::kWeights, name);
        all.insert(all.end(), weights.begin(), weights.end());
      }
      return all;
    };
    const std::vector<float> whole = train(1, Strategy::kReplicated);
    // With nine ranks some own nothing of a unit.
    for (const int world : {2, 3, 5, 9}) {
      for (const Strategy strategy : {Strategy::kZero2, Strategy::kZero3})
        EXPECT_EQ(train(world, strategy), whole) << NameOf(kind) << " " << world;
    }
    EXPECT_EQ(train(6, Strategy::kZero3, 2), whole) << NameOf(kind);
    EXPECT_EQ(train(4, Strategy::kZero2, 2), whole) << NameOf(kind);
  }
}

}  // namespace
}  // namespace regroup::worker
