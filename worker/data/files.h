#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace regroup::worker {

// A directory stands for all regular files below it, in byte order of their paths; anything else
// for itself. Not found or permission denied names what it was.
absl::StatusOr<std::vector<std::string>> FilesBelow(const std::string& path);

}  // namespace regroup::worker
