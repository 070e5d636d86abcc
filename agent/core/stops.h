#pragma once

// How groups are stopped. A stop has a deadline that never moves later; a shim keeps it by itself,
// and one that does not say so in time is killed. Private to this folder.

#include <optional>

#include "agent/core/events.h"
#include "agent/core/group.h"
#include "agent/core/step.h"
#include "common/base/control.h"
#include "common/base/time.h"

namespace regroup::agent {

// A reason that breaks the generation closes its store, where this node hosts it.
void CloseStoreOf(Step& step, const GroupKey& key, Group& group, StopReason reason);

// REQUIRES: the group has a stop deadline. Its shim is waited for from then on, or from now where
// that has passed.
void AwaitShim(Step& step, Group& group);

// Its store as well, as above. Repeatable: only an earlier deadline changes anything. Ranks that
// retire, or have retired, are stopped like any. A shim that is being handed over is told by
// PrepareFailed (prepare.h), where that fails.
void StopGroup(Step& step, const GroupKey& key, Group& group, Instant deadline, StopReason reason);

// Every group of this node, since the node or its command goes away.
void StopEverything(Step& step, Instant deadline);

// After every event: shims whose word is overdue are killed.
void KillSilentShims(Step& step);

// When the shim of this group is to be killed if it says nothing; unset: nothing is awaited of it.
std::optional<Instant> KillShimAt(const Group& group);

}  // namespace regroup::agent
