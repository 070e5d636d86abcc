#include "worker/train/train_state.h"

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/optim/optimizer.h"

namespace regroup::worker {
namespace {

void Append(const ParamLayout& layout, std::string_view prefix, std::span<float> flat,
            std::vector<StateTensor>& tensors) {
  for (const ParamPlace& place : layout.params()) {
    const auto dims = place.spec.shape.dims();
    tensors.push_back(
        {{absl::StrCat(std::string(prefix), place.spec.name), {dims.begin(), dims.end()}},
         flat.subspan(static_cast<std::size_t>(place.flat.begin),
                      static_cast<std::size_t>(place.flat.size))});
  }
}

}  // namespace

absl::StatusOr<TrainState> TrainState::Create(const ParamLayout& layout) {
  const auto elements = static_cast<std::size_t>(layout.flat_elements());
  ASSIGN_OR_RETURN(Arena arena, Arena::Create(3 * Arena::Footprint<float>(elements)));
  TrainState state(std::move(arena));
  state.weights = state.arena_.Take<float>(elements);
  state.first_moment = state.arena_.Take<float>(elements);
  state.second_moment = state.arena_.Take<float>(elements);
  return state;
}

std::vector<StateTensor> TrainState::Tensors(const ParamLayout& layout) const {
  std::vector<StateTensor> tensors;
  Append(layout, "", weights, tensors);
  Append(layout, std::string(AdamW<float>::kStateNames[0]) + "/", first_moment, tensors);
  Append(layout, std::string(AdamW<float>::kStateNames[1]) + "/", second_moment, tensors);
  return tensors;
}

std::vector<TensorInfo> InfosOf(const std::vector<StateTensor>& tensors) {
  std::vector<TensorInfo> infos;
  for (const StateTensor& t : tensors) infos.push_back(t.info);
  return infos;
}

}  // namespace regroup::worker
