#pragma once

// Output of runs that are over, and what of it is kept (CLI.md, State directory).

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/cli/commands/places.h"

namespace regroup::cli {

struct RunLogs {
  std::string path;  // <root>/<job>
  std::string job;
  std::filesystem::file_time_type newest = std::filesystem::file_time_type::min();
  std::uint64_t bytes = 0;
};

struct PruneLimits {
  int keep = 20;
  std::uint64_t max_bytes = 10ull << 30;
};

// Of the state directory's ended jobs, youngest kept, those beyond the limits, youngest first, each
// with what all nodes of this host kept of it; also so many that a tenth of the disk stays free.
// Jobs that are not over are never among them. An error when it can't be told which those are.
absl::StatusOr<std::vector<RunLogs>> RunsToPrune(const ReadOptions& options,
                                                 const std::string& state_dir,
                                                 const PruneLimits& limits);

// What `run` does before it starts: as `regroup prune`, but only when `log_dir` has collected many
// more jobs than are kept, and quietly.
void PruneNowAndThen(const std::string& state_dir, const std::string& log_dir);

}  // namespace regroup::cli
