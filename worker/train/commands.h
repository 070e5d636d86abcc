#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "common/config/flags.h"

namespace regroup::worker {

// regroup-worker itself, then each of its commands with its flags: what --help and man pages show.
std::vector<CommandDescription> DescribeWorker();

// Writes the pages of all of these, as regroup-worker.1 and regroup-worker-train.1, into a folder
// that exists.
absl::Status WriteManPages(const std::string& folder, std::string_view version);

}  // namespace regroup::worker
