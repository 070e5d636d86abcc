#include "worker/layout/layout.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace regroup::worker {
namespace {

std::int64_t AlignUp(std::int64_t elements) {
  constexpr std::int64_t kAlign = ParamLayout::kAlignElements;
  return (elements + kAlign - 1) / kAlign * kAlign;
}

absl::Status CheckUnits(const std::vector<UnitSpec>& units) {
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
    for (std::size_t i = 0; i < units[u].part_begins.size(); ++i) {
      const int begin = units[u].part_begins[i];
      if (begin <= (i == 0 ? 0 : units[u].part_begins[i - 1]) || !units[u].shared.empty() ||
          begin >= static_cast<int>(units[u].params.size())) {
        return absl::InvalidArgumentError(absl::StrCat("unit ", units[u].name, " of ",
                                                       units[u].params.size(),
                                                       " parameters has no part from ", begin));
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

std::int64_t BlockFrom(std::int64_t element) {
  constexpr std::int64_t kBlock = ParamLayout::kBlockElements;
  return (element + kBlock - 1) / kBlock;
}

// `begins`: the first parameters of its parts but for the first of all.
std::vector<Range> PartsOf(const UnitPlace& unit, const std::vector<ParamPlace>& params,
                           const std::vector<int>& begins) {
  std::vector<Range> parts{unit.flat};
  for (const int begin : begins) {
    const ParamId first = unit.params[static_cast<std::size_t>(begin)];
    const std::int64_t at = params[static_cast<std::size_t>(first)].flat.begin;
    parts.back().size = at - parts.back().begin;
    parts.push_back({at, unit.flat.end() - at});
  }
  return parts;
}

}  // namespace

Range Common(const Range& a, const Range& b) {
  const std::int64_t begin = std::max(a.begin, b.begin), end = std::min(a.end(), b.end());
  return {begin, std::max<std::int64_t>(0, end - begin)};
}

const char* NameOf(Strategy strategy) {
  switch (strategy) {
    case Strategy::kReplicated: return "ddp";
    case Strategy::kZero1: return "zero-1";
    case Strategy::kZero2: return "zero-2";
    case Strategy::kZero3: return "zero-3";
  }
  CHECK(false);
}

absl::StatusOr<ParamLayout> ParamLayout::Create(const std::vector<UnitSpec>& units, int world,
                                                Strategy strategy, int group, bool rounded) {
  if (world < 1) return absl::InvalidArgumentError(absl::StrCat("a layout for world ", world));
  if (group == 0) group = world;
  if (group < 1 || world % group != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("world ", world, " is no multiple of groups of ", group, " ranks"));
  }
  if (absl::Status status = CheckUnits(units); !status.ok()) return status;
  ParamLayout layout;
  layout.world_ = world;
  layout.rounded_ = rounded;
  layout.strategy_ = group == 1 ? Strategy::kReplicated : strategy;
  layout.group_ = layout.strategy_ == Strategy::kReplicated ? world : group;
  for (std::size_t u = 0; u < units.size(); ++u) {
    UnitPlace place{.name = units[u].name, .params = {}, .shared = {}, .flat = {}, .parts = {}};
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
    place.parts = PartsOf(place, layout.params_, units[u].part_begins);
    layout.units_.push_back(std::move(place));
  }
  layout.Divide();
  return layout;
}

void ParamLayout::Divide() {
  whole_ = {{0, flat_elements_}};
  owned_.resize(static_cast<std::size_t>(group_));
  shares_.resize(params_.size());
  if (strategy_ == Strategy::kReplicated) return;
  for (const UnitPlace& unit : units_) {
    const std::int64_t first = BlockFrom(unit.flat.begin),
                       blocks = BlockFrom(unit.flat.end()) - first;
    for (int r = 0; r < group_; ++r) {
      const Range blocks_of_rank{first + blocks * r / group_,
                                 blocks * (r + 1) / group_ - blocks * r / group_};
      const Range box = Common(
          {blocks_of_rank.begin * kBlockElements, blocks_of_rank.size * kBlockElements}, whole_[0]);
      std::vector<Range>& owned = owned_[static_cast<std::size_t>(r)];
      if (box.size == 0) continue;
      if (!owned.empty() && owned.back().end() == box.begin) {
        owned.back().size += box.size;
      } else {
        owned.push_back(box);
      }
    }
  }
  for (std::size_t p = 0; p < params_.size(); ++p) {
    for (int r = 0; r < group_; ++r) {
      const std::vector<Range>& owned = Owned(r);
      auto box = std::ranges::upper_bound(owned, params_[p].flat.begin, {}, &Range::end);
      for (; box != owned.end() && box->begin < params_[p].flat.end(); ++box) {
        const Range flat = Common(*box, params_[p].flat);
        if (flat.size > 0) shares_[p].push_back({r, flat});
      }
    }
    std::sort(shares_[p].begin(), shares_[p].end(),
              [](const Share& a, const Share& b) { return a.flat.begin < b.flat.begin; });
  }
}

std::optional<ParamId> ParamLayout::Find(std::string_view name) const {
  for (std::size_t p = 0; p < params_.size(); ++p) {
    if (params_[p].spec.name == name) return static_cast<ParamId>(p);
  }
  return std::nullopt;
}

bool ParamLayout::Divides(StateKind kind) const {
  switch (kind) {
    case StateKind::kWeights:
    case StateKind::kMoments: return strategy_ >= Strategy::kZero1;
    case StateKind::kGradients: return strategy_ >= Strategy::kZero2;
  }
  CHECK(false);
}

const std::vector<Range>& ParamLayout::Boxes(StateKind kind, int rank) const {
  CHECK(rank >= 0 && rank < world_);
  return Divides(kind) ? Owned(rank) : whole_;
}

std::int64_t ParamLayout::Elements(StateKind kind, int rank) const {
  if (kind == StateKind::kWeights && GathersInPlace()) return flat_elements_;
  std::int64_t elements = 0;
  for (const Range& box : Boxes(kind, rank)) elements += box.size;
  return elements;
}

std::int64_t ParamLayout::Offset(StateKind kind, int rank, std::int64_t element) const {
  std::int64_t before = 0;
  for (const Range& box : Boxes(kind, rank)) {
    if (element < box.end()) {
      CHECK(element >= box.begin);
      if (kind == StateKind::kWeights && GathersInPlace()) return element;
      return before + element - box.begin;
    }
    before += box.size;
  }
  CHECK(false);
}

}  // namespace regroup::worker
