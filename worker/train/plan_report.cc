#include "worker/train/plan_report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/base/user_error.h"
#include "common/config/text.h"
#include "common/config/values.h"
#include "worker/comm/host_links.h"
#include "worker/train/plan_advice.h"
#include "worker/train/plan_need.h"

namespace regroup::worker {
namespace {

// What large models reach on these GPUs: 33 to 56 % has been published.
constexpr int kAssumedMfuPercent = 40;

using Json = nlohmann::ordered_json;

// ---- what is told

absl::Status ChooseGpu(std::string_view text, std::optional<Gpu>& gpu) {
  std::vector<std::string_view> names;
  for (const Gpu& known : KnownGpus()) {
    names.push_back(known.name);
    if (absl::AsciiStrToLower(std::string(text)) != known.name) continue;
    gpu = known;
    return absl::OkStatus();
  }
  return BadInput(Cat("\"", text, "\" is not known"),
                  Cat("published figures are here of ",
                      absl::StrJoin(std::vector<std::string>(names.begin(), names.end()), ", ")),
                  "--gpu h200, or --memory 80GiB without a GPU");
}

absl::Status CheckShardGroup(const PlanConfig& config) {
  if (config.train.hybrid && config.train.shard_group == 0) {
    return UserError(absl::StatusCode::kInvalidArgument, "--strategy hybrid-shard needs more here",
                     "a plan does not know how many ranks one node has", "--nproc-per-node 8");
  }
  return CheckWorld(config.world, config.train.shard_group);
}

// What is for an estimate of time only, which needs a GPU.
absl::Status CheckEstimate(const PlanConfig& config) {
  if (config.gpu) return absl::OkStatus();
  for (const auto& [given, flag] : {std::pair(config.mfu_percent.has_value(), "--mfu"),
                                    std::pair(config.link_bytes_per_second > 0, "--link")}) {
    if (!given) continue;
    return BadInput(Cat(flag, " is given without --gpu"),
                    "time is estimated from the published figures of a GPU",
                    Cat("--gpu h200 ", flag, " ..."));
  }
  return absl::OkStatus();
}

std::int64_t LimitBytes(const PlanConfig& config) {
  if (config.memory_bytes > 0) return static_cast<std::int64_t>(config.memory_bytes);
  return config.gpu ? config.gpu->memory_bytes : 0;
}

// ---- what is found

struct StrategyRow {
  Strategy strategy = Strategy::kReplicated;
  MemoryNeed need;
  std::array<MemoryNeed, 3> over_step;
  std::int64_t mixed_bytes = 0;  // As ZeRO's paper counts.
  StepWork work;
  StepTime time;  // With a GPU.
};

struct Report {
  std::int64_t limit_bytes = 0;  // 0: none.
  TrainedSize size;
  int micro_batches = 1;
  std::vector<StrategyRow> rows;
  PlanAdvice advice;
  std::vector<std::string> instructions;  // With --show, and what the plan says before them.
  struct Buffer {
    std::string kind, unit;
    std::int64_t bytes = 0;
    std::size_t first_use = 0, last_use = 0;
  };
  std::vector<Buffer> buffers;  // With --show.
};

double TokensOfStep(const PlanConfig& config) {
  return static_cast<double>(config.train.batch) * static_cast<double>(config.train.context);
}
double ChinchillaTokens(const Report& report) {
  return kChinchillaTokens * static_cast<double>(report.size.parameters);
}
double ChinchillaSteps(const PlanConfig& config, const Report& report) {
  return std::ceil(ChinchillaTokens(report) / TokensOfStep(config));
}
double AssumedMfu(const PlanConfig& config) {
  return config.mfu_percent.value_or(kAssumedMfuPercent) / 100.0;
}
double PeakFlops(const PlanConfig& config) {
  return config.train.Precision() == DType::kF32 ? config.gpu->f32_flops : config.gpu->short_flops;
}
double LinkRate(const PlanConfig& config) {
  return config.link_bytes_per_second > 0 ? static_cast<double>(config.link_bytes_per_second)
                                          : config.gpu->link_bytes_per_second;
}
// Of a whole step, on all ranks.
double Mfu(const PlanConfig& config, const Report& report, const StrategyRow& row) {
  return TokensOfStep(config) * CausalFlopsPerToken(report.size) /
         (row.time.all_s() * config.world * PeakFlops(config));
}

std::string Assumptions(const PlanConfig& config) {
  return absl::StrFormat(
      "this trainer runs there, its products and attention at an MFU of %.0f %% of the peak for "
      "%s%s; what is moved takes %.0f GB/s each way%s; the optimizer reads and writes at the "
      "memory's peak; nothing overlaps, and data, checkpoints and latencies take no time",
      100 * AssumedMfu(config), NameOf(config.train.Precision()),
      config.train.recompute == Recompute::kFull ? ", a third more of them by --recompute full"
                                                 : "",
      LinkRate(config) / 1e9,
      config.link_bytes_per_second > 0 ? " by --link"
                                       : ", the link's peak between GPUs of one host");
}

std::string Advised(const PlanConfig& config, const PlanAdvice& advice) {
  return advice.suggested ? absl::StrCat(FlagsOf(config.train, *advice.suggested),
                                         " is suggested: ", advice.reason)
                          : advice.reason;
}

std::string Idle(int ranks) {
  return absl::StrCat(ranks, ranks == 1
                                 ? " of the ranks has no sample of a batch: it only holds state"
                                 : " of the ranks have no sample of a batch: they only hold state");
}

std::vector<std::string> Notes(const PlanConfig& config) {
  std::vector<std::string> notes;
  if (config.world > config.train.batch) notes.push_back(Idle(config.world - config.train.batch));
  if (const int group = config.train.shard_group; group > 0 && group < config.world) {
    notes.push_back(absl::StrCat("each group of ", group, " ranks holds a copy, ",
                                 config.world / group, " in all"));
  }
  if (const int hosts = config.Ranks().hosts(); hosts > 1) {
    notes.push_back(absl::StrCat("the ranks are on ", hosts,
                                 " hosts: what moves between them does so beside the computing, "
                                 "and keeps its memory meanwhile"));
  }
  if (config.world > kMaxWorld) {
    notes.push_back(absl::StrCat(config.world,
                                 " ranks can be planned, but regroup-worker train takes ",
                                 kMaxWorld, " at most"));
  }
  return notes;
}

absl::StatusOr<Report> Find(const PlanConfig& config) {
  Report report;
  report.limit_bytes = LimitBytes(config);
  std::vector<StrategyNeed> needs;
  for (const Strategy strategy : kAllStrategies) {
    ASSIGN_OR_RETURN(const Planned planned, PlanFor(config.train, config.Ranks(), strategy));
    ASSIGN_OR_RETURN(const MemoryNeed need, NeedOf(config.train, planned));
    StrategyRow row{.strategy = strategy,
                    .need = need,
                    .over_step = NeedOverStep(config.train, planned, need),
                    .mixed_bytes = MixedStateBytes(planned.layout),
                    .work = WorkOf(config.train, planned),
                    .time = {}};
    if (config.gpu) {
      row.time = EstimateStep(row.work, PeakFlops(config), AssumedMfu(config),
                              config.gpu->memory_bytes_per_second, LinkRate(config));
    }
    report.rows.push_back(row);
    needs.push_back({strategy, need.all(), config.gpu ? row.time.all_s() : row.work.moved_bytes});
    if (strategy != config.train.strategy) continue;
    report.size = TrainedSizeOf(config.train, planned.layout);
    report.micro_batches = std::max(1, planned.plan.micro_batches);
    if (config.show) {
      report.instructions =
          absl::StrSplit(ToString(planned.plan, planned.layout), '\n', absl::SkipEmpty());
      for (const auto& [buffer, bytes] : BuffersOf(config.train, planned)) {
        report.buffers.push_back(
            {.kind = NameOf(buffer.kind),
             .unit = planned.layout.units()[static_cast<std::size_t>(buffer.unit)].name,
             .bytes = bytes,
             .first_use = buffer.first_use,
             .last_use = buffer.last_use});
      }
    }
  }
  ASSIGN_OR_RETURN(report.advice,
                   Advise(config.train, config.Ranks(), needs,
                          config.gpu ? CostKind::kTime : CostKind::kMoved, report.limit_bytes));
  return report;
}

// ---- as text

double Mib(std::int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

std::string Head(const char* first) {
  return absl::StrFormat("%-9s%11s%11s%11s%11s%11s%13s%11s%11s", first, "weights", "gathered",
                         "rounded", "gradients", "moments", "activations", "snapshots", "per rank");
}
std::string Cells(const char* name, const MemoryNeed& n) {
  return absl::StrFormat("%-9s%11.1f%11.1f%11.1f%11.1f%11.1f%13.1f%11.1f%11.1f", name,
                         Mib(n.weights), Mib(n.gathered), Mib(n.rounded), Mib(n.gradients),
                         Mib(n.moments), Mib(n.activations), Mib(n.snapshots), Mib(n.all()));
}

std::string MemoryText(const PlanConfig& config, const Report& report) {
  std::string text = absl::StrFormat("%s%11s\n", Head("MiB"), "moved");
  for (const StrategyRow& row : report.rows) {
    absl::StrAppendFormat(&text, "%s%11.1f\n", Cells(NameOf(row.strategy), row.need),
                          Mib(static_cast<std::int64_t>(row.work.moved_bytes)));
  }
  absl::StrAppend(&text, "\nAll of it is allocated once. In use under --strategy ",
                  NameOf(config.train.strategy), ", at most:\n", Head("MiB"), "\n");
  for (const StrategyRow& row : report.rows) {
    if (row.strategy != config.train.strategy) continue;
    for (const StepPart part : kStepParts) {
      absl::StrAppend(&text, Cells(NameOf(part), row.over_step[static_cast<std::size_t>(part)]),
                      "\n");
    }
  }
  absl::StrAppend(&text,
                  "\nModel states as ZeRO's paper counts them, 2 + 2 + 12 bytes per parameter in "
                  "mixed precision with Adam:\n");
  for (const StrategyRow& row : report.rows) {
    absl::StrAppendFormat(&text, "%-9s%11.4g GB\n", NameOf(row.strategy),
                          static_cast<double>(row.mixed_bytes) / 1e9);
  }
  return text;
}

std::string FormulaText(const PlanConfig& config, const Report& report) {
  const TrainConfig& train = config.train;
  const double planned = train.steps * TokensOfStep(config);
  return absl::StrFormat(
      "%d parameters in %s on %d ranks, batch %d x %d tokens, at most %d micro-batches on a rank\n"
      "%.4g floating-point operations per token, forward and backward, by %s\n"
      "%.4g by %s\n"
      "Chinchilla: %d tokens per parameter are %.4g tokens, which take %.0f steps; --steps %d are "
      "%.4g tokens, %.3g per parameter\n",
      report.size.parameters, NameOf(train.Precision()), config.world, train.batch, train.context,
      report.micro_batches, CausalFlopsPerToken(report.size), kCausalFormula,
      FullFlopsPerToken(report.size), kFullFormula, kChinchillaTokens, ChinchillaTokens(report),
      ChinchillaSteps(config, report), train.steps, planned,
      planned / static_cast<double>(report.size.parameters));
}

std::string AdviceText(const PlanConfig& config, const Report& report) {
  const PlanAdvice& advice = report.advice;
  std::string text = absl::StrCat(Advised(config, advice), "\n");
  if (advice.suggested) return text;
  for (const FittingChange& change : advice.would_fit) {
    absl::StrAppend(&text, "  ", change.options,
                    " would fit: ", FormatBytes(static_cast<std::uint64_t>(change.rank_bytes)),
                    change.idle_ranks > 0 ? "; " + Idle(change.idle_ranks) : "", "\n");
  }
  if (advice.would_fit.empty()) {
    absl::StrAppend(&text, "  no --world up to ", kMostPlannedRanks,
                    ", no --micro-batch and no --recompute that was tried makes it fit; a smaller "
                    "--width, --layers, --context or --vocabulary may\n");
  }
  return text;
}

std::string Time(double seconds) {
  static constexpr std::pair<double, const char*> kUnits[] = {
      {86400, "d"}, {3600, "h"}, {60, "min"}, {1, "s"}, {1e-3, "ms"}};
  for (const auto& [size, unit] : kUnits) {
    if (seconds >= size)
      return absl::StrFormat("%.*f %s", seconds < 10 * size, seconds / size, unit);
  }
  return absl::StrFormat("%.2g ms", seconds * 1e3);
}

std::string TimeText(const PlanConfig& config, const Report& report) {
  const Gpu& gpu = *config.gpu;
  std::string text = absl::StrFormat(
      "Time on %d x %s, %.4g TFLOP/s in %s and %.4g TB/s of memory each:\n"
      "%-9s%11s%11s%11s%11s%13s%8s%11s%11s\n",
      config.world, gpu.model, PeakFlops(config) / 1e12, NameOf(config.train.Precision()),
      gpu.memory_bytes_per_second / 1e12, "a step", "compute", "moving", "optimizer", "all",
      "tokens/s", "MFU", "--steps", "Chinchilla");
  for (const StrategyRow& row : report.rows) {
    const double step = row.time.all_s();
    absl::StrAppendFormat(
        &text, "%-9s%11s%11s%11s%11s%13.4g%6.1f %%%11s%11s\n", NameOf(row.strategy),
        Time(row.time.compute_s), Time(row.time.communication_s), Time(row.time.optimizer_s),
        Time(step), TokensOfStep(config) / step, 100 * Mfu(config, report, row),
        Time(step * config.train.steps), Time(step * ChinchillaSteps(config, report)));
  }
  return absl::StrCat(text, "Assumed: ", Assumptions(config), ".\n");
}

std::string Text(const PlanConfig& config, const Report& report) {
  std::string text = absl::StrCat(FormulaText(config, report), "\n", MemoryText(config, report),
                                  "\n", AdviceText(config, report));
  if (config.gpu) absl::StrAppend(&text, "\n", TimeText(config, report));
  for (const std::string& note : Notes(config)) absl::StrAppend(&text, "\n", note, "\n");
  if (!config.show) return text;
  absl::StrAppend(&text, "\n", absl::StrJoin(report.instructions, "\n"),
                  "\n\nIn use in it, from one instruction to another:\n");
  absl::StrAppendFormat(&text, "%-12s%-12s%14s%8s%8s\n", "", "unit", "bytes", "first", "last");
  for (const Report::Buffer& buffer : report.buffers) {
    absl::StrAppendFormat(&text, "%-12s%-12s%14d%8d%8d\n", buffer.kind, buffer.unit, buffer.bytes,
                          buffer.first_use, buffer.last_use);
  }
  return text;
}

// ---- as JSON

Json JsonOf(const MemoryNeed& n) {
  return {{"weights_bytes", n.weights},     {"gathered_bytes", n.gathered},
          {"rounded_bytes", n.rounded},     {"gradients_bytes", n.gradients},
          {"moments_bytes", n.moments},     {"activations_bytes", n.activations},
          {"snapshots_bytes", n.snapshots}, {"rank_bytes", n.all()}};
}

Json JsonOf(const PlanConfig& config, const Report& report, const StrategyRow& row) {
  Json tree = {{"strategy", NameOf(row.strategy)}};
  tree.update(JsonOf(row.need));
  tree["moved_bytes"] = static_cast<std::int64_t>(row.work.moved_bytes);
  tree["zero_paper_bytes"] = row.mixed_bytes;
  for (const StepPart part : kStepParts)
    tree["in_use"][NameOf(part)] = JsonOf(row.over_step[static_cast<std::size_t>(part)]);
  if (report.limit_bytes > 0) tree["fits"] = row.need.all() <= report.limit_bytes;
  if (!config.gpu) return tree;
  const double step = row.time.all_s();
  tree["time"] = {{"compute_s", row.time.compute_s},
                  {"moving_s", row.time.communication_s},
                  {"optimizer_s", row.time.optimizer_s},
                  {"step_s", step},
                  {"tokens_per_s", TokensOfStep(config) / step},
                  {"mfu", Mfu(config, report, row)},
                  {"steps_s", step * config.train.steps},
                  {"chinchilla_s", step * ChinchillaSteps(config, report)}};
  return tree;
}

Json JsonOf(const Gpu& gpu, const PlanConfig& config) {
  return {{"name", gpu.name},
          {"model", gpu.model},
          {"peak_flops_per_s", PeakFlops(config)},
          {"memory_bytes", gpu.memory_bytes},
          {"memory_bytes_per_s", gpu.memory_bytes_per_second},
          {"link_bytes_per_s", LinkRate(config)},
          {"assumed_mfu", AssumedMfu(config)},
          {"assumptions", Assumptions(config)}};
}

Json JsonOf(const PlanAdvice& advice) {
  Json would_fit = Json::array();
  for (const FittingChange& change : advice.would_fit) {
    would_fit.push_back({{"options", change.options},
                         {"rank_bytes", change.rank_bytes},
                         {"idle_ranks", change.idle_ranks}});
  }
  return {{"strategy", advice.suggested ? Json(NameOf(*advice.suggested)) : Json(nullptr)},
          {"reason", advice.reason},
          {"would_fit", would_fit}};
}

std::string JsonText(const PlanConfig& config, const Report& report) {
  const TrainConfig& train = config.train;
  const double planned = train.steps * TokensOfStep(config);
  const double parameters = static_cast<double>(report.size.parameters);
  Json strategies = Json::array();
  for (const StrategyRow& row : report.rows) strategies.push_back(JsonOf(config, report, row));
  Json tree = {
      {"parameters", report.size.parameters},
      {"precision", NameOf(train.Precision())},
      {"world", config.world},
      {"nproc_per_node", config.nproc_per_node == 0 ? config.world : config.nproc_per_node},
      {"batch", train.batch},
      {"context", train.context},
      {"micro_batches", report.micro_batches},
      {"strategy", NameOf(train.strategy)},
      {"shard_group", train.shard_group == 0 ? config.world : train.shard_group},
      {"flops_per_token", CausalFlopsPerToken(report.size)},
      {"flops_formula", kCausalFormula},
      {"full_flops_per_token", FullFlopsPerToken(report.size)},
      {"full_flops_formula", kFullFormula},
      {"chinchilla",
       {{"tokens_per_parameter", kChinchillaTokens},
        {"tokens", ChinchillaTokens(report)},
        {"steps", ChinchillaSteps(config, report)}}},
      {"steps", train.steps},
      {"tokens", planned},
      {"tokens_per_parameter", planned / parameters}};
  if (report.limit_bytes > 0) tree["memory_bytes"] = report.limit_bytes;
  tree["strategies"] = strategies;
  tree["suggested"] = JsonOf(report.advice);
  if (config.gpu) tree["gpu"] = JsonOf(*config.gpu, config);
  tree["notes"] = Notes(config);
  if (!config.show) return tree.dump(2) + "\n";
  tree["instructions"] = report.instructions;
  for (const Report::Buffer& buffer : report.buffers) {
    tree["buffers"].push_back({{"kind", buffer.kind},
                               {"unit", buffer.unit},
                               {"bytes", buffer.bytes},
                               {"first_use", buffer.first_use},
                               {"last_use", buffer.last_use}});
  }
  return tree.dump(2) + "\n";
}

}  // namespace

CommandDescription DescribePlan() {
  return {.name = "plan",
          .summary = "say what memory and time a training takes, and what its ranks do in a step",
          .usage = "regroup-worker plan [OPTIONS]",
          .text =
              "Takes the options and the configuration of `train`, starts nothing and needs no "
              "data: a --vocabulary other than that of text has to be told. Shows for every "
              "strategy what the rank with most allocates, by kind, what "
              "a rank moves in a step, and the model states as ZeRO's paper counts them; for "
              "--strategy also what is in use in each part of a step. Activations hold scratch for "
              "as many threads as this process has (OMP_NUM_THREADS); snapshots are those of "
              "--checkpoint-dir.\n\n"
              "With --memory or --gpu it says which strategy fits and why that one, and where none "
              "does, which other options would. Floating-point operations are counted by two "
              "published formulas, because the choice moves MFU by several per cent: N is the "
              "number of parameters, L of layers, d the width, T the context. --gpu estimates "
              "time and MFU from published peaks; no figure of this trainer's is in it.",
          .example =
              "regroup plan --config gpt.yaml --world 8 --memory 4GiB\n"
              "regroup plan --config gpt.yaml --world 8 --gpu h200 --precision bf16",
          .program = "regroup-worker"};
}

void DescribePlanFlags(CLI::App& app, PlanConfig& c) {
  DescribeTrainFlags(app, c.train);
  AddInt(app, "--world", c.world, 1, kMostPlannedRanks, "ranks of the training, as in --world 4");
  AddInt(app, "--nproc-per-node", c.nproc_per_node, 0, kMostPlannedRanks,
         "ranks of each host, which is also what hybrid-shard divides among; 0: all are on one, as "
         "in --nproc-per-node 8");
  AddBytes(app, "--memory", c.memory_bytes,
           "memory that one rank has: says which strategy fits, as in --memory 8GiB; left out: "
           "that of --gpu");
  std::vector<std::string> names;
  for (const Gpu& gpu : KnownGpus()) names.emplace_back(gpu.name);
  AddParsed(app, "--gpu", "NAME", "",
            Cat("estimate time and MFU on one such GPU per rank: ", absl::StrJoin(names, ", "),
                ", as in --gpu h200"),
            [&c](std::string_view text) { return ChooseGpu(text, c.gpu); });
  AddInt(app, "--mfu", c.mfu_percent, 1, 100,
         Cat("per cent of the peak of --gpu that products are assumed to reach while they run; "
             "left out: ",
             kAssumedMfuPercent, ", as in --mfu 50"));
  AddBytes(app, "--link", c.link_bytes_per_second,
           "bytes per second that a rank moves each way, for ranks of several hosts; left out: "
           "the link of --gpu within a host, as in --link 50GB");
  AddSwitch(app, "--show", c.show,
            "print the instructions of rank 0 under --strategy, the stream of each, and when which "
            "memory is in use");
  AddSwitch(app, "--json", c.json, "print JSON, which has all that the text has");
  for (const char* flag :
       {"--world", "--nproc-per-node", "--memory", "--gpu", "--mfu", "--link", "--show", "--json"})
    RenameEnvironment(app, flag, "REGROUP_PLAN_");
}

absl::StatusOr<std::optional<PlanConfig>> ReadPlanConfig(const std::vector<std::string>& args) {
  PlanConfig config;
  {
    PlanConfig typed;
    CommandLine line(DescribePlan());
    DescribePlanFlags(line.app(), typed);
    ASSIGN_OR_RETURN(const ParsedLine parsed, line.Parse(args, false));
    if (parsed.help) return std::optional<PlanConfig>();
    if (!parsed.rest.empty()) {
      return UserError(absl::StatusCode::kInvalidArgument, Cat("unexpected word ", parsed.rest[0]),
                       "plan takes flags only", "regroup-worker plan --help");
    }
    config.train.config = typed.train.config;
  }
  RETURN_IF_ERROR(ReadTrainFile(config.train));
  CommandLine line(DescribePlan());
  DescribePlanFlags(line.app(), config);
  RETURN_IF_ERROR(line.Parse(args, false).status());
  TrainConfig judged = config.train;
  if (judged.data.empty()) judged.data = {"text"};
  RETURN_IF_ERROR(Validate(judged));
  // As the training will: of a node's ranks, which may be all.
  config.train.shard_group = config.train.ShardGroup(std::min(config.nproc_per_node, config.world));
  RETURN_IF_ERROR(CheckShardGroup(config));
  RETURN_IF_ERROR(CheckEstimate(config));
  return std::optional<PlanConfig>(std::move(config));
}

absl::StatusOr<std::string> PlanReport(const PlanConfig& config) {
  ASSIGN_OR_RETURN(const Report report, Find(config));
  return config.json ? JsonText(config, report) : Text(config, report);
}

}  // namespace regroup::worker
