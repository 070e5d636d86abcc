#pragma once

// What a job may be. The one place with these numbers; job files, flags, the coordinator's
// admission and their messages use it.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "common/base/job_spec.h"
#include "common/base/time.h"

namespace regroup {

namespace limits {
inline constexpr int kNodes = 10'000;
inline constexpr int kWorkersPerNode = 1'024;
inline constexpr int kRanks = 65'536;
inline constexpr int kRestarts = 1'000'000;
inline constexpr int kPreemptions = 1'000'000;
inline constexpr std::size_t kArguments = 4'096;
inline constexpr std::size_t kCommandBytes = 64 * 1024;
inline constexpr std::size_t kEnvironmentEntries = 1'024;
inline constexpr std::size_t kEnvironmentBytes = 64 * 1024;
inline constexpr std::size_t kDirectoryBytes = 4'096;
inline constexpr std::size_t kRoleBytes = 63;
inline constexpr std::size_t kNodeCheckBytes = 4'096;
inline constexpr Duration kNodeCheckTimeout = std::chrono::hours(1);
inline constexpr std::size_t kWarmBytes = 4'096;
inline constexpr std::uint64_t kLeastLogKeepBytes = 64 << 10, kMostLogKeepBytes = 1ull << 50;
inline constexpr double kPrice = 1e9;
inline constexpr Duration kDuration = std::chrono::hours(24 * 365);
}  // namespace limits

// The error names field, value and limits.
absl::Status CheckRange(std::string_view field, std::int64_t value, std::int64_t min,
                        std::int64_t max);
// [a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?
absl::Status ValidateJobName(std::string_view field, std::string_view name);
// The nearest valid name: "My_Train.py" → "my-train"; "job" when nothing is left.
std::string JobNameFrom(std::string_view text);
// A label of a node: [A-Za-z0-9][A-Za-z0-9._-]{0,62}.
absl::Status ValidateNodeName(std::string_view field, std::string_view name);

// ROLE_NAME of a job's workers.
absl::Status ValidateRole(std::string_view field, std::string_view role);

// What `numa_binding` may be.
const std::vector<std::string>& NumaBindings();

// Everything a coordinator may rely on. The error names field, value and limit. Never trusts
// `spec`.
absl::Status ValidateJobSpec(const JobSpec& spec);

}  // namespace regroup
