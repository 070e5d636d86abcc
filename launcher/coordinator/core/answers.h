#pragma once

// Who is told that a job is over: clients that wait for it, and launch commands that serve it. Each
// is told once.

#include "launcher/coordinator/core/events.h"
#include "launcher/coordinator/core/job.h"
#include "launcher/coordinator/core/node.h"
#include "launcher/coordinator/core/step.h"

namespace regroup::coordinator {

void On(Step& step, const CallDropped& event);

// REQUIRES: the job is over.
void AnswerWaiters(Step& step, Job& job);

// To all its launch commands that have a session.
void SendResults(Step& step, Job& job);

// Once on each session. `result` is shared by all: null until the first needs it.
void SendResultTo(Step& step, Job& job, Node& node, std::shared_ptr<const JobView>& result);

}  // namespace regroup::coordinator
