// One step of all ranks together, on threads of the test.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "common/base/rng.h"
#include "tests/worker/train/forwarding.h"
#include "worker/comm/in_process_communicator.h"
#include "worker/data/sampler.h"
#include "worker/device/host_device.h"
#include "worker/kernels/parallel_for.h"
#include "worker/model/gpt.h"
#include "worker/train/step_runner.h"

namespace regroup::worker {

inline constexpr GptConfig kModel = {
    .layers = 2, .width = 24, .heads = 3, .vocabulary = 256, .context = 8};
inline constexpr std::uint64_t kSeed = 3;
inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

inline std::string RandomText() {
  Rng rng(5);
  std::string text;
  for (int i = 0; i < 700; ++i) text += static_cast<char>('a' + rng.Below(1 + rng.Below(26)));
  return text;
}

inline constexpr Strategy kStrategies[] = {Strategy::kReplicated, Strategy::kZero1,
                                           Strategy::kZero2, Strategy::kZero3};

// Fails after three reads, or has a token then that the vocabulary has not.
class BadDataset final : public Dataset {
 public:
  explicit BadDataset(bool unreadable) : unreadable_(unreadable), text_(RandomText(), 8) {}
  std::int64_t samples() const override { return text_.samples(); }
  int vocabulary() const override { return text_.vocabulary(); }
  int context() const override { return text_.context(); }
  absl::Status Read(std::int64_t sample, std::span<std::int32_t> tokens,
                    std::span<std::int32_t> targets) const override {
    // The code is one that a communicator fails with too.
    if (++reads_ > 3 && unreadable_) return absl::UnavailableError("the disk gave out");
    const absl::Status read = text_.Read(sample, tokens, targets);
    if (reads_ > 3) tokens[2] = 256;
    return read;
  }
  absl::StatusOr<std::uint64_t> Fingerprint() override { return 0; }

 private:
  const bool unreadable_;
  const TextDataset text_;
  mutable int reads_ = 0;  // One rank's.
};

// What is divided, among how many ranks.
struct Sharding {
  // NOLINTNEXTLINE(google-explicit-constructor)
  Sharding(Strategy what, int ranks = 0, bool reshard_after_forward = true, WrapPolicy policy = {})
      : strategy(what), group(ranks), reshard(reshard_after_forward), wrap(std::move(policy)) {}
  std::string Name() const {
    return std::string(NameOf(strategy)) + "/" + std::to_string(group) + (reshard ? "" : " kept") +
           " " + ToString(wrap);
  }
  Strategy strategy;
  int group;
  bool reshard;
  WrapPolicy wrap;
};
// All but the embedding together.
inline const WrapPolicy kBlocksAndHead{
    .kind = WrapPolicy::Kind::kList, .parameters = 0, .begins = {"block.0"}};
inline std::vector<Sharding> ShardingsOf(int world) {
  std::vector<Sharding> shardings(std::begin(kStrategies), std::end(kStrategies));
  shardings.emplace_back(Strategy::kZero3, 0, /*reshard_after_forward=*/false);
  shardings.emplace_back(Strategy::kZero3, 0, /*reshard_after_forward=*/true, kBlocksAndHead);
  for (int group = 2; group < world; ++group) {
    for (const Strategy strategy : {Strategy::kZero1, Strategy::kZero2, Strategy::kZero3})
      if (world % group == 0) shardings.emplace_back(strategy, group);
  }
  return shardings;
}

// One rank's part of a world, as Trainer::Build makes it.
struct Rank {
  Rank(Communicator& ranks, const Dataset& dataset, const StepRunnerOptions& options,
       const Sharding& sharding = Strategy::kReplicated, DType type = DType::kF32,
       Device* device = nullptr)
      : Rank({ranks, ranks, device == nullptr ? Host() : *device}, dataset, options, sharding,
             type) {}
  Rank(const Backend& backend, const Dataset& dataset, StepRunnerOptions options,
       const Sharding& sharding = Strategy::kReplicated, DType type = DType::kF32)
      : model(MakeGpt(kModel, type)),
        layout(*ParamLayout::Create(UnitSpecs(model), backend.group.world_size(), sharding.strategy,
                                    sharding.group, type != DType::kF32)),
        state(*TrainState::Create(layout, backend.group.rank(), &backend.tensors,
                                  options.optimizer.kind, &backend.device)),
        sampler(kSeed, dataset.samples()) {
    state.InitializeWeights(layout, kSeed);
    EXPECT_TRUE(state.CopyToDevice().ok());
    options.reshard_after_forward = sharding.reshard;
    options.wrap = sharding.wrap;
    auto made = std::visit(
        [&](const auto& m) {
          return StepRunner::Create(backend, m, layout, dataset, state, options);
        },
        model);
    EXPECT_TRUE(made.ok()) << made.status();
    runner = *std::move(made);
  }
  absl::StatusOr<StepResult> Step(std::int64_t step, int batch, const Ballot& ballot = {}) {
    return runner->Run(step, sampler.Ids(step * batch, batch), ballot,
                       sampler.Ids((step + 1) * batch, batch));
  }
  // The weights that it steps.
  std::vector<float> Weights() const {
    std::vector<float> weights;
    EXPECT_TRUE(state.CopyToHost().ok());
    const std::vector<StateTensor> tensors = state.Tensors(layout);
    for (std::size_t p = 0; p < layout.params().size(); ++p) {
      for (const StateSlice& slice : tensors[p].slices)
        weights.insert(weights.end(), slice.data.begin(), slice.data.end());
    }
    return weights;
  }
  std::vector<float> Of(std::span<const float> flat, const ParamPlace& place) const {
    const auto begin = flat.begin() + place.flat.begin;
    return {begin, begin + place.flat.size};
  }

  static HostDevice& Host() {
    static HostDevice host;
    return host;
  }

  const AnyModel model;
  const ParamLayout layout;
  TrainState state;
  const Sampler sampler;
  std::unique_ptr<StepRunner> runner;
};

// So that buckets end between the parts of a block too.
inline constexpr std::int64_t kBucketBytes = 16 << 10;

// Seven samples in micro-batches of two: no world divides them, and every rank accumulates.
inline StepRunnerOptions Options() {
  return {.batch = 7,
          .micro_batch = 2,
          .optimizer = {},
          .schedule = {.lr = 1e-2, .min_lr = 1e-3, .warmup_steps = 2, .total_steps = 6},
          .clip = 0.5,
          .gradient_factor = 1,
          .bucket_bytes = kBucketBytes};
}

inline void OnEveryRank(int world, const std::function<void(Communicator&)>& body) {
  auto ranks = MakeInProcessCommunicators(world);
  std::vector<std::thread> threads;
  for (auto& rank : ranks) {
    threads.emplace_back([&body, communicator = std::move(rank)]() mutable {
      SetThreadCount(1);
      body(*communicator);
      communicator.reset();  // As a process that ends.
    });
  }
  for (std::thread& t : threads) t.join();
}

struct Trained {
  std::vector<double> losses, norms;
  std::vector<std::vector<float>> gradients, weights;  // By parameter; after one step, after all.
  std::vector<float> flat;
};

// What every rank of a world has after six steps.
inline std::vector<Trained> Train(int world, double factor_of_last_rank = 1,
                                  DType type = DType::kF32) {
  std::vector<Trained> all(static_cast<std::size_t>(world));
  const TextDataset dataset(RandomText(), 8);
  OnEveryRank(world, [&](Communicator& ranks) {
    StepRunnerOptions options = Options();
    if (ranks.rank() == world - 1) options.gradient_factor = factor_of_last_rank;
    Rank rank(ranks, dataset, options, Strategy::kReplicated, type);
    Trained& trained = all[static_cast<std::size_t>(ranks.rank())];
    for (std::int64_t step = 0; step < 6; ++step) {
      const auto result = rank.Step(step, options.batch);
      ASSERT_TRUE(result.ok()) << result.status();
      ASSERT_TRUE(result->done);
      trained.losses.push_back(result->loss);
      trained.norms.push_back(result->gradient_norm);
      for (const ParamPlace& place : rank.layout.params()) {
        // The first moment of the first step is the clipped gradient, times 1 - beta1.
        if (step == 0) trained.gradients.push_back(rank.Of(rank.state.slots[0], place));
        if (step == 5) trained.weights.push_back(rank.Of(rank.state.weights, place));
      }
    }
    trained.flat.assign(rank.state.weights.begin(), rank.state.weights.end());
  });
  return all;
}

// What one rank holds of one tensor after six steps.
struct Held {
  std::size_t tensor = 0;
  std::int64_t begin = 0;
  std::vector<float> data;
};
struct Course {
  std::vector<double> losses, norms;
  std::vector<Held> held;
  std::int64_t state_elements = 0, step_bytes = 0;
};

inline std::vector<Course> TrainBy(const Sharding& sharding, int world, int micro_batch,
                                   DType type = DType::kF32, Recompute recompute = Recompute::kNone,
                                   OptimizerKind optimizer = OptimizerKind::kAdamW,
                                   bool overlaps = false, DType accumulate_type = DType::kF32,
                                   std::int64_t bucket_bytes = kBucketBytes) {
  std::vector<Course> all(static_cast<std::size_t>(world));
  const TextDataset dataset(RandomText(), 8);
  OnEveryRank(world, [&](Communicator& near) {
    Forwarding far(near, /*distant=*/true);
    Communicator& ranks = overlaps ? far : near;
    StepRunnerOptions options = Options();
    options.micro_batch = micro_batch;
    options.recompute = recompute;
    options.optimizer.kind = optimizer;
    options.accumulate_type = options.reduce_type = accumulate_type;
    options.bucket_bytes = bucket_bytes;
    // LARS goes a thousandth of a tensor's norm times this.
    if (optimizer == OptimizerKind::kLars) options.schedule.lr = 1;
    Rank rank(ranks, dataset, options, sharding, type);
    Course& share = all[static_cast<std::size_t>(ranks.rank())];
    for (std::int64_t step = 0; step < 6; ++step) {
      const auto result = rank.Step(step, options.batch);
      ASSERT_TRUE(result.ok()) << result.status();
      ASSERT_TRUE(result->done);
      share.losses.push_back(result->loss);
      share.norms.push_back(result->gradient_norm);
    }
    const std::vector<StateTensor> tensors = rank.state.Tensors(rank.layout);
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      for (const StateSlice& s : tensors[t].slices)
        share.held.push_back({t, s.begin, {s.data.begin(), s.data.end()}});
    }
    for (const Held& h : share.held)
      share.state_elements += static_cast<std::int64_t>(h.data.size());
    share.step_bytes = rank.runner->memory_bytes();
  });
  return all;
}

}  // namespace regroup::worker
