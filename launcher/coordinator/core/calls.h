#pragma once

// What people ask: submit, launch, leave, cancel, read, forget. Each call is answered once, or kept
// until its job is over. PROTOCOL §5.

#include "launcher/coordinator/core/events.h"
#include "launcher/coordinator/core/step.h"

namespace regroup::coordinator {

void On(Step& step, const SubmitAsked& event);
void On(Step& step, const LaunchAsked& event);
void On(Step& step, const LeaveAsked& event);
void On(Step& step, const CancelAsked& event);
void On(Step& step, const ReadAsked& event);
void On(Step& step, const ForgetNodeAsked& event);

}  // namespace regroup::coordinator
