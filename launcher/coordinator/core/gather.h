#pragma once

// A job without a generation: who may take part in the next one, since when there are enough, and
// what it waits for until it is proposed. PROTOCOL §2.

#include "launcher/coordinator/core/job.h"
#include "launcher/coordinator/core/step.h"

namespace regroup::coordinator {

// REQUIRES: no generation is formed or proposed. True: something changed, look again.
bool Gather(Step& step, Job& job);

}  // namespace regroup::coordinator
