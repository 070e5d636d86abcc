#include "worker/train/plan_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "common/base/user_error.h"
#include "common/config/text.h"
#include "common/config/values.h"
#include "worker/data/sampler.h"
#include "worker/model/runner.h"
#include "worker/optim/optimizer.h"
#include "worker/plan/plan.h"
#include "worker/train/step_runner.h"

namespace regroup::worker {
namespace {

constexpr int kMostRanks = 64;
constexpr std::int64_t kElementBytes = sizeof(float);
constexpr Strategy kStrategies[] = {Strategy::kReplicated, Strategy::kZero1, Strategy::kZero2,
                                    Strategy::kZero3};

// The most that any rank has.
std::int64_t Largest(const ParamLayout& layout, StateKind kind) {
  std::int64_t largest = 0;
  for (int r = 0; r < layout.world(); ++r) largest = std::max(largest, layout.Elements(kind, r));
  return largest;
}

std::int64_t LargestOwned(const ParamLayout& layout) {
  std::int64_t largest = 0;
  for (int r = 0; r < layout.world(); ++r) {
    std::int64_t owned = 0;
    for (const Range& box : layout.Owned(r)) owned += box.size;
    largest = std::max(largest, owned);
  }
  return largest;
}

struct Planned {
  AnyModel model;
  ParamLayout layout;
  Plan plan;  // Rank 0's, which has most samples.
};

std::vector<UnitId> Recomputed(const AnyModel& model, const TrainConfig& config) {
  return std::visit([&](const auto& m) { return UnitsRecomputed(m, config.recompute); }, model);
}

absl::StatusOr<Planned> PlanFor(const TrainConfig& config, int world, Strategy strategy) {
  AnyModel model = MakeGpt(config.Model(), config.Precision());
  ASSIGN_OR_RETURN(ParamLayout layout,
                   ParamLayout::Create(UnitSpecs(model), world, StrategyOn(world, strategy)));
  ASSIGN_OR_RETURN(Plan plan,
                   MakePlan(layout, PlanOptionsOf(config.batch, config.micro_batch, 0, world,
                                                  config.Precision(), Recomputed(model, config))));
  return Planned{std::move(model), std::move(layout), std::move(plan)};
}

// What rank 0 takes from others in a step and gives to them, in bytes.
std::int64_t MovedBytes(const Planned& planned) {
  const ParamLayout& layout = planned.layout;
  const auto elements = [&](UnitId first, UnitId last, bool own) {
    std::int64_t sum = 0;
    for (UnitId u = first; u <= last; ++u) {
      for (ParamId p : layout.units()[static_cast<std::size_t>(u)].params) {
        for (const Share& share : layout.Shares(p))
          sum += (share.rank == 0) == own ? share.flat.size : 0;
      }
    }
    return sum;
  };
  std::int64_t moved = 0;
  for (const Instruction& i : planned.plan.instructions) {
    if (i.op == Op::kGather) moved += elements(i.unit, i.unit, false);
    if (i.op != Op::kReduceGrad) continue;
    const Bucket& bucket = planned.plan.buckets[static_cast<std::size_t>(i.bucket)];
    moved += layout.Divides(StateKind::kMoments)
                 ? elements(bucket.first_unit, bucket.last_unit, true) * (layout.world() - 1)
                 : 2 * bucket.flat.size * (layout.world() - 1) / layout.world();
  }
  return moved * kElementBytes;
}

absl::StatusOr<std::size_t> ActivationBytes(const AnyModel& model, const Extent& extent,
                                            Recompute recompute) {
  return std::visit(
      [&]<typename T>(const Model<T>& m) {
        return UnitRunner<T>::ActivationBytes(m, extent, recompute);
      },
      model);
}

// Of the product that needs most.
std::size_t WideningBytes(const TrainConfig& config, const Planned& planned, const Extent& extent) {
  std::size_t most = 0;
  std::visit(
      [&](const auto& model) {
        for (const auto& unit : model.units()) {
          most = std::max(most, WideningBytes(config.Precision(), config.Kernels(),
                                              unit.layer->Spec(extent).largest_product));
        }
      },
      planned.model);
  return most;
}

absl::StatusOr<MemoryNeed> NeedOf(const TrainConfig& config, const Planned& planned) {
  const ParamLayout& layout = planned.layout;
  const int world = layout.world();
  const bool divided = layout.Divides(StateKind::kMoments);
  const std::int64_t samples = std::max<std::int64_t>(1, RankSlice(config.batch, 0, world).size);
  const Extent extent{.batch = RankSlice(samples, 0, std::max(1, planned.plan.micro_batches)).size,
                      .time = config.context};
  MemoryNeed need;
  need.weights = Largest(layout, StateKind::kWeights) * kElementBytes;
  need.rounded = planned.plan.rounded.elements * SizeOf(config.Precision());
  const auto slots = static_cast<std::int64_t>(StateNames(config.optimizer).size());
  need.moments =
      slots * Largest(layout, StateKind::kMoments) * kElementBytes +
      TensorSquaresOf(layout, config.optimizer) * static_cast<std::int64_t>(sizeof(double));
  need.gradients = planned.plan.gradients.elements * kElementBytes;
  if (layout.Divides(StateKind::kGradients))
    need.gradients += Largest(layout, StateKind::kGradients) * kElementBytes;
  if (divided) need.gradients += BlocksOf(layout) * static_cast<std::int64_t>(sizeof(double));
  if (layout.Divides(StateKind::kWeights))
    need.gathered = planned.plan.weights.elements * kElementBytes;
  ASSIGN_OR_RETURN(const std::size_t activations,
                   ActivationBytes(planned.model, extent, config.recompute));
  need.activations =
      static_cast<std::int64_t>(activations + WideningBytes(config, planned, extent));
  if (!config.checkpoint_dir.empty()) {
    const std::int64_t saved =
        divided ? LargestOwned(layout) : (layout.param_elements() + world - 1) / world;
    need.snapshots = 2 * (1 + slots) * saved * kElementBytes;
  }
  return need;
}

struct Line {
  Strategy strategy;
  MemoryNeed need;
  std::int64_t moved_bytes = 0;
};

double Mib(std::int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

std::string Table(const std::vector<Line>& lines) {
  std::string text = absl::StrFormat("%-9s%11s%11s%11s%11s%11s%13s%11s%11s%11s\n", "MiB", "weights",
                                     "gathered", "rounded", "gradients", "moments", "activations",
                                     "snapshots", "per rank", "moved");
  for (const Line& line : lines) {
    const MemoryNeed& n = line.need;
    absl::StrAppendFormat(&text, "%-9s%11.1f%11.1f%11.1f%11.1f%11.1f%13.1f%11.1f%11.1f%11.1f\n",
                          NameOf(line.strategy), Mib(n.weights), Mib(n.gathered), Mib(n.rounded),
                          Mib(n.gradients), Mib(n.moments), Mib(n.activations), Mib(n.snapshots),
                          Mib(n.all()), Mib(line.moved_bytes));
  }
  return text;
}

// The fewest ranks with which the strategy that divides most fits; none up to kMostRanks: 0.
absl::StatusOr<int> RanksThatFit(const PlanConfig& config) {
  for (int world = config.world + 1; world <= kMostRanks; ++world) {
    ASSIGN_OR_RETURN(const MemoryNeed need, NeedOf(config.train, world, Strategy::kZero3));
    if (need.all() <= static_cast<std::int64_t>(config.memory_bytes)) return world;
  }
  return 0;
}

absl::StatusOr<std::string> Advice(const PlanConfig& config, const std::vector<Line>& lines) {
  const std::string limit = FormatBytes(config.memory_bytes);
  const auto size = [](const Line& line) {
    return FormatBytes(static_cast<std::uint64_t>(line.need.all()));
  };
  for (const Line& line : lines) {
    if (line.need.all() > static_cast<std::int64_t>(config.memory_bytes)) continue;
    return absl::StrCat("--strategy ", NameOf(line.strategy), " divides least of those that fit ",
                        limit, " per rank: it takes ", size(line), "\n");
  }
  ASSIGN_OR_RETURN(const int ranks, RanksThatFit(config));
  return absl::StrCat("nothing fits ", limit, " per rank: even zero-3 takes ", size(lines.back()),
                      ranks > 0 ? absl::StrCat("; with ", ranks, " ranks it fits")
                                : "; try a smaller --micro-batch, --context, --width or --layers",
                      "\n");
}

std::string Json(const PlanConfig& config, const Planned& planned, double flops,
                 const std::vector<Line>& lines) {
  nlohmann::ordered_json strategies = nlohmann::ordered_json::array();
  for (const Line& line : lines) {
    const MemoryNeed& n = line.need;
    nlohmann::ordered_json row = {{"strategy", NameOf(line.strategy)},
                                  {"weights_bytes", n.weights},
                                  {"gathered_bytes", n.gathered},
                                  {"rounded_bytes", n.rounded},
                                  {"gradients_bytes", n.gradients},
                                  {"moments_bytes", n.moments},
                                  {"activations_bytes", n.activations},
                                  {"snapshots_bytes", n.snapshots},
                                  {"rank_bytes", n.all()},
                                  {"moved_bytes", line.moved_bytes}};
    if (config.memory_bytes > 0)
      row["fits"] = n.all() <= static_cast<std::int64_t>(config.memory_bytes);
    strategies.push_back(std::move(row));
  }
  const nlohmann::ordered_json tree = {{"parameters", planned.layout.param_elements()},
                                       {"precision", NameOf(config.train.Precision())},
                                       {"world", config.world},
                                       {"flops_per_token", flops},
                                       {"strategies", strategies}};
  return tree.dump(2) + "\n";
}

// Forward and backward, which is twice that; of the products and attention.
double FlopsPerToken(const Planned& planned, int context) {
  double flops = 0;
  std::visit(
      [&](const auto& model) {
        for (const auto& unit : model.units())
          flops += unit.layer->Spec({.batch = 1, .time = context}).forward_flops;
      },
      planned.model);
  return 3 * flops / context;
}

}  // namespace

CommandDescription DescribePlan() {
  return {.name = "plan",
          .summary = "say what memory a training takes, and what its ranks do in a step",
          .usage = "regroup-worker plan [OPTIONS]",
          .text =
              "Takes the options and the configuration of `train`, starts nothing and needs no "
              "data: a --vocabulary other than that of text has to be told. Shows for every "
              "strategy what the rank with most allocates, by kind, and what "
              "a rank moves in a step. Activations hold scratch for as many threads as this "
              "process has (OMP_NUM_THREADS); snapshots are those of --checkpoint-dir.",
          .example = "regroup-worker plan --config gpt.yaml --world 8 --memory 4GiB",
          .program = "regroup-worker"};
}

void DescribePlanFlags(CLI::App& app, PlanConfig& c) {
  DescribeTrainFlags(app, c.train);
  AddInt(app, "--world", c.world, 1, kMostRanks, "ranks of the training, as in --world 4");
  AddBytes(app, "--memory", c.memory_bytes,
           "memory that one rank has: says which strategy fits, as in --memory 8GiB");
  AddSwitch(app, "--show", c.show, "print the instructions of rank 0 under --strategy");
  AddSwitch(app, "--json", c.json, "print JSON");
  for (const char* flag : {"--world", "--memory", "--show", "--json"})
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
  return std::optional<PlanConfig>(std::move(config));
}

absl::StatusOr<MemoryNeed> NeedOf(const TrainConfig& config, int world, Strategy strategy) {
  ASSIGN_OR_RETURN(const Planned planned, PlanFor(config, world, strategy));
  return NeedOf(config, planned);
}

absl::StatusOr<std::string> PlanReport(const PlanConfig& config) {
  const TrainConfig& train = config.train;
  std::vector<Line> lines;
  for (const Strategy strategy : kStrategies) {
    ASSIGN_OR_RETURN(const Planned planned, PlanFor(train, config.world, strategy));
    ASSIGN_OR_RETURN(const MemoryNeed need, NeedOf(train, planned));
    lines.push_back({strategy, need, MovedBytes(planned)});
  }
  ASSIGN_OR_RETURN(const Planned planned, PlanFor(train, config.world, train.strategy));
  const double flops = FlopsPerToken(planned, train.context);
  if (config.json) return Json(config, planned, flops, lines);
  std::string text = absl::StrFormat(
      "%d parameters in %s on %d ranks, batch %d x %d tokens, at most %d micro-batches on a rank\n"
      "%.3g floating-point operations per token, forward and backward\n\n",
      planned.layout.param_elements(), NameOf(train.Precision()), config.world, train.batch,
      train.context, std::max(1, planned.plan.micro_batches), flops);
  text += Table(lines);
  if (config.memory_bytes > 0) {
    ASSIGN_OR_RETURN(const std::string advice, Advice(config, lines));
    absl::StrAppend(&text, "\n", advice);
  }
  if (config.show) absl::StrAppend(&text, "\n", ToString(planned.plan, planned.layout));
  return text;
}

}  // namespace regroup::worker
