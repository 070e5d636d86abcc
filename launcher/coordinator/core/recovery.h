#pragma once

// What a new life makes of the rows: nodes are awaited, generations that were formed are believed
// to run, proposals are void, and whatever a row holds no instant for begins again in full.

#include "launcher/coordinator/core/state.h"

namespace regroup::coordinator {

// REQUIRES: all rows are applied. Puts none.
void Recover(State& state);

}  // namespace regroup::coordinator
