#pragma once

// What `run` and `submit` have in common: what the job is. Fields of one value have their flags in
// common/config's table of job fields.

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
  JobSpec fields{};  // Of it, only what a flag of the table sets.
};
// `flags` holds the defaults, and is written to until the line is parsed.
void DescribeFlags(CLI::App& app, JobFlags& flags);
// Fills origin, nodes, workers and what the table's flags set; the error names the flag.
absl::Status Apply(const JobFlags& flags, JobSpec& spec);

}  // namespace regroup::cli
