#pragma once

// Desired state, as orders of the coordinator give it: what to forget, stop, prepare and run, job
// by job. Stops and forgets are cumulative and count for good; a prepare or run counts as long as
// its session and until it is stale. Private to this folder.

#include "agent/core/events.h"
#include "agent/core/step.h"

namespace regroup::agent {

// Keeps what it says and begins with the stops; the rest follows in Reconcile.
void On(Step& step, const Ordered& ordered);

// The session is gone, and with it what it wanted prepared or run.
void ForgetWishes(State& state);

// After every event: what was ordered and can be done now is done. A group starts its ranks once
// ever, and never in a generation that was stopped.
void Reconcile(Step& step);

}  // namespace regroup::agent
