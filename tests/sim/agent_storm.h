#pragma once

// What an agent's core decides when anything may happen next, as text: every action and note of
// every step, every field of each. No modelled world stands behind the events: each is drawn, as
// long as the contract of agent/core/events.h allows it there. Two builds that print equal hashes
// for the same seeds decided the same, so that a change which only moves code is shown to be one.

#include <cstdint>
#include <map>
#include <string>

namespace regroup::sim {

struct Storm {
  std::uint64_t steps = 0;
  std::uint64_t hash = 0;
  std::string text;                    // Only where it was asked for.
  std::map<std::size_t, int> actions;  // How often each alternative of agent::Action was ordered.
};

// One life of one agent: `steps` events at most, fewer where it leaves.
Storm RunStorm(std::uint64_t seed, int steps, bool keep_text);

}  // namespace regroup::sim
