#pragma once

// How ranks keep their process when their generation ends. They are told to leave it, and wait; a
// later generation gets their shim in place of one of its own, and they are told of that. A rank
// that cannot do its part is killed, and nobody waits without an end for one. Private to this
// folder.
//
//   kRunning → told to retire → kRetired → HandOver → kPrepared → StartRanks → awaited → taken
//              or signalled

#include <optional>
#include <string>

#include "agent/core/events.h"
#include "agent/core/group.h"
#include "agent/core/step.h"
#include "common/base/control.h"
#include "common/base/ids.h"
#include "common/base/time.h"

namespace regroup::agent {

// A stop in place: ranks that can retire are told to, the others get SIGTERM, unless they have had
// it, those that may dial again a moment later. Kept ranks that were told nothing of their new
// generation have retired already. A group that is still starting, or of which no rank can retire,
// is stopped as a whole. Repeatable, and never undoes a stop.
void RetireGroup(Step& step, const GroupKey& key, Group& group, Instant deadline,
                 StopReason reason);

// Its kept ranks, once its shim has taken this generation.
void RetireKept(Step& step, const GroupKey& key, Group& group);

// What a rank, or its end, says to that.
void TellToRetire(Step& step, const GroupKey& key, const Group& group, int local_rank);
void RankHasRetired(Step& step, const GroupKey& key, Group& group, int local_rank);
void RankCannotGoOn(Step& step, const GroupKey& key, Group& group, int local_rank,
                    const std::string& why);
void RankIsGone(Step& step, const GroupKey& key, Group& group, int local_rank);

// What earlier groups of the job leave to the one that is to be prepared. A retired group that
// cannot be handed over to it is stopped.
struct Legacy {
  bool stopping = false;    // An older group is being stopped or retired, and may have ranks yet.
  bool unkillable = false;  // An older group has ranks that nothing ends.
  std::optional<Generation> from;  // The newest that is retired and can be handed over.
};
Legacy LegacyFor(Step& step, const GroupKey& key, int workers);

// A later generation starts without them: what has retired or does is of no use any more.
void EndLegacyOf(Step& step, const GroupKey& key);

// Once the run directory is there, the shim of the retired group is asked. REQUIRES: it still is
// retired.
bool IsStillRetired(const State& state, const GroupKey& key, const Group& group);
void TakeOver(Step& step, const GroupKey& key, Group& group);
// What it has answered: the retired group has no shim any more, or keeps it. Nothing where none was
// asked.
void OnTakenOver(State& state, const GroupKey& key, const Group& group);
void OnNotTakenOver(Step& step, const GroupKey& key, const Group& group);

// Its ranks are started: the kept ones have until `adopt` to take this generation.
void AwaitKept(Step& step, Group& group);

// After every event: who has had its time is killed.
void EndWaits(Step& step);
std::optional<Instant> NextInPlace(const Group& group);  // Unset: nothing is awaited.

}  // namespace regroup::agent
