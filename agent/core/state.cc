#include "agent/core/state.h"

#include <algorithm>

namespace regroup::agent {

Group* State::Find(const GroupKey& key) {
  auto it = groups.find(key);
  return it == groups.end() ? nullptr : &it->second;
}

std::optional<GroupKey> State::HeirOf(const GroupKey& key) const {
  for (auto it = groups.upper_bound(key); it != groups.end() && it->first.job == key.job; ++it) {
    if (it->second.in_place.from == key.generation && it->second.holds_slots()) return it->first;
  }
  return std::nullopt;
}

bool State::IsHandingOver(const GroupKey& key) const {
  const std::optional<GroupKey> heir = HeirOf(key);
  return heir && groups.at(*heir).shim.stage == ShimStage::kSpawned;
}

bool State::AnyBusy() const {
  return std::any_of(groups.begin(), groups.end(),
                     [](const auto& entry) { return entry.second.busy(); });
}

}  // namespace regroup::agent
