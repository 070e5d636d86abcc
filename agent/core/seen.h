#pragma once

// The one fact about a group that lives: all that its run directory and its shim say. It comes
// whenever something of it has changed, may come twice, and the first of each thing in it counts.
// Private to this folder.

#include "agent/core/events.h"
#include "agent/core/step.h"

namespace regroup::agent {

void On(Step& step, const GroupSeen& seen);

}  // namespace regroup::agent
