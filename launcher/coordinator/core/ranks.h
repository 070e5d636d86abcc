#pragma once

// Who gets which group rank. Pure. PROTOCOL §2, "Ranks".

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/ids.h"

namespace regroup::coordinator {

// `node2` before `node10`: runs of digits compare as numbers. `node1` before `node01`.
bool NaturalLess(std::string_view a, std::string_view b);

struct RankCandidate {
  NodeId node;
  std::string name;
  std::optional<int> former;  // Group rank it last had in a generation before the previous one.
};

// The chosen nodes in order of group rank. Ranks below n stay. Holes go to a returning node (to the
// one that had the rank first), then to a spare in natural order, then to survivors ranked >= n in
// order: one loss moves at most one survivor. Without a previous generation: natural order of
// names. REQUIRES: `chosen` names each node once. `previous` is in order of group rank.
std::vector<NodeId> AssignGroupRanks(std::span<const NodeId> previous,
                                     std::span<const RankCandidate> chosen);

}  // namespace regroup::coordinator
