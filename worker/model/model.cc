#include "worker/model/model.h"

#include <algorithm>

#include "common/base/check.h"
#include "worker/tensor/counter_rng.h"

namespace regroup::worker {

template <typename T>
std::vector<UnitSpec> Model<T>::UnitSpecs() const {
  std::vector<UnitSpec> specs;
  for (const Unit<T>& unit : units_) {
    LayerSpec layer = unit.layer->Spec(Extent{});
    const std::size_t own = layer.params.size() - static_cast<std::size_t>(layer.shared_params);
    UnitSpec& spec = specs.emplace_back();
    spec.name = unit.name;
    for (std::size_t p = own; p < layer.params.size(); ++p)
      spec.shared.push_back(layer.params[p].name);
    layer.params.resize(own);
    spec.params = std::move(layer.params);
  }
  return specs;
}

template <typename T>
void InitializeWeights(const ParamLayout& layout, std::uint64_t seed, std::span<T> weights) {
  CHECK(static_cast<std::int64_t>(weights.size()) == layout.flat_elements());
  std::fill(weights.begin(), weights.end(), T(0));
  for (const ParamPlace& param : layout.params()) {
    const RngKey key = SeedKey(seed).Fold("init").Fold(param.spec.name);
    for (std::int64_t i = 0; i < param.flat.size; ++i) {
      weights[static_cast<std::size_t>(param.flat.begin + i)] =
          static_cast<T>(param.spec.init_mean +
                         param.spec.init_std * UnitBell(key.Bits(static_cast<std::uint64_t>(i))));
    }
  }
}

template class Model<float>;
template class Model<double>;
template void InitializeWeights<float>(const ParamLayout&, std::uint64_t, std::span<float>);
template void InitializeWeights<double>(const ParamLayout&, std::uint64_t, std::span<double>);

}  // namespace regroup::worker
