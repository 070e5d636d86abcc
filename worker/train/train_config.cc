#include "worker/train/train_config.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/base/user_error.h"
#include "common/config/text.h"
#include "common/config/values.h"
#include "common/io/files.h"
#include "worker/train/worker_exit.h"

namespace regroup::worker {
namespace {

constexpr std::size_t kMaxConfigBytes = 1 << 20;
constexpr int kMax = std::numeric_limits<int>::max();
constexpr int kMaxSize = 1 << 24;
constexpr double kMaxRate = 1e3;

absl::Status Refuse(const std::string& what, const std::string& because,
                    const std::string& try_this) {
  return UserError(absl::StatusCode::kInvalidArgument, what, because, try_this);
}

void AddReal(CLI::App& app, std::string_view names, double& value, double min, double max,
             std::string_view help) {
  AddParsed(app, names, "X", absl::StrFormat("%g", value), help,
            [&value, min, max](std::string_view text) {
              double number = 0;
              const auto [end, error] =
                  std::from_chars(text.data(), text.data() + text.size(), number);
              if (error != std::errc() || end != text.data() + text.size() ||
                  !(number >= min && number <= max)) {
                return Refuse(Cat("\"", text, "\" is not accepted"),
                              absl::StrFormat("a number from %g to %g is", min, max), "");
              }
              value = number;
              return absl::OkStatus();
            });
}

absl::Status AddPaths(std::string_view text, std::vector<std::string>& paths) {
  paths = absl::StrSplit(std::string(text), ',', absl::SkipEmpty());
  if (paths.empty())
    return Refuse("no path given", Cat("\"", text, "\" holds none"), "/usr/share/common-licenses");
  return absl::OkStatus();
}

constexpr DeviceChoice kDevices[] = {DeviceChoice::kAuto, DeviceChoice::kCpu, DeviceChoice::kCuda};
constexpr Transport kTransports[] = {Transport::kAuto, Transport::kNccl, Transport::kHost};
const char* NameOf(DeviceChoice device) {
  switch (device) {
    case DeviceChoice::kAuto: return "auto";
    case DeviceChoice::kCpu: return "cpu";
    case DeviceChoice::kCuda: return "cuda";
  }
  return "?";
}
const char* NameOf(Transport transport) {
  switch (transport) {
    case Transport::kAuto: return "auto";
    case Transport::kNccl: return "nccl";
    case Transport::kHost: return "host";
  }
  return "?";
}

constexpr char kBestKernels[] = "auto", kBestPrecision[] = "auto";

absl::Status ChooseKernels(std::string_view text, std::optional<Isa>& kernels) {
  if (text == kBestKernels) {
    kernels.reset();
    return absl::OkStatus();
  }
  for (const Isa isa : {Isa::kBaseline, Isa::kV3, Isa::kV4}) {
    if (text != NameOf(isa)) continue;
    if (isa > BestIsa()) {
      return Refuse(Cat("this CPU has no kernels ", text), Cat("its best are ", NameOf(BestIsa())),
                    NameOf(BestIsa()));
    }
    kernels = isa;
    return absl::OkStatus();
  }
  return Refuse(Cat("\"", text, "\" is not accepted"),
                Cat(kBestKernels, ", ", NameOf(Isa::kBaseline), ", ", NameOf(Isa::kV3), " and ",
                    NameOf(Isa::kV4), " are"),
                kBestKernels);
}

absl::Status ChooseBool(std::string_view text, bool& value) {
  if (text != "true" && text != "false")
    return Refuse(Cat("\"", text, "\" is not accepted"), "true and false are", "true");
  value = text == "true";
  return absl::OkStatus();
}

absl::Status ChooseWrap(std::string_view text, WrapPolicy& wrap) {
  const std::size_t colon = text.find(':');
  const std::string_view kind = text.substr(0, colon);
  const std::string of(colon == text.npos ? "" : text.substr(colon + 1));
  WrapPolicy said;
  if (kind == "size" && !of.empty()) {
    said.kind = WrapPolicy::Kind::kSize;
    ASSIGN_OR_RETURN(said.parameters, ParseNumber(of, 1, std::numeric_limits<std::int64_t>::max()));
  } else if (kind == "list" && !of.empty()) {
    said.kind = WrapPolicy::Kind::kList;
    said.begins = absl::StrSplit(of, ',');
  } else if (text != "block") {
    return Refuse(Cat("\"", text, "\" is not accepted"), "block, size:N and list:UNITS are",
                  "block");
  }
  wrap = std::move(said);
  return absl::OkStatus();
}

// By the names of ZeRO's paper and by those of PyTorch's, in any case, with - or _.
absl::Status ChooseStrategy(std::string_view text, TrainConfig& config) {
  static constexpr std::pair<std::string_view, Strategy> kNames[] = {
      {"ddp", Strategy::kReplicated},      {"no-shard", Strategy::kReplicated},
      {"zero-1", Strategy::kZero1},        {"zero-2", Strategy::kZero2},
      {"shard-grad-op", Strategy::kZero2}, {"zero-3", Strategy::kZero3},
      {"full-shard", Strategy::kZero3},    {"hybrid-shard", Strategy::kZero3}};
  std::string name;
  for (const char c : text) name += c == '_' ? '-' : absl::ascii_tolower(c);
  for (const auto& [known, value] : kNames) {
    if (name != known) continue;
    config.strategy = value;
    config.hybrid = known == "hybrid-shard";
    return absl::OkStatus();
  }
  return Refuse(Cat("\"", text, "\" is not accepted"),
                "ddp, zero-1, zero-2 and zero-3 are, and so are no-shard, shard-grad-op, "
                "full-shard and hybrid-shard",
                NameOf(Strategy::kReplicated));
}

// One of `all`, each of which NameOf names.
template <typename Kind, std::size_t kCount>
absl::Status ChooseByName(std::string_view text, const Kind (&all)[kCount], Kind& kind) {
  std::vector<std::string> names;
  for (const Kind known : all) {
    names.emplace_back(NameOf(known));
    if (text != names.back()) continue;
    kind = known;
    return absl::OkStatus();
  }
  const std::string last = names.back();
  names.pop_back();
  return Refuse(Cat("\"", text, "\" is not accepted"),
                Cat(absl::StrJoin(names, ", "), " and ", last, " are"), names[0]);
}

absl::Status ChooseSwitch(std::string_view text, bool& on) {
  if (text != "on" && text != "off")
    return Refuse(Cat("\"", text, "\" is not accepted"), "on and off are", "on");
  on = text == "on";
  return absl::OkStatus();
}

// By these names, and by those that DeepSpeed and Transformers have for them.
absl::Status ChooseSchedule(std::string_view text, ScheduleKind& schedule) {
  static constexpr std::pair<std::string_view, ScheduleKind> kOthers[] = {
      {"warmuplr", ScheduleKind::kWarmup},
      {"warmupdecaylr", ScheduleKind::kWarmupDecay},
      {"constant-with-warmup", ScheduleKind::kConstant}};
  std::string name;
  for (const char c : text) name += c == '_' ? '-' : absl::ascii_tolower(c);
  for (const auto& [known, value] : kOthers) {
    if (name == known) name = NameOf(value);
  }
  const absl::Status chosen = ChooseByName(name, kSchedules, schedule);
  return chosen.ok() ? chosen : ChooseByName(text, kSchedules, schedule);  // As it was typed.
}

absl::Status ChooseDataFormat(std::string_view text, DataFormat& format) {
  static constexpr std::pair<std::string_view, DataFormat> kNames[] = {
      {"auto", DataFormat::kAuto},
      {"text", DataFormat::kText},
      {"llm.c", DataFormat::kLlmC},
      {"nanogpt", DataFormat::kNanoGpt}};
  for (const auto& [known, value] : kNames) {
    if (text != known) continue;
    format = value;
    return absl::OkStatus();
  }
  return Refuse(Cat("\"", text, "\" is not accepted"), "auto, text, llm.c and nanogpt are", "auto");
}

absl::Status ChoosePrecision(std::string_view text, std::optional<DType>& precision) {
  if (text == kBestPrecision) {
    precision.reset();
    return absl::OkStatus();
  }
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    if (text != NameOf(type)) continue;
    precision = type;
    return absl::OkStatus();
  }
  return Refuse(Cat("\"", text, "\" is not accepted"), "f32, bf16, f16 and auto are",
                NameOf(DType::kF32));
}

absl::Status ChooseGradientType(std::string_view text, std::optional<DType>& chosen) {
  for (const DType type : {DType::kF32, DType::kBF16}) {
    if (text != NameOf(type)) continue;
    chosen = type;
    return absl::OkStatus();
  }
  return Refuse(Cat("\"", text, "\" is not accepted"),
                "f32 and bf16 are; sums of gradients can be larger than any f16",
                NameOf(DType::kF32));
}

absl::Status ChooseGradientType(std::string_view text, DType& chosen) {
  std::optional<DType> type;
  RETURN_IF_ERROR(ChooseGradientType(text, type));
  chosen = *type;
  return absl::OkStatus();
}

absl::Status ChooseRecompute(std::string_view text, Recompute& recompute) {
  for (const Recompute level : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
    if (text != NameOf(level)) continue;
    recompute = level;
    return absl::OkStatus();
  }
  return Refuse(Cat("\"", text, "\" is not accepted"), "none, selective and full are",
                NameOf(Recompute::kNone));
}

// A scalar, or a list of them joined by commas.
absl::StatusOr<std::string> TextOf(const YAML::Node& node) {
  if (node.IsScalar()) return node.Scalar();
  std::vector<std::string> items;
  for (const YAML::Node& item : node) {
    if (!node.IsSequence() || !item.IsScalar())
      return absl::InvalidArgumentError("neither a value nor a list of values");
    items.push_back(item.Scalar());
  }
  return absl::StrJoin(items, ",");
}

// The file as the flags it stands for.
absl::StatusOr<std::vector<std::string>> ReadConfigFile(const std::string& path,
                                                        const CommandDescription& known) {
  const absl::StatusOr<std::string> text = io::ReadNamedFile(path, kMaxConfigBytes);
  if (!text.ok()) {
    return Refuse(Cat("cannot read the configuration ", path), std::string(text.status().message()),
                  "regroup-worker train --config FILE");
  }
  std::vector<std::string> names, args;
  std::set<std::string> given;
  for (const FlagDescription& flag : known.flags) names.push_back(flag.names.back().substr(2));
  try {
    const std::vector<YAML::Node> documents = YAML::LoadAll(*text);
    if (documents.size() > 1) {
      return Refuse(Cat(path, ":", documents[1].Mark().line + 1, ": a second document"),
                    Cat("a configuration is one, and this has ", documents.size()), "");
    }
    if (documents.empty() || documents[0].IsNull()) return args;
    const YAML::Node& root = documents[0];
    if (!root.IsMap())
      return Refuse(Cat(path, " is no configuration"),
                    "its top level is not a list of `name: value`", "");
    for (const auto& field : root) {
      std::string name = field.first.IsScalar() ? field.first.Scalar() : "?";
      const std::string where = Cat(path, ":", field.first.Mark().line + 1);
      std::replace(name.begin(), name.end(), '_', '-');
      if (std::find(names.begin(), names.end(), name) == names.end() || name == "config") {
        const std::string nearest = DidYouMean(name, names);
        return Refuse(Cat(where, ": unknown field ", name),
                      nearest.empty() ? "" : Cat("did you mean ", nearest, "?"),
                      "regroup-worker train --help");
      }
      if (!given.insert(name).second) {
        return Refuse(Cat(where, ": ", name, " is given twice"), "only one value can count", "");
      }
      const absl::StatusOr<std::string> value = TextOf(field.second);
      if (!value.ok() || value->empty()) {
        return Refuse(Cat(where, ": the value of ", name),
                      value.ok() ? "it is empty" : std::string(value.status().message()), "");
      }
      args.push_back(Cat("--", name, "=", *value));
    }
  } catch (const YAML::Exception& e) {
    return Refuse(Cat(path, ":", e.mark.line + 1, ": not YAML"), e.msg, "");
  }
  return args;
}

void DescribeData(CLI::App& app, TrainConfig& c) {
  AddParsed(app, "--data", "PATHS", "",
            "text files, token files or directories, comma-separated, as in --data a.txt,books",
            [&c](std::string_view text) { return AddPaths(text, c.data); });
  AddParsed(app, "--data-format", "NAME", "auto",
            "what the data is: auto takes llm.c's token files by their magic, other .bin files as "
            "nanogpt's and the rest as text, as in --data-format nanogpt",
            [&c](std::string_view text) { return ChooseDataFormat(text, c.data_format); });
  AddInt(app, "--vocabulary", c.vocabulary, 0, kMaxSize,
         "tokens that the model knows, 0 for 256 of text, 50257 of tokens of 2 bytes and 128256 of "
         "4, as in --vocabulary 50304");
  AddParsed(app, "--eval-data", "PATHS", "",
            "as --data, of which the loss is said now and then and nothing is learnt, as in "
            "--eval-data val.bin",
            [&c](std::string_view text) { return AddPaths(text, c.eval_data); });
  AddInt(app, "--eval-every", c.eval_every, 1, kMax,
         "steps between losses of --eval-data, of which the last step has one too, as in "
         "--eval-every 250");
  AddInt(app, "--eval-batches", c.eval_batches, 1, kMaxSize,
         "batches of --eval-data that its loss is the mean of, at most all, as in --eval-batches "
         "20");
}

void DescribeModelAndSteps(CLI::App& app, TrainConfig& c) {
  AddInt(app, "--layers", c.layers, 1, 1000, "blocks of the model, as in --layers 12");
  AddInt(app, "--width", c.width, 1, kMaxSize,
         "width of the model, a multiple of the heads, as in --width 768");
  AddInt(app, "--heads", c.heads, 1, kMaxSize, "attention heads, as in --heads 12");
  AddInt(app, "--context", c.context, 1, kMaxSize, "tokens of one sample, as in --context 1024");
  AddInt(app, "--steps", c.steps, 1, kMax, "updates in all, as in --steps 10000");
  AddInt(app, "--batch", c.batch, 1, kMaxSize,
         "samples of one step over all ranks, as in --batch 64");
  AddInt(app, "--micro-batch", c.micro_batch, 1, kMaxSize,
         "samples that a rank takes at once at most, as in --micro-batch 4");
  AddParsed(
      app, "--strategy", "NAME", NameOf(c.strategy),
      "what the ranks divide among them: ddp nothing, zero-1 what the optimizer steps, zero-2 "
      "also gradients, zero-3 also what is computed with, hybrid-shard the same among the ranks of "
      "one "
      "node, each node with a copy, as in --strategy zero-2",
      [&c](std::string_view text) { return ChooseStrategy(text, c); });
  AddInt(app, "--shard-group", c.shard_group, 0, kMaxSize,
         "consecutive ranks that divide it, each such group with a copy; the world is a multiple "
         "of it, 0 is all ranks, or with hybrid-shard those of one node, as in --shard-group 8");
  AddParsed(
      app, "--reshard-after-forward", "BOOL", "true",
      "whether zero-3 frees a unit's weights after its forward and gathers them again for its "
      "backward; false needs room for all of them and moves a third less, as in "
      "--reshard-after-forward false",
      [&c](std::string_view text) { return ChooseBool(text, c.reshard_after_forward); });
  AddParsed(app, "--wrap", "POLICY", ToString(c.wrap),
            "units whose weights zero-3 gathers and frees together: block is each alone, size:N "
            "joins neighbours to N parameters, list:UNITS begins anew at each unit named (embed, "
            "block.0, ..., head); more together wait less and need more room, as in --wrap "
            "size:100000000",
            [&c](std::string_view text) { return ChooseWrap(text, c.wrap); });
  AddParsed(
      app, "--precision", "NAME", NameOf(DType::kF32),
      "numbers of weights and activations in a step: f32, bf16, f16 (converted to f32 for each "
      "computation), or auto, which is bf16 on a GPU or where the CPU has avx512_bf16 and else "
      "f32; the "
      "optimizer and checkpoints keep f32, as in --precision bf16",
      [&c](std::string_view text) { return ChoosePrecision(text, c.precision); });
  AddParsed(
      app, "--accumulate-type", "NAME", NameOf(c.accumulate_type),
      "numbers that gradients are kept and added up as over micro-batches: f32, or with "
      "--precision bf16 also bf16, which takes half the memory and rounds each addition, as in "
      "--accumulate-type bf16",
      [&c](std::string_view text) { return ChooseGradientType(text, c.accumulate_type); });
  AddParsed(
      app, "--reduce-type", "NAME", NameOf(DType::kF32),
      "numbers of the gradients that ranks exchange: f32, or bf16, which moves up to half and "
      "rounds each rank's sum and the sum of all once, and is what --accumulate-type bf16 brings "
      "with it, as in --reduce-type bf16",
      [&c](std::string_view text) { return ChooseGradientType(text, c.reduce_type); });
  AddParsed(app, "--seed", "N", Cat(c.seed), "of weights and sample order, as in --seed 1337",
            [&c](std::string_view text) {
              ASSIGN_OR_RETURN(const std::int64_t seed,
                               ParseNumber(text, 0, std::numeric_limits<std::int64_t>::max()));
              c.seed = static_cast<std::uint64_t>(seed);
              return absl::OkStatus();
            });
}

void DescribeOptimizer(CLI::App& app, TrainConfig& c) {
  AddParsed(
      app, "--recompute", "NAME", NameOf(c.recompute),
      "what blocks compute again instead of keeping it from forward to backward: none; "
      "selective, norms and GELUs; full, all of it, a third more work; the result has the same "
      "bits, as in --recompute selective",
      [&c](std::string_view text) { return ChooseRecompute(text, c.recompute); });
  AddReal(app, "--learning-rate", c.learning_rate, 0, kMaxRate,
          "highest learning rate, as in --learning-rate 6e-4");
  AddReal(app, "--min-learning-rate", c.min_learning_rate, 0, 1e3,
          "learning rate at the end of cosine and linear, as in --min-learning-rate 6e-5");
  AddParsed(app, "--lr-schedule", "NAME", NameOf(c.schedule),
            "how the learning rate goes on after the warm-up: cosine, linear or constant, or "
            "DeepSpeed's warmup or warmup-decay, as in --lr-schedule linear",
            [&c](std::string_view text) { return ChooseSchedule(text, c.schedule); });
  AddParsed(app, "--lr-scale", "RULE", NameOf(c.scaling),
            "multiplies learning rates by --batch / --base-batch (linear), by its root (sqrt) or "
            "not (none), as in --lr-scale linear",
            [&c](std::string_view text) { return ChooseByName(text, kScalingRules, c.scaling); });
  AddInt(app, "--base-batch", c.base_batch, 1, kMaxSize,
         "batch that --learning-rate is for, where --lr-scale is given, as in --base-batch 256");
  AddInt(app, "--warmup", c.warmup, 0, kMax,
         "steps until the highest learning rate, as in --warmup 100");
  AddParsed(app, "--optimizer", "NAME", NameOf(c.optimizer),
            "how weights are stepped: adamw, sgd with momentum, lamb or lars, as in --optimizer "
            "lamb",
            [&c](std::string_view text) { return ChooseByName(text, kOptimizers, c.optimizer); });
  AddReal(app, "--weight-decay", c.weight_decay, 0, 1e3,
          "weight decay of matrices, decoupled but for sgd and lars, as in --weight-decay 0.1");
  AddReal(app, "--beta1", c.beta1, 0, 0.999999,
          "decay of the first moment of adamw and lamb, as in --beta1 0.9");
  AddReal(app, "--beta2", c.beta2, 0, 0.9999999,
          "decay of the second moment of adamw and lamb, as in --beta2 0.95");
  AddReal(app, "--momentum", c.momentum, 0, 0.999999, "of sgd and lars, as in --momentum 0.9");
  AddReal(app, "--trust-coefficient", c.trust, 1e-9, 1e3,
          "of lars: step of a tensor, of its norm and times the learning rate, as in "
          "--trust-coefficient 0.001");
  AddReal(app, "--clip", c.clip, 0, 1e9,
          "norm to which gradients are cut, 0 for not at all, as in --clip 1");
}

void DescribeCheckpoints(CLI::App& app, TrainConfig& c) {
  AddText(app, "--checkpoint-dir", c.checkpoint_dir,
          "where checkpoints are kept, and resumed from, as in --checkpoint-dir ckpt", "DIR");
  AddInt(app, "--checkpoint-every", c.checkpoint_every, 1, kMax,
         "steps between checkpoints, as in --checkpoint-every 50");
  AddInt(app, "--keep", c.keep, 2, 1000,
         "newest verified checkpoints that are kept, as in --keep 3");
  AddSwitch(app, "--take-over", c.take_over,
            "take the checkpoint directory from another job, which then ends");
  AddSwitch(app, "--accept-other-settings", c.accept_other_settings,
            "resume a checkpoint made with another seed or data; samples may then repeat or "
            "be left out");
}

void DescribeTimeouts(CLI::App& app, TrainConfig& c) {
  AddDuration(app, "--collective-timeout", c.collective_timeout,
              "how long a rank waits for another inside a step, as in --collective-timeout 1m");
  AddDuration(app, "--join-timeout", c.join_timeout,
              "how long a rank waits for all others at start, as in --join-timeout 1m");
  AddDuration(app, "--restore-timeout", c.restore_timeout,
              "how long a rank waits for others that read their data or a checkpoint, as in "
              "--restore-timeout 1h");
  AddDuration(
      app, "--save-timeout", c.save_timeout,
      "how long a checkpoint waits for the slowest rank's file, for the coordinator, and for "
      "files to be read back, as in --save-timeout 1h");
}

absl::Status ValidateAccumulation(const TrainConfig& c) {
  if (c.accumulate_type == DType::kF32) return absl::OkStatus();
  const std::string flag = Cat("--accumulate-type ", NameOf(c.accumulate_type));
  if (c.precision != DType::kBF16) {
    return Refuse(
        Cat(flag, " does not fit --precision ",
            c.precision ? NameOf(*c.precision) : kBestPrecision),
        "gradients are added up in bf16 only where weights and activations are bf16 on every rank; "
        "else f32 alone is accepted",
        "--precision bf16");
  }
  if (c.ReduceType() != c.accumulate_type) {
    return Refuse(
        Cat(flag, " does not fit --reduce-type ", NameOf(c.ReduceType())),
        "ranks exchange gradients as they keep them: floats of them would take the memory "
        "that bf16 saves",
        "--reduce-type bf16, or no --reduce-type");
  }
  return absl::OkStatus();
}

// REQUIRES: the model is valid.
absl::Status ValidateWrap(const TrainConfig& c) {
  if (c.wrap == WrapPolicy()) return absl::OkStatus();
  const std::string flag = Cat("--wrap ", ToString(c.wrap));
  if (c.strategy != Strategy::kZero3) {
    return Refuse(Cat(flag, " does not fit --strategy ", NameOf(c.strategy)),
                  "only zero-3 and hybrid-shard free weights", "--strategy zero-3");
  }
  ASSIGN_OR_RETURN(const ParamLayout layout,
                   ParamLayout::Replicated(UnitSpecs(MakeGpt(c.Model(), DType::kF32)), 1));
  if (const absl::Status fits = WrapUnits(layout, c.wrap).status(); !fits.ok()) {
    return Refuse(Cat(flag, " does not fit the model"), std::string(fits.message()),
                  Cat("embed, block.0 to block.", c.layers - 1, " and head"));
  }
  return absl::OkStatus();
}

}  // namespace

DType TrainConfig::Precision() const {
  const bool native = MultipliesNatively(DType::kBF16, Kernels());
  return precision.value_or(native ? DType::kBF16 : DType::kF32);
}

GptConfig TrainConfig::Model(int vocabulary) const {
  return {.layers = layers,
          .width = width,
          .heads = heads,
          .vocabulary = vocabulary,
          .context = context};
}

GptConfig TrainConfig::Model() const { return Model(vocabulary > 0 ? vocabulary : 256); }

OptimizerConfig TrainConfig::Optimizer() const {
  return {.kind = optimizer,
          .beta1 = beta1,
          .beta2 = beta2,
          .epsilon = 1e-8,
          .momentum = momentum,
          .trust = trust,
          .weight_decay = weight_decay};
}

Schedule TrainConfig::LearningRates() const {
  const double scale = ScaleOf(scaling, batch, base_batch);
  return {.lr = scale * learning_rate,
          .min_lr = scale * std::min(min_learning_rate, learning_rate),
          .warmup_steps = warmup,
          .total_steps = steps,
          .kind = schedule};
}

std::map<std::string, std::string> TrainConfig::Settings() const {
  const auto real = [](double value) { return absl::StrFormat("%.17g", value); };
  std::map<std::string, std::string> settings = {{"layers", Cat(layers)},
                                                 {"width", Cat(width)},
                                                 {"heads", Cat(heads)},
                                                 {"context", Cat(context)},
                                                 {"steps", Cat(steps)},
                                                 {"batch", Cat(batch)},
                                                 {"learning-rate", real(learning_rate)},
                                                 {"min-learning-rate", real(min_learning_rate)},
                                                 {"warmup", Cat(warmup)},
                                                 {"weight-decay", real(weight_decay)},
                                                 {"beta1", real(beta1)},
                                                 {"beta2", real(beta2)},
                                                 {"clip", real(clip)},
                                                 {"precision", NameOf(Precision())},
                                                 {"seed", Cat(seed)},
                                                 {"optimizer", NameOf(optimizer)}};
  // What is as it always was is not told, so that older records are equal to these.
  if (schedule != ScheduleKind::kCosine) settings["lr-schedule"] = NameOf(schedule);
  if (accumulate_type != DType::kF32) settings["accumulate-type"] = NameOf(accumulate_type);
  if (ReduceType() != DType::kF32) settings["reduce-type"] = NameOf(ReduceType());
  if (scaling != ScalingRule::kNone) {
    settings["lr-scale"] = NameOf(scaling);
    settings["base-batch"] = Cat(base_batch);
  }
  if (optimizer == OptimizerKind::kSgd || optimizer == OptimizerKind::kLars)
    settings["momentum"] = real(momentum);
  if (optimizer == OptimizerKind::kLars) settings["trust-coefficient"] = real(trust);
  return settings;
}

CommandDescription DescribeTrain() {
  return {
      .name = "train",
      .summary = "train a GPT on text, with checkpoints that survive anything",
      .usage = "regroup-worker train --data PATH [OPTIONS]",
      .text =
          "Trains on text by bytes, or on token files of llm.c and nanoGPT, data-parallel over the "
          "ranks that RANK, WORLD_SIZE, MASTER_ADDR "
          "and MASTER_PORT tell "
          "of; alone without them. The result depends on the settings, not on the number of "
          "ranks, and to the bit not on the strategy. With "
          "--checkpoint-dir it goes on from the newest commit that verifies.",
      .example =
          "regroup run --nproc-per-node 2 regroup-worker train --data "
          "/usr/share/common-licenses \\\n"
          "  --checkpoint-dir ~/checkpoints --steps 500",
      .exit_codes = DescribeExits(),
      .program = "regroup-worker"};
}

void DescribeTrainFlags(CLI::App& app, TrainConfig& c) {
  AddText(app, "--config", c.config,
          "YAML file of these names; flags and environment win, as in --config gpt.yaml", "FILE");
  DescribeData(app, c);
  DescribeModelAndSteps(app, c);
  DescribeOptimizer(app, c);
  DescribeCheckpoints(app, c);
  AddText(
      app, "--sample-log", c.sample_log,
      "directory for one line per rank and step of what was consumed, as in --sample-log samples",
      "DIR");
  AddInt(app, "--log-every", c.log_every, 1, kMax,
         "steps between lines on standard output, as in --log-every 10");
  AddParsed(
      app, "--device", "NAME", NameOf(c.device),
      "what every rank computes on: cpu, cuda, which is the GPU numbered LOCAL_RANK and NCCL "
      "2.18 or newer, or auto, which is cuda where it can be and else cpu, as in --device cpu",
      [&c](std::string_view text) { return ChooseByName(text, kDevices, c.device); });
  AddParsed(
      app, "--transport", "NAME", NameOf(c.transport),
      "what moves tensors of GPUs between ranks: nccl, host, which goes through the memory of "
      "the host and lets ranks share a GPU, or auto, which is nccl, but with --device auto "
      "host where a rank has no NCCL, as in --transport host",
      [&c](std::string_view text) { return ChooseByName(text, kTransports, c.transport); });
  AddParsed(app, "--cuda-graphs", "NAME", c.cuda_graphs ? "on" : "off",
            "whether a GPU takes the kernels that come again in each step as graphs: on, or off "
            "where its driver has trouble with them, as in --cuda-graphs off",
            [&c](std::string_view text) { return ChooseSwitch(text, c.cuda_graphs); });
  AddParsed(app, "--kernels", "NAME", kBestKernels,
            "instruction set of this rank on a CPU, equal on all ranks, as in --kernels x86-64-v3",
            [&c](std::string_view text) { return ChooseKernels(text, c.kernels); });
  DescribeTimeouts(app, c);
}

absl::Status Validate(const TrainConfig& c) {
  if (c.data.empty()) {
    return Refuse("--data is missing", "there is nothing to train on",
                  "regroup-worker train --data /usr/share/common-licenses");
  }
  const GptConfig shape = c.Model();
  if (shape.width % shape.heads != 0) {
    return Refuse(
        Cat("--width ", shape.width, " does not fit --heads ", shape.heads),
        Cat("model width ", shape.width, " is not a multiple of its ", shape.heads, " heads"),
        Cat("--width ", (shape.width / shape.heads + 1) * shape.heads));
  }
  if (const absl::Status model = Validate(shape); !model.ok()) {
    return Refuse("no such model can be built", std::string(model.message()),
                  "--layers 6 --width 384 --heads 6 --context 256");
  }
  if (c.transport == Transport::kNccl && c.device == DeviceChoice::kCpu) {
    return Refuse("--transport nccl does not fit --device cpu", "NCCL moves tensors of GPUs",
                  "--device cuda");
  }
  if (c.shard_group > 0 && c.strategy == Strategy::kReplicated) {
    return Refuse(Cat("--shard-group ", c.shard_group, " does not fit --strategy ddp"),
                  "ddp divides nothing", "--strategy zero-3");
  }
  if (!c.reshard_after_forward && c.strategy != Strategy::kZero3) {
    return Refuse(Cat("--reshard-after-forward false does not fit --strategy ", NameOf(c.strategy)),
                  "only zero-3 and hybrid-shard free weights", "--strategy zero-3");
  }
  RETURN_IF_ERROR(ValidateAccumulation(c));
  RETURN_IF_ERROR(ValidateWrap(c));
  if (c.warmup > c.steps)
    return Refuse("--warmup is too long", Cat(c.warmup, " steps of ", c.steps),
                  Cat("--warmup ", c.steps / 10));
  if (const double rate = c.LearningRates().lr; rate > kMaxRate) {
    return Refuse(absl::StrFormat("--learning-rate %g is %g by --lr-scale %s", c.learning_rate,
                                  rate, NameOf(c.scaling)),
                  absl::StrFormat("batches of %d are %g times --base-batch %d; at most %g is "
                                  "accepted",
                                  c.batch, static_cast<double>(c.batch) / c.base_batch,
                                  c.base_batch, kMaxRate),
                  "a lower --learning-rate");
  }
  for (const auto& [name, limit] : {std::pair("--collective-timeout", c.collective_timeout),
                                    {"--join-timeout", c.join_timeout},
                                    {"--restore-timeout", c.restore_timeout},
                                    {"--save-timeout", c.save_timeout}}) {
    if (limit <= Duration::zero()) {
      return Refuse(Cat(name, " is 0"),
                    "nothing could ever arrive in time; more than 0 is accepted", Cat(name, " 1m"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckWorld(int world, int group) {
  if (group == 0 || world % group == 0) return absl::OkStatus();
  return Refuse(Cat("world ", world, " is no multiple of the shard group of ", group),
                "each group of so many ranks holds a whole copy of the training",
                Cat("a world of ", (world / group + 1) * group,
                    ", or zero-3 without --shard-group, which divides it among all ranks"));
}

absl::Status ReadTrainFile(TrainConfig& config) {
  if (config.config.empty()) return absl::OkStatus();
  CommandLine file(DescribeTrain());
  DescribeTrainFlags(file.app(), config);
  ASSIGN_OR_RETURN(const std::vector<std::string> fields,
                   ReadConfigFile(config.config, file.Describe()));
  const absl::StatusOr<ParsedLine> read = file.Parse(fields, false);
  return read.ok() ? absl::OkStatus() : AtField(config.config, read.status());
}

absl::StatusOr<std::optional<TrainConfig>> ReadTrainConfig(const std::vector<std::string>& args) {
  TrainConfig config;
  {
    TrainConfig typed;
    CommandLine line(DescribeTrain());
    DescribeTrainFlags(line.app(), typed);
    ASSIGN_OR_RETURN(const ParsedLine parsed, line.Parse(args, false));
    if (parsed.help) return std::optional<TrainConfig>();
    if (!parsed.rest.empty())
      return Refuse(Cat("unexpected word ", parsed.rest[0]), "train takes flags only",
                    "regroup-worker train --help");
    config.config = typed.config;
  }
  RETURN_IF_ERROR(ReadTrainFile(config));
  CommandLine line(DescribeTrain());
  DescribeTrainFlags(line.app(), config);
  RETURN_IF_ERROR(line.Parse(args, false).status());
  RETURN_IF_ERROR(Validate(config));
  return std::optional<TrainConfig>(std::move(config));
}

}  // namespace regroup::worker
