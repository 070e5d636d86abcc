#pragma once

// Whether a job has the part that a person asks for; the error says which parts there are. Pure.

#include "absl/status/status.h"
#include "common/base/views.h"
#include "launcher/cli/commands/log_source.h"

namespace regroup::cli {

// `command` is proposed with the job alone.
absl::Status CheckGeneration(const JobView& job, Generation generation, std::string_view command);

// Whether such lines can exist. A follower may also ask for what comes: of a job that has not
// started, and of a node among `nodes`.
absl::Status CheckLogs(const JobView& job, const LogFilter& filter, bool follow,
                       const std::vector<NodeView>& nodes);

// Why a job has not started yet, as ps says it.
std::string NotStarted(const JobView& job);

}  // namespace regroup::cli
