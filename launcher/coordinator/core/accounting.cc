#include "launcher/coordinator/core/accounting.h"

#include <algorithm>

namespace regroup::coordinator {
namespace {

double Hours(NodeTime time) {
  return std::chrono::duration<double, std::ratio<3600>>(time).count();
}

}  // namespace

TimeAccount SplitRun(const RunFacts& run) {
  TimeAccount account;
  Duration left = std::max(run.lasted, Duration{});
  auto take = [&](Duration wanted) {
    const Duration taken = std::clamp(wanted, Duration{}, left);
    left -= taken;
    return taken;
  };
  // In the order in which they came: a run that was cut short lost what came last.
  account.restore = take(run.start);
  account.checkpoint = take(run.checkpoint);
  if (run.first_step && run.last_step && *run.last_step >= *run.first_step) {
    // A worker's count of steps may be any number.
    constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max() - 1;
    const std::int64_t steps = std::min(*run.last_step - *run.first_step, kMost) + 1;
    const std::int64_t repeated = std::clamp<std::int64_t>(
        std::min(run.best_step, *run.last_step) - run.resumed_from, 0, steps);
    // Steps are taken to last equally long: workers tell when they reach one, not how
    // long each of them took.
    account.recompute = take(left / steps * repeated);
  }
  account.productive = left;
  return account;
}

HeldTime HeldByRun(const TimeAccount& run, int nodes, bool after_failure) {
  HeldTime time;
  time.held = NodeTimeOf(run.productive + run.checkpoint + run.restore + run.recompute, nodes);
  // A generation that followed a resize restores, too, but nobody lost anything by
  // that: somebody wanted it.
  if (after_failure) time.lost = NodeTimeOf(run.restore + run.recompute, nodes);
  return time;
}

HeldTime HeldByOutage(Duration detect, int nodes, NodeTime regroup, bool after_failure) {
  HeldTime time;
  time.held = SumOf(NodeTimeOf(detect, nodes), regroup);
  if (after_failure) time.lost = time.held;
  return time;
}

NodeTime NodeTimeOf(Duration time, int nodes) {
  // Checked before it is multiplied: a product of years and ten thousand nodes has to stop at the
  // limit instead of turning negative.
  const NodeTime one = std::chrono::duration_cast<NodeTime>(std::max(time, Duration{}));
  return nodes > 0 && one > kMaxNodeTime / nodes ? kMaxNodeTime : one * nodes;
}

NodeTime SumOf(NodeTime a, NodeTime b) { return std::min(a + b, kMaxNodeTime); }

std::optional<CostView> CostOf(const std::optional<double>& price_per_node_hour,
                               const HeldTime& time, std::int64_t samples, std::int64_t tokens) {
  if (!price_per_node_hour) return std::nullopt;
  CostView cost;
  cost.node_hours = Hours(time.held);
  cost.total = cost.node_hours * *price_per_node_hour;
  cost.lost = Hours(time.lost) * *price_per_node_hour;
  if (samples > 0) cost.per_million_samples = cost.total * 1e6 / static_cast<double>(samples);
  if (tokens > 0) cost.per_million_tokens = cost.total * 1e6 / static_cast<double>(tokens);
  return cost;
}

}  // namespace regroup::coordinator
