#pragma once

// Verdicts: why a generation ended, once all members have told or its time is up, what that costs,
// and whether the job fails by it; and the end of the job, which waits until nothing of it runs
// where it can be reached. PROTOCOL §3.

#include "launcher/coordinator/core/job.h"
#include "launcher/coordinator/core/rows.h"
#include "launcher/coordinator/core/step.h"

namespace regroup::coordinator {

// With what is known by then: a member that reports neither its end nor its loss ends no window.
bool CloseVerdicts(Step& step, Job& job);

// Final. `reason`: how a generation that still runs is recorded.
void SetVerdict(Step& step, Job& job, Verdict verdict, const EndReason& reason, StopReason stop,
                Duration grace);

// Terminal when every reachable member has shown its slots free; the others stay taken on their
// nodes' rows.
bool FinishEnding(Step& step, Job& job);

// A launched job without a launch command to serve it: preempted when all have left, or were lost
// for good.
bool CheckAbandoned(Step& step, Job& job);

}  // namespace regroup::coordinator
