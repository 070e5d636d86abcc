#pragma once

// How an agent ends: by a signal, with the result of a launch command's job, or because nobody
// joined in time. A service that is only asked to stop detaches, and its groups run on. Private to
// this folder.
//
// Leaving: the workers have the grace, as the coordinator orders it or by ourselves where there is
// none; then `slack` for whoever keeps a deadline, and `kill` for whoever does not.

#include <optional>
#include <string>

#include "agent/core/events.h"
#include "agent/core/step.h"
#include "common/base/time.h"

namespace regroup::agent {

void On(Step& step, const SignalCaught& caught);
void On(Step& step, const LaunchAccepted& accepted);
void On(Step& step, const EnoughJoined& joined);
void On(Step& step, const JobOver& over);

// Says so in a new session, where this node is leaving.
void SayLeaving(Step& step);

// Without a coordinator nobody else stops the groups of a node that leaves.
void StopWhereLeaving(Step& step);

// After every event: the end, where nothing is left to wait for.
void LeaveIfDue(Step& step);
// When that has to be looked at again. Unset: only an event changes it.
std::optional<Instant> NextLeave(const State& state);

// At once, and for good. `why`: for people, with exit code 125.
void LeaveNow(Step& step, int exit_code, std::string why);

}  // namespace regroup::agent
