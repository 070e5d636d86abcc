#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/config/flags.h"
#include "worker/train/train_config.h"

namespace regroup::worker {

// What `regroup-worker plan` is told.
struct PlanConfig {
  TrainConfig train;  // As `train` is told; it may lack the data.
  int world = 1;
  std::uint64_t memory_bytes = 0;  // Of one rank; 0: not told.
  bool show = false, json = false;
};

CommandDescription DescribePlan();
void DescribePlanFlags(CLI::App& app, PlanConfig& config);
// None: --help was asked for.
absl::StatusOr<std::optional<PlanConfig>> ReadPlanConfig(const std::vector<std::string>& args);

// Memory that a training allocates on one rank, in bytes. Of each kind it is what the rank has that
// has most. Moments are all that the optimizer keeps.
struct MemoryNeed {
  std::int64_t weights = 0, gathered = 0, gradients = 0, moments = 0, activations = 0;
  std::int64_t rounded = 0;    // Weights of 16 bits, which a step computes with.
  std::int64_t snapshots = 0;  // Two of what it saves.
  std::int64_t all() const {
    return weights + gathered + rounded + gradients + moments + activations + snapshots;
  }
};
// Invalid argument, as the training would say it.
absl::StatusOr<MemoryNeed> NeedOf(const TrainConfig& config, int world, Strategy strategy);

// What is to be printed: memory by strategy and kind, what ranks move in a step, and with a limit
// the first strategy that fits.
absl::StatusOr<std::string> PlanReport(const PlanConfig& config);

}  // namespace regroup::worker
