// A rank that is killed before any piece of work of a step, and what the others then have.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "tests/worker/comm/processes.h"
#include "tests/worker/device/dying_device.h"
#include "worker/checkpoint/checksum.h"
#include "worker/data/sampler.h"
#include "worker/kernels/parallel_for.h"
#include "worker/model/gpt.h"
#include "worker/train/step_runner.h"

namespace regroup::worker {

// A kind of plan, and the ranks that carry it out.
struct DeathCase {
  const char* name;
  Strategy strategy = Strategy::kReplicated;
  int group = 0;
  std::vector<int> hosts{};  // Ranks of each; empty: three ranks of one host.
  DType type = DType::kF32;
  int micro_batch = 7;
  Recompute recompute = Recompute::kNone;
  DType reduce_type = DType::kF32;
  bool one_host() const { return hosts.size() < 2; }
  int world() const {
    int ranks = 0;
    for (const int count : hosts) ranks += count;
    return hosts.empty() ? 3 : ranks;
  }
};

inline const std::vector<DeathCase>& DeathCases() {
  static const std::vector<DeathCase> cases = {
      {.name = "ddp"},
      {.name = "ddp, bf16, 2 micro-batches", .type = DType::kBF16, .micro_batch = 2},
      {.name = "zero-1", .strategy = Strategy::kZero1},
      {.name = "zero-1, bf16", .strategy = Strategy::kZero1, .type = DType::kBF16},
      {.name = "zero-2", .strategy = Strategy::kZero2},
      {.name = "zero-3, recomputing", .strategy = Strategy::kZero3, .recompute = Recompute::kFull},
      {.name = "hybrid, 2 x 2", .strategy = Strategy::kZero3, .group = 2, .hosts = {4}},
      {.name = "ddp, 2 hosts", .hosts = {2, 1}},
      {.name = "ddp, exchanging bf16, 3 hosts", .hosts = {1, 1, 1}, .reduce_type = DType::kBF16},
      {.name = "zero-2, 2 hosts", .strategy = Strategy::kZero2, .hosts = {1, 2}},
      {.name = "zero-3, bf16, 3 hosts",
       .strategy = Strategy::kZero3,
       .hosts = {1, 1, 1},
       .type = DType::kBF16},
  };
  return cases;
}

class StepDeaths {
 public:
  static constexpr int kMaxWorld = 4, kSteps = 4;

  struct Survivor {
    int updates = -1;           // That it has made.
    bool whole = false;         // Its weights and moments are those of that many updates.
    bool group_failed = false;  // What its step came back with, and whether that names the dead.
    bool names_the_dead = false;
    double seconds = 0;  // From the death until it was back.
  };

  // Trains without a death first. `case` outlives it.
  explicit StepDeaths(const DeathCase& c) : case_(c) {
    RankProcesses ranks(
        c.world(), [&](int rank, Communicator& group) { return Train(rank, group, -1, 0); },
        std::chrono::seconds(30), nullptr, c.hosts);
    for (const int code : ranks.WaitAll()) CHECK(code == 0);
  }

  std::int64_t PiecesOf(int rank) const { return shared_->pieces[Index(rank)]; }

  // The second step of this rank ends before that piece. The survivors', by rank; the dead one has
  // none. REQUIRES: 0 <= piece < PiecesOf(rank).
  std::vector<Survivor> KillAt(int victim, std::int64_t piece) {
    for (auto& back : shared_->back) back = 0;
    for (auto& updates : shared_->updates) updates = -1;
    RankProcesses ranks(
        case_.world(),
        [&](int rank, Communicator& group) { return Train(rank, group, victim, piece); },
        std::chrono::seconds(30), nullptr, case_.hosts);
    const std::vector<int> codes = ranks.WaitAll();
    CHECK(codes[Index(victim)] == 128 + SIGKILL);
    std::vector<Survivor> survivors(codes.size());
    for (std::size_t r = 0; r < codes.size(); ++r) {
      if (static_cast<int>(r) == victim || codes[r] != 0) continue;
      survivors[r] = {.updates = shared_->updates[r],
                      .whole = shared_->whole[r],
                      .group_failed = shared_->group_failed[r],
                      .names_the_dead = shared_->names_the_dead[r],
                      .seconds = shared_->back[r] - shared_->died};
    }
    return survivors;
  }

 private:
  template <typename T>
  using ByRank = std::array<std::atomic<T>, kMaxWorld>;
  struct Memory {
    ByRank<std::int64_t> pieces{};                       // Of a whole second step.
    std::array<ByRank<std::uint64_t>, kSteps> states{};  // Before each step.
    ByRank<double> back{};
    ByRank<int> updates{};
    ByRank<bool> whole{}, group_failed{}, names_the_dead{};
    std::atomic<double> died{0};
  };
  static std::size_t Index(int i) { return static_cast<std::size_t>(i); }

  static std::uint64_t HashOf(const TrainState& state, const ParamLayout& layout) {
    Xxh3Stream hash;
    for (const StateTensor& tensor : state.Tensors(layout)) {
      for (const StateSlice& slice : tensor.slices) hash.Update(std::as_bytes(slice.data));
    }
    return std::stoull(hash.Hex().substr(0, 16), nullptr, 16);
  }

  int Train(int rank, Communicator& group, int victim, std::int64_t piece) {
    SetThreadCount(1);
    const GptConfig config = {
        .layers = 2, .width = 24, .heads = 3, .vocabulary = 256, .context = 8};
    const TextDataset dataset(std::string(700, 'a') + "the end of a step is not the end", 8);
    const StepRunnerOptions options{.batch = 7,
                                    .micro_batch = case_.micro_batch,
                                    .optimizer = {},
                                    .schedule = {.lr = 1e-2, .min_lr = 1e-3, .total_steps = 6},
                                    .clip = 0.5,
                                    .recompute = case_.recompute,
                                    .reduce_type = case_.reduce_type,
                                    .bucket_bytes = 16 << 10};
    const AnyModel model = MakeGpt(config, case_.type);
    const ParamLayout layout =
        *ParamLayout::Create(UnitSpecs(model), group.world_size(), case_.strategy, case_.group,
                             case_.type != DType::kF32);
    TrainState state = *TrainState::Create(layout, group.rank(), &group, options.optimizer.kind);
    state.InitializeWeights(layout, 3);
    DyingDevice device;
    const auto runner = *std::visit(
        [&](const auto& m) {
          return StepRunner::Create({group, group, device}, m, layout, dataset, state, options);
        },
        model);
    const Sampler sampler(3, dataset.samples());
    for (int step = 0; step < kSteps; ++step) {
      auto& expected = shared_->states[Index(step)][Index(rank)];
      if (victim < 0) expected = HashOf(state, layout);
      const std::int64_t before = device.pieces();
      if (step == 1 && rank == victim)
        device.DieAt(before + piece, [&] { shared_->died = NowSeconds(); });
      const auto result =
          runner->Run(step, sampler.Ids(step * options.batch, options.batch), Ballot{});
      if (!result.ok()) {
        shared_->back[Index(rank)] = NowSeconds();
        return Note(rank, victim, step, result.status(), HashOf(state, layout) == expected);
      }
      if (step == 1) shared_->pieces[Index(rank)] = device.pieces() - before;
    }
    return victim < 0 ? 0 : 1;
  }

  int Note(int rank, int victim, int updates, const absl::Status& status, bool whole) {
    const std::size_t r = Index(rank);
    shared_->updates[r] = updates;
    shared_->whole[r] = whole;
    shared_->group_failed[r] = IsCommunicatorFailure(status);
    shared_->names_the_dead[r] =
        status.message().find("rank " + std::to_string(victim) + " ") != std::string::npos;
    if (!shared_->names_the_dead[r])
      std::fprintf(stderr, "rank %d: %s\n", rank, status.ToString().c_str());
    return 0;
  }

  const DeathCase& case_;
  Shared<Memory> shared_;
};

}  // namespace regroup::worker
