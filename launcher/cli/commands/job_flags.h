#pragma once

// What `run` and `submit` have in common: what the job is.

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "common/base/job_spec.h"
#include "common/config/values.h"

namespace CLI {
class App;
}

namespace regroup::cli {

struct JobFlags {
  JobOrigin origin = JobOrigin::kLaunched;
  NodeBounds nodes;
  std::string workers = "1";
  int max_restarts = 0;
  Duration grace = std::chrono::seconds(30);
  ScaleUp scale_up = ScaleUp::kSettle;
  NodeCheck node_check;
  std::optional<std::uint64_t> log_keep_bytes;
};
// `flags` holds the defaults.
void DescribeFlags(CLI::App& app, JobFlags& flags);
// Fills origin, nodes, workers, restarts, grace, scale-up, node check and log limit; the error
// names the flag.
absl::Status Apply(const JobFlags& flags, JobSpec& spec);

}  // namespace regroup::cli
