#pragma once

// How ranks hear that their node or group will go away, so that they can save. Private to this
// folder.

#include "agent/core/events.h"
#include "agent/core/group.h"
#include "agent/core/step.h"

namespace regroup::agent {

// Tells every running rank that has not heard it. Workers that take a notice hear it once per
// connection; the others get SIGTERM, once ever, since a second one means "now" to many programs.
// Repeatable; does nothing without a notice or while ranks are still being started.
void NotifyWorkers(Step& step, const GroupKey& key, Group& group);

}  // namespace regroup::agent
