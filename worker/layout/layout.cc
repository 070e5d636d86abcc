#include "worker/layout/layout.h"

#include <set>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace regroup::worker {
namespace {

std::int64_t AlignUp(std::int64_t elements) {
  constexpr std::int64_t kAlign = ParamLayout::kAlignElements;
  return (elements + kAlign - 1) / kAlign * kAlign;
}

absl::Status CheckUnits(const std::vector<UnitSpec>& units, int world) {
  if (world < 1) return absl::InvalidArgumentError(absl::StrCat("a layout for world ", world));
  if (units.empty()) return absl::InvalidArgumentError("a layout of no units");
  std::set<std::string_view> names;
  for (std::size_t u = 0; u < units.size(); ++u) {
    for (const std::string& shared : units[u].shared) {
      if (names.count(shared) == 0) {
        return absl::InvalidArgumentError(absl::StrCat("unit ", units[u].name, " shares ", shared,
                                                       ", which no unit before it has"));
      }
    }
    for (const ParamSpec& param : units[u].params) {
      if (!names.insert(param.name).second) {
        return absl::InvalidArgumentError(absl::StrCat("parameter ", param.name, " exists twice"));
      }
    }
    if (const std::size_t count = units[u].params.size() + units[u].shared.size();
        count > kMaxUnitParams) {
      return absl::InvalidArgumentError(absl::StrCat("unit ", units[u].name, " has ", count,
                                                     " parameters, more than ", kMaxUnitParams));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ParamLayout> ParamLayout::Replicated(const std::vector<UnitSpec>& units, int world) {
  if (absl::Status status = CheckUnits(units, world); !status.ok()) return status;
  ParamLayout layout;
  layout.world_ = world;
  for (std::size_t u = 0; u < units.size(); ++u) {
    UnitPlace place{.name = units[u].name, .params = {}, .shared = {}, .flat = {}};
    for (const std::string& name : units[u].shared) place.shared.push_back(*layout.Find(name));
    place.flat.begin = layout.flat_elements_;
    for (const ParamSpec& param : units[u].params) {
      const std::int64_t elements = param.shape.elements();
      place.params.push_back(static_cast<ParamId>(layout.params_.size()));
      layout.params_.push_back({param, static_cast<UnitId>(u), {layout.flat_elements_, elements}});
      layout.flat_elements_ += AlignUp(elements);
      layout.param_elements_ += elements;
    }
    place.flat.size = layout.flat_elements_ - place.flat.begin;
    layout.units_.push_back(std::move(place));
  }
  return layout;
}

std::optional<ParamId> ParamLayout::Find(std::string_view name) const {
  for (std::size_t p = 0; p < params_.size(); ++p) {
    if (params_[p].spec.name == name) return static_cast<ParamId>(p);
  }
  return std::nullopt;
}

Range ParamLayout::Shard(UnitId unit, int rank) const {
  CHECK(unit >= 0 && unit < static_cast<UnitId>(units_.size()));
  CHECK(rank >= 0 && rank < world_);
  return units_[static_cast<std::size_t>(unit)].flat;
}

Piece ParamLayout::Locate(ParamId param, std::int64_t element) const {
  CHECK(param >= 0 && param < static_cast<ParamId>(params_.size()));
  const Range& flat = params_[static_cast<std::size_t>(param)].flat;
  CHECK(element >= 0 && element < flat.size);
  return {.owner = 0, .offset = flat.begin + element};
}

}  // namespace regroup::worker
