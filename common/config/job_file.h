#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/base/job_spec.h"

namespace regroup {

inline constexpr std::size_t kMaxJobFileBytes = 1 << 20;

// A YAML job file (CLI.md). `source` is its name in messages: every error says source:line. Unknown
// fields are refused with the nearest known one. `directory` is used where the file has no workdir.
// Validated by ValidateJobSpec.
absl::StatusOr<JobSpec> ParseJobFile(std::string_view text, std::string_view source,
                                     std::string_view directory);
// Reads at most kMaxJobFileBytes; "-" is standard input.
absl::StatusOr<JobSpec> ReadJobFile(const std::string& path, std::string_view directory);
// What `submit --dry-run` prints: a job file that gives this job again.
std::string RenderJobFile(const JobSpec& spec);

}  // namespace regroup
