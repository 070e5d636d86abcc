#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/kernels/kernels.h"
#include "worker/layout/layout.h"

namespace regroup::worker {

enum class OptimizerKind : std::uint8_t {
  kAdamW,  // As torch.optim.AdamW.
  kSgd,    // With momentum, as torch.optim.SGD: weight decay is part of the gradient.
  kLamb,   // AdamW's direction, each tensor's step as long as trust says (You et al., 2020).
  kLars,   // SGD's, likewise (You et al., 2017): momentum is of steps, learning rate included.
};
inline constexpr OptimizerKind kOptimizers[] = {OptimizerKind::kAdamW, OptimizerKind::kSgd,
                                                OptimizerKind::kLamb, OptimizerKind::kLars};
const char* NameOf(OptimizerKind kind);  // "adamw", "sgd", "lamb", "lars".
// What checkpoints call its state: buffers with an element per weight, zero before step 0.
std::span<const std::string_view> StateNames(OptimizerKind kind);

struct OptimizerConfig {
  OptimizerKind kind = OptimizerKind::kAdamW;
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;  // AdamW, LAMB.
  double momentum = 0.9;                             // SGD, LARS.
  double trust = 1e-3;                               // LARS: of weights' norm to step's.
  // On parameters whose spec says decay. Of AdamW it is decoupled, times the learning rate.
  double weight_decay = 0.1;
};

struct StepInfo {
  std::int64_t step = 0;  // Updates applied before this one; bias correction uses step + 1.
  double lr = 0;
  double grad_scale = 1;  // ClipScale's.
};

// One rank's optimizer over its buffers of the layout: it steps what the rank owns, or where
// nothing is divided, everything. Weights have equal bits under every strategy. Owns no state. All
// of it is done in the order of the stream, so sums can be read once that is awaited. Execution
// thread only.
template <typename T>
class Optimizer {
 public:
  struct Buffers {  // Each of layout.Elements() of its kind; they outlive the optimizer.
    std::span<T> weights;
    std::span<const T> gradients;
    std::vector<std::span<T>> state;  // As StateNames() says.
    // Where gradients are kept in fewer bits, `gradients` is none, and this has so many of them in
    // full precision, from an offset into the rank's buffer: in the order of the stream, and until
    // the next call. REQUIRES: at most widened_at_once, which is a block or more.
    std::function<const T*(std::int64_t offset, std::int64_t elements)> widened{};
    std::int64_t widened_at_once = 0;
  };

  // Resource exhausted, with the size.
  static absl::StatusOr<std::unique_ptr<Optimizer>> Create(const ParamLayout& layout,
                                                           const OptimizerConfig& config,
                                                           const Compute<T>& compute,
                                                           Buffers buffers, int rank = 0);

  // The same value for every thread count. REQUIRES: gradients are reduced, and the rank has all of
  // them, in full precision.
  void SumSquares(double* sum) const;
  // Of the blocks that the rank steps, at their places among BlocksOf(layout); the others are set
  // to 0, and all of them on ranks that own what those of the first group do. The sum over all
  // ranks goes to AddBlocks. REQUIRES: gradients are reduced.
  void SquareOwnedBlocks(std::span<double> sums) const;

  // Whether steps need the norms of whole tensors: LAMB's and LARS's do, of parameters that decay.
  // Biases and gains are stepped without, as is usual.
  bool needs_norms() const { return !squares_.empty(); }
  // Squares, by block of each tensor, of what the rank owns, zeros as above: where anything
  // is divided, the caller replaces them by their sum over all ranks before the next Step, which
  // reads them when it is called. Changes no state. REQUIRES: gradients are reduced, and `info` is
  // that of the next Steps.
  std::span<double> SquareTensors(const StepInfo& info);

  // Updates the weights and state of one unit.
  void Step(UnitId unit, const StepInfo& info);

 private:
  Optimizer(const ParamLayout& layout, const OptimizerConfig& config, const Compute<T>& compute,
            Buffers buffers, int rank);
  struct Pointers {  // Of one element of the flat order.
    T* weight;
    T* state[2];
  };
  Pointers At(std::int64_t element) const;
  // Ranges of the flat order with their gradients in full precision.
  using UseRange = std::function<void(const Range&, const T* gradient)>;
  void ForPieces(const Range& flat, const UseRange& use) const;
  // What of a parameter this rank steps.
  void ForOwned(ParamId id, const UseRange& use) const;
  bool CountsOwned() const;
  bool Adapts(ParamId id) const { return pieces_[static_cast<std::size_t>(id)] >= 0; }
  void SquareRange(ParamId id, const Range& flat, const T* gradient, const StepInfo& info);
  // Of a whole tensor: 2-norms of its weights, and of LAMB's update or LARS's gradient.
  std::pair<double, double> Norms(ParamId id) const;
  double Trust(ParamId id) const;
  double DecayOf(ParamId id) const;
  void StepRange(ParamId id, const Range& flat, const T* gradient, const StepInfo& info,
                 double trust);

  const ParamLayout& layout_;
  const OptimizerConfig config_;
  const Compute<T> compute_;
  const Buffers buffers_;
  const int rank_;
  std::vector<std::int64_t> pieces_;  // By parameter: its first among the squares; -1: none.
  Arena memory_;
  std::span<double> squares_;     // Those of weights, then as many others.
  std::span<double> chunk_sums_;  // A workspace of sum_squares.
};

// How many blocks there are to sum squares of.
std::int64_t BlocksOf(const ParamLayout& layout);
// How many sums of squares SquareTensors has on each rank.
std::int64_t TensorSquaresOf(const ParamLayout& layout, OptimizerKind kind);
// What an optimizer needs while it computes, beside its state and those.
std::int64_t OptimizerWorkspaceBytes();

}  // namespace regroup::worker
