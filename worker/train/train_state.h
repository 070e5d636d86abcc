#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/checkpoint/shard.h"
#include "worker/comm/communicator.h"
#include "worker/device/device.h"
#include "worker/layout/layout.h"
#include "worker/optim/optimizer.h"
#include "worker/tensor/arena.h"

namespace regroup::worker {

// What one rank holds of a training's state, as far as a checkpoint has it: weights and the
// optimizer's state, each a buffer of the layout in memory of a device. What the host reads and
// writes of it (Tensors, Copies, InitializeWeights) is a copy in memory of its own, where the
// device is not the host: then what changes on one side is not seen on the other until it is
// copied. Execution thread only.
class TrainState {
 public:
  // Zeroed. Resource exhausted, with the size, if there is no memory for it. Collective where the
  // layout divides anything and rounds nothing: weights then lie in an arena of `tensors`, which
  // outlives the state. It may be null where nothing is divided. `device` outlives the state too;
  // null: the host's memory.
  static absl::StatusOr<TrainState> Create(const ParamLayout& layout, int rank = 0,
                                           Collectives* tensors = nullptr,
                                           OptimizerKind optimizer = OptimizerKind::kAdamW,
                                           Device* device = nullptr);

  // layout.Elements() of their kind each. Memory of the device.
  std::span<float> weights;
  std::vector<std::span<float>> slots;  // Of the optimizer, as StateNames() says.
  // What the ranks share, from the first weight on; empty where these are not what is gathered.
  std::span<float> shared_weights;

  // REQUIRES of both: nothing is under way that uses the state. At most what a device has failed
  // with. Nothing to do where the device is the host.
  absl::Status CopyToHost() const;
  absl::Status CopyToDevice() const;

  // The initial weights of what this rank holds; the host's.
  void InitializeWeights(const ParamLayout& layout, std::uint64_t seed) const;

  // Every parameter as "NAME", and once more for each slot, of AdamW as "exp_avg/NAME" and
  // "exp_avg_sq/NAME": the names of a checkpoint, whatever the world size and strategy.
  std::vector<StateTensor> Tensors(const ParamLayout& layout) const;
  // Those of them of which others hold a copy, so that all copies must be equal: every rank, or of
  // what is divided the ranks at its place in the other groups.
  struct Held {
    std::vector<StateTensor> by_all, by_place;
  };
  Held Copies(const ParamLayout& layout) const;
  // What this rank writes of them: its part of what it owns, which those at its place in the other
  // groups own as well. Only where the layout divides something.
  std::vector<ElementRange> Part(const ParamLayout& layout) const;

 private:
  TrainState(Arena arena, int rank, OptimizerKind optimizer)
      : arena_(std::move(arena)), rank_(rank), optimizer_(optimizer) {}
  struct HeldCopy {
    std::span<float> of_device;
    float* of_host;
  };
  absl::Status MakeHostCopy(const ParamLayout& layout, Device& device);
  absl::Status Copy(bool to_host) const;
  void Append(const ParamLayout& layout, StateKind kind, const std::string& slot,
              std::span<float> buffer, std::vector<StateTensor>& tensors) const;

  Arena arena_, host_arena_;
  // Where the device is not the host: what the rank holds, in the order of Tensors(), and so it
  // lies in host_arena_ without gaps.
  std::vector<HeldCopy> held_;
  std::unique_ptr<Stream> copies_;
  int rank_ = 0;
  OptimizerKind optimizer_;
};

}  // namespace regroup::worker
