#include "worker/train/generate.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/rng.h"
#include "common/base/status_macros.h"
#include "common/base/user_error.h"
#include "common/config/values.h"
#include "worker/checkpoint/restore.h"
#include "worker/comm/in_process_communicator.h"
#include "worker/device/host_device.h"
#include "worker/model/gpt.h"
#include "worker/model/runner.h"
#include "worker/train/model_sizes.h"
#include "worker/train/train_state.h"
#include "worker/train/worker_exit.h"

namespace regroup::worker {
namespace {

absl::Status Unusable(const std::string& directory, const std::string& because) {
  return WithExit(UserError(absl::StatusCode::kFailedPrecondition,
                            absl::StrCat("no usable checkpoint in ", directory), because,
                            "give the --checkpoint-dir of a training run"),
                  WorkerExit::kCheckpointUnusable);
}

struct Trained {
  GptConfig model;
  OptimizerKind optimizer = OptimizerKind::kAdamW;  // Whose state is in the checkpoint too.
};

// Of the newest record that can be read; RestoreNewest then says whether its data can.
absl::StatusOr<Trained> NewestOf(const Repository& repository) {
  ASSIGN_OR_RETURN(const std::vector<std::int64_t> steps, repository.CommittedSteps());
  for (std::int64_t step : steps) {
    const absl::StatusOr<Manifest> manifest = repository.ReadManifest(step);
    if (!manifest.ok()) continue;
    const GptConfig model = GptOf(manifest->model);
    RETURN_IF_ERROR(Validate(model));
    if (manifest->settings.count("data-format") != 0) {
      return absl::FailedPreconditionError(
          "its model was trained on numbered tokens, and only what was trained on text writes "
          "text");
    }
    Trained trained{.model = model};
    for (const OptimizerKind kind : kOptimizers) {
      const auto name = manifest->settings.find("optimizer");
      if (name != manifest->settings.end() && name->second == NameOf(kind))
        trained.optimizer = kind;
    }
    return trained;
  }
  return absl::NotFoundError(absl::StrCat(steps.size(), " commits, none with a readable record"));
}

// Softmax at a temperature; 0 takes the likeliest.
int Draw(std::span<const float> logits, double temperature, Rng& rng) {
  const auto likeliest = std::max_element(logits.begin(), logits.end());
  if (temperature <= 0) return static_cast<int>(likeliest - logits.begin());
  std::vector<double> weights;
  double total = 0;
  for (float x : logits) total += weights.emplace_back(std::exp((x - *likeliest) / temperature));
  double rest = rng.Unit() * total;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if ((rest -= weights[i]) < 0) return static_cast<int>(i);
  }
  return static_cast<int>(likeliest - logits.begin());
}

absl::Status Continue(UnitRunner<float>& runner, Stream& stream, const Model<float>& model,
                      const GptConfig& shape, const GenerateConfig& config) {
  std::vector<std::int32_t> tokens;
  for (char c : config.prompt) tokens.push_back(static_cast<unsigned char>(c));
  std::fwrite(config.prompt.data(), 1, config.prompt.size(), stdout);
  Rng rng(config.seed);
  for (int i = 0; i < config.tokens; ++i) {
    const std::size_t window =
        std::min<std::size_t>(tokens.size(), static_cast<std::size_t>(shape.context));
    MicroBatch batch;
    batch.batch = 1;
    batch.time = static_cast<std::int64_t>(window);
    batch.tokens = std::span(tokens).last(window);
    for (UnitId u = 0; u < static_cast<UnitId>(model.units().size()); ++u)
      RETURN_IF_ERROR(runner.Forward(u, batch));
    RETURN_IF_ERROR(stream.Await());
    const int next = Draw(runner.Logits().last(static_cast<std::size_t>(shape.vocabulary)),
                          config.temperature, rng);
    tokens.push_back(next);
    std::fputc(next, stdout);
  }
  std::fputc('\n', stdout);
  return std::fflush(stdout) == 0 ? absl::OkStatus()
                                  : absl::UnavailableError("standard output cannot be written");
}

}  // namespace

CommandDescription DescribeGenerate() {
  return {
      .name = "generate",
      .summary = "write text with a trained model",
      .usage = "regroup-worker generate --checkpoint DIR [OPTIONS]",
      .text = "Uses the newest commit that verifies.",
      .example =
          "regroup-worker generate --checkpoint ~/checkpoints --prompt 'The licence' --tokens 300",
      .program = "regroup-worker"};
}

void DescribeGenerateFlags(CLI::App& app, GenerateConfig& c) {
  AddText(app, "--checkpoint", c.checkpoint,
          "the --checkpoint-dir of a training, as in --checkpoint ckpt", "DIR");
  AddParsed(app, "--prompt", "TEXT", "a new line", "text to go on from, as in --prompt 'Once'",
            [&c](std::string_view text) {
              c.prompt = std::string(text);
              return absl::OkStatus();
            });
  AddInt(app, "--tokens", c.tokens, 0, 1'000'000, "how many tokens to write, as in --tokens 100");
  AddParsed(
      app, "--temperature", "X", absl::StrFormat("%g", c.temperature),
      "0 takes the likeliest each time, as in --temperature 0.5", [&c](std::string_view text) {
        double value = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        if (error != std::errc() || end != text.data() + text.size() ||
            !(value >= 0 && value <= 100)) {
          return UserError(absl::StatusCode::kInvalidArgument, "not a temperature",
                           "a number from 0 to 100 is", "0.8");
        }
        c.temperature = value;
        return absl::OkStatus();
      });
  AddParsed(app, "--seed", "N", absl::StrCat(c.seed),
            "the same seed gives the same text, as in --seed 7", [&c](std::string_view text) {
              ASSIGN_OR_RETURN(const std::int64_t seed,
                               ParseNumber(text, 0, std::numeric_limits<std::int64_t>::max()));
              c.seed = static_cast<std::uint64_t>(seed);
              return absl::OkStatus();
            });
  ScopeEnvironment(app, "generate");
}

absl::StatusOr<std::optional<GenerateConfig>> ReadGenerateConfig(
    const std::vector<std::string>& args) {
  GenerateConfig config;
  CommandLine line(DescribeGenerate());
  DescribeGenerateFlags(line.app(), config);
  ASSIGN_OR_RETURN(const ParsedLine parsed, line.Parse(args, false));
  if (parsed.help) return std::optional<GenerateConfig>();
  if (!parsed.rest.empty() || config.checkpoint.empty()) {
    return UserError(absl::StatusCode::kInvalidArgument,
                     parsed.rest.empty() ? std::string("--checkpoint is missing")
                                         : absl::StrCat("unexpected word ", parsed.rest[0]),
                     "generate takes flags only, and needs a model",
                     "regroup-worker generate --checkpoint DIR");
  }
  return std::optional<GenerateConfig>(std::move(config));
}

absl::Status Generate(const GenerateConfig& config) {
  const absl::StatusOr<Repository> repository = Repository::Open(config.checkpoint);
  if (!repository.ok()) return WithExit(repository.status(), WorkerExit::kCheckpointUnusable);
  const absl::StatusOr<Trained> trained = NewestOf(*repository);
  if (!trained.ok()) return Unusable(config.checkpoint, std::string(trained.status().message()));
  const GptConfig& shape = trained->model;
  const Model<float> model = MakeGpt<float>(shape);
  ASSIGN_OR_RETURN(const ParamLayout layout, ParamLayout::Replicated(model.UnitSpecs(), 1));
  ASSIGN_OR_RETURN(TrainState state, TrainState::Create(layout, 0, nullptr, trained->optimizer));
  const auto alone = MakeInProcessCommunicators(1);
  const absl::StatusOr<Restored> restored =
      RestoreNewest(*alone[0], *repository, state.Tensors(layout));
  if (!restored.ok() || !restored->manifest)
    return Unusable(config.checkpoint, std::string(restored.status().message()));
  for (const std::string& why : restored->skipped)
    std::fprintf(stderr, "regroup-worker: warning: %s\n", why.c_str());
  HostDevice device;
  const std::unique_ptr<Stream> stream = device.NewStream(StreamKind::kCompute);
  ASSIGN_OR_RETURN(const auto runner,
                   UnitRunner<float>::Create(
                       model, layout, {device, *stream, KernelsFor(BestIsa())},
                       {.batch = 1, .time = shape.context, .logits = true}, state.weights, {}));
  return Continue(*runner, *stream, model, shape, config);
}

}  // namespace regroup::worker
