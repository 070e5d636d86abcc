#pragma once

// The loop stood still, so nobody could be heard, or the disk took long, so nobody could be told:
// everything that waits for somebody else, or only for answers, waits longer by as much.

#include "launcher/coordinator/core/events.h"
#include "launcher/coordinator/core/step.h"

namespace regroup::coordinator {

void On(Step& step, const Stalled& event);

}  // namespace regroup::coordinator
