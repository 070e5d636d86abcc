#pragma once

// What a job may be. The one place with these numbers; job files, flags, the coordinator's admission and their messages
// use it.

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "common/base/job_spec.h"

namespace regroup {

inline constexpr int kMaxNodes = 10'000;
inline constexpr int kMaxWorkersPerNode = 1'024;
inline constexpr int kMaxRanks = 65'536;
inline constexpr int kMaxRestarts = 1'000'000;
inline constexpr std::size_t kMaxArguments = 4'096;
inline constexpr std::size_t kMaxCommandBytes = 64 * 1024;
inline constexpr std::size_t kMaxEnvironmentEntries = 1'024;
inline constexpr std::size_t kMaxEnvironmentBytes = 64 * 1024;
inline constexpr std::size_t kMaxDirectoryBytes = 4'096;

// [a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?
absl::Status ValidateJobName(std::string_view field, std::string_view name);
// The nearest valid name: "My_Train.py" → "my-train"; "job" when nothing is left.
std::string JobNameFrom(std::string_view text);
// A label of a node: printable ASCII without spaces or '/', 1 to 63 characters, not starting with '-'.
absl::Status ValidateNodeName(std::string_view field, std::string_view name);

// Everything a coordinator may rely on. The error names field, value and limit. Never trusts `spec`.
absl::Status ValidateJobSpec(const JobSpec& spec);

}  // namespace regroup
