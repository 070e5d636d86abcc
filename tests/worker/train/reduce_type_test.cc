// Gradients that ranks exchange in 16 bits.

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "tests/worker/golden/golden.h"
#include "tests/worker/train/forwarding.h"
#include "tests/worker/train/step_ranks.h"

namespace regroup::worker {
namespace {

// Notes of what numbers the tensors are that ranks sum.
class Noting final : public Forwarding {
 public:
  using Forwarding::Forwarding;
  absl::Status AllReduceSum(Tensor inout) override {
    summed.insert(inout.type);
    return Forwarding::AllReduceSum(inout);
  }
  absl::Status ReduceScatter(Tensor arena, std::span<const Stretch> stretches, Tensor out,
                             int group) override {
    summed.insert(arena.type);
    return Forwarding::ReduceScatter(arena, stretches, out, group);
  }
  std::set<DType> summed;
};

struct Exchanged {
  std::vector<double> losses, norms;
  std::vector<std::vector<float>> weights;  // Of each rank.
  std::vector<float> gradients;             // Rank 0's, after one step of AdamW, times 1 - beta1.
};

Exchanged TrainWith(DType reduce_type, const Sharding& sharding, int world, int micro_batch,
                    bool overlaps, DType type) {
  Exchanged run;
  run.weights.resize(static_cast<std::size_t>(world));
  const TextDataset dataset(RandomText(), 8);
  OnEveryRank(world, [&](Communicator& near) {
    Noting ranks(near, overlaps);
    StepRunnerOptions options = Options();
    options.micro_batch = micro_batch;
    options.reduce_type = reduce_type;
    Rank rank(ranks, dataset, options, sharding, type);
    for (std::int64_t step = 0; step < 4; ++step) {
      const auto result = rank.Step(step, options.batch);
      ASSERT_TRUE(result.ok()) << result.status();
      if (ranks.rank() > 0) continue;
      run.losses.push_back(result->loss);
      run.norms.push_back(result->gradient_norm);
      if (step > 0) continue;
      const std::span<float> moments = rank.state.slots[0];
      run.gradients.assign(moments.begin(), moments.end());
    }
    EXPECT_EQ(ranks.summed, std::set<DType>{reduce_type});
    run.weights[static_cast<std::size_t>(ranks.rank())] = rank.Weights();
  });
  return run;
}

TEST(ReduceType, EveryStrategyTakesTheSameSteps) {
  for (const DType type : {DType::kF32, DType::kF16}) {
    for (const int world : {1, 2, 4}) {
      for (const int micro_batch : {7, 1}) {
        const Exchanged whole =
            TrainWith(DType::kBF16, Strategy::kReplicated, world, micro_batch, false, type);
        for (const Sharding& sharding : ShardingsOf(world)) {
          for (const bool overlaps : {false, true}) {
            const Exchanged run =
                TrainWith(DType::kBF16, sharding, world, micro_batch, overlaps, type);
            ASSERT_EQ(run.losses, whole.losses) << sharding.Name() << " on " << world;
            ASSERT_EQ(run.norms, whole.norms) << sharding.Name() << " on " << world;
            if (sharding.strategy == Strategy::kReplicated) {
              ASSERT_EQ(run.weights, whole.weights);
            }
          }
        }
      }
    }
  }
}

// What is rounded is the gradients alone, and that once on each rank and once of all: two of the
// last of 8 bits, and no more where a rank adds up many micro-batches.
TEST(ReduceType, GradientsAreRoundedTwice) {
  for (const int world : {2, 3}) {
    for (const int micro_batch : {7, 1}) {
      const auto gradients = [&](DType reduce_type) {
        return TrainWith(reduce_type, Strategy::kReplicated, world, micro_batch, false, DType::kF32)
            .gradients;
      };
      const std::vector<float> floats = gradients(DType::kF32), shorts = gradients(DType::kBF16);
      const double apart = RelativeError(shorts, std::vector<double>(floats.begin(), floats.end()));
      EXPECT_LT(apart, 2 * 0x1p-8);
      EXPECT_GT(apart, 0x1p-12);
    }
  }
}

// A buffer of 16 bits beside that of floats, as large.
TEST(ReduceType, TakesWhatThePlanSays) {
  for (const Strategy strategy : kStrategies) {
    std::int64_t bytes[2] = {};
    const TextDataset dataset(RandomText(), 8);
    for (const bool narrows : {false, true}) {
      OnEveryRank(2, [&](Communicator& ranks) {
        StepRunnerOptions options = Options();
        options.micro_batch = 7;
        if (narrows) options.reduce_type = DType::kBF16;
        Rank rank(ranks, dataset, options, strategy);
        if (ranks.rank() == 0) bytes[narrows] = rank.runner->memory_bytes();
      });
    }
    const Model<float> model = MakeGpt<float>(kModel);
    const ParamLayout layout = *ParamLayout::Create(model.UnitSpecs(), 2, strategy);
    const Plan plan =
        *MakePlan(layout, {.micro_batches = 1, .rounds = 1, .bucket_bytes = kBucketBytes});
    std::int64_t more = 2 * plan.gradients.elements;
    if (layout.Divides(StateKind::kGradients))
      more += 2 * layout.Elements(StateKind::kGradients, 0);
    EXPECT_GE(bytes[1] - bytes[0], more) << NameOf(strategy);
    EXPECT_LE(bytes[1] - bytes[0], more + 4 * 256) << NameOf(strategy);
  }
}

}  // namespace
}  // namespace regroup::worker
