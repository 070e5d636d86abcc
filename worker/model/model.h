#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "worker/kernels/kernels.h"
#include "worker/layout/layout.h"

namespace regroup::worker {

// What one micro-batch feeds to the first and the last unit. Memory of the host, which stays as it
// is until what was begun with it is over.
struct MicroBatch {
  std::int64_t batch = 0, time = 0;       // At most the extent that the workspace was made for.
  std::span<const std::int32_t> tokens;   // (B, T)
  std::span<const std::int32_t> targets;  // (B, T), or empty: no loss, logits stay logits.
  double loss_scale = 1;                  // Gradients are of loss_scale · (sum of token losses).
  bool adds_loss = false;                 // To the sum of the micro-batches before.
  // Its Backwards follow, and the last unit's makes the losses: logits are there once then, for as
  // many tokens at a time as there is room for. Else its Forward makes them.
  bool backward = false;
};

// Everything a layer may touch besides its input and output.
// Weights and activations are of T, gradients of weights and losses of Wide<T>.
template <typename T>
struct LayerContext {
  const KernelTable<T>& kernels;
  Stream& stream;
  std::int64_t batch, time;
  const std::int32_t* tokens;           // (B, T), where kernels read them.
  const std::int32_t* targets;          // Likewise; none: no loss, logits stay logits.
  double loss_scale;                    // As MicroBatch has it.
  std::span<const T* const> weights;    // One pointer per LayerSpec::params.
  std::span<Wide<T>* const> gradients;  // Likewise; empty in a forward pass.
  // Written by Forward, read by Backward of the same micro-batch: what is expensive to compute, and
  // what Recompute has quickly from that.
  std::span<std::byte> stash, cheap_stash;
  std::span<std::byte> scratch;  // Undefined on entry.
  std::span<Wide<T>> losses;     // (B, T): written by the last unit.
  bool backward = false;         // As MicroBatch has it.
  AddMask adds = 0;              // Of LayerSpec::params.
  int part = kWholeUnit;         // Of a backward: see LayerSpec::part_begins.
  bool Adds(int param) const { return (adds >> param & 1) != 0; }
  Launch On(void* workspace = nullptr) const { return {stream, workspace}; }
};

// What of a unit's stash every unit keeps for itself until its backward; the rest lies where that
// of the next unit will, and is recomputed.
enum class Recompute : std::uint8_t {
  kNone,       // All of it.
  kSelective,  // What is expensive to compute: LayerSpec::stash_bytes.
  kFull,       // Nothing.
};
const char* NameOf(Recompute recompute);  // "none", "selective", "full".

struct LayerSpec {
  std::vector<ParamSpec> params;   // Own ones first, then those of other units that it shares.
  int shared_params = 0;           // How many at the end belong to other units.
  std::vector<int> part_begins{};  // As UnitSpec has them.
  // At the largest extent, as are the next. Without cheap_stash_bytes a unit is never recomputed.
  std::int64_t stash_bytes = 0, cheap_stash_bytes = 0, scratch_bytes = 0;
  LinearShape largest_product{};  // Likewise.
  // Output is (B, T, output_width): none, where the unit ends in a loss and no logits are wanted.
  std::int64_t output_width = 0;
  double forward_flops = 0;  // At the largest extent.
};

struct Extent {  // Largest micro-batch.
  std::int64_t batch = 1, time = 1;
  bool logits = false;  // Some have no targets: all logits are wanted.
  std::int64_t rows() const { return batch * time; }
};

// The math of one unit, with its own gradient. Holds shapes only; weights and everything else come
// with the context. All of it is begun on the context's stream, and the host reads none of it.
template <typename T>
class Layer {
 public:
  virtual ~Layer() = default;
  virtual LayerSpec Spec(const Extent& extent) const = 0;
  // REQUIRES: `in` outlives the Backward of this micro-batch; `out` does not overlap it.
  virtual void Forward(const LayerContext<T>& context, const T* in, T* out) const = 0;
  // Writes the cheap stash again, to the same bits. REQUIRES: the unit has one; `in` as in Forward.
  virtual void Recompute(const LayerContext<T>& context, const T* in) const;
  // `in` as in Forward; `out` as Forward left it, and may be destroyed. A unit that ends in a loss
  // writes the losses, whether Forward has or not. `gradient` holds the
  // gradient of the output on entry (undefined for a unit that ends in a loss) and that of the
  // input on return (undefined for one that reads tokens); it has room for the wider of the two.
  // In parts, of which the last goes first: between them it holds what the next one needs.
  virtual void Backward(const LayerContext<T>& context, const T* in, T* out, T* gradient) const = 0;
};

template <typename T>
struct Unit {
  std::string name;
  std::unique_ptr<Layer<T>> layer;
};

// A network as an ordered list of units. Immutable; weights live elsewhere, in a ParamLayout's
// order.
template <typename T>
class Model {
 public:
  // Tokens and targets are below `vocabulary`; a sequence has at most `context` of them.
  Model(std::vector<Unit<T>> units, std::int64_t vocabulary, std::int64_t context)
      : units_(std::move(units)), vocabulary_(vocabulary), context_(context) {}

  std::int64_t vocabulary() const { return vocabulary_; }
  std::int64_t context() const { return context_; }
  const std::vector<Unit<T>>& units() const { return units_; }
  std::vector<UnitSpec> UnitSpecs() const;  // For ParamLayout.

 private:
  std::vector<Unit<T>> units_;
  std::int64_t vocabulary_, context_;
};

// The units that a step recomputes.
template <typename T>
std::vector<UnitId> UnitsRecomputed(const Model<T>& model, Recompute recompute);

// Initial weights: a function of (seed, parameter name, element) only. `weights` has
// layout.flat_elements(); padding is set to zero.
template <typename T>
void InitializeWeights(const ParamLayout& layout, std::uint64_t seed, std::span<T> weights);
// The same for the elements from `begin` of one parameter.
template <typename T>
void InitializeWeights(const ParamSpec& param, std::uint64_t seed, std::int64_t begin,
                       std::span<T> weights);

}  // namespace regroup::worker
