#pragma once

// How far ranks have come: the newest word of each goes to the coordinator, not too often, and all
// of it before anything that is judged together with it. Private to this folder.

#include <optional>

#include "agent/core/events.h"
#include "agent/core/step.h"
#include "common/base/control.h"
#include "common/base/time.h"

namespace regroup::agent {

void KeepProgress(Step& step, const GroupKey& key, int local_rank, const WorkerProgress& progress);

// What is unsent of this group, at once.
void FlushProgress(Step& step, const GroupKey& key);

// After every event: what is unsent and due.
void SendDueProgress(Step& step);
std::optional<Instant> NextProgress(const State& state);  // Unset: nothing is unsent.

// A new session has heard nothing yet.
void RepeatProgress(Step& step);

// The group is forgotten.
void DropProgress(State& state, const GroupKey& key);

}  // namespace regroup::agent
