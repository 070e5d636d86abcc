#pragma once

// One random life of a small cluster, from one seed: jobs, faults of every kind, crashes of the
// coordinator between any commit and any action; then, in some lives, the faults stop and
// everything must come to rest.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/sim/world.h"

namespace regroup::sim {

struct ChaosOptions {
  int actions = 14;                   // At most; at least four.
  int generations = 0;                // Not 0: a long life, until so many have formed.
  int rest_every = 39;                // Every n-th seed ends with the rest; 1: all, 0: none.
  std::function<void(World&)> plant;  // A bug.
  coordinator::Config config;
  agent::Config agent;   // Of every agent, but for what its node says.
  bool tracing = false;  // The history tells what the core said, too.
  std::string traced;    // And all that the agent of this node heard, ordered and reported.
};
struct ChaosResult {
  std::vector<std::string> violations;
  std::vector<std::string> history;  // What was done, with times.
  std::uint64_t steps = 0;
  int generations = 0;  // Formed.
  Coverage coverage;
};

// A life of at least twenty generations: waits are short, limits are small, what is lost comes
// back, and the network is as bad as the hosts.
ChaosOptions LongLife(std::uint64_t seed);

ChaosResult RunChaos(std::uint64_t seed, const ChaosOptions& options = {});

}  // namespace regroup::sim
