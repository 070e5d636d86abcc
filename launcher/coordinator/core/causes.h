#pragma once

// Why a generation ended. Every cause that is told is folded into the worst one so far
// (failure_policy.h says which is worse); ranks that failed as well are kept as its consequences.
// The verdict takes the reason from here once all members have told, or their time is up.

#include <string>

#include "launcher/coordinator/core/failure_policy.h"
#include "launcher/coordinator/core/job.h"

namespace regroup::coordinator {

// REQUIRES: the generation ends, or is over.
EndReason ReasonOf(const GenerationSoft& soft);

// An exit is reported before anybody has read what its process wrote: the words, and what they tell
// about the cause, come with a later report. False: it is neither the cause nor a consequence.
bool LearnError(GenerationSoft& soft, const std::string& node, const RankExit& exit);

// Keeps the worst cause, and of failed ranks that were not it the first few.
void FoldCause(GenerationSoft& soft, CauseAt cause);

}  // namespace regroup::coordinator
