// Backwards that go on while gradients are reduced: on a stream of calls, over ranks that answer
// when they like.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "tests/worker/train/forwarding.h"
#include "tests/worker/train/step_ranks.h"

namespace regroup::worker {
namespace {

// Any of its calls takes a moment, or none.
class Slow final : public Forwarding {
 public:
  explicit Slow(Communicator& ranks)
      : Forwarding(ranks, /*distant=*/true), rng_(static_cast<std::uint64_t>(ranks.rank()) + 7) {}

 private:
  void Before() override {
    if (rng_.Below(2) == 0)
      std::this_thread::sleep_for(std::chrono::microseconds(rng_.Below(2000)));
  }
  Rng rng_;
};

struct Row {
  DType type = DType::kF32;
  int world = 2, micro_batch = 7;
};

TEST(Overlap, TrainsToTheSameBits) {
  const TextDataset dataset(RandomText(), 8);
  // The fourth has ranks that begin a bucket before others are done with the one before.
  for (const Row& row : {Row{.world = 2},
                         {.world = 3, .micro_batch = 2},
                         {.type = DType::kBF16, .world = 2},
                         {.world = 4},
                         {.world = 9}}) {
    const Course expected = TrainBy(Strategy::kReplicated, row.world, row.micro_batch, row.type)[0];
    for (const Sharding& sharding : ShardingsOf(row.world)) {
      SCOPED_TRACE(testing::Message() << sharding.Name() << " on " << row.world);
      OnEveryRank(row.world, [&](Communicator& quick) {
        Slow ranks(quick);
        StepRunnerOptions options = Options();
        options.micro_batch = row.micro_batch;
        Rank rank(ranks, dataset, options, sharding, row.type);
        for (std::int64_t step = 0; step < 6; ++step) {
          const auto result = rank.Step(step, options.batch);
          ASSERT_TRUE(result.ok()) << result.status();
          EXPECT_EQ(result->loss, expected.losses[static_cast<std::size_t>(step)]);
          EXPECT_EQ(result->gradient_norm, expected.norms[static_cast<std::size_t>(step)]);
        }
        const std::vector<StateTensor> tensors = rank.state.Tensors(rank.layout);
        for (std::size_t t = 0; t < tensors.size(); ++t) {
          for (const StateSlice& s : tensors[t].slices) {
            ASSERT_TRUE(
                std::equal(s.data.begin(), s.data.end(), expected.held[t].data.begin() + s.begin))
                << "tensor " << t << " from element " << s.begin;
          }
        }
      });
    }
  }
}

// Evaluations end behind the last forward: nothing that a backward would need is under way then.
TEST(Overlap, LooksFindTheSameLoss) {
  const TextDataset dataset(RandomText(), 8);
  for (const Sharding& sharding : ShardingsOf(4)) {
    std::vector<double> losses[2];
    for (const bool distant : {false, true}) {
      OnEveryRank(4, [&](Communicator& quick) {
        Slow slow(quick);
        Communicator& ranks = distant ? slow : quick;
        StepRunnerOptions options = Options();
        options.micro_batch = 1;
        Rank rank(ranks, dataset, options, sharding);
        for (std::int64_t step = 0; step < 3; ++step) {
          ASSERT_TRUE(rank.Step(step, options.batch).ok());
          const auto loss = rank.runner->Evaluate(dataset, 3);
          ASSERT_TRUE(loss.ok()) << loss.status();
          if (ranks.rank() == 3) losses[distant].push_back(*loss);
        }
      });
    }
    EXPECT_EQ(losses[0].size(), 3u);
    EXPECT_EQ(losses[0], losses[1]) << sharding.Name();
  }
}

// Whose calls take long.
class Lingering final : public Forwarding {
 public:
  explicit Lingering(Communicator& ranks) : Forwarding(ranks, /*distant=*/true) {}
  std::atomic<int> begun{0}, over{0};

 private:
  void Before() override {
    ++begun;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ++over;
  }
};

// Whoever called it may end the communicator, or call it himself.
TEST(Overlap, NothingOfAFailedStepGoesOnAfterIt) {
  const TextDataset good(RandomText(), 8);
  OnEveryRank(2, [&](Communicator& quick) {
    Lingering ranks(quick);
    const BadDataset bad(/*unreadable=*/false);
    Rank rank(ranks, ranks.rank() == 1 ? static_cast<const Dataset&>(bad) : good, Options(),
              Strategy::kZero3);
    ASSERT_TRUE(rank.Step(0, 7).ok());
    const auto result = rank.Step(1, 7);
    const int begun = ranks.begun;
    EXPECT_EQ(ranks.over, begun);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_EQ(ranks.begun, begun);
    EXPECT_EQ(result.status().code(), ranks.rank() == 1 ? absl::StatusCode::kInvalidArgument
                                                        : absl::StatusCode::kUnavailable);
  });
}

}  // namespace
}  // namespace regroup::worker
