#pragma once

// What is kept of jobs that are over, and when an ad-hoc coordinator leaves. PROTOCOL §5, §6.

#include <optional>

#include "launcher/coordinator/core/job.h"
#include "launcher/coordinator/core/step.h"

namespace regroup::coordinator {

// The job has just ended or was preempted. Of one that has ended most of the history leaves the
// memory; its rows stay.
void NoteOver(Step& step, Job& job);

// All that are too old. By the wall clock, the only one that goes on while no coordinator runs; in
// its own life none is younger than it has seen it.
void SweepOldJobs(Step& step);

// All rows of one job that is not kept any longer.
void PurgeOne(Step& step);

// 2 s after the last job ended or was preempted and the last result was sent, once each launch
// command has said that it leaves or has read it, is gone, or was heard a lease later. Commands
// that were lost by silence are waited for until holds.unreachable after their job's end.
std::optional<Instant> AdHocExitAt(const State& state);

// At the end of each step.
void CheckAdHocExit(Step& step);

}  // namespace regroup::coordinator
