#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/comm/communicator.h"

namespace regroup::worker {

// What all ranks must have alike, by name; the most telling first.
using Terms = std::vector<std::pair<std::string, std::string>>;

struct Disagreement {
  int rank = 0;              // The highest that has other terms than rank 0.
  std::string name;          // The first term in which it differs.
  std::string ours, theirs;  // Rank 0's value, and that rank's; empty where a rank lacks the term.
};

// Collective. None: all ranks have rank 0's terms. Else every rank gets the same disagreement, so
// that all of them end with one sentence.
absl::StatusOr<std::optional<Disagreement>> FindDisagreement(Group& ranks, const Terms& terms);

}  // namespace regroup::worker
