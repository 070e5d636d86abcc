#pragma once

// The agent's decisions: events in, effects out, time injected. Total, deterministic, no I/O. It
// decides nothing about restarts: it obeys whole-state orders of the one coordinator that it
// follows, `run` once ever, keeps what it has while there is none, and repeats what happened until
// that is durable elsewhere. PROTOCOL §5.
//
// The shell's part of the contract:
//  1. Its first event is Scanned: what every run directory says. Those are the core's records;
//     after a crash the next Core gets them and goes on.
//  2. It carries out a step's actions in sequence before it steps the next event, or the process
//     dies in between.
//  3. It steps a Tick once NextDeadline() has come.

#include <map>
#include <memory>
#include <optional>

#include "agent/core/config.h"
#include "agent/core/events.h"
#include "agent/core/group.h"
#include "common/base/time.h"

namespace regroup::agent {

struct State;

class Core {
 public:
  Core(Config config, Instant now);
  ~Core();
  Core(Core&&) noexcept;
  Core& operator=(Core&&) noexcept;

  // REQUIRES: now never decreases.
  Effects Step(Instant now, const Event& event);

  // When to step the next Tick; <= now: at once. Unset: no need.
  std::optional<Instant> NextDeadline() const;

  bool attached() const;  // A coordinator that this agent follows has welcomed it.
  const std::map<GroupKey, Group>& groups() const;

 private:
  std::unique_ptr<State> state_;
};

}  // namespace regroup::agent
