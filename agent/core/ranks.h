#pragma once

// What a group's shim saw: ranks that started and ended, the store's end, and its own. Facts
// are absolute and may come twice, since after a restart of the agent they are read anew; the
// first of each counts. Private to this folder.

#include "agent/core/events.h"
#include "agent/core/group.h"
#include "agent/core/step.h"

namespace regroup::agent {

// Its ranks are being started; kept ones live already, and count as started.
void BeginRanks(Step& step, const GroupKey& key, Group& group);

void On(Step& step, const RanksStarted& started);
void On(Step& step, const RankExited& exited);
void On(Step& step, const RankErrorRead& read);
void On(Step& step, const ShimGone& gone);
void On(Step& step, const StoreGone& gone);

}  // namespace regroup::agent
