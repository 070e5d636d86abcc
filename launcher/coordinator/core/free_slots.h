#pragma once

// Which nodes have how many free slots: so that a job that looks for some costs what it takes, not
// what the fleet has. Pure.

#include <compare>
#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "common/base/ids.h"

namespace regroup::coordinator {

// Two trees that say the same: by node, to replace what was known, and by number of slots, to be
// asked. Set and Remove cost the logarithm of the fleet, First what it returns.
class FreeSlots {
 public:
  // Replaces what was known of this node. `slots` below 1: none are free. True: it has more now.
  bool Set(const NodeId& node, const std::string& name, int slots);
  void Remove(const NodeId& node);

  // How many nodes have at least `slots` (>= 1) free.
  int CountWith(int slots) const;
  // At most `limit` of them in the order in which a job takes nodes that it never had: those with
  // the most free slots first, then by name as people count.
  std::vector<NodeId> First(int slots, std::size_t limit) const;

  friend bool operator==(const FreeSlots&, const FreeSlots&) = default;

 private:
  struct Named {
    std::string name;
    NodeId node;
    bool operator<(const Named& other) const;
    friend bool operator==(const Named&, const Named&) = default;
  };
  struct Entry {
    std::string name;
    int slots = 0;
    friend bool operator==(const Entry&, const Entry&) = default;
  };
  std::map<int, std::set<Named>> by_slots_;  // No set is empty.
  std::map<NodeId, Entry> nodes_;
};

}  // namespace regroup::coordinator
