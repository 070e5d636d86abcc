#pragma once

// Where a job's time went: what the journal has of generations that are over, and what the running
// generation and an outage that goes on add to it. The arithmetic is in accounting.h.

#include <optional>

#include "launcher/coordinator/core/job.h"
#include "launcher/coordinator/core/rows.h"
#include "launcher/coordinator/core/state.h"

namespace regroup::coordinator {

// What the journal's account lacks: the generation that runs, and the outage that goes on.
struct OpenAccount {
  TimeAccount time;
  HeldTime held;
};

// Since it was admitted; of an ended job, how long it ran.
Duration AgeOf(const Job& job, const Moment& at);

// From the moment it ran; once it ends, up to what ended it.
OpenAccount RunAccount(const Job& job, const GenerationRow& row, const GenerationSoft& soft,
                       Instant now);

// From what ended the last generation to now.
OpenAccount OutageAccount(const Job& job, Instant now);

// Adds what was open to the journal's account.
void Book(const OpenAccount& open, JobStateRow& state);

// Before the nodes that the job holds change.
void CountHeld(const State& state, Job& job);

// Sums to the job's age.
TimeAccount WholeAccountOf(const Job& job, const Moment& at);

// nullopt: the job has no price.
std::optional<CostView> CostOf(const Job& job, Instant now);

}  // namespace regroup::coordinator
