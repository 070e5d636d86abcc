// Times the training step of one rank: forward, backward, norm, clip, AdamW, no communication.
// Prints one JSON line. torch_step.py is the same model on the same numbers in PyTorch.
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/status_macros.h"
#include "worker/device/host_device.h"
#include "worker/kernels/kernels.h"
#include "worker/kernels/parallel_for.h"
#include "worker/layout/layout.h"
#include "worker/model/gpt.h"
#include "worker/model/runner.h"
#include "worker/optim/optimizer.h"
#include "worker/optim/schedule.h"
#include "worker/plan/plan.h"
#include "worker/tensor/arena.h"
#include "worker/tensor/counter_rng.h"

namespace regroup::worker {
namespace {

struct Options {
  GptConfig model;
  std::int64_t batch = 8;
  int micro_batches = 1, steps = 30, warmup = 3, threads = 0;
  std::uint64_t seed = 1;
  std::string isa = "best";
};

constexpr OptimizerConfig kAdamW;
constexpr double kClipNorm = 1.0;

// Sequences in which each token follows from the one before it and one of four random numbers.
void FillBatch(const Options& options, std::int64_t first_sequence,
               std::vector<std::int32_t>& tokens, std::vector<std::int32_t>& targets) {
  const std::int64_t T = options.model.context, V = options.model.vocabulary;
  for (std::int64_t b = 0; b < options.batch; ++b) {
    const RngKey key =
        SeedKey(options.seed).Fold("bench").Fold(static_cast<std::uint64_t>(first_sequence + b));
    auto token = static_cast<std::int64_t>(key.Bits(0) % static_cast<std::uint64_t>(V));
    for (std::int64_t t = 0; t < T; ++t) {
      const auto choice =
          static_cast<std::int64_t>(key.Bits(static_cast<std::uint64_t>(t) + 1) % 4);
      const std::int64_t next = (token * 5 + choice) % V;
      tokens[static_cast<std::size_t>(b * T + t)] = static_cast<std::int32_t>(token);
      targets[static_cast<std::size_t>(b * T + t)] = static_cast<std::int32_t>(next);
      token = next;
    }
  }
}

absl::StatusOr<const Kernels*> ChooseKernels(const std::string& isa) {
  if (isa == "best") return &KernelsFor(BestIsa());
  if (isa == "reference") return &ReferenceKernels<float>();
  for (const auto& [name, level] :
       {std::pair("baseline", Isa::kBaseline), {"v3", Isa::kV3}, {"v4", Isa::kV4}}) {
    if (isa == name && level <= BestIsa()) return &KernelsFor(level);
  }
  return absl::InvalidArgumentError("this CPU has no kernels " + isa);
}

class Bench {
 public:
  static absl::StatusOr<std::unique_ptr<Bench>> Create(const Options& options) {
    RETURN_IF_ERROR(Validate(options.model));
    ASSIGN_OR_RETURN(const Kernels* kernels, ChooseKernels(options.isa));
    Model<float> model = MakeGpt<float>(options.model);
    ASSIGN_OR_RETURN(ParamLayout layout, ParamLayout::Replicated(model.UnitSpecs(), 1));
    std::unique_ptr<Bench> bench(new Bench(options, *kernels, std::move(model), std::move(layout)));
    RETURN_IF_ERROR(bench->Allocate());
    return bench;
  }

  // One step; the mean loss per token.
  absl::StatusOr<double> Step(std::int64_t step) {
    const std::int64_t rows = options_.batch * options_.model.context;
    double grad_scale = 1;
    for (const Instruction& instruction : plan_.instructions) {
      if (instruction.op == Op::kForward && instruction.unit == 0) {
        FillBatch(options_, (step * plan_.micro_batches + instruction.micro_batch) * options_.batch,
                  tokens_, targets_);
      }
      const MicroBatch batch = {.batch = options_.batch,
                                .time = options_.model.context,
                                .tokens = tokens_,
                                .targets = targets_,
                                .loss_scale = 1.0 / static_cast<double>(rows * plan_.micro_batches),
                                .adds_loss = instruction.micro_batch > 0,
                                .backward = true};
      switch (instruction.op) {
        case Op::kForward: RETURN_IF_ERROR(runner_->Forward(instruction.unit, batch)); break;
        case Op::kBackward:
          runner_->Backward(instruction.unit, instruction.part, batch,
                            AddsOf(plan_, layout_, instruction.unit, instruction.micro_batch));
          break;
        case Op::kSumSquares:
          optimizer_->SumSquares(&sum_squares_);
          RETURN_IF_ERROR(stream_->Await());
          grad_scale = ClipScale(sum_squares_, kClipNorm);
          break;
        case Op::kStep:
          optimizer_->Step(
              instruction.unit,
              {.step = step, .lr = LearningRate(schedule_, step), .grad_scale = grad_scale});
          break;
        case Op::kGather:
        case Op::kAwaitGather:
        case Op::kFree:
        case Op::kRound:
        case Op::kRecompute:
        case Op::kZeroGrad:
        case Op::kReduceGrad:
        case Op::kAwaitGrad:
        case Op::kVote:
        case Op::kCommit: break;  // This rank is alone and has samples.
      }
    }
    return runner_->LossSum() / static_cast<double>(rows * plan_.micro_batches);
  }

  // A backward pass costs twice the forward pass.
  double flops() const { return 3 * plan_.micro_batches * runner_->forward_flops(); }
  const ParamLayout& layout() const { return layout_; }
  const Kernels& kernels() const { return kernels_; }

 private:
  Bench(const Options& options, const Kernels& kernels, Model<float> model, ParamLayout layout)
      : options_(options),
        kernels_(kernels),
        model_(std::move(model)),
        layout_(std::move(layout)) {}

  absl::Status Allocate() {
    const auto elements = static_cast<std::size_t>(layout_.flat_elements());
    ASSIGN_OR_RETURN(arena_, Arena::Create(4 * Arena::Footprint<float>(elements)));
    const auto weights = arena_.Take<float>(elements), gradients = arena_.Take<float>(elements);
    const auto first = arena_.Take<float>(elements), second = arena_.Take<float>(elements);
    InitializeWeights<float>(layout_, options_.seed, weights);
    const Compute<float> compute{device_, *stream_, kernels_};
    ASSIGN_OR_RETURN(runner_, UnitRunner<float>::Create(model_, layout_, compute,
                                                        {options_.batch, options_.model.context},
                                                        weights, gradients));
    ASSIGN_OR_RETURN(optimizer_, Optimizer<float>::Create(layout_, kAdamW, compute,
                                                          {weights, gradients, {first, second}}));
    ASSIGN_OR_RETURN(plan_, MakePlan(layout_, {.micro_batches = options_.micro_batches}));
    RETURN_IF_ERROR(CheckPlan(layout_, std::span(&plan_, 1)));
    schedule_ = {.lr = 1e-3, .min_lr = 1e-4, .warmup_steps = 10, .total_steps = 1000};
    const auto rows = static_cast<std::size_t>(options_.batch * options_.model.context);
    tokens_.resize(rows);
    targets_.resize(rows);
    return absl::OkStatus();
  }

  const Options options_;
  const Kernels& kernels_;
  const Model<float> model_;
  const ParamLayout layout_;
  Arena arena_;
  HostDevice device_;
  const std::unique_ptr<Stream> stream_ = device_.NewStream(StreamKind::kCompute);
  double sum_squares_ = 0;
  std::unique_ptr<UnitRunner<float>> runner_;
  std::unique_ptr<Optimizer<float>> optimizer_;
  Plan plan_;
  Schedule schedule_;
  std::vector<std::int32_t> tokens_, targets_;
};

std::int64_t MinorFaults() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

absl::StatusOr<nlohmann::ordered_json> Measure(const Options& options) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Bench> bench, Bench::Create(options));
  std::vector<double> losses, milliseconds;
  std::int64_t faults = 0;
  for (int step = 0; step < options.warmup + options.steps; ++step) {
    if (step == options.warmup) faults = MinorFaults();
    const auto start = std::chrono::steady_clock::now();
    ASSIGN_OR_RETURN(const double loss, bench->Step(step));
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    losses.push_back(loss);
    if (step >= options.warmup) milliseconds.push_back(took.count());
  }
  faults = MinorFaults() - faults;
  std::sort(milliseconds.begin(), milliseconds.end());
  const auto n = milliseconds.size();
  const GptConfig& m = options.model;
  const double tokens = static_cast<double>(options.batch * m.context * options.micro_batches);
  return nlohmann::ordered_json{
      {"name", "train step"},
      {"unit", "ms"},
      {"n", n},
      {"p50", milliseconds[n / 2]},
      {"p99", milliseconds[std::min(n - 1, n * 99 / 100)]},
      {"max", milliseconds[n - 1]},
      {"min", milliseconds[0]},
      {"tokens_per_s", tokens / milliseconds[n / 2] * 1e3},
      {"gflop_per_s", bench->flops() / milliseconds[n / 2] / 1e6},
      {"page_faults_per_step", static_cast<double>(faults) / static_cast<double>(n)},
      {"setup",
       {{"engine", "regroup"},
        {"kernels", bench->kernels().name},
        {"threads", ThreadCount()},
        {"layers", m.layers},
        {"width", m.width},
        {"heads", m.heads},
        {"vocabulary", m.vocabulary},
        {"batch", options.batch},
        {"time", m.context},
        {"micro_batches", options.micro_batches},
        {"parameters", bench->layout().param_elements()},
        {"dtype", "f32"},
        {"optimizer", "adamw, clip 1"}}},
      {"losses", losses}};
}

int Run(int argc, char** argv) {
  Options options;
  CLI::App app("Times the training step of one rank.");
  app.add_option("--layers", options.model.layers);
  app.add_option("--width", options.model.width);
  app.add_option("--heads", options.model.heads);
  app.add_option("--vocabulary", options.model.vocabulary);
  app.add_option("--time", options.model.context, "tokens of a sequence");
  app.add_option("--batch", options.batch, "sequences of a micro-batch");
  app.add_option("--micro-batches", options.micro_batches);
  app.add_option("--steps", options.steps, "measured steps")->check(CLI::PositiveNumber);
  app.add_option("--warmup", options.warmup, "steps before the measured ones");
  app.add_option("--threads", options.threads, "0: OMP_NUM_THREADS or all cores");
  app.add_option("--seed", options.seed);
  app.add_option("--isa", options.isa, "best, v4, v3, baseline or reference");
  CLI11_PARSE(app, argc, argv);
  if (options.threads > 0) SetThreadCount(options.threads);
  const absl::StatusOr<nlohmann::ordered_json> row = Measure(options);
  if (!row.ok()) {
    std::fprintf(stderr, "error: %s\n", row.status().ToString().c_str());
    return 1;
  }
  std::printf("%s\n", row->dump().c_str());
  return 0;
}

}  // namespace
}  // namespace regroup::worker

int main(int argc, char** argv) { return regroup::worker::Run(argc, argv); }
