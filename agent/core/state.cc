#include "agent/core/state.h"

#include <algorithm>

namespace regroup::agent {

Group* State::Find(const GroupKey& key) {
  auto it = groups.find(key);
  return it == groups.end() ? nullptr : &it->second;
}

bool State::AnyBusy() const {
  return std::any_of(groups.begin(), groups.end(),
                     [](const auto& entry) { return entry.second.busy(); });
}

}  // namespace regroup::agent
