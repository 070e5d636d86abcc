#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "worker/kernels/kernels.h"
#include "worker/layout/layout.h"

namespace regroup::worker {

struct AdamWConfig {
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;
  double weight_decay =
      0.1;  // On parameters whose spec says decay; decoupled, times the learning rate.
};

struct StepInfo {
  std::int64_t step = 0;  // Updates applied before this one; bias correction uses step + 1.
  double lr = 0;
  double grad_scale = 1;  // ClipScale's.
};

// AdamW as torch.optim.AdamW computes it, over one rank's buffers of the layout: on what the rank
// owns, or where nothing is divided, on everything. Owns nothing; execution thread only.
template <typename T>
class AdamW {
 public:
  struct Buffers {  // Each of layout.Elements() of its kind; they outlive the optimizer.
    std::span<T> weights;
    std::span<const T> gradients;
    std::span<T> first_moment, second_moment;  // The whole state; zero before step 0.
  };
  // What checkpoints call the state buffers, in the order first, second.
  static constexpr std::string_view kStateNames[] = {"exp_avg", "exp_avg_sq"};

  AdamW(const ParamLayout& layout, const AdamWConfig& config, const KernelTable<T>& kernels,
        const Buffers& buffers, int rank = 0);

  // The same value for every thread count. REQUIRES: gradients are reduced, and the rank has all of
  // them.
  double SumSquares() const;
  // Of the blocks that the rank owns, at their places among BlocksOf(layout); the others are set
  // to 0. The sum over all ranks goes to AddBlocks. REQUIRES: gradients are reduced.
  void SquareOwnedBlocks(std::span<double> sums) const;
  // Updates the weights and moments of one unit.
  void Step(UnitId unit, const StepInfo& info);

 private:
  // Elements of the flat order, all of one parameter.
  void StepRange(const Range& flat, const AdamWStep& step);

  const ParamLayout& layout_;
  const AdamWConfig config_;
  const KernelTable<T>& kernels_;
  const Buffers buffers_;
  const int rank_;
};

// How many blocks there are to sum squares of.
std::int64_t BlocksOf(const ParamLayout& layout);

}  // namespace regroup::worker
