#pragma once

// What is left of a group once its shim says that it is empty, or is gone itself: words that its
// ranks left behind, and processes that nobody supervises. Its slots are free when there is
// neither. Private to this folder.

#include <optional>

#include "agent/core/events.h"
#include "agent/core/group.h"
#include "agent/core/step.h"

namespace regroup::agent {

// Its shim is gone. Rounds begin, and go on until two in a row find nothing: a process that is
// being started may be missed by one. Where they do not end in time the group is unkillable.
void KillLeftovers(Step& step, const GroupKey& key, Group& group);

void On(Step& step, const LeftoversKilled& killed);

// Of what was seen of it: no process of it is left; its shim cannot end them.
void SeeEmpty(Step& step, Group& group, const RunRecord& record);

// After every event: rounds that are due; groups whose last words were awaited long enough.
void KillAgain(Step& step);
void EndWords(Step& step);

// When one of them has to look at this group again.
std::optional<Instant> NextOfLeftovers(const Group& group);

}  // namespace regroup::agent
