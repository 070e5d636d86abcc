#pragma once

// What an agent makes of the run directories that earlier lives of it left: the only records that
// it has. Private to this folder.

#include "agent/core/events.h"
#include "agent/core/step.h"

namespace regroup::agent {

// Takes over what runs or has ended and was not forgotten; removes what never ran and what another
// boot has killed. REQUIRES: not called before.
void On(Step& step, const Scanned& scanned);

}  // namespace regroup::agent
