#pragma once

// The end of a generation: survivors are told to stop, by a deadline, and are waited for until they
// show their slots free, are lost, or are given up. Then its row is over, its account is booked,
// and the job regroups. PROTOCOL §2, §3.

#include "launcher/coordinator/core/job.h"
#include "launcher/coordinator/core/rows.h"
#include "launcher/coordinator/core/step.h"

namespace regroup::coordinator {

// Of the generation that is formed. REQUIRES: it ends for a reason that causes.h knows.
void BeginEnding(Step& step, Job& job, StopReason reason, Duration grace);

// REQUIRES: the formed generation ends. True: it is over.
bool AdvanceEnding(Step& step, Job& job);

// Its verdict stays open until all members have told, or `close_by`. REQUIRES: it ends.
void PutEnded(Step& step, Job& job, Generation generation, JobStateRow& state);

// What its ranks told last, into its row; the time that it took, into the job's.
void CloseAccount(const State& state, const Job& job, const GenerationSoft& soft,
                  GenerationRow& row, JobStateRow& total);

}  // namespace regroup::coordinator
