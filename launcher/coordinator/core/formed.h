#pragma once

// The formed generation, until something ends it. In this order, and the first that applies
// decides: every rank is done; a cause is known; a member is lost (unless silence is not to be
// believed); a start is late; a notice; a save that is over; growth. PROTOCOL §2, §4.

#include "launcher/coordinator/core/job.h"
#include "launcher/coordinator/core/step.h"

namespace regroup::coordinator {

// REQUIRES: one is formed. True: something changed, look again.
bool AdvanceFormed(Step& step, Job& job);

}  // namespace regroup::coordinator
