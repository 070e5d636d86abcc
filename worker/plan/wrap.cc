#include "worker/plan/wrap.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"

namespace regroup::worker {
namespace {

absl::Status CheckPolicy(const ParamLayout& layout, const WrapPolicy& policy) {
  if (policy.kind == WrapPolicy::Kind::kSize && policy.parameters < 1)
    return absl::InvalidArgumentError(absl::StrCat("groups of ", policy.parameters, " parameters"));
  if (policy.kind != WrapPolicy::Kind::kList) return absl::OkStatus();
  if (policy.begins.empty()) return absl::InvalidArgumentError("a list of no unit");
  for (const std::string& name : policy.begins) {
    if (std::ranges::count(layout.units(), name, &UnitPlace::name) == 0)
      return absl::InvalidArgumentError(absl::StrCat("no unit is called \"", name, "\""));
  }
  return absl::OkStatus();
}

std::int64_t ParametersOf(const ParamLayout& layout, const UnitPlace& unit) {
  std::int64_t parameters = 0;
  for (const ParamId p : unit.params)
    parameters += layout.params()[static_cast<std::size_t>(p)].flat.size;
  return parameters;
}

}  // namespace

std::string ToString(const WrapPolicy& policy) {
  switch (policy.kind) {
    case WrapPolicy::Kind::kBlock: return "block";
    case WrapPolicy::Kind::kSize: return absl::StrCat("size:", policy.parameters);
    case WrapPolicy::Kind::kList: return absl::StrCat("list:", absl::StrJoin(policy.begins, ","));
  }
  CHECK(false);
}

absl::StatusOr<std::vector<UnitId>> WrapUnits(const ParamLayout& layout, const WrapPolicy& policy) {
  if (absl::Status status = CheckPolicy(layout, policy); !status.ok()) return status;
  std::vector<UnitId> first_of_group;
  UnitId first = 0;
  std::int64_t parameters = 0;  // Of the group so far.
  for (const UnitPlace& unit : layout.units()) {
    const auto u = static_cast<UnitId>(first_of_group.size());
    const bool begins = policy.kind == WrapPolicy::Kind::kSize
                            ? parameters >= policy.parameters
                            : policy.kind == WrapPolicy::Kind::kBlock ||
                                  std::ranges::count(policy.begins, unit.name) > 0;
    if (begins) {
      first = u;
      parameters = 0;
    }
    parameters += ParametersOf(layout, unit);
    first_of_group.push_back(first);
  }
  return first_of_group;
}

}  // namespace regroup::worker
