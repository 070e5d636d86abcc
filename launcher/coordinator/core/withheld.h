#pragma once

// Tests: is anybody left waiting who could go on? Jobs look at the nodes only when they are told
// to; this compares what came of it with the policy from scratch.

#include "launcher/coordinator/core/state.h"

namespace regroup::coordinator {

// CHECKs that Place gives no node to a job that waits for nothing but nodes, and that the job waits
// for the same kind of reason. When a job that runs may grow also depends on what its ranks do; it
// is not compared. REQUIRES: no job is left to be looked at.
void CheckNothingIsWithheld(const State& state);

}  // namespace regroup::coordinator
