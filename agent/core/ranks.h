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

// Of what was seen of its group: ranks that started; that ended; that its shim, its store are gone.
void SeeStarts(Step& step, Group& group, const RunRecord& record);
void SeeExits(Step& step, Group& group, const RunRecord& record);
void SeeShimGone(Step& step, Group& group, const RunRecord& record);
void SeeStoreGone(Group& group, const RunRecord& record);

void On(Step& step, const RankErrorRead& read);

}  // namespace regroup::agent
