#pragma once

// One step in the making: the state, the time, and what is ordered and noted. Everything that
// leaves the core goes through it, in the sequence in which it is to be carried out. Private to
// this folder.

#include <string>
#include <utility>

#include "agent/core/config.h"
#include "agent/core/events.h"
#include "agent/core/state.h"
#include "common/base/time.h"

namespace regroup::agent {

class Step {
 public:
  Step(State& state, Instant now) : state(state) { state.now = now; }
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  State& state;
  const Config& config() const { return state.config; }
  const Waits& waits() const { return state.config.waits; }
  Instant now() const { return state.now; }

  void Do(Action action) { effects_.actions.push_back(std::move(action)); }
  void Note(std::string text) { effects_.notes.push_back(std::move(text)); }  // For the log.
  Effects Take() { return std::move(effects_); }  // The end of the step.

 private:
  Effects effects_;
};

}  // namespace regroup::agent
