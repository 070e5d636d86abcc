#pragma once

// One node's part in one job: what it showed of the job's groups, what is settled, what is free.
// Look-ups over plain values; only Touch and Untouch change anything.

#include "launcher/coordinator/core/job.h"
#include "launcher/coordinator/core/node.h"
#include "launcher/coordinator/core/state.h"

namespace regroup::coordinator {

// From now on this node may have processes of this job; Untouch: it has none any more.
void Touch(Job& job, Node& node);
void Untouch(Job& job, Node& node);

// What this session showed of that group; null: nothing.
const GroupReport* Shown(const Node& node, const JobId& job, Generation generation);

// Its witness refused while no session was open, so no process of it is left.
bool GroupIsDead(const Node& node, const JobId& job, Generation generation);

// Nothing more will be learned about this member of a generation: its ranks have ended or retired,
// or it is lost.
bool IsSettled(const State& state, const Job& job, Generation generation, const NodeId& id);

// How many of the node's ranks have exited with 0 in this generation.
int DoneRanksOf(const Job& job, Generation generation, const NodeId& node);

// It will go away, or its launch command has left this job: no member of later generations.
bool IsLeaving(const Job& job, const Node& node);

// It could not execute the job's program.
bool IsExcluded(const Job& job, const NodeId& id);

// Nodes that could take part in the job if these were left out of it.
int NodesLeft(const State& state, const Job& job, const std::vector<ExcludedNode>& excluded);

// Nothing of this job is left there, and no Prepare is on its way.
bool SlotsFree(const Job& job, const Node& node);

// The same, or what is left has retired and takes part in the job's next generation.
bool MayPrepare(const Job& job, const Node& node);

// Ranks that have retired wait for a next generation. Else they are being ended, and whatever comes
// next waits for that.
bool KeepsRetired(const Job& job);

// How many slots a group of this job takes there.
int WorkersOn(const Job& job, const Node& node);

}  // namespace regroup::coordinator
