#pragma once

// Whether a Python finds modules, asked of that Python itself.

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace regroup::cli {

// INVALID_ARGUMENT names those modules that `python` cannot import, in this process's environment
// and directory, and why. Nothing is imported but what does not seem to be there. OK too where that
// takes longer than ten seconds, or `python` says nothing that makes sense: it is a help for who
// mistyped a name. Waits for its process, which ends by itself in that time.
absl::Status CheckImportable(const std::string& python, const std::vector<std::string>& modules);

}  // namespace regroup::cli
