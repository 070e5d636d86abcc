#pragma once

// Whether a checkpoint counts is the coordinator's to say; workers ask through their agent. One
// question of a group is in flight at a time, the newest waits, and one that is displaced from
// there is answered here. Private to this folder.

#include "agent/core/events.h"
#include "agent/core/step.h"
#include "common/base/control.h"

namespace regroup::agent {

// From a worker. Repeatable: each attempt of a step is asked about with the same words.
void AskCommit(Step& step, const GroupKey& key, const CommitRequest& request);

// An answer to anything else than what is in flight is of an earlier question, and dropped.
void On(Step& step, const CommitAnswered& answered);

// Answers of a broken session do not come; the next session is asked again.
void ForgetCommitsInFlight(State& state);
void RepeatCommits(Step& step);

}  // namespace regroup::agent
