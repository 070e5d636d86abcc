#pragma once

// What makes `--in-place` do without a line in the script: a sitecustomize of ours, first on the
// PYTHONPATH of ranks, in the run directory of their group.

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "agent/shell/worker_environment.h"

namespace regroup::agent {

extern const std::string_view kSiteCustomizeText;  // sitecustomize.py.

// Where in a run directory it is.
std::string SiteFolder(const std::string& run_directory);
// REQUIRES: the run directory is there. It goes with that.
absl::Status WriteSite(const std::string& run_directory);
// It takes itself off again, by REGROUP_SITE.
void PutFirstOnPythonPath(const std::string& folder, Environment& environment);

}  // namespace regroup::agent
