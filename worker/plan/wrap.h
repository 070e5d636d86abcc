#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/layout/layout.h"

namespace regroup::worker {

// Which consecutive units have their weights gathered and freed together, where weights are freed
// (zero-3): the wrap policies of FSDP. Larger groups wait for fewer gathers and need more memory.
// No policy changes a bit of the result.
struct WrapPolicy {
  enum class Kind : std::uint8_t {
    kBlock,  // Each unit is a group.
    kSize,   // A group ends with the unit that brings it to `parameters`, or with the last unit.
    kList,   // Each unit of `begins` begins a group, and so does the first unit.
  };
  Kind kind = Kind::kBlock;
  std::int64_t parameters = 0;      // kSize: at least 1.
  std::vector<std::string> begins;  // kList: names of units, at least one.
  friend bool operator==(const WrapPolicy&, const WrapPolicy&) = default;
};

std::string ToString(const WrapPolicy& policy);  // "block", "size:N", "list:a,b".

// By unit, the first of its group. Invalid argument: a size below 1, a list of nothing, or a name
// that no unit has.
absl::StatusOr<std::vector<UnitId>> WrapUnits(const ParamLayout& layout, const WrapPolicy& policy);

}  // namespace regroup::worker
