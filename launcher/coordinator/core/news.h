#pragma once

// What happened to a job: kept in its ring of events and sent to its launch commands; and why it
// waits, which is news when it changes.

#include <cstdint>
#include <optional>

#include "launcher/coordinator/core/job.h"
#include "launcher/coordinator/core/step.h"

namespace regroup::coordinator {

// With very many launch commands, what each of them need not print goes to the first one only.
inline constexpr std::size_t kFewLaunchers = 16;

// REQUIRES: the job's row is there. To its launch commands first, then into its ring.
void AddEvent(Step& step, Job& job, JobEventBody body);

// nullopt: it waits for nothing. Another kind of reason than before is an event where people would
// miss it.
void SetWait(Step& step, Job& job, std::optional<WaitReason> reason, std::optional<Instant> until);

}  // namespace regroup::coordinator
