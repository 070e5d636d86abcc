#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace regroup::worker {

// A text with its own hash as its last line: `text`, newline, "xxh3-128:" and 32 hex digits,
// newline. Any flipped bit, cut or addition makes OpenRecord fail with data loss. REQUIRES: nothing
// of the text.
std::string SealRecord(std::string_view text);
absl::StatusOr<std::string> OpenRecord(std::string_view record);

}  // namespace regroup::worker
