#include "worker/optim/optimizer.h"

#include <cmath>

#include "common/base/check.h"

namespace regroup::worker {

template <typename T>
AdamW<T>::AdamW(const ParamLayout& layout, const AdamWConfig& config, const KernelTable<T>& kernels,
                const Buffers& buffers)
    : layout_(layout), config_(config), kernels_(kernels), buffers_(buffers) {
  const auto elements = static_cast<std::size_t>(layout.flat_elements());
  CHECK(buffers.weights.size() == elements && buffers.gradients.size() == elements);
  CHECK(buffers.first_moment.size() == elements && buffers.second_moment.size() == elements);
}

template <typename T>
double AdamW<T>::SumSquares() const {
  return kernels_.sum_squares(layout_.flat_elements(), buffers_.gradients.data());
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
    const std::int64_t at = place.flat.begin;
    step.weight_decay = place.spec.decay ? config_.weight_decay : 0;
    kernels_.adamw(place.flat.size, step, buffers_.gradients.data() + at,
                   buffers_.weights.data() + at, buffers_.first_moment.data() + at,
                   buffers_.second_moment.data() + at);
  }
}

template class AdamW<float>;
template class AdamW<double>;

}  // namespace regroup::worker
