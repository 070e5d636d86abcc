#pragma once

// What workers that speak say, and that they hung up. A rank that is none of its group's is not
// believed. Private to this folder.

#include "agent/core/events.h"
#include "agent/core/step.h"

namespace regroup::agent {

void On(Step& step, const WorkerSaid& said);
void On(Step& step, const WorkerHungUp& hung_up);

}  // namespace regroup::agent
