#include "worker/optim/optimizer.h"

#include <algorithm>
#include <cmath>

#include "common/base/check.h"
#include "worker/kernels/fixed_chunks.h"

namespace regroup::worker {

static_assert(ParamLayout::kBlockElements == kSumBlock);

std::int64_t BlocksOf(const ParamLayout& layout) {
  return (layout.flat_elements() + kSumBlock - 1) / kSumBlock;
}

template <typename T>
AdamW<T>::AdamW(const ParamLayout& layout, const AdamWConfig& config, const KernelTable<T>& kernels,
                const Buffers& buffers, int rank)
    : layout_(layout), config_(config), kernels_(kernels), buffers_(buffers), rank_(rank) {
  const auto elements = [&](StateKind kind) {
    return static_cast<std::size_t>(layout.Elements(kind, rank));
  };
  CHECK(buffers.weights.size() == elements(StateKind::kWeights));
  CHECK(buffers.gradients.size() == elements(StateKind::kGradients));
  CHECK(buffers.first_moment.size() == elements(StateKind::kMoments));
  CHECK(buffers.second_moment.size() == elements(StateKind::kMoments));
}

template <typename T>
double AdamW<T>::SumSquares() const {
  return kernels_.sum_squares(layout_.flat_elements(), buffers_.gradients.data());
}

template <typename T>
void AdamW<T>::SquareOwnedBlocks(std::span<double> sums) const {
  CHECK(static_cast<std::int64_t>(sums.size()) == BlocksOf(layout_));
  std::fill(sums.begin(), sums.end(), 0.0);
  for (const Range& box : layout_.Owned(rank_)) {
    kernels_.square_blocks(
        box.size,
        buffers_.gradients.data() + layout_.Offset(StateKind::kGradients, rank_, box.begin),
        sums.data() + box.begin / kSumBlock);
  }
}

template <typename T>
void AdamW<T>::Step(UnitId unit, const StepInfo& info) {
  CHECK(unit >= 0 && unit < static_cast<UnitId>(layout_.units().size()));
  const auto count = static_cast<double>(info.step + 1);
  AdamWStep step = {.lr = info.lr,
                    .beta1 = config_.beta1,
                    .beta2 = config_.beta2,
                    .epsilon = config_.epsilon,
                    .weight_decay = 0,
                    .correction1 = 1 - std::pow(config_.beta1, count),
                    .correction2 = 1 - std::pow(config_.beta2, count),
                    .grad_scale = info.grad_scale};
  for (ParamId id : layout_.units()[static_cast<std::size_t>(unit)].params) {
    const ParamPlace& place = layout_.params()[static_cast<std::size_t>(id)];
    step.weight_decay = place.spec.decay ? config_.weight_decay : 0;
    if (!layout_.Divides(StateKind::kMoments)) {
      StepRange(place.flat, step);
      continue;
    }
    for (const Share& share : layout_.Shares(id)) {
      if (share.rank == rank_) StepRange(share.flat, step);
    }
  }
}

template <typename T>
void AdamW<T>::StepRange(const Range& flat, const AdamWStep& step) {
  const auto at = [&](StateKind kind) { return layout_.Offset(kind, rank_, flat.begin); };
  kernels_.adamw(flat.size, step, buffers_.gradients.data() + at(StateKind::kGradients),
                 buffers_.weights.data() + at(StateKind::kWeights),
                 buffers_.first_moment.data() + at(StateKind::kMoments),
                 buffers_.second_moment.data() + at(StateKind::kMoments));
}

template class AdamW<float>;
template class AdamW<double>;

}  // namespace regroup::worker
