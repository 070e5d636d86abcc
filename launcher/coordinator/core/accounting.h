#pragma once

// Where a job's time and its nodes' time went, and what that cost: pure functions of what the
// coordinator has seen.

#include <cstdint>
#include <limits>
#include <optional>

#include "common/base/limits.h"
#include "common/base/time.h"
#include "common/base/views.h"
#include "launcher/coordinator/core/rows.h"

namespace regroup::coordinator {

// One generation from the moment all its ranks ran.
struct RunFacts {
  Duration lasted{};
  Duration start{};       // Until its workers had initialised and restored, as they told.
  Duration checkpoint{};  // As they told.
  std::optional<std::int64_t> first_step{}, last_step{};
  std::int64_t resumed_from = 0;
  std::int64_t best_step = 0;  // Of the generations before.
};
// Sums to `lasted`. What is not known to have been anything else was productive.
TimeAccount SplitRun(const RunFacts& run);

// A generation's run on this many nodes. All of it is held; what follows a failure and would not
// have been needed without it, restoring and repeating steps, is lost.
HeldTime HeldByRun(const TimeAccount& run, int nodes, bool after_failure);
// The change that led to the next run: `detect` on this many nodes, then `regroup` node time.
// Lost, unless the job was resized.
HeldTime HeldByOutage(Duration detect, int nodes, NodeTime regroup, bool after_failure);

// Both stop at kMaxNodeTime. REQUIRES: neither summand is beyond it.
inline constexpr NodeTime kMaxNodeTime{std::numeric_limits<std::int64_t>::max() / 2};
NodeTime NodeTimeOf(Duration time, int nodes);
NodeTime SumOf(NodeTime a, NodeTime b);

// No price, no cost. `samples`, `tokens`: done so far; 0: the workers do not tell. A node counts
// whole, however many of its slots the job takes.
std::optional<CostView> CostOf(const std::optional<double>& price_per_node_hour,
                               const HeldTime& time, std::int64_t samples, std::int64_t tokens);

}  // namespace regroup::coordinator
