#pragma once

// One job's next transitions, until it has to wait. Verdicts first, then the end of the job, the
// formed generation, a proposal, and gathering.

#include "launcher/coordinator/core/job.h"
#include "launcher/coordinator/core/step.h"

namespace regroup::coordinator {

// As many transitions as one step has room for; the rest follows in the next Tick.
void Advance(Step& step, Job& job);

}  // namespace regroup::coordinator
