#include "launcher/coordinator/core/free_slots.h"

#include "launcher/coordinator/core/ranks.h"

namespace regroup::coordinator {

bool FreeSlots::Named::operator<(const Named& other) const {
  // Two names may be equal as people count (n1 and n01), so that the id decides in the end.
  if (name != other.name) return NaturalLess(name, other.name);
  return node < other.node;
}

bool FreeSlots::Set(const NodeId& node, const std::string& name, int slots) {
  const auto known = nodes_.find(node);
  const int before = known == nodes_.end() ? 0 : known->second.slots;
  if (known != nodes_.end()) {
    // Most recounts find what was known: they touch neither tree.
    if (known->second == Entry{name, slots}) return false;
    Remove(node);
  }
  if (slots < 1) return false;
  nodes_[node] = {name, slots};
  by_slots_[slots].insert({name, node});
  // Only more is news for who waits; less is found out by whoever looks.
  return slots > before;
}

void FreeSlots::Remove(const NodeId& node) {
  const auto known = nodes_.find(node);
  if (known == nodes_.end()) return;
  const auto found = by_slots_.find(known->second.slots);
  found->second.erase({known->second.name, node});
  if (found->second.empty()) by_slots_.erase(found);
  nodes_.erase(known);
}

int FreeSlots::CountWith(int slots) const {
  std::size_t count = 0;
  // By numbers of slots, of which a fleet has few: the nodes themselves are not walked.
  for (auto it = by_slots_.lower_bound(slots); it != by_slots_.end(); ++it)
    count += it->second.size();
  return static_cast<int>(count);
}

std::vector<NodeId> FreeSlots::First(int slots, std::size_t limit) const {
  std::vector<NodeId> first;
  for (auto it = by_slots_.rbegin(); it != by_slots_.rend() && it->first >= slots; ++it) {
    for (const Named& named : it->second) {
      if (first.size() == limit) return first;
      first.push_back(named.node);
    }
  }
  return first;
}

}  // namespace regroup::coordinator
