#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/checkpoint/shard.h"
#include "worker/layout/layout.h"
#include "worker/tensor/arena.h"

namespace regroup::worker {

// What a checkpoint holds of a training: weights and the optimizer's moments, each a flat buffer of
// one layout.
class TrainState {
 public:
  // Zeroed. Resource exhausted, with the size, if there is no memory for it.
  static absl::StatusOr<TrainState> Create(const ParamLayout& layout);

  std::span<float> weights, first_moment, second_moment;  // layout.flat_elements() each.

  // Every parameter as "NAME", "exp_avg/NAME", "exp_avg_sq/NAME": the names of a checkpoint,
  // whatever the world size.
  std::vector<StateTensor> Tensors(const ParamLayout& layout) const;

 private:
  explicit TrainState(Arena arena) : arena_(std::move(arena)) {}
  Arena arena_;
};

std::vector<TensorInfo> InfosOf(const std::vector<StateTensor>& tensors);

}  // namespace regroup::worker
