#pragma once

// What the coordinator is told of groups. A report is absolute and numbered; it is repeated in
// every session until it was acknowledged, which means that it is durable there. Private to this
// folder.

#include "agent/core/events.h"
#include "agent/core/step.h"

namespace regroup::agent {

// Numbers what has changed; where a session is attached, sends it. `all`: also what was sent
// before and not acknowledged.
void SendReports(Step& step, bool all);

// From the acknowledgement of its end on, the shim of a free group need not wait.
void On(Step& step, const ReportAcked& acked);

bool AllAcked(const State& state);

}  // namespace regroup::agent
