#pragma once

// What failures cost a job: charges against its budget of restarts, in its window if it has one,
// and the back-off before the next generation. PROTOCOL §3.

#include "launcher/coordinator/core/failure_policy.h"
#include "launcher/coordinator/core/job.h"
#include "launcher/coordinator/core/rows.h"
#include "launcher/coordinator/core/step.h"

namespace regroup::coordinator {

// With the end of `row`, whose verdict is open. REQUIRES: that has ended.
Streak StreakWith(const Job& job, const GenerationRow& row);

// `streak`: with the end of `row`. REQUIRES: that has ended.
Duration BackOffAfter(const State& state, const Job& job, const GenerationRow& row,
                      const Streak& streak);

// Rows hold no instants: what a crash cut short begins again in full.
void RecoverBackOff(Step& step, Job& job);

// What has left the window leaves its row, too: after a crash the ages that it holds begin anew.
void DropOldCharges(Step& step, Job& job);

// Charges that count today.
int Charges(const State& state, const Job& job);

// Charges that open verdicts will bring if nothing worse is told.
int OpenCharges(const Job& job);

// Generations that a notice ended, also those whose verdict is open, if nothing worse is told.
int Preemptions(const Job& job);

// Whether open verdicts, if nothing worse is told, will fail the job for a notice too many.
bool OpenPreemptionsFail(const Job& job);

}  // namespace regroup::coordinator
