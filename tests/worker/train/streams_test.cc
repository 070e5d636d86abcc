// A step on a device whose streams go on when they like: every order that the plan's waits allow
// has the same bits, and none of the waits may be missing.

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "tests/worker/device/test_device.h"
#include "tests/worker/train/forwarding.h"
#include "tests/worker/train/step_ranks.h"
#include "worker/comm/host_staged_communicator.h"

namespace regroup::worker {
namespace {

struct Case {
  Sharding sharding;
  int world = 2, micro_batch = 7;
  bool overlaps = true;
  DType type = DType::kF32;
  Recompute recompute = Recompute::kNone;
  OptimizerKind optimizer = OptimizerKind::kAdamW;
  DType reduce_type = DType::kF32, accumulate_type = DType::kF32;
  bool staged = false;  // Tensors go through the host, but where seed is 0.
};

struct Outcome {
  std::vector<double> losses, norms, looks;
  std::vector<std::vector<float>> weights;  // By rank.
  int waits = 0;                            // Of rank 0.
  friend bool operator==(const Outcome& a, const Outcome& b) {
    return a.losses == b.losses && a.norms == b.norms && a.looks == b.looks &&
           a.weights == b.weights;
  }
};

// seed 0: on the host. `forgotten`: see TestDevice; of rank 0.
Outcome TrainOn(const Case& c, std::uint64_t seed, int forgotten = -1) {
  Outcome outcome;
  outcome.weights.resize(static_cast<std::size_t>(c.world));
  const TextDataset dataset(RandomText(), 8);
  OnEveryRank(c.world, [&](Communicator& near) {
    Forwarding ranks(near, c.overlaps);
    StepRunnerOptions options = Options();
    options.micro_batch = c.micro_batch;
    options.recompute = c.recompute;
    options.optimizer.kind = c.optimizer;
    options.reduce_type = c.reduce_type;
    options.accumulate_type = c.accumulate_type;
    const auto number = static_cast<std::size_t>(ranks.rank());
    TestDevice device(seed * 100 + number, number == 0 ? forgotten : -1);
    // What a wait protects is seen without; twice as many schedules are tried in the same time.
    if (forgotten >= 0) device.LeaveMemoryOpen();
    std::unique_ptr<HostStagedCommunicator> staged;
    if (c.staged && seed > 0) staged = *HostStagedCommunicator::Create(ranks, device, 1000);
    Collectives& tensors = staged ? static_cast<Collectives&>(*staged) : ranks;
    Device& computes = seed == 0 ? static_cast<Device&>(Rank::Host()) : device;
    Rank rank({ranks, tensors, computes}, dataset, options, c.sharding, c.type);
    for (std::int64_t step = 0; step < 2; ++step) {
      const auto result = rank.Step(step, options.batch);
      if (!result.ok()) ranks.Abort();
      if (number > 0) continue;
      outcome.losses.push_back(result.ok() ? result->loss : -1);
      outcome.norms.push_back(result.ok() ? result->gradient_norm : -1);
    }
    const auto look = rank.runner->Evaluate(dataset, 4);  // Readers have two places.
    if (number == 0) outcome.looks.push_back(look.value_or(-1));
    outcome.weights[number] = rank.Weights();
    if (number == 0) outcome.waits = device.waits();
  });
  return outcome;
}

TEST(Streams, EveryOrderThatIsAllowedHasTheSameBits) {
  const Case kCases[] = {
      {.sharding = Strategy::kReplicated, .world = 1, .overlaps = false},
      {.sharding = Strategy::kReplicated},
      {.sharding = Strategy::kReplicated, .world = 3, .micro_batch = 2, .type = DType::kBF16},
      {.sharding = Strategy::kZero1, .world = 3, .micro_batch = 2},
      {.sharding = Strategy::kZero1, .overlaps = false, .type = DType::kF16},
      {.sharding = Strategy::kZero2, .world = 3, .optimizer = OptimizerKind::kLamb},
      {.sharding = Strategy::kZero2, .micro_batch = 1, .overlaps = false},
      {.sharding = Strategy::kZero3, .recompute = Recompute::kFull},
      {.sharding = Strategy::kZero3,
       .world = 3,
       .micro_batch = 2,
       .type = DType::kBF16,
       .recompute = Recompute::kSelective},
      {.sharding = {Strategy::kZero3, 0, /*reshard_after_forward=*/false}, .micro_batch = 2},
      {.sharding = {Strategy::kZero3, 0, true, kBlocksAndHead}, .micro_batch = 2},
      {.sharding = {Strategy::kZero3, 2}, .world = 4, .optimizer = OptimizerKind::kLars},
      {.sharding = Strategy::kZero2, .reduce_type = DType::kBF16},
      {.sharding = Strategy::kReplicated, .micro_batch = 2, .reduce_type = DType::kBF16},
      {.sharding = Strategy::kZero3,
       .micro_batch = 2,
       .type = DType::kBF16,
       .reduce_type = DType::kBF16,
       .accumulate_type = DType::kBF16},
      {.sharding = Strategy::kZero2,
       .type = DType::kBF16,
       .optimizer = OptimizerKind::kLamb,
       .reduce_type = DType::kBF16,
       .accumulate_type = DType::kBF16,
       .staged = true},
      {.sharding = Strategy::kZero3, .world = 9},  // Two of them have no sample.
      {.sharding = Strategy::kReplicated, .world = 9},
      {.sharding = Strategy::kReplicated,
       .micro_batch = 2,
       .type = DType::kBF16,
       .reduce_type = DType::kBF16,
       .accumulate_type = DType::kBF16},
      {.sharding = Strategy::kReplicated, .staged = true},
      {.sharding = Strategy::kZero1, .world = 3, .micro_batch = 2, .staged = true},
      {.sharding = Strategy::kZero2, .reduce_type = DType::kBF16, .staged = true},
      {.sharding = {Strategy::kZero3, 2}, .world = 4, .type = DType::kBF16, .staged = true},
  };
  for (const Case& c : kCases) {
    const Outcome expected = TrainOn(c, 0);
    for (std::uint64_t seed = 1; seed <= 10; ++seed) {
      ASSERT_TRUE(TrainOn(c, seed) == expected)
          << c.sharding.Name() << " on " << c.world << ", seed " << seed;
    }
  }
}

// The others are implied by those before, or the host awaits what they are for.
TEST(Streams, AWaitThatIsForgottenShows) {
  constexpr std::uint64_t kSchedules = 4;
  for (const auto& [c, at_least] :
       {std::pair<Case, int>{{.sharding = Strategy::kZero3}, 16},
        {{.sharding = Strategy::kZero1, .micro_batch = 2, .type = DType::kBF16}, 6}}) {
    const Outcome expected = TrainOn(c, 1);
    int shown = 0;
    for (int forgotten = 0; forgotten < expected.waits; ++forgotten) {
      bool shows = false;
      for (std::uint64_t seed = 1; seed <= kSchedules && !shows; ++seed)
        shows = TrainOn(c, seed, forgotten) != expected;
      shown += shows ? 1 : 0;
    }
    EXPECT_GE(shown, at_least) << "of " << expected.waits << ", " << c.sharding.Name();
    RecordProperty("shown", shown);
  }
}

}  // namespace
}  // namespace regroup::worker
