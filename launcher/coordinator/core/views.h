#pragma once

// What people see: one snapshot, the same for every reader, computed from the state and two clocks.
// Changes nothing.

#include <string>

#include "absl/status/statusor.h"
#include "common/base/job_word.h"
#include "launcher/coordinator/core/actions.h"
#include "launcher/coordinator/core/events.h"
#include "launcher/coordinator/core/job.h"
#include "launcher/coordinator/core/node.h"
#include "launcher/coordinator/core/state.h"

namespace regroup::coordinator {

// The one job that `word` means, or an error that names the choices.
absl::StatusOr<JobId> Resolve(const State& state, const std::string& word, JobPrefixes prefixes);

// The word for it that `ps` shows.
std::string StateName(const Job& job);
JobView ViewOf(const State& state, const Job& job, bool detail, const Moment& at);

// As it is told: reasons are kept without the time that is left at most, which passes.
WaitReason WithLeft(WaitReason reason, Duration left);

// What every launch command is sent at the end: small, because there may be a thousand of them.
JobView ResultOf(const State& state, const Job& job);
NodeView ViewOf(const State& state, const Node& node, const Moment& at);

// An error names what was not found.
absl::StatusOr<ReadReply> Read(const State& state, const ReadFilter& filter, Instant now,
                               WallTime wall);

}  // namespace regroup::coordinator
