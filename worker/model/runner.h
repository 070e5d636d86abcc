#pragma once

#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/model/model.h"
#include "worker/tensor/arena.h"
#include "worker/tensor/counter_rng.h"

namespace regroup::worker {

// What carries out a plan's instructions on the units of one model, whatever their number type, by
// a device. A call begins its work on a stream; what is wrong with that comes with the stream.
class Runner {
 public:
  virtual ~Runner() = default;
  // Invalid argument: an empty micro-batch, one beyond the extent, or a token or target outside the
  // vocabulary (checked by unit 0).
  virtual absl::Status Forward(UnitId unit, const MicroBatch& batch) = 0;
  // What the unit's Forward left for its Backward, again, to the same bits. REQUIRES: it is one of
  // UnitsRecomputed, and next to go backward.
  virtual void Recompute(UnitId unit, const MicroBatch& batch) = 0;
  // Writes weights as the model's number type has them. What they become is a function of their
  // value, their parameter, their place in it and `key`. REQUIRES: that type is of 16 bits.
  struct Weights {
    ParamId param = 0;
    std::int64_t first = 0;         // Of the parameter's elements.
    std::span<const float> from{};  // As the optimizer has them.
    std::byte* to = nullptr;
  };
  virtual void RoundWeights(const Weights& weights, const RngKey& key) = 0;
  // `part`, or kWholeUnit. REQUIRES: batch has targets and all its Forwards are done; a part comes
  // after the one behind it, with nothing of another unit between them.
  virtual void Backward(UnitId unit, int part, const MicroBatch& batch, AddMask adds) = 0;
  // Sum over the tokens of the last micro-batch with targets, and of those that it adds to, in
  // nats, not scaled; 0 before any. Read it once the stream is awaited. Made by the last unit's
  // Forward, or its Backward where MicroBatch::backward is set.
  virtual const double& LossSum() const = 0;
};

// Runs the units of one model, one call per instruction of a plan. Owns every activation, allocated
// once; weights and gradients lie where the plan puts them and outlive it. One micro-batch is in
// flight: Forward of all units in order, then (training) Backward of all units in reverse order,
// each after its Recompute where another unit has written over what it left.
// Execution thread only.
template <typename T>
class UnitRunner final : public Runner {
 public:
  // Where the weights and gradients of each unit begin, by unit; what a call needs has to be there
  // at the time of the call. Gradients may be none at all: forward only.
  struct Places {
    std::vector<const T*> weights;
    std::vector<Wide<T>*> gradients;
  };
  // Resource exhausted if the activations do not fit into
  // memory, invalid argument if the extent is beyond the model's context or 2^28 tokens.
  static absl::StatusOr<std::unique_ptr<UnitRunner>> Create(
      const Model<T>& model, const ParamLayout& layout, const Compute<T>& compute,
      const Extent& extent, const Places& places,
      worker::Recompute recompute = worker::Recompute::kNone);
  // With buffers of the whole flat order; gradients may be empty.
  static absl::StatusOr<std::unique_ptr<UnitRunner>> Create(
      const Model<T>& model, const ParamLayout& layout, const Compute<T>& compute,
      const Extent& extent, std::span<const T> weights, std::span<Wide<T>> gradients);

  // What Create allocates; invalid argument as there.
  static absl::StatusOr<std::size_t> ActivationBytes(
      const Model<T>& model, const Extent& extent,
      worker::Recompute recompute = worker::Recompute::kNone);
  // What of that each unit has for itself, from its forward to its backward.
  static std::vector<std::int64_t> KeptBytes(const Model<T>& model, const Extent& extent,
                                             worker::Recompute recompute);

  absl::Status Forward(UnitId unit, const MicroBatch& batch) override;
  void Recompute(UnitId unit, const MicroBatch& batch) override;
  void Backward(UnitId unit, int part, const MicroBatch& batch, AddMask adds) override;
  void RoundWeights(const Weights& weights, const RngKey& key) override;
  const double& LossSum() const override { return *loss_sum_; }
  // (B, T, V) after the last unit's Forward of a micro-batch without targets, once that is over.
  // Memory of the device. REQUIRES: Extent::logits.
  std::span<const T> Logits() const;

  std::size_t activation_bytes() const { return arena_.size_bytes(); }
  double forward_flops() const {
    return forward_flops_;
  }  // Of one full micro-batch; backward is twice that.

 private:
  struct UnitState {
    std::vector<const T*> weights;  // Into the places of units, in the order of LayerSpec::params.
    std::vector<Wide<T>*> gradients;
    std::span<std::byte> stash, cheap_stash;  // Its own, or what all recomputed units share.
    std::span<T> output;
  };
  UnitRunner(const Model<T>& model, const Compute<T>& compute, const Extent& extent,
             worker::Recompute recompute)
      : model_(model), compute_(compute), extent_(extent), recompute_(recompute) {}
  absl::Status Allocate(const std::vector<LayerSpec>& specs);
  void Bind(const ParamLayout& layout, const std::vector<LayerSpec>& specs, const Places& places);
  absl::Status CheckBatch(const MicroBatch& batch) const;
  LayerContext<T> ContextOf(UnitId unit, const MicroBatch& batch);
  void SumLosses(const MicroBatch& batch);

  const Model<T>& model_;
  const Compute<T> compute_;
  const Extent extent_;
  const worker::Recompute recompute_;
  Arena arena_, results_;
  std::vector<UnitState> units_;
  std::vector<RngKey> names_;  // By parameter of the layout.
  std::span<std::byte> scratch_;
  std::span<Wide<T>> losses_;
  std::span<T> gradient_;    // (B, T, widest C): flows backward from unit to unit, in place.
  std::int64_t logits_ = 0;  // Elements of valid logits.
  std::span<std::int32_t> tokens_, targets_;  // Of the micro-batch in flight.
  double* loss_sum_ = nullptr;
  double forward_flops_ = 0;
};

}  // namespace regroup::worker
