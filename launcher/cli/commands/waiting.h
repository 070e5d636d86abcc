#pragma once

// Waiting for the end of a job, for `wait` and `submit --wait`.

#include <string>

#include "absl/status/statusor.h"
#include "common/base/views.h"
#include "launcher/cli/commands/client.h"
#include "launcher/cli/commands/command.h"

namespace regroup::cli {

// Until the job is over, or `limit` has passed (DEADLINE_EXCEEDED). A coordinator that is away is
// waited for up to `patience` at a time, with one line when it takes longer than a moment.
absl::StatusOr<JobView> WaitForEnd(const Client& client, const std::string& job,
                                   std::optional<Duration> limit, const Terminal& terminal);

// End line or failure report to standard error (JSON to standard output), and the code of the job.
absl::StatusOr<int> TellEnd(const JobView& job, bool json, const Terminal& terminal);

}  // namespace regroup::cli
