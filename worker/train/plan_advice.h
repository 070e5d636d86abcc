#pragma once

// Which strategy a training should take, and what has to change where none fits.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/train/plan_need.h"
#include "worker/train/train_config.h"

namespace regroup::worker {

inline constexpr int kMostPlannedRanks = 1024;

// What one strategy takes on the rank that has most.
struct StrategyNeed {
  Strategy strategy = Strategy::kReplicated;
  std::int64_t rank_bytes = 0;
  double cost = 0;  // Of a step: seconds, or bytes that are moved.
};

// Options that make it fit, and what it takes then.
struct FittingChange {
  std::string options;  // "--micro-batch 2 --strategy zero-3"
  std::int64_t rank_bytes = 0;
  int idle_ranks = 0;  // That no sample of a batch is left for: they hold state and add zeros.
};

struct PlanAdvice {
  std::optional<Strategy> suggested;  // None: nothing fits.
  std::string reason;                 // A sentence without a full stop.
  // Where nothing fits: each makes it fit. Empty there as well where nothing that is known does.
  std::vector<FittingChange> would_fit;
};

enum class CostKind : std::uint8_t { kMoved, kTime };

// Costs that differ by less are taken for equal: estimates are no better, and dealt-out blocks are
// not all of one size.
inline constexpr double kEqualCosts = 0.05;

// What chooses it, in groups as large as those of `config`.
std::string FlagsOf(const TrainConfig& config, Strategy strategy);

// The strategy that costs least of those that fit; of equal costs, the one that divides least.
// `needs` are of all strategies, in their order. A limit of 0 is none.
absl::StatusOr<PlanAdvice> Advise(const TrainConfig& config, const RanksOnHosts& ranks,
                                  std::span<const StrategyNeed> needs, CostKind cost,
                                  std::int64_t limit_bytes);

}  // namespace regroup::worker
