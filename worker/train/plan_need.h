#pragma once

// What a training takes on a rank, by kind: of memory, and of what is moved and computed.

#include <array>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/model/gpt.h"
#include "worker/plan/estimate.h"
#include "worker/plan/plan.h"
#include "worker/plan/step_use.h"
#include "worker/train/train_config.h"

namespace regroup::worker {

inline constexpr Strategy kAllStrategies[] = {Strategy::kReplicated, Strategy::kZero1,
                                              Strategy::kZero2, Strategy::kZero3};

// Where the ranks of a training are. Those of several hosts go on computing while others are
// summed with and gathered from, and what is under way keeps its memory.
struct RanksOnHosts {
  int world = 1;
  int per_host = 0;           // 0: all of them.
  bool shared_memory = true;  // On one host; each GPU has its own.
  int hosts() const { return per_host == 0 ? 1 : (world + per_host - 1) / per_host; }
  // Ranks of a full host that have one buffer of the weights that a group of so many gathers. Where
  // the last host has fewer, each of its ranks has more of it than a plan says.
  int Sharers(int group) const;
};

struct Planned {
  AnyModel model;
  ParamLayout layout;
  Plan plan;                  // Rank 0's, which has most samples.
  int sharers = 1;            // Of weights that are gathered and not freed.
  bool partial_sums = false;  // Rank 0 exchanges those of a host of several, which are floats.
};
// Invalid argument, as the training would say it.
absl::StatusOr<Planned> PlanFor(const TrainConfig& config, const RanksOnHosts& ranks,
                                Strategy strategy);

// Memory that a training allocates on one rank, in bytes. Of each kind it is what the rank has that
// has most; of what it shares, its part. Moments are all that the optimizer keeps.
struct MemoryNeed {
  std::int64_t weights = 0, gathered = 0, gradients = 0, moments = 0, activations = 0;
  std::int64_t rounded = 0;    // Weights of 16 bits, which a step computes with.
  std::int64_t snapshots = 0;  // Two of what it saves.
  std::int64_t all() const {
    return weights + gathered + rounded + gradients + moments + activations + snapshots;
  }
};
absl::StatusOr<MemoryNeed> NeedOf(const TrainConfig& config, const Planned& planned);
absl::StatusOr<MemoryNeed> NeedOf(const TrainConfig& config, const RanksOnHosts& ranks,
                                  Strategy strategy);

// What of its need is in use in each part of a step, at most. Snapshots are made between steps.
std::array<MemoryNeed, 3> NeedOverStep(const TrainConfig& config, const Planned& planned,
                                       const MemoryNeed& need);

// What rank 0 has in use in a step, and from which of the plan's instructions to which.
struct BufferNeed {
  StepBuffer buffer;
  std::int64_t bytes = 0;
};
std::vector<BufferNeed> BuffersOf(const TrainConfig& config, const Planned& planned);

TrainedSize TrainedSizeOf(const TrainConfig& config, const ParamLayout& layout);
// What rank 0 does in a step, which has most samples.
StepWork WorkOf(const TrainConfig& config, const Planned& planned);

}  // namespace regroup::worker
