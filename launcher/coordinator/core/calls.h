#pragma once

// What people ask: submit, launch, leave, cancel, read, forget. Each call is answered once, or kept
// until its job is over. PROTOCOL §5.

#include "launcher/coordinator/core/events.h"
#include "launcher/coordinator/core/step.h"

namespace regroup::coordinator {

// Sent again with the same key it is the same job, and gets the same answer.
void On(Step& step, const SubmitAsked& event);
void On(Step& step, const LaunchAsked& event);
// A launch command wants to go: its node leaves the job, or the job is cancelled with it
// (DecideLeave). Nothing is answered; its result or a stop follows. Or it has read its result.
void On(Step& step, const LeaveAsked& event);
void On(Step& step, const CancelAsked& event);
// A wait for the end of a job is kept until AnswerWaiters; there is a bound to how many.
void On(Step& step, const ReadAsked& event);
void On(Step& step, const ForgetNodeAsked& event);

}  // namespace regroup::coordinator
