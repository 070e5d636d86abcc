#pragma once

// Who may open a session: the fence of epochs and clusters, versions, names, and what an agent
// holds that this journal does not know. An agent that is refused keeps all that it runs. PROTOCOL
// §1, §4.

#include "launcher/coordinator/core/events.h"
#include "launcher/coordinator/core/step.h"

namespace regroup::coordinator {

// This journal must not go on: an agent has seen a later one.
void StepDownNow(Step& step);
void On(Step& step, const SessionOpened& event);

}  // namespace regroup::coordinator
