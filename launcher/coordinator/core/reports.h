#pragma once

// What agents say about their groups and workers: reports, progress, commits. PROTOCOL §2, §3.

#include "launcher/coordinator/core/events.h"
#include "launcher/coordinator/core/step.h"

namespace regroup::coordinator {

void On(Step& step, const Reported& event);
void On(Step& step, const Progressed& event);
void On(Step& step, const CommitAsked& event);

}  // namespace regroup::coordinator
