#include "worker/optim/optimizer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "worker/kernels/fixed_chunks.h"

namespace regroup::worker {
namespace {

static_assert(ParamLayout::kBlockElements == kSumBlock);

std::size_t Index(std::int64_t i) { return static_cast<std::size_t>(i); }

bool NeedsNorms(OptimizerKind kind) {
  return kind == OptimizerKind::kLamb || kind == OptimizerKind::kLars;
}

// Blocks of the flat order that have elements of a range.
std::int64_t FirstBlock(const Range& flat) { return flat.begin / kSumBlock; }
std::int64_t BlocksIn(const Range& flat) {
  return flat.size == 0 ? 0 : (flat.end() - 1) / kSumBlock - FirstBlock(flat) + 1;
}

template <typename T>
LambStep<T> LambStepOf(const OptimizerConfig& config, const StepInfo& info, double decay,
                       double trust) {
  const auto count = static_cast<double>(info.step + 1);
  return {.scale = static_cast<T>(info.grad_scale),
          .rate1 = static_cast<T>(1 - config.beta1),
          .beta2 = static_cast<T>(config.beta2),
          .rate2 = static_cast<T>(1 - config.beta2),
          .correction1 = static_cast<T>(1 / (1 - std::pow(config.beta1, count))),
          .root2 = static_cast<T>(1 / std::sqrt(1 - std::pow(config.beta2, count))),
          .epsilon = static_cast<T>(config.epsilon),
          .decay = static_cast<T>(decay),
          .lr = static_cast<T>(info.lr * trust)};
}

template <typename T>
SgdStep<T> SgdStepOf(const OptimizerConfig& config, const StepInfo& info, double decay,
                     double trust) {
  const bool lars = config.kind == OptimizerKind::kLars;
  return {.scale = static_cast<T>(info.grad_scale),
          .decay = static_cast<T>(decay),
          .momentum = static_cast<T>(config.momentum),
          .rate = static_cast<T>(lars ? info.lr * trust : 1),
          .lr = static_cast<T>(lars ? 1 : info.lr)};
}

AdamWStep AdamWStepOf(const OptimizerConfig& config, const StepInfo& info, double decay) {
  const auto count = static_cast<double>(info.step + 1);
  return {.lr = info.lr,
          .beta1 = config.beta1,
          .beta2 = config.beta2,
          .epsilon = config.epsilon,
          .weight_decay = decay,
          .correction1 = 1 - std::pow(config.beta1, count),
          .correction2 = 1 - std::pow(config.beta2, count),
          .grad_scale = info.grad_scale};
}

}  // namespace

const char* NameOf(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::kAdamW: return "adamw";
    case OptimizerKind::kSgd: return "sgd";
    case OptimizerKind::kLamb: return "lamb";
    case OptimizerKind::kLars: return "lars";
  }
  CHECK(false);
}

std::span<const std::string_view> StateNames(OptimizerKind kind) {
  static constexpr std::string_view kMoments[] = {"exp_avg", "exp_avg_sq"},
                                    kMomentum[] = {"momentum_buffer"};
  if (kind == OptimizerKind::kAdamW || kind == OptimizerKind::kLamb) return kMoments;
  return kMomentum;
}

std::int64_t BlocksOf(const ParamLayout& layout) {
  return (layout.flat_elements() + kSumBlock - 1) / kSumBlock;
}

std::int64_t TensorSquaresOf(const ParamLayout& layout, OptimizerKind kind) {
  std::int64_t pieces = 0;
  for (const ParamPlace& place : layout.params())
    pieces += NeedsNorms(kind) && place.spec.decay ? BlocksIn(place.flat) : 0;
  return 2 * pieces;
}

std::int64_t OptimizerWorkspaceBytes() {
  return kSumChunks * static_cast<std::int64_t>(sizeof(double));
}

template <typename T>
Optimizer<T>::Optimizer(const ParamLayout& layout, const OptimizerConfig& config,
                        const Compute<T>& compute, Buffers buffers, int rank)
    : layout_(layout),
      config_(config),
      compute_(compute),
      buffers_(std::move(buffers)),
      rank_(rank) {
  const auto elements = [&](StateKind kind) { return Index(layout.Elements(kind, rank)); };
  CHECK(buffers_.weights.size() == elements(StateKind::kWeights));
  CHECK(buffers_.gradients.size() == (buffers_.widened ? 0 : elements(StateKind::kGradients)));
  CHECK(!buffers_.widened || buffers_.widened_at_once >= kSumBlock);
  CHECK(buffers_.state.size() == StateNames(config.kind).size());
  for (const std::span<T> state : buffers_.state)
    CHECK(state.size() == elements(StateKind::kMoments));
  std::int64_t pieces = 0;
  for (const ParamPlace& place : layout.params()) {
    const bool adapts = NeedsNorms(config.kind) && place.spec.decay;
    pieces_.push_back(adapts ? pieces : -1);
    pieces += adapts ? BlocksIn(place.flat) : 0;
  }
}

template <typename T>
absl::StatusOr<std::unique_ptr<Optimizer<T>>> Optimizer<T>::Create(const ParamLayout& layout,
                                                                   const OptimizerConfig& config,
                                                                   const Compute<T>& compute,
                                                                   Buffers buffers, int rank) {
  std::unique_ptr<Optimizer> optimizer(
      new Optimizer(layout, config, compute, std::move(buffers), rank));
  const std::size_t squares = Index(TensorSquaresOf(layout, config.kind));
  ASSIGN_OR_RETURN(optimizer->memory_,
                   compute.device.Allocate(MemoryKind::kShared,
                                           Arena::Footprint<double>(squares) +
                                               Arena::Footprint<double>(Index(kSumChunks))));
  optimizer->squares_ = optimizer->memory_.template Take<double>(squares);
  optimizer->chunk_sums_ = optimizer->memory_.template Take<double>(Index(kSumChunks));
  return optimizer;
}

template <typename T>
void Optimizer<T>::SumSquares(double* sum) const {
  CHECK(!buffers_.widened);
  compute_.kernels.sum_squares(
      {compute_.stream, chunk_sums_.data()},
      {.elements = layout_.flat_elements(), .x = buffers_.gradients.data(), .sum = sum});
}

template <typename T>
void Optimizer<T>::SquareOwnedBlocks(std::span<double> sums) const {
  CHECK(static_cast<std::int64_t>(sums.size()) == BlocksOf(layout_));
  compute_.stream.Zero(sums.data(), sums.size_bytes());
  if (!CountsOwned()) return;
  for (const Range& box : layout_.Boxes(StateKind::kMoments, rank_)) {
    ForPieces(box, [&](const Range& blocks, const T* gradient) {
      compute_.kernels.square_blocks(
          {compute_.stream},
          {.elements = blocks.size, .x = gradient, .sums = sums.data() + blocks.begin / kSumBlock});
    });
  }
}

template <typename T>
typename Optimizer<T>::Pointers Optimizer<T>::At(std::int64_t element) const {
  const auto at = [&](StateKind kind) { return layout_.Offset(kind, rank_, element); };
  Pointers pointers{buffers_.weights.data() + at(StateKind::kWeights), {}};
  for (std::size_t s = 0; s < buffers_.state.size(); ++s)
    pointers.state[s] = buffers_.state[s].data() + at(StateKind::kMoments);
  return pointers;
}

// Pieces end where blocks do, since those are summed as a whole.
template <typename T>
void Optimizer<T>::ForPieces(const Range& flat, const UseRange& use) const {
  const std::int64_t offset = layout_.Offset(StateKind::kGradients, rank_, flat.begin);
  if (!buffers_.widened) return use(flat, buffers_.gradients.data() + offset);
  for (std::int64_t begin = flat.begin; begin < flat.end();) {
    const std::int64_t end =
        std::min(flat.end(), (begin + buffers_.widened_at_once) / kSumBlock * kSumBlock);
    use({begin, end - begin}, buffers_.widened(offset + begin - flat.begin, end - begin));
    begin = end;
  }
}

template <typename T>
void Optimizer<T>::ForOwned(ParamId id, const UseRange& use) const {
  if (!layout_.Divides(StateKind::kMoments)) ForPieces(layout_.params()[Index(id)].flat, use);
  for (const Share& share : layout_.Shares(id)) {
    if (share.owner == layout_.PlaceOf(rank_)) ForPieces(share.flat, use);
  }
}

// Ranks of other groups own the same.
template <typename T>
bool Optimizer<T>::CountsOwned() const {
  return rank_ < layout_.group();
}

template <typename T>
double Optimizer<T>::DecayOf(ParamId id) const {
  return layout_.params()[Index(id)].spec.decay ? config_.weight_decay : 0;
}

template <typename T>
std::span<double> Optimizer<T>::SquareTensors(const StepInfo& info) {
  compute_.stream.Zero(squares_.data(), squares_.size_bytes());
  if (!CountsOwned()) return squares_;
  for (ParamId id = 0; id < static_cast<ParamId>(layout_.params().size()); ++id) {
    if (!Adapts(id)) continue;
    ForOwned(id,
             [&](const Range& flat, const T* gradient) { SquareRange(id, flat, gradient, info); });
  }
  return squares_;
}

template <typename T>
void Optimizer<T>::SquareRange(ParamId id, const Range& flat, const T* gradient,
                               const StepInfo& info) {
  const Pointers begin = At(flat.begin);
  const std::int64_t first =
      pieces_[Index(id)] + FirstBlock(flat) - FirstBlock(layout_.params()[Index(id)].flat);
  const bool lamb = config_.kind == OptimizerKind::kLamb;
  compute_.kernels.trust_squares({compute_.stream},
                                 {.first = flat.begin,
                                  .elements = flat.size,
                                  .step = LambStepOf<T>(config_, info, DecayOf(id), 1),
                                  .gradient = gradient,
                                  .weight = begin.weight,
                                  .first_moment = lamb ? begin.state[0] : nullptr,
                                  .second_moment = lamb ? begin.state[1] : nullptr,
                                  .of_weights = squares_.data() + first,
                                  .of_others = squares_.data() + squares_.size() / 2 + first});
}

template <typename T>
std::pair<double, double> Optimizer<T>::Norms(ParamId id) const {
  const std::int64_t first = pieces_[Index(id)],
                     last = first + BlocksIn(layout_.params()[Index(id)].flat);
  const auto others = static_cast<std::int64_t>(squares_.size() / 2);
  double weights = 0, other = 0;
  for (std::int64_t piece = first; piece < last; ++piece) {
    weights += squares_[Index(piece)];
    other += squares_[Index(others + piece)];
  }
  return {std::sqrt(weights), std::sqrt(other)};
}

// What the learning rate of one tensor is multiplied by.
template <typename T>
double Optimizer<T>::Trust(ParamId id) const {
  if (!Adapts(id)) return 1;
  const auto [weights, other] = Norms(id);
  if (!(weights > 0 && other > 0)) return 1;  // Of zeros, or not yet anything.
  if (config_.kind == OptimizerKind::kLamb) return weights / other;
  return config_.trust * weights / (other + config_.weight_decay * weights);
}

template <typename T>
void Optimizer<T>::Step(UnitId unit, const StepInfo& info) {
  CHECK(unit >= 0 && unit < static_cast<UnitId>(layout_.units().size()));
  for (ParamId id : layout_.units()[Index(unit)].params) {
    const double trust = Trust(id);
    ForOwned(id, [&](const Range& flat, const T* gradient) {
      StepRange(id, flat, gradient, info, trust);
    });
  }
}

template <typename T>
void Optimizer<T>::StepRange(ParamId id, const Range& flat, const T* gradient, const StepInfo& info,
                             double trust) {
  const Pointers begin = At(flat.begin);
  const double decay = DecayOf(id);
  const Launch on{compute_.stream};
  switch (config_.kind) {
    case OptimizerKind::kAdamW:
      compute_.kernels.adamw(on, {.elements = flat.size,
                                  .step = AdamWStepOf(config_, info, decay),
                                  .gradient = gradient,
                                  .weight = begin.weight,
                                  .first_moment = begin.state[0],
                                  .second_moment = begin.state[1]});
      return;
    case OptimizerKind::kSgd:
    case OptimizerKind::kLars:
      compute_.kernels.sgd(on, {.elements = flat.size,
                                .step = SgdStepOf<T>(config_, info, decay, trust),
                                .gradient = gradient,
                                .weight = begin.weight,
                                .buffer = begin.state[0]});
      return;
    case OptimizerKind::kLamb:
      compute_.kernels.lamb(on, {.elements = flat.size,
                                 .step = LambStepOf<T>(config_, info, decay, trust),
                                 .gradient = gradient,
                                 .weight = begin.weight,
                                 .first_moment = begin.state[0],
                                 .second_moment = begin.state[1]});
      return;
  }
}

template class Optimizer<float>;
template class Optimizer<double>;

}  // namespace regroup::worker
