#pragma once

// Whose slots are whose. A job holds its nodes by claims, whatever their groups show; a group that
// is not free holds its slots as well. What became free in a step is offered at its end, once:
// first to the head of the queue, then to jobs that want to grow.

#include <cstdint>

#include "launcher/coordinator/core/job.h"
#include "launcher/coordinator/core/node.h"
#include "launcher/coordinator/core/step.h"

namespace regroup::coordinator {

inline constexpr std::size_t kMostChecked = 64;  // Nodes, where tests have indices checked.

// The head of the queue, and jobs that want to grow, look at the nodes again.
void MarkHungry(Step& step);

// What a job gives back to itself, its survivors' slots say, is more for nobody else.
void OfferCapacity(Step& step);

// With scale-up `never`, what was lost may be made good, and no more.
int MaxNodesNow(const Job& job);

// Must be called before free slots are looked up.
void CountFreeSlots(Step& step);

// Free there, with what this job itself holds.
int FreeSlotsFor(const State& state, const Job& job, const Node& node);

// Taken by claims, by groups that are not free, and by Prepares on their way.
int SlotsUsed(const State& state, const Node& node);

// Claims exactly the nodes that the job's generations name, or, between two of them, those of the
// last one.
void UpdateClaims(Step& step, Job& job);

// Whether this job takes part when slots are offered.
void UpdateHunger(Step& step, Job& job);

}  // namespace regroup::coordinator
