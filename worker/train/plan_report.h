#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/config/flags.h"
#include "worker/plan/estimate.h"
#include "worker/train/plan_need.h"
#include "worker/train/train_config.h"

namespace regroup::worker {

// What `regroup-worker plan` is told.
struct PlanConfig {
  TrainConfig train;  // As `train` is told; it may lack the data.
  int world = 1;
  int nproc_per_node = 0;          // 0: all of them.
  std::uint64_t memory_bytes = 0;  // Of one rank; 0: the GPU's, if one is told.
  std::optional<Gpu> gpu;
  std::optional<int> mfu_percent;           // That products are assumed to reach on the GPU.
  std::uint64_t link_bytes_per_second = 0;  // Between ranks, each way; 0: the GPU's.
  bool show = false, json = false;

  RanksOnHosts Ranks() const { return {world, nproc_per_node, !gpu}; }
};

CommandDescription DescribePlan();
void DescribePlanFlags(CLI::App& app, PlanConfig& config);
// None: --help was asked for.
absl::StatusOr<std::optional<PlanConfig>> ReadPlanConfig(const std::vector<std::string>& args);

// What is to be printed: memory by strategy and kind and in each part of a step, what ranks move,
// published formulas for operations, tokens and model states, the strategy to take and why, and
// with a GPU the time of a step. Text and JSON say the same.
absl::StatusOr<std::string> PlanReport(const PlanConfig& config);

}  // namespace regroup::worker
