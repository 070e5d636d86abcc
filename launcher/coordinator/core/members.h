#pragma once

// What a member's report, link or lease means for its generation. A report is absolute: each of
// these takes the whole of it and may take it twice. Proposed: has it prepared? Formed: has it
// started, failed, finished, gone? Over: what does it still tell about the cause, until it is
// settled? PROTOCOL §2, §3.

#include "launcher/coordinator/core/job.h"
#include "launcher/coordinator/core/node.h"
#include "launcher/coordinator/core/rows.h"
#include "launcher/coordinator/core/step.h"

namespace regroup::coordinator {

// Everything that depends on this node looks again.
void RefreshJobs(Step& step, Node& node);

// An honest node has as many jobs as slots, and groups of a job that are not forgotten yet. False:
// there is no room for it, and nothing is kept.
bool KeepReport(Step& step, Node& node, const GroupReport& report);

// Folds what is known of this node now into every generation of the job that it is a member of.
void RefreshMember(Step& step, Job& job, Node& node);

// No age that a node tells of this generation is beyond this one. A clock of the wall that was set
// back meanwhile makes it no shorter than what this process has seen, `since` then.
Duration GenerationAge(const State& state, const GenerationRow& row, Instant since);

}  // namespace regroup::coordinator
