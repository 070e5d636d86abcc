#pragma once

// The coordinator's decisions: events in, effects out, time injected. Total, deterministic, no I/O.
// PROTOCOL §7.
//
// The shell's part of the contract:
//  1. It reads all rows, takes epoch = MetaRow.epoch + 1 (1 where there is none) and steps a Tick
//     before anything else.
//  2. Before it steps an event stamped t, it steps Ticks while NextDeadline() <= t.
//  3. It makes a step's rows durable in one transaction, in the order of the steps.
//  4. Only then does it carry out that step's actions, in order, and write its notes.

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/base/time.h"
#include "launcher/coordinator/core/actions.h"
#include "launcher/coordinator/core/config.h"
#include "launcher/coordinator/core/events.h"
#include "launcher/coordinator/core/rows.h"

namespace regroup::coordinator {

struct State;

class Core {
 public:
  // Recovery: the state that `rows` describe. Order does not matter. Rows of a format this build
  // does not know are the shell's to refuse. REQUIRES: epoch > MetaRow.epoch.
  Core(Config config, Epoch epoch, std::span<const Row> rows, Instant now);
  ~Core();
  Core(Core&&) noexcept;
  Core& operator=(Core&&) noexcept;

  // REQUIRES: now never decreases. `wall` is the time of day, for display only.
  // At most kMaxRowsPerStep rows and kMaxBytesPerStep bytes.
  Effects Step(Instant now, WallTime wall, const Event& event);

  // When to step the next Tick; <= now: at once. nullopt: no need.
  std::optional<Instant> NextDeadline() const;

  // What ReadAsked answers; also for a journal that nobody serves. An error names what was not
  // found.
  absl::StatusOr<ReadReply> Read(const ReadFilter& filter, Instant now, WallTime wall) const;

  // All durable state, ordered by key, but for the history of jobs that have ended: what a
  // recording's segment opens with. Core(…, Rows(), …) is this core after a crash.
  std::vector<Row> Rows() const;

  const ClusterId& cluster() const;
  Epoch epoch() const;
  std::uint64_t newest_number() const;  // Of a job; 0: there is none.

 private:
  std::unique_ptr<State> state_;
};

}  // namespace regroup::coordinator
