#pragma once

// Whose slots are whose. A job holds its nodes by claims, whatever their groups show; a group that
// is not free holds its slots as well. What became free in a step is offered at its end, once, to
// whom `placement` names.

#include "launcher/coordinator/core/job.h"
#include "launcher/coordinator/core/node.h"
#include "launcher/coordinator/core/placement.h"
#include "launcher/coordinator/core/step.h"

namespace regroup::coordinator {

// Tests, of small fleets: what is kept for speed is compared with what it stands for.
bool ChecksIndices(const State& state);

// Jobs that could take nodes look at them again, though no more slots are free than before.
void OfferAgain(Step& step);

// They look again if more slots are free than were offered last. What a job gives back to itself,
// its survivors' slots say, is no more for the others.
void OfferCapacity(Step& step);

// Must be called before free slots are looked up.
void CountFreeSlots(Step& step);

// Free there, with what this job itself holds.
int FreeSlotsFor(const State& state, const Job& job, const Node& node);

// What the node gives to jobs, counted from scratch.
Supply SupplyOf(const State& state, const Node& node);

// Taken by claims, by groups that are not free, and by Prepares on their way.
int SlotsUsed(const State& state, const Node& node);

// Claims exactly the nodes that the job's generations name, or, between two of them, those of the
// last one.
void UpdateClaims(Step& step, Job& job);

}  // namespace regroup::coordinator
