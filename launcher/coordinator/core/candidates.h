#pragma once

// Which nodes a job's next generation could have, and what each of them waits for. A submitted job
// looks at the nodes that know it and at as many free ones as it can take, never at the whole
// fleet.

#include <optional>
#include <set>
#include <vector>

#include "launcher/coordinator/core/decide_generation.h"
#include "launcher/coordinator/core/job.h"
#include "launcher/coordinator/core/node.h"
#include "launcher/coordinator/core/step.h"

namespace regroup::coordinator {

// Of a submitted job: the nodes that know it, and of the others as many as it can take. Each of
// those is ready, since a node with something of this job is `touched` by it.
std::set<NodeId> NodesToLookAt(const State& state, const Job& job);

// All that count, in the order of their ids.
std::vector<Candidate> CandidatesOf(Step& step, const Job& job);

// nullopt: this node cannot take part. `previous`: it was a member of the last formed generation.
std::optional<Candidate> CandidateOf(const State& state, const Job& job, const Node& node,
                                     bool previous);

}  // namespace regroup::coordinator
