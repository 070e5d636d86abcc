#pragma once

// How long a silent node is kept. Attached and suspected nodes live by the lease, a node whose
// witness accepts by the time that an agent may be away, a node that has not been back since a
// recovery by no less than the time that this gives the fleet; the brake and the steps of a
// synchronous job extend the first. PROTOCOL §4.

#include <optional>

#include "launcher/coordinator/core/node.h"
#include "launcher/coordinator/core/state.h"

namespace regroup::coordinator {

// When this node is lost unless it is heard. nullopt: it is lost already.
std::optional<Instant> LeaseEnd(const State& state, const Node& node);

// Steps vouch for a silent member, but not for ever: a job that is not synchronous steps on without
// it.
bool StepsKeep(const State& state, const Node& node);

// After a recovery some nodes may not have had the time to dial again.
bool IsRedialling(const State& state);

// Its host can be reached: it said something lately, or its witness accepts.
bool IsHeard(const State& state, const NodeId& id);

}  // namespace regroup::coordinator
