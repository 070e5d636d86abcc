#pragma once

// From an order to prepare a generation to a group whose ranks could start: slots, the run
// directory, the shim, its node check, and the store where this node hosts it. Each part is
// ordered once and answers once. Private to this folder.
//
//   WriteRunDirectory → (WarmUp) → SpawnShim → (node check) ┐
//                                  SpawnStore               ┴→ kPrepared
//
//   WriteRunDirectory → HandOver → SpawnStore → kPrepared, where ranks of a retired group go on

#include <optional>

#include "agent/core/events.h"
#include "agent/core/group.h"
#include "agent/core/step.h"
#include "common/base/control.h"
#include "common/base/ids.h"

namespace regroup::agent {

// Does nothing where the group is there, or while the slots that it needs are being freed; what
// can never be done is refused, and reported like any group.
void StartPreparing(Step& step, const JobId& job, const Prepare& prepare);

// To groups of an earlier life's whose records do not say which slots they hold.
void NumberSlots(State& state);

// Imports may take for ever; ranks wait for them until then.
std::optional<Instant> WarmUntil(const Group& group);
void EndWarmUps(Step& step);

// A group of this job is gone. If it was the last, what warm ranks of it were forked from, if any
// were, waits for another one.
void KeepNursery(Step& step, const JobId& job);
std::optional<Instant> NextOfNurseries(const State& state);
void EndNurseries(Step& step);

// Once all parts have answered.
void MaybePrepared(Group& group);

void On(Step& step, const RunDirectoryWritten& written);
void On(Step& step, const PrepareFailed& failed);
void On(Step& step, const WarmedUp& warmed_up);

// Of what was seen of it: its shim answers; its node check is over, or has failed; its store has an
// address.
void SeeShim(Step& step, Group& group, const RunRecord& record);
void SeeNodeCheck(Step& step, Group& group, const RunRecord& record);
void SeeStore(Step& step, Group& group, const RunRecord& record);

}  // namespace regroup::agent
