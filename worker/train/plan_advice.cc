#include "worker/train/plan_advice.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/config/values.h"
#include "worker/data/sampler.h"

namespace regroup::worker {
namespace {

// A plan has instructions for each micro-batch, so a search does not ask for more of them.
constexpr std::int64_t kMostMicroBatches = 1024;

std::string Size(std::int64_t bytes) { return FormatBytes(static_cast<std::uint64_t>(bytes)); }

class Search {
 public:
  Search(const TrainConfig& config, const RanksOnHosts& ranks, std::int64_t limit_bytes)
      : config_(config), ranks_(ranks), limit_bytes_(limit_bytes) {}

  absl::StatusOr<std::vector<FittingChange>> Run() {
    RETURN_IF_ERROR(MoreRanks(config_, "").status());
    RETURN_IF_ERROR(SmallerMicroBatch(config_, "").status());
    RETURN_IF_ERROR(OneMicroBatch().status());
    RETURN_IF_ERROR(MoreRecomputed().status());
    if (found_.empty()) RETURN_IF_ERROR(Everything());
    return std::move(found_);
  }

 private:
  // By the strategy that divides least of those that fit; none: nothing fits.
  absl::StatusOr<std::optional<FittingChange>> Fitting(const TrainConfig& config, int world,
                                                       const std::string& options) const {
    for (const Strategy strategy : kAllStrategies) {
      RanksOnHosts ranks = ranks_;
      ranks.world = world;
      ASSIGN_OR_RETURN(const MemoryNeed need, NeedOf(config, ranks, strategy));
      if (need.all() > limit_bytes_) continue;
      return FittingChange{.options = absl::StrCat(options, " ", FlagsOf(config, strategy)),
                           .rank_bytes = need.all(),
                           .idle_ranks = std::max(0, world - config.batch)};
    }
    return std::nullopt;
  }

  absl::StatusOr<bool> Try(const TrainConfig& config, int world, const std::string& options) {
    ASSIGN_OR_RETURN(std::optional<FittingChange> fitting, Fitting(config, world, options));
    if (!fitting) return false;
    found_.push_back(*std::move(fitting));
    return true;
  }

  absl::StatusOr<bool> Fits(const TrainConfig& config, int world) const {
    ASSIGN_OR_RETURN(const std::optional<FittingChange> fitting, Fitting(config, world, ""));
    return fitting.has_value();
  }

  // As few as fit while one less does not.
  absl::StatusOr<bool> MoreRanks(const TrainConfig& config, const std::string& options) {
    const int step = std::max(1, config.shard_group), most = kMostPlannedRanks / step * step;
    int fewer = ranks_.world, ranks = ranks_.world;
    for (bool fits = false; !fits;) {
      if (ranks >= most) return false;
      fewer = ranks;
      ranks = std::min(2 * ranks, most);
      ASSIGN_OR_RETURN(fits, Fits(config, ranks));
    }
    while (ranks - fewer > step) {
      const int middle = fewer + (ranks - fewer) / 2 / step * step;
      ASSIGN_OR_RETURN(const bool fits, Fits(config, middle));
      (fits ? ranks : fewer) = middle;
    }
    return Try(config, ranks, absl::StrCat(options, "--world ", ranks));
  }

  std::int64_t Samples() const { return RankSlice(config_.batch, 0, ranks_.world).size; }

  // Half of it, a quarter and so on.
  absl::StatusOr<bool> SmallerMicroBatch(const TrainConfig& config, const std::string& options) {
    TrainConfig smaller = config;
    smaller.micro_batch = static_cast<int>(
        std::min<std::int64_t>(config.micro_batch, std::max<std::int64_t>(1, Samples())));
    while (smaller.micro_batch > 1) {
      smaller.micro_batch /= 2;
      if (Samples() / smaller.micro_batch > kMostMicroBatches) return false;
      ASSIGN_OR_RETURN(
          const bool fits,
          Try(smaller, ranks_.world, absl::StrCat(options, "--micro-batch ", smaller.micro_batch)));
      if (fits) return true;
    }
    return false;
  }

  absl::StatusOr<bool> MoreRecomputed() {
    for (const Recompute level : {Recompute::kSelective, Recompute::kFull}) {
      if (level <= config_.recompute) continue;
      TrainConfig more = config_;
      more.recompute = level;
      ASSIGN_OR_RETURN(const bool fits,
                       Try(more, ranks_.world, absl::StrCat("--recompute ", NameOf(level))));
      if (fits) return true;
    }
    return false;
  }

  // Gradients that are divided are kept whole between micro-batches, so that one may take less.
  absl::StatusOr<bool> OneMicroBatch() {
    if (config_.micro_batch >= Samples()) return false;
    TrainConfig one = config_;
    one.micro_batch = static_cast<int>(Samples());
    return Try(one, ranks_.world, absl::StrCat("--micro-batch ", one.micro_batch));
  }

  // All of these together.
  absl::Status Everything() {
    TrainConfig least = config_;
    least.recompute = Recompute::kFull;
    const std::string full = "--recompute full ";
    ASSIGN_OR_RETURN(const bool smaller, SmallerMicroBatch(least, full));
    if (smaller) return absl::OkStatus();
    if (Samples() <= kMostMicroBatches) {
      least.micro_batch = 1;
      ASSIGN_OR_RETURN(const bool fits, MoreRanks(least, absl::StrCat(full, "--micro-batch 1 ")));
      if (fits) return absl::OkStatus();
    }
    least.micro_batch = config_.batch;
    return MoreRanks(least, absl::StrCat(full, "--micro-batch ", least.micro_batch, " ")).status();
  }

  const TrainConfig& config_;
  const RanksOnHosts ranks_;
  const std::int64_t limit_bytes_;
  std::vector<FittingChange> found_;
};

// REQUIRES: `fitting` is not empty.
const StrategyNeed& Cheapest(std::span<const StrategyNeed> fitting) {
  const double least = std::ranges::min_element(fitting, {}, &StrategyNeed::cost)->cost;
  return *std::ranges::find_if(
      fitting, [&](const StrategyNeed& need) { return need.cost <= least * (1 + kEqualCosts); });
}

std::string WhyThatOne(std::size_t fitting, int world, CostKind cost) {
  if (world == 1) return "one rank has nobody to divide with";
  if (fitting == 1) return "no other fits";
  return absl::StrCat("of those that fit, none ",
                      cost == CostKind::kTime ? "has a shorter step" : "moves less",
                      " by more than ", 100 * kEqualCosts, " %");
}

}  // namespace

std::string FlagsOf(const TrainConfig& config, Strategy strategy) {
  const std::string group =
      config.shard_group == 0
          ? ""
          : absl::StrCat(" --shard-group ",
                         strategy == Strategy::kReplicated ? 0 : config.shard_group);
  return absl::StrCat("--strategy ", NameOf(strategy), group);
}

absl::StatusOr<PlanAdvice> Advise(const TrainConfig& config, const RanksOnHosts& ranks,
                                  std::span<const StrategyNeed> needs, CostKind cost,
                                  std::int64_t limit_bytes) {
  std::vector<StrategyNeed> fitting;
  for (const StrategyNeed& need : needs) {
    if (limit_bytes == 0 || need.rank_bytes <= limit_bytes) fitting.push_back(need);
  }
  PlanAdvice advice;
  if (!fitting.empty()) {
    const StrategyNeed& best = Cheapest(fitting);
    const std::string why = WhyThatOne(fitting.size(), ranks.world, cost);
    advice.suggested = best.strategy;
    advice.reason = limit_bytes > 0 ? absl::StrCat("it takes ", Size(best.rank_bytes), " of ",
                                                   Size(limit_bytes), " per rank, and ", why)
                                    : absl::StrCat(why, ", and --memory says what fits");
    return advice;
  }
  const StrategyNeed& least = *std::ranges::min_element(needs, {}, &StrategyNeed::rank_bytes);
  advice.reason = absl::StrCat("nothing fits ", Size(limit_bytes), " per rank: even ",
                               NameOf(least.strategy), " takes ", Size(least.rank_bytes));
  ASSIGN_OR_RETURN(advice.would_fit, Search(config, ranks, limit_bytes).Run());
  return advice;
}

}  // namespace regroup::worker
