#include "launcher/coordinator/core/leases.h"

#include <algorithm>
#include <optional>
#include <variant>

#include "launcher/coordinator/core/job.h"
#include "launcher/coordinator/core/node.h"
#include "launcher/coordinator/core/rows.h"
#include "launcher/coordinator/core/state.h"

namespace regroup::coordinator {
namespace {

// A service's agent is started again by its init system; a launched one is not, and its workers
// stop after the grace of its job.
Duration AwayLimit(const State& state, const Node& node) {
  if (!node.row.launched) return state.config.leases.agent_restart;
  Duration grace{};
  for (const JobId& id : node.jobs)
    if (const Job* job = state.FindJob(id)) grace = std::max(grace, job->spec.spec.grace);
  return grace + state.config.leases.launched_restart_margin;
}

// A synchronous job that began and finished a step since then proves that all of its ranks live.
bool JobStepsWithout(const State& state, const Node& node) {
  for (const JobId& id : node.jobs) {
    const Job* job = state.FindJob(id);
    const GenerationRow* row = job ? FormedOf(*job) : nullptr;
    if (row == nullptr) continue;
    const Formed* formed = In<Formed>(*job, row->generation);
    if (formed == nullptr || !job->soft.at(row->generation).members.contains(node.row.node))
      continue;
    const std::optional<Instant> before = formed->course.progress.step_before_at;
    if (before && *before > node.lease.from) return true;
  }
  return false;
}

struct EndOf {
  const State& state;
  const Node& node;

  std::optional<Instant> operator()(const Lost&) const { return std::nullopt; }
  std::optional<Instant> operator()(const Awaited& awaited) const {
    return std::max(awaited.away.awaited_until, state.fleet.brake.until);
  }
  std::optional<Instant> operator()(const Attached&) const { return LeaseOver(); }
  // A broken session alone proves nothing: networks drop connections of nodes that live.
  std::optional<Instant> operator()(const Suspected&) const { return LeaseOver(); }
  std::optional<Instant> operator()(const AgentAway& agent) const {
    return std::max(agent.away.broken_at + AwayLimit(state, node), agent.away.awaited_until);
  }

 private:
  Instant LeaseOver() const {
    return std::max(node.lease.from + state.config.leases.lease, state.fleet.brake.until);
  }
};

}  // namespace

std::optional<Instant> LeaseEnd(const State& state, const Node& node) {
  return std::visit(EndOf{state, node}, node.link);
}

bool StepsKeep(const State& state, const Node& node) {
  return (!node.lease.kept_until || state.now < *node.lease.kept_until) &&
         JobStepsWithout(state, node);
}

bool IsRedialling(const State& state) {
  return state.now < state.recovered_at + state.config.leases.redial && state.fleet.broken > 0;
}

bool IsHeard(const State& state, const NodeId& id) {
  const Node* node = state.FindNode(id);
  if (node == nullptr) return false;
  // Two heartbeats, because one may be on its way.
  return node->Is<AgentAway>() ||
         (node->Is<Attached>() && !node->lease.kept_until &&
          state.now - node->lease.from <= 2 * state.config.leases.heartbeat);
}

}  // namespace regroup::coordinator
