#include "worker/train/train_state.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "worker/data/sampler.h"
#include "worker/device/host_device.h"
#include "worker/model/model.h"
#include "worker/optim/optimizer.h"

namespace regroup::worker {
namespace {

std::size_t ElementsOf(const ParamLayout& layout, StateKind kind, int rank) {
  return static_cast<std::size_t>(layout.Elements(kind, rank));
}

}  // namespace

absl::StatusOr<TrainState> TrainState::Create(const ParamLayout& layout, int rank,
                                              Collectives* tensors, OptimizerKind optimizer,
                                              Device* device) {
  const bool divided = layout.Divides(StateKind::kWeights), shared = divided && !layout.rounded();
  CHECK(tensors != nullptr || !divided);
  const std::size_t weights = ElementsOf(layout, StateKind::kWeights, rank),
                    moments = ElementsOf(layout, StateKind::kMoments, rank);
  const std::size_t slots = StateNames(optimizer).size();
  HostDevice host;
  Device& of = device == nullptr ? host : *device;
  ASSIGN_OR_RETURN(Arena arena, of.Allocate(MemoryKind::kDevice,
                                            (shared ? 0 : Arena::Footprint<float>(weights)) +
                                                slots * Arena::Footprint<float>(moments)));
  TrainState state(std::move(arena), rank, optimizer);
  if (shared) {
    std::size_t largest = 0;  // All ranks' parts of an arena are of one size.
    for (int r = 0; r < layout.world(); ++r)
      largest = std::max(largest, ElementsOf(layout, StateKind::kWeights, r));
    ASSIGN_OR_RETURN(const Tensor tensor,
                     tensors->AllocateShared(DType::kF32, largest,
                                             layout.GathersInPlace() ? layout.group() : 1));
    state.shared_weights = tensor.Elements<float>();
    state.weights = state.shared_weights.first(weights);
  } else {
    state.weights = state.arena_.Take<float>(weights);
  }
  for (std::size_t s = 0; s < slots; ++s) state.slots.push_back(state.arena_.Take<float>(moments));
  if (!of.IsHost()) RETURN_IF_ERROR(state.MakeHostCopy(layout, of));
  return state;
}

absl::Status TrainState::MakeHostCopy(const ParamLayout& layout, Device& device) {
  std::vector<StateTensor> held = Tensors(layout);
  std::size_t elements = 0;
  for (const StateTensor& tensor : held) {
    for (const StateSlice& slice : tensor.slices) elements += slice.data.size();
  }
  ASSIGN_OR_RETURN(host_arena_,
                   device.Allocate(MemoryKind::kShared, Arena::Footprint<float>(elements)));
  std::span<float> rest = host_arena_.Take<float>(elements);
  for (const StateTensor& tensor : held) {
    for (const StateSlice& slice : tensor.slices) {
      const std::span<float> of_host = rest.first(slice.data.size());
      rest = rest.subspan(slice.data.size());
      if (!held_.empty() && held_.back().of_device.end() == slice.data.begin()) {
        HeldCopy& last = held_.back();
        last.of_device = {last.of_device.data(), last.of_device.size() + slice.data.size()};
      } else {
        held_.push_back({slice.data, of_host.data()});
      }
    }
  }
  copies_ = device.NewStream(StreamKind::kMove);
  return absl::OkStatus();
}

absl::Status TrainState::Copy(bool to_host) const {
  for (const auto& [of_device, of_host] : held_) {
    void* const to = to_host ? static_cast<void*>(of_host) : of_device.data();
    copies_->Copy(to, to_host ? of_device.data() : of_host, of_device.size_bytes());
  }
  return copies_ ? copies_->Await() : absl::OkStatus();
}

absl::Status TrainState::CopyToHost() const { return Copy(true); }
absl::Status TrainState::CopyToDevice() const { return Copy(false); }

void TrainState::Append(const ParamLayout& layout, StateKind kind, const std::string& slot,
                        std::span<float> buffer, std::vector<StateTensor>& tensors) const {
  for (std::size_t p = 0; p < layout.params().size(); ++p) {
    const ParamPlace& place = layout.params()[p];
    std::vector<StateSlice> slices;
    const auto hold = [&](const Range& flat) {
      const std::int64_t at = layout.Offset(kind, rank_, flat.begin);
      slices.push_back(
          {flat.begin - place.flat.begin,
           buffer.subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(flat.size))});
    };
    if (!layout.Divides(kind)) hold(place.flat);
    for (const Share& share : layout.Shares(static_cast<ParamId>(p))) {
      if (layout.Divides(kind) && share.owner == layout.PlaceOf(rank_)) hold(share.flat);
    }
    const auto dims = place.spec.shape.dims();
    tensors.emplace_back(
        TensorInfo{.name = absl::StrCat(slot, slot.empty() ? "" : "/", place.spec.name),
                   .shape = {dims.begin(), dims.end()},
                   .slot = slot},
        std::move(slices));
  }
}

void TrainState::InitializeWeights(const ParamLayout& layout, std::uint64_t seed) const {
  const std::vector<StateTensor> tensors = Tensors(layout);
  for (std::size_t p = 0; p < layout.params().size(); ++p) {
    for (const StateSlice& slice : tensors[p].slices) {
      worker::InitializeWeights<float>(layout.params()[p].spec, seed, slice.begin, slice.data);
    }
  }
}

std::vector<StateTensor> TrainState::Tensors(const ParamLayout& layout) const {
  std::vector<StateTensor> tensors;
  Append(layout, StateKind::kWeights, "", weights, tensors);
  for (std::size_t s = 0; s < slots.size(); ++s) {
    Append(layout, StateKind::kMoments, std::string(StateNames(optimizer_)[s]), slots[s], tensors);
  }
  if (host_arena_.size_bytes() == 0) return tensors;
  float* of_host = held_.empty() ? nullptr : held_.front().of_host;  // One after the other.
  for (StateTensor& tensor : tensors) {
    for (StateSlice& slice : tensor.slices) {
      slice.data = {of_host, slice.data.size()};
      of_host += slice.data.size();
    }
  }
  return tensors;
}

TrainState::Held TrainState::Copies(const ParamLayout& layout) const {
  Held held;
  std::vector<StateTensor> tensors = Tensors(layout);
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const bool weights = t < layout.params().size();
    const bool divided = layout.Divides(weights ? StateKind::kWeights : StateKind::kMoments);
    if (divided && layout.groups() == 1) continue;
    (divided ? held.by_place : held.by_all).push_back(std::move(tensors[t]));
  }
  return held;
}

std::vector<ElementRange> TrainState::Part(const ParamLayout& layout) const {
  std::vector<ElementRange> part;
  const auto params = static_cast<std::uint32_t>(layout.params().size());
  // Each parameter itself, then each of its slots.
  const auto tensors = static_cast<std::uint32_t>(1 + slots.size()) * params;
  for (std::uint32_t t = 0; t < tensors; ++t) {
    const std::uint32_t p = t % params;
    for (const Share& share : layout.Shares(static_cast<ParamId>(p))) {
      if (share.owner != layout.PlaceOf(rank_)) continue;
      const auto [first, size] =
          RankSlice(share.flat.size, rank_ / layout.group(), layout.groups());
      if (size == 0) continue;
      const std::int64_t begin = share.flat.begin - layout.params()[p].flat.begin + first;
      part.push_back({t, begin, begin + size});
    }
  }
  return part;
}

}  // namespace regroup::worker
