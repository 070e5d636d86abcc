#include "worker/model/model.h"

#include <algorithm>

#include "common/base/check.h"
#include "worker/tensor/counter_rng.h"

namespace regroup::worker {

const char* NameOf(Recompute recompute) {
  switch (recompute) {
    case Recompute::kNone: return "none";
    case Recompute::kSelective: return "selective";
    case Recompute::kFull: return "full";
  }
  CHECK(false);
}

template <typename T>
void Layer<T>::Recompute(const LayerContext<T>&, const T*) const {
  CHECK(false);
}

template <typename T>
std::vector<UnitId> UnitsRecomputed(const Model<T>& model, Recompute recompute) {
  std::vector<UnitId> units;
  if (recompute == Recompute::kNone) return units;
  for (std::size_t u = 0; u < model.units().size(); ++u) {
    if (model.units()[u].layer->Spec(Extent{}).cheap_stash_bytes > 0)
      units.push_back(static_cast<UnitId>(u));
  }
  return units;
}

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
    spec.part_begins = std::move(layer.part_begins);
  }
  return specs;
}

template <typename T>
void InitializeWeights(const ParamSpec& param, std::uint64_t seed, std::int64_t begin,
                       std::span<T> weights) {
  const RngKey key = SeedKey(seed).Fold("init").Fold(param.name);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    weights[i] =
        static_cast<T>(param.init_mean +
                       param.init_std * UnitBell(key.Bits(static_cast<std::uint64_t>(begin) + i)));
  }
}

template <typename T>
void InitializeWeights(const ParamLayout& layout, std::uint64_t seed, std::span<T> weights) {
  CHECK(static_cast<std::int64_t>(weights.size()) == layout.flat_elements());
  std::fill(weights.begin(), weights.end(), T(0));
  for (const ParamPlace& param : layout.params()) {
    InitializeWeights<T>(param.spec, seed, 0,
                         weights.subspan(static_cast<std::size_t>(param.flat.begin),
                                         static_cast<std::size_t>(param.flat.size)));
  }
}

template class Layer<float>;
template class Layer<double>;
template class Layer<BFloat16>;
template class Layer<Half>;
template std::vector<UnitId> UnitsRecomputed(const Model<float>&, Recompute);
template std::vector<UnitId> UnitsRecomputed(const Model<double>&, Recompute);
template std::vector<UnitId> UnitsRecomputed(const Model<BFloat16>&, Recompute);
template std::vector<UnitId> UnitsRecomputed(const Model<Half>&, Recompute);
template class Model<float>;
template class Model<double>;
template class Model<BFloat16>;
template class Model<Half>;
template void InitializeWeights<float>(const ParamLayout&, std::uint64_t, std::span<float>);
template void InitializeWeights<double>(const ParamLayout&, std::uint64_t, std::span<double>);
template void InitializeWeights<float>(const ParamSpec&, std::uint64_t, std::int64_t,
                                       std::span<float>);
template void InitializeWeights<double>(const ParamSpec&, std::uint64_t, std::int64_t,
                                        std::span<double>);

}  // namespace regroup::worker
