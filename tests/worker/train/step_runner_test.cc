// One step of all ranks together, on threads: what processes do with it is in train_test.cc.

#include "worker/train/step_runner.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/rng.h"
#include "tests/worker/golden/golden.h"
#include "tests/worker/train/forwarding.h"
#include "tests/worker/train/step_ranks.h"
#include "worker/comm/in_process_communicator.h"
#include "worker/kernels/parallel_for.h"
#include "worker/model/gpt.h"
#include "worker/train/worker_exit.h"

#if defined(__SANITIZE_ADDRESS__)
#define REGROUP_SEES_ALLOCATIONS 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define REGROUP_SEES_ALLOCATIONS 1
#endif
#endif
#ifdef REGROUP_SEES_ALLOCATIONS
// From sanitizer/allocator_interface.h, which not every compiler brings.
// NOLINTNEXTLINE(bugprone-reserved-identifier)
extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*allocated)(const volatile void*,
                                                                           std::size_t),
                                                         void (*released)(const volatile void*));
#endif

namespace regroup::worker {
namespace {

// Ranks that sum in another order differ in rounding, and no more.
TEST(StepRunner, EveryOptimizerTakesTheSameStepsInEveryWorld) {
  for (const OptimizerKind kind :
       {OptimizerKind::kSgd, OptimizerKind::kLamb, OptimizerKind::kLars}) {
    const Course alone =
        TrainBy(Strategy::kReplicated, 1, 7, DType::kF32, Recompute::kNone, kind)[0];
    for (const int world : {2, 3, 7}) {
      const Course ranks =
          TrainBy(Strategy::kReplicated, world, 7, DType::kF32, Recompute::kNone, kind)[0];
      for (std::size_t step = 0; step < 6; ++step)
        EXPECT_NEAR(ranks.losses[step], alone.losses[step], 1e-5) << NameOf(kind) << world;
    }
  }
}

std::string OtherText() {
  Rng rng(6);
  std::string text;
  for (int i = 0; i < 300; ++i) text += static_cast<char>('a' + rng.Below(26));
  return text;
}

struct Evaluated {
  std::vector<double> losses, validation;
  std::vector<float> weights;
};

// Six steps, each with a look at other data before it, or without any.
std::vector<Evaluated> Evaluate(Strategy strategy, int world, int micro_batch, bool looks,
                                DType type = DType::kF32) {
  std::vector<Evaluated> all(static_cast<std::size_t>(world));
  const TextDataset dataset(RandomText(), 8);
  OnEveryRank(world, [&](Communicator& ranks) {
    const TextDataset other(OtherText(), 8);
    StepRunnerOptions options = Options();
    options.micro_batch = micro_batch;
    Rank rank(ranks, dataset, options, strategy, type);
    Evaluated& mine = all[static_cast<std::size_t>(ranks.rank())];
    for (std::int64_t step = 0; step < 6; ++step) {
      if (looks) {
        const auto loss = rank.runner->Evaluate(other, 5);
        ASSERT_TRUE(loss.ok()) << loss.status();
        mine.validation.push_back(*loss);
      }
      const auto result = rank.Step(step, options.batch);
      ASSERT_TRUE(result.ok()) << result.status();
      mine.losses.push_back(result->loss);
    }
    mine.weights = rank.Weights();
  });
  return all;
}

TEST(StepRunner, ALookAtOtherDataChangesNoBitOfTheTraining) {
  const std::vector<double> alone = Evaluate(Strategy::kReplicated, 1, 7, true)[0].validation;
  EXPECT_LT(alone[5], alone[0]);
  for (const int world : {1, 2, 3, 9}) {
    for (const int micro_batch : {1, 2, 7}) {
      const Evaluated replicated = Evaluate(Strategy::kReplicated, world, micro_batch, true)[0];
      for (std::size_t step = 0; step < 6; ++step)
        EXPECT_NEAR(replicated.validation[step], alone[step], 1e-5);
      for (const Strategy strategy : kStrategies) {
        SCOPED_TRACE(testing::Message()
                     << NameOf(strategy) << " on " << world << ", " << micro_batch);
        const std::vector<Evaluated> with = Evaluate(strategy, world, micro_batch, true),
                                     without = Evaluate(strategy, world, micro_batch, false);
        for (std::size_t r = 0; r < with.size(); ++r) {
          EXPECT_EQ(with[r].validation, replicated.validation);
          EXPECT_EQ(with[r].losses, without[r].losses);
          EXPECT_EQ(with[r].weights, without[r].weights);
        }
      }
    }
  }
}

// Looks round weights as step 0 does, whatever the step: the next step rounds them anew.
TEST(StepRunner, ALookAtOtherDataChangesNoBitOfATrainingOfShortNumbers) {
  for (const int world : {1, 3}) {
    const Evaluated replicated = Evaluate(Strategy::kReplicated, world, 2, true, DType::kBF16)[0];
    for (const Strategy strategy : kStrategies) {
      const std::vector<Evaluated> with = Evaluate(strategy, world, 2, true, DType::kBF16),
                                   without = Evaluate(strategy, world, 2, false, DType::kBF16);
      for (std::size_t r = 0; r < with.size(); ++r) {
        EXPECT_EQ(with[r].validation, replicated.validation) << NameOf(strategy) << world;
        EXPECT_EQ(with[r].losses, without[r].losses);
        EXPECT_EQ(with[r].weights, without[r].weights);
      }
    }
  }
}

// The mean over samples spread over the data is what a step on them finds before its update.
TEST(StepRunner, ALookFindsTheLossThatAStepWouldFind) {
  const TextDataset dataset(RandomText(), 8);
  OnEveryRank(3, [&](Communicator& ranks) {
    Rank rank(ranks, dataset, Options());
    std::vector<std::int64_t> spread;
    for (std::int64_t i = 0; i < 7; ++i) spread.push_back(i * dataset.samples() / 7);
    const auto loss = rank.runner->Evaluate(dataset, 1);
    const auto step = rank.runner->Run(0, spread, {});
    ASSERT_TRUE(loss.ok() && step.ok()) << loss.status() << step.status();
    EXPECT_EQ(*loss, step->loss);
  });
}

// And of many batches the mean of what steps that change nothing find.
TEST(StepRunner, ALookIsTheMeanOfAllItsBatches) {
  const TextDataset dataset(RandomText(), 8);
  constexpr std::int64_t kBatches = 4;
  OnEveryRank(3, [&](Communicator& ranks) {
    StepRunnerOptions options = Options();
    options.schedule.lr = options.schedule.min_lr = 0;
    Rank rank(ranks, dataset, options);
    const auto loss = rank.runner->Evaluate(dataset, kBatches);
    ASSERT_TRUE(loss.ok()) << loss.status();
    double sum = 0;
    for (std::int64_t batch = 0; batch < kBatches; ++batch) {
      std::vector<std::int64_t> ids;
      for (std::int64_t i = 7 * batch; i < 7 * (batch + 1); ++i)
        ids.push_back(i * dataset.samples() / (7 * kBatches));
      const auto step = rank.runner->Run(batch, ids, {});
      ASSERT_TRUE(step.ok()) << step.status();
      sum += step->loss;
    }
    EXPECT_NEAR(*loss, sum / kBatches, 1e-6);
  });
}

TEST(StepRunner, ALookAtWhatCanNotBeReadEndsOnAll) {
  const TextDataset dataset(RandomText(), 8);
  OnEveryRank(3, [&](Communicator& ranks) {
    Rank rank(ranks, dataset, Options());
    const BadDataset bad(true);
    const auto loss =
        ranks.rank() == 1 ? rank.runner->Evaluate(bad, 3) : rank.runner->Evaluate(dataset, 3);
    EXPECT_EQ(loss.status().code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(IsCommunicatorFailure(loss.status()), ranks.rank() != 1);
  });
}

// Four ranks; each rank's own memory for one step. The formulas are those of the plan: a window of
// the units that are in use together, or under way, and a fourth of what is divided, by whole
// blocks.
TEST(StepRunner, AStepTakesAsMuchMemoryAsItsPlanSays) {
  constexpr int kWorld = 4;
  for (const Strategy strategy : kStrategies) {
    for (const bool overlaps : {false, true}) {
      const Model<float> model = MakeGpt<float>(kModel);
      const ParamLayout layout = *ParamLayout::Create(model.UnitSpecs(), kWorld, strategy);
      const Plan plan = *MakePlan(layout, {.rank = 1,
                                           .micro_batches = 1,
                                           .rounds = 1,
                                           .bucket_bytes = kBucketBytes,
                                           .overlap = overlaps});
      std::int64_t planned = plan.gradients.elements;
      const std::int64_t own = layout.Elements(StateKind::kGradients, 1);
      if (layout.Divides(StateKind::kGradients)) planned += own;
      if (layout.FreesWeights()) planned += plan.weights.elements;
      const std::int64_t blocks = layout.Divides(StateKind::kMoments) ? BlocksOf(layout) * 8 : 0;
      const std::int64_t bytes = TrainBy(strategy, kWorld, 7, DType::kF32, Recompute::kNone,
                                         OptimizerKind::kAdamW, overlaps)[1]
                                     .step_bytes;
      EXPECT_GE(bytes, planned * 4 + blocks);
      EXPECT_LE(bytes, planned * 4 + blocks + 4 * 256) << NameOf(strategy) << overlaps;
    }
  }
}

double Worst(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b) {
  double worst = 0;
  for (std::size_t p = 0; p < a.size(); ++p) worst = std::max(worst, RelativeError(a[p], b[p]));
  return worst;
}

TEST(StepRunner, EveryWorldTakesTheSameSteps) {
  const Trained alone = Train(1)[0];
  for (const double norm : alone.norms) EXPECT_GT(norm, Options().clip);  // Clipping is at work.
  for (const int world : {2, 3, 7, 9}) {  // Of nine ranks two have no sample.
    const std::vector<Trained> ranks = Train(world);
    for (const Trained& rank : ranks) {
      EXPECT_EQ(rank.flat, ranks[0].flat);  // To the bit.
      EXPECT_EQ(rank.losses, ranks[0].losses);
    }
    for (std::size_t step = 0; step < 6; ++step) {
      EXPECT_NEAR(ranks[0].losses[step], alone.losses[step], 1e-5) << world << " " << step;
      EXPECT_NEAR(ranks[0].norms[step], alone.norms[step], 1e-5 * alone.norms[step]);
    }
    EXPECT_LT(Worst(ranks[0].gradients, alone.gradients), 1e-5) << world;
    // Adam divides by the root of a second moment: tiny gradients of noisy sign move weights by
    // ±lr.
    for (std::size_t p = 0; p < alone.weights.size(); ++p) {
      EXPECT_LT(DeviationOf(ranks[0].weights[p], alone.weights[p]).norm, 1e-3) << world << " " << p;
    }
  }
}

TEST(StepRunner, AWrongShareOfOneRankShowsInTheGradients) {
  const Trained alone = Train(1)[0];
  EXPECT_GT(Worst(Train(3, 1.01)[0].gradients, alone.gradients), 1e-4);
}

TEST(StepRunner, WhatIsNotFiniteOnOneRankChangesNothingOnAny) {
  const TextDataset dataset(RandomText(), 8);
  for (const bool in_loss : {false, true}) {
    OnEveryRank(3, [&](Communicator& ranks) {
      StepRunnerOptions options = Options();
      if (ranks.rank() == 1 && !in_loss) options.gradient_factor = kInfinity;
      Rank rank(ranks, dataset, options);
      if (ranks.rank() == 1 && in_loss) rank.state.weights[0] = std::nanf("");
      const std::vector<float> before = rank.Weights();
      // A token of the text reads the first row of weights: 'a'.
      if (ranks.rank() == 1 && in_loss) {
        const auto wte = rank.state.weights.subspan(97 * 24, 24);
        std::fill(wte.begin(), wte.end(), std::nanf(""));
      }
      const auto result = rank.Step(0, options.batch);
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_FALSE(result->done);
      EXPECT_EQ(std::isnan(result->loss), in_loss);
      EXPECT_FALSE(std::isfinite(result->gradient_norm));
      for (const float moment : rank.state.slots[0]) ASSERT_EQ(moment, 0);
      for (const float moment : rank.state.slots[1]) ASSERT_EQ(moment, 0);
      if (ranks.rank() != 1) {
        EXPECT_EQ(rank.Weights(), before);
      }
    });
  }
}

// One whose memory loses what was summed, on this rank alone.
class Forgetful final : public Forwarding {
 public:
  using Forwarding::Forwarding;
  absl::Status AllReduceSum(Tensor inout) override {
    absl::Status summed = Forwarding::AllReduceSum(inout);
    if (forgets) inout.Elements<float>()[0] = std::nanf("");
    return summed;
  }
  absl::Status ReduceScatter(Tensor arena, std::span<const Stretch> stretches, Tensor out,
                             int group) override {
    absl::Status summed = Forwarding::ReduceScatter(arena, stretches, out, group);
    for (const Stretch& s : stretches) {
      if (forgets && s.owner == rank() % group)
        out.Elements<float>()[static_cast<std::size_t>(s.to)] = std::nanf("");
    }
    return summed;
  }

  bool forgets = false;
};

// One that ends the group when a collective is next.
class Aborting final : public Forwarding {
 public:
  using Forwarding::Forwarding;
  absl::Status AllReduce(std::span<double> inout, Reduction reduction) override {
    if (reduction == Reduction::kMax) vote = calls;
    return Forwarding::AllReduce(inout, reduction);
  }

  int calls = 0, vote = -1, abort_at = -1;  // The vote: the last call before weights change.

 private:
  void Before() override {
    if (calls++ == abort_at) Abort();
  }
};

struct Ended {
  bool failed = false, marked = false;
  std::vector<float> weights;
};

// What every rank has after one step, and another in whose nth collective one rank ends the group;
// -1: none. `calls` is of a step, `vote` the vote's number in it.
std::vector<Ended> EndAt(Strategy strategy, int rank, int at, int& calls, int& vote,
                         OptimizerKind optimizer, bool distant) {
  constexpr int kWorld = 3;
  std::vector<Ended> all(kWorld);
  const TextDataset dataset(RandomText(), 8);
  OnEveryRank(kWorld, [&](Communicator& in_order) {
    Aborting ranks(in_order, distant);
    StepRunnerOptions options = Options();
    options.micro_batch = 7;
    options.optimizer.kind = optimizer;
    Rank made(ranks, dataset, options, strategy);
    ASSERT_TRUE(made.Step(0, 7)->done);
    ranks.calls = 0;
    if (ranks.rank() == rank) ranks.abort_at = at;
    const auto result = made.Step(1, 7);
    Ended& ended = all[static_cast<std::size_t>(ranks.rank())];
    ended.failed = !result.ok();
    ended.marked = IsCommunicatorFailure(result.status());
    ended.weights = made.Weights();
    if (ranks.rank() == rank && at == -1) calls = ranks.calls, vote = ranks.vote;
  });
  return all;
}

// A collective that is not carried out on one rank is not on any. The vote is the last: nothing of
// the step is left.
TEST(StepRunner, AGroupThatEndsInAnyCollectiveOfAStepLeavesNoRankBehind) {
  std::vector<std::pair<Strategy, OptimizerKind>> rows = {{Strategy::kZero1, OptimizerKind::kLamb},
                                                          {Strategy::kZero3, OptimizerKind::kLars}};
  for (const Strategy strategy : kStrategies) rows.emplace_back(strategy, OptimizerKind::kAdamW);
  for (std::size_t i = 0; i < 2 * rows.size(); ++i) {
    const auto& [strategy, optimizer] = rows[i / 2];
    const bool distant = i % 2 == 1;
    int calls = 0, vote = 0, ignored = 0;
    EndAt(strategy, 0, -1, calls, vote, optimizer, distant);
    const std::vector<Ended> before = EndAt(strategy, 0, 0, ignored, ignored, optimizer, distant);
    ASSERT_EQ(calls, vote + 1);
    for (int at = 0; at < calls; ++at) {
      SCOPED_TRACE(testing::Message() << NameOf(strategy) << ", call " << at << " of " << calls);
      const std::vector<Ended> ended =
          EndAt(strategy, at % 3, at, ignored, ignored, optimizer, distant);
      for (std::size_t r = 0; r < ended.size(); ++r) {
        EXPECT_TRUE(ended[r].failed);
        EXPECT_TRUE(ended[r].marked);
        EXPECT_EQ(ended[r].weights, before[r].weights);
      }
    }
  }
}

// A rank that judged by its own norm would stay behind, and from then on train something else.
TEST(StepRunner, ANormThatIsNotFiniteOnOneRankVoidsTheStepOfAll) {
  const TextDataset dataset(RandomText(), 8);
  for (const Strategy strategy : kStrategies)
    OnEveryRank(3, [&](Communicator& in_order) {
      Forgetful ranks(in_order);
      Rank rank(ranks, dataset, Options(), strategy);
      ASSERT_TRUE(rank.Step(0, 7)->done);
      const std::vector<float> before = rank.Weights();
      ranks.forgets = ranks.rank() == 1;
      const auto lost = rank.Step(1, 7);
      ASSERT_TRUE(lost.ok()) << lost.status();
      EXPECT_FALSE(lost->done);
      EXPECT_TRUE(std::isfinite(lost->loss));
      EXPECT_TRUE(std::isnan(lost->gradient_norm));
      EXPECT_EQ(rank.Weights(), before);
      ranks.forgets = false;
      EXPECT_TRUE(rank.Step(1, 7)->done);
    });
}

// Shares of seven and of eight samples have equal plans, and neither makes the other's batch.
TEST(StepRunner, SharesThatMakeNoBatchEndTheStepOfAll) {
  const TextDataset dataset(RandomText(), 8);
  OnEveryRank(2, [&](Communicator& ranks) {
    StepRunnerOptions options = Options();
    options.batch += ranks.rank();
    Rank rank(ranks, dataset, options);
    const std::vector<float> before = rank.Weights();
    const auto result = rank.Step(0, options.batch);
    EXPECT_EQ(result.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(result.status().message(),
              "the ranks brought 8 samples to a step whose batch is 8 for one of them and 7 for "
              "another");
    EXPECT_EQ(ExitOf(result.status()), WorkerExit::kRanksDisagree);
    EXPECT_EQ(rank.Weights(), before);
    EXPECT_TRUE(ranks.Barrier().ok());  // In step still.
  });
}

TEST(StepRunner, ARankThatCanNotGoOnEndsTheStepOfAll) {
  const TextDataset good(RandomText(), 8);
  for (const auto& [strategy, unreadable] : {std::pair(Strategy::kReplicated, true),
                                             {Strategy::kReplicated, false},
                                             {Strategy::kZero1, true},
                                             {Strategy::kZero2, false},
                                             {Strategy::kZero3, true}}) {
    OnEveryRank(3, [&, strategy = strategy, unreadable = unreadable](Communicator& ranks) {
      const BadDataset bad(unreadable);
      Rank rank(ranks, ranks.rank() == 1 ? static_cast<const Dataset&>(bad) : good, Options(),
                strategy);
      ASSERT_TRUE(rank.Step(0, 7).ok());
      const std::vector<float> before = rank.Weights();
      const auto result = rank.Step(1, 7);
      if (ranks.rank() == 1) {
        EXPECT_EQ(result.status().code(),
                  unreadable ? absl::StatusCode::kUnavailable : absl::StatusCode::kInvalidArgument);
        EXPECT_FALSE(IsCommunicatorFailure(result.status()));
      } else {
        EXPECT_EQ(result.status().code(), absl::StatusCode::kUnavailable);
        EXPECT_TRUE(IsCommunicatorFailure(result.status()));
        EXPECT_NE(std::string(result.status().message()).find("rank 1 is gone"), std::string::npos)
            << result.status();
      }
      EXPECT_EQ(rank.Weights(), before);
    });
  }
}

TEST(StepRunner, EveryRankHearsOfWhatAnyRankBrings) {
  const TextDataset dataset(RandomText(), 8);
  OnEveryRank(3, [&](Communicator& ranks) {
    Rank rank(ranks, dataset, Options());
    for (std::int64_t step = 0; step < 6; ++step) {
      // Step s: rank s has a notice, rank s - 3 could not save.
      const Ballot mine = {.notice = ranks.rank() == step, .busy = ranks.rank() == step - 3};
      const auto result = rank.Step(step, 7, mine);
      ASSERT_TRUE(result.ok());
      EXPECT_EQ(result->any.notice, step < 3);
      EXPECT_EQ(result->any.busy, step >= 3);
    }
  });
}

// What a rank has checked must be what the others carry out.
TEST(StepRunner, RanksThatMadeOtherPlansAreRefusedOnAll) {
  const TextDataset dataset(RandomText(), 8);
  OnEveryRank(3, [&](Communicator& ranks) {
    const Model<float> model = MakeGpt<float>(kModel);
    const ParamLayout layout = *ParamLayout::Replicated(model.UnitSpecs(), 3);
    TrainState state = *TrainState::Create(layout);
    StepRunnerOptions options = Options();
    if (ranks.rank() == 2) options.micro_batch = 3;
    HostDevice host;
    const auto made =
        StepRunner::Create({ranks, ranks, host}, model, layout, dataset, state, options);
    EXPECT_EQ(made.status().code(), absl::StatusCode::kFailedPrecondition) << made.status();
    EXPECT_FALSE(IsCommunicatorFailure(made.status()));
    EXPECT_NE(std::string(made.status().message()).find("the plans that rank 2 has made"),
              std::string::npos)
        << made.status();
    EXPECT_TRUE(ranks.Barrier().ok());  // In step still.
  });
}

#ifdef REGROUP_SEES_ALLOCATIONS
thread_local bool t_watched = false;
thread_local std::size_t t_largest = 0;

bool InsideOnednn() {
  std::array<void*, 32> frames;
  const int depth = backtrace(frames.data(), static_cast<int>(frames.size()));
  for (int i = 0; i < depth; ++i) {
    Dl_info info{};
    if (dladdr(frames[static_cast<std::size_t>(i)], &info) != 0 && info.dli_fname != nullptr &&
        std::strstr(info.dli_fname, "libdnnl") != nullptr) {
      return true;
    }
  }
  return false;
}

void SeeAllocation(const volatile void*, std::size_t bytes) {
  if (!t_watched) return;
  t_watched = false;
  if (bytes > t_largest && !InsideOnednn()) t_largest = bytes;
  t_watched = true;
}
void SeeRelease(const volatile void*) {}

// oneDNN's sgemm packs its operands into memory that it takes anew in each call; nothing of ours.
TEST(StepRunner, AStepAllocatesNothingLargerThanAPage) {
  ASSERT_NE(__sanitizer_install_malloc_and_free_hooks(&SeeAllocation, &SeeRelease), 0);
  const TextDataset dataset(RandomText(), 8);
  std::vector<std::pair<Strategy, OptimizerKind>> rows;
  for (const Strategy strategy : kStrategies) rows.emplace_back(strategy, OptimizerKind::kAdamW);
  for (const OptimizerKind kind : kOptimizers) rows.emplace_back(Strategy::kZero2, kind);
  for (const auto& [strategy, kind] : rows)
    OnEveryRank(2, [&, strategy = strategy, kind = kind](Communicator& ranks) {
      StepRunnerOptions options = Options();
      options.optimizer.kind = kind;
      Rank rank(ranks, dataset, options, strategy);
      ASSERT_TRUE(rank.Step(0, 7).ok());  // Compiles the products of these shapes.
      t_largest = 0;
      t_watched = true;
      for (std::int64_t step = 1; step < 4; ++step) ASSERT_TRUE(rank.Step(step, 7).ok());
      t_watched = false;
      EXPECT_LE(t_largest, 4096u);
      EXPECT_GT(t_largest, 0u);  // The sample ids at least.
    });
}
#endif

}  // namespace
}  // namespace regroup::worker
