#pragma once

// The one coordinator that this agent follows. A Hello tells all that this node has; a Welcome of
// another cluster, of an older epoch or of a foreign protocol is refused; while there is no
// session everything runs on. Private to this folder.

#include <optional>

#include "agent/core/events.h"
#include "agent/core/step.h"
#include "common/base/time.h"

namespace regroup::agent {

void On(Step& step, const CoordinatorFound& found);
void On(Step& step, const Welcomed& welcomed);
void On(Step& step, const CoordinatorRefused& refused);
void On(Step& step, const CoordinatorAway& away);
void On(Step& step, const CoordinatorSpoke& spoke);

// Once a session is open and the run directories have been read; before, it does nothing.
void SayHello(Step& step);

// Before a step at `now`: what was said while this process stood still waits to be read, so the
// time that it stood does not count as silence.
void ForgiveStandstill(State& state, Instant now);

// After every event: a session whose coordinator is silent is broken, TCP alone would notice a
// host that is gone after minutes; heartbeats are sent; the coordinator that this host hosts is
// started anew.
void BreakIfSilent(Step& step);
void HeartbeatIfDue(Step& step);
void CoordinatorIfDue(Step& step);
std::optional<Instant> NextOfSession(const State& state);  // Of these three.

}  // namespace regroup::agent
