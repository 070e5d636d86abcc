#include "worker/model/runner.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace regroup::worker {
namespace {

// Tokens of one micro-batch; so many of the widest model still have bytes that can be counted.
constexpr std::int64_t kMaxRows = std::int64_t{1} << 28;

absl::Status CheckTokens(const char* what, std::span<const std::int32_t> tokens,
                         std::int64_t vocabulary) {
  for (std::int32_t token : tokens) {
    if (token < 0 || token >= vocabulary) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, " ", token, " is outside the vocabulary of ", vocabulary));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckExtent(const Extent& extent, std::int64_t context) {
  if (extent.batch >= 1 && extent.time >= 1 && extent.time <= context &&
      extent.batch <= kMaxRows / extent.time) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("micro-batches of ", extent.batch, " x ",
                                                 extent.time, " tokens for a context of ", context,
                                                 "; at most ", kMaxRows, " tokens are possible"));
}

std::size_t Size(std::int64_t elements) { return static_cast<std::size_t>(elements); }

// What units share, the largest that any of them needs.
struct Shared {
  std::int64_t scratch_bytes = 0, widest = 1;
  std::int64_t stash_bytes = 0, cheap_stash_bytes = 0;  // Of units that are recomputed.
};

// Whether the unit's part of the stash is not its own.
bool SharesStash(const LayerSpec& spec, Recompute recompute) {
  return recompute == Recompute::kFull && spec.cheap_stash_bytes > 0;
}
bool SharesCheapStash(const LayerSpec& spec, Recompute recompute) {
  return recompute != Recompute::kNone && spec.cheap_stash_bytes > 0;
}

Shared SharedBy(const std::vector<LayerSpec>& specs, Recompute recompute) {
  Shared shared;
  for (std::size_t u = 0; u < specs.size(); ++u) {
    shared.scratch_bytes = std::max(shared.scratch_bytes, specs[u].scratch_bytes);
    if (SharesStash(specs[u], recompute))
      shared.stash_bytes = std::max(shared.stash_bytes, specs[u].stash_bytes);
    if (SharesCheapStash(specs[u], recompute))
      shared.cheap_stash_bytes = std::max(shared.cheap_stash_bytes, specs[u].cheap_stash_bytes);
    // The last unit ends in the loss: no gradient of its output flows in.
    if (u + 1 < specs.size()) shared.widest = std::max(shared.widest, specs[u].output_width);
  }
  return shared;
}

template <typename T>
std::size_t KeptBytesOf(const LayerSpec& spec, std::int64_t rows, Recompute recompute) {
  std::size_t bytes = Arena::Footprint<T>(Size(rows * spec.output_width));
  if (!SharesStash(spec, recompute)) bytes += Arena::Footprint<std::byte>(Size(spec.stash_bytes));
  if (!SharesCheapStash(spec, recompute))
    bytes += Arena::Footprint<std::byte>(Size(spec.cheap_stash_bytes));
  return bytes;
}

template <typename T>
std::size_t BytesOf(const std::vector<LayerSpec>& specs, std::int64_t rows, Recompute recompute) {
  const Shared shared = SharedBy(specs, recompute);
  std::size_t bytes = Arena::Footprint<std::byte>(Size(shared.scratch_bytes)) +
                      Arena::Footprint<std::byte>(Size(shared.stash_bytes)) +
                      Arena::Footprint<std::byte>(Size(shared.cheap_stash_bytes)) +
                      Arena::Footprint<Wide<T>>(Size(rows)) +
                      2 * Arena::Footprint<std::int32_t>(Size(rows)) +
                      Arena::Footprint<T>(Size(rows * shared.widest));
  for (const LayerSpec& spec : specs) bytes += KeptBytesOf<T>(spec, rows, recompute);
  return bytes;
}

}  // namespace

template <typename T>
absl::StatusOr<std::size_t> UnitRunner<T>::ActivationBytes(const Model<T>& model,
                                                           const Extent& extent,
                                                           worker::Recompute recompute) {
  RETURN_IF_ERROR(CheckExtent(extent, model.context()));
  std::vector<LayerSpec> specs;
  for (const Unit<T>& unit : model.units()) specs.push_back(unit.layer->Spec(extent));
  return BytesOf<T>(specs, extent.rows(), recompute);
}

template <typename T>
std::vector<std::int64_t> UnitRunner<T>::KeptBytes(const Model<T>& model, const Extent& extent,
                                                   worker::Recompute recompute) {
  std::vector<std::int64_t> bytes;
  for (const Unit<T>& unit : model.units()) {
    bytes.push_back(static_cast<std::int64_t>(
        KeptBytesOf<T>(unit.layer->Spec(extent), extent.rows(), recompute)));
  }
  return bytes;
}

template <typename T>
absl::StatusOr<std::unique_ptr<UnitRunner<T>>> UnitRunner<T>::Create(
    const Model<T>& model, const ParamLayout& layout, const Compute<T>& compute,
    const Extent& extent, std::span<const T> weights, std::span<Wide<T>> gradients) {
  CHECK(static_cast<std::int64_t>(weights.size()) == layout.flat_elements());
  CHECK(gradients.empty() || gradients.size() == weights.size());
  Places places;
  for (const UnitPlace& unit : layout.units()) {
    places.weights.push_back(weights.data() + unit.flat.begin);
    if (!gradients.empty()) places.gradients.push_back(gradients.data() + unit.flat.begin);
  }
  return Create(model, layout, compute, extent, places);
}

template <typename T>
absl::StatusOr<std::unique_ptr<UnitRunner<T>>> UnitRunner<T>::Create(
    const Model<T>& model, const ParamLayout& layout, const Compute<T>& compute,
    const Extent& extent, const Places& places, worker::Recompute recompute) {
  CHECK(places.weights.size() == layout.units().size());
  CHECK(places.gradients.empty() || places.gradients.size() == layout.units().size());
  RETURN_IF_ERROR(CheckExtent(extent, model.context()));
  std::unique_ptr<UnitRunner> runner(new UnitRunner(model, compute, extent, recompute));
  std::vector<LayerSpec> specs;
  for (const Unit<T>& unit : model.units()) {
    specs.push_back(unit.layer->Spec(extent));
    runner->forward_flops_ += specs.back().forward_flops;
  }
  RETURN_IF_ERROR(runner->Allocate(specs));
  runner->Bind(layout, specs, places);
  return runner;
}

template <typename T>
absl::Status UnitRunner<T>::Allocate(const std::vector<LayerSpec>& specs) {
  const std::int64_t rows = extent_.rows();
  const Shared shared = SharedBy(specs, recompute_);
  ASSIGN_OR_RETURN(
      arena_, compute_.device.Allocate(MemoryKind::kDevice, BytesOf<T>(specs, rows, recompute_)));
  ASSIGN_OR_RETURN(results_,
                   compute_.device.Allocate(MemoryKind::kShared, Arena::Footprint<double>(1)));
  loss_sum_ = results_.template Take<double>(1).data();
  const auto stash = arena_.Take<std::byte>(Size(shared.stash_bytes)),
             cheap_stash = arena_.Take<std::byte>(Size(shared.cheap_stash_bytes));
  for (const LayerSpec& spec : specs) {
    UnitState state;
    state.stash =
        SharesStash(spec, recompute_) ? stash : arena_.Take<std::byte>(Size(spec.stash_bytes));
    state.cheap_stash = SharesCheapStash(spec, recompute_)
                            ? cheap_stash
                            : arena_.Take<std::byte>(Size(spec.cheap_stash_bytes));
    state.output = arena_.Take<T>(Size(rows * spec.output_width));
    units_.push_back(std::move(state));
  }
  scratch_ = arena_.Take<std::byte>(Size(shared.scratch_bytes));
  losses_ = arena_.Take<Wide<T>>(Size(rows));
  tokens_ = arena_.Take<std::int32_t>(Size(rows));
  targets_ = arena_.Take<std::int32_t>(Size(rows));
  gradient_ = arena_.Take<T>(Size(rows * shared.widest));
  return absl::OkStatus();
}

template <typename T>
void UnitRunner<T>::Bind(const ParamLayout& layout, const std::vector<LayerSpec>& specs,
                         const Places& places) {
  for (const ParamPlace& param : layout.params()) names_.push_back(RngKey{}.Fold(param.spec.name));
  for (std::size_t u = 0; u < specs.size(); ++u) {
    for (const ParamSpec& spec : specs[u].params) {
      const std::optional<ParamId> id = layout.Find(spec.name);
      CHECK(id.has_value());
      const ParamPlace& place = layout.params()[static_cast<std::size_t>(*id)];
      CHECK(place.spec.shape == spec.shape);
      const auto unit = static_cast<std::size_t>(place.unit);
      const std::int64_t at = place.flat.begin - layout.units()[unit].flat.begin;
      units_[u].weights.push_back(places.weights[unit] + at);
      if (!places.gradients.empty()) units_[u].gradients.push_back(places.gradients[unit] + at);
    }
  }
}

template <typename T>
absl::Status UnitRunner<T>::CheckBatch(const MicroBatch& batch) const {
  const std::int64_t rows = batch.batch * batch.time;
  if (batch.batch < 1 || batch.time < 1 || batch.batch > extent_.batch ||
      batch.time > extent_.time) {
    return absl::InvalidArgumentError(absl::StrCat("a micro-batch of ", batch.batch, " x ",
                                                   batch.time, " where ", extent_.batch, " x ",
                                                   extent_.time, " is the largest"));
  }
  if (static_cast<std::int64_t>(batch.tokens.size()) != rows ||
      (!batch.targets.empty() && static_cast<std::int64_t>(batch.targets.size()) != rows)) {
    return absl::InvalidArgumentError(absl::StrCat("a micro-batch of ", rows, " tokens brings ",
                                                   batch.tokens.size(), " and ",
                                                   batch.targets.size(), " targets"));
  }
  if (batch.targets.empty() && !extent_.logits)
    return absl::InvalidArgumentError("a micro-batch without targets, and no room for its logits");
  RETURN_IF_ERROR(CheckTokens("token", batch.tokens, model_.vocabulary()));
  return CheckTokens("target", batch.targets, model_.vocabulary());
}

template <typename T>
LayerContext<T> UnitRunner<T>::ContextOf(UnitId unit, const MicroBatch& batch) {
  const UnitState& state = units_[static_cast<std::size_t>(unit)];
  return {.kernels = compute_.kernels,
          .stream = compute_.stream,
          .batch = batch.batch,
          .time = batch.time,
          .tokens = tokens_.data(),
          .targets = batch.targets.empty() ? nullptr : targets_.data(),
          .loss_scale = batch.loss_scale,
          .weights = state.weights,
          .gradients = state.gradients,
          .stash = state.stash,
          .cheap_stash = state.cheap_stash,
          .scratch = scratch_,
          .losses = losses_,
          .backward = batch.backward};
}

template <typename T>
absl::Status UnitRunner<T>::Forward(UnitId unit, const MicroBatch& batch) {
  CHECK(unit >= 0 && unit < static_cast<UnitId>(units_.size()));
  Stream& stream = compute_.stream;
  if (unit == 0) {
    RETURN_IF_ERROR(CheckBatch(batch));
    stream.Copy(tokens_.data(), batch.tokens.data(), batch.tokens.size_bytes());
    stream.Copy(targets_.data(), batch.targets.data(), batch.targets.size_bytes());
  }
  const auto u = static_cast<std::size_t>(unit);
  const T* in = unit == 0 ? nullptr : units_[u - 1].output.data();
  model_.units()[u].layer->Forward(ContextOf(unit, batch), in, units_[u].output.data());
  if (u + 1 < units_.size()) return absl::OkStatus();
  logits_ = batch.targets.empty() ? batch.batch * batch.time * model_.vocabulary() : 0;
  if (!batch.targets.empty() && !batch.backward) SumLosses(batch);
  return absl::OkStatus();
}

template <typename T>
void UnitRunner<T>::SumLosses(const MicroBatch& batch) {
  compute_.kernels.sum({compute_.stream}, {.elements = batch.batch * batch.time,
                                           .x = losses_.data(),
                                           .sum = loss_sum_,
                                           .add = batch.adds_loss});
}

template <typename T>
void UnitRunner<T>::Recompute(UnitId unit, const MicroBatch& batch) {
  CHECK(unit >= 1 && unit < static_cast<UnitId>(units_.size()));
  CHECK(recompute_ != worker::Recompute::kNone);
  const auto u = static_cast<std::size_t>(unit);
  const Layer<T>& layer = *model_.units()[u].layer;
  const T* in = units_[u - 1].output.data();
  if (recompute_ == worker::Recompute::kFull) {
    layer.Forward(ContextOf(unit, batch), in, units_[u].output.data());
  } else {
    layer.Recompute(ContextOf(unit, batch), in);
  }
}

template <typename T>
void UnitRunner<T>::Backward(UnitId unit, int part, const MicroBatch& batch, AddMask adds) {
  CHECK(unit >= 0 && unit < static_cast<UnitId>(units_.size()));
  CHECK(!batch.targets.empty());
  const auto u = static_cast<std::size_t>(unit);
  CHECK(units_[u].gradients.size() == units_[u].weights.size());
  LayerContext<T> context = ContextOf(unit, batch);
  context.adds = adds;
  context.part = part;
  model_.units()[u].layer->Backward(context, unit == 0 ? nullptr : units_[u - 1].output.data(),
                                    units_[u].output.data(), gradient_.data());
  if (batch.backward && u + 1 == units_.size()) SumLosses(batch);
}

template <typename T>
void UnitRunner<T>::RoundWeights(const Weights& weights, const RngKey& key) {
  if constexpr (sizeof(T) == 2) {
    const RngKey& name = names_[static_cast<std::size_t>(weights.param)];
    compute_.kernels.round_weights(
        {compute_.stream}, {.elements = static_cast<std::int64_t>(weights.from.size()),
                            .weights = weights.from.data(),
                            .rounded = reinterpret_cast<T*>(weights.to),
                            .first = weights.first,
                            .key = static_cast<std::uint32_t>(key.Fold(name.value).Bits(0))});
  } else {
    CHECK(false);
  }
}

template <typename T>
std::span<const T> UnitRunner<T>::Logits() const {
  return std::span<const T>(units_.back().output).first(static_cast<std::size_t>(logits_));
}

template class UnitRunner<float>;
template class UnitRunner<double>;
template class UnitRunner<BFloat16>;
template class UnitRunner<Half>;

}  // namespace regroup::worker
