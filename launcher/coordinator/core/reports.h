#pragma once

// What agents say about their groups and workers: reports, progress, commits. PROTOCOL §2, §3.

#include "launcher/coordinator/core/events.h"
#include "launcher/coordinator/core/step.h"

namespace regroup::coordinator {

// A whole group as its agent sees it: what it says may have been said before.
// Acknowledged in any case.
void On(Step& step, const Reported& event);
// Not durable, and lost in a crash: the workers tell the next step soon.
void On(Step& step, const Progressed& event);
// Fenced: only members of the newest generation, only forward. Answered once, accepted or not.
void On(Step& step, const CommitAsked& event);

}  // namespace regroup::coordinator
