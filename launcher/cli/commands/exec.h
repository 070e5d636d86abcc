#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace regroup::cli {

// Becomes `program` from the folder of our own executable, else from PATH; returns only when it
// could not. `args` without argv[0].
absl::Status BecomeSibling(const std::string& program, const std::vector<std::string>& args);

}  // namespace regroup::cli
