#include "launcher/coordinator/core/withheld.h"

#include <map>
#include <optional>
#include <variant>
#include <vector>

#include "common/base/check.h"
#include "launcher/coordinator/core/candidates.h"
#include "launcher/coordinator/core/job.h"
#include "launcher/coordinator/core/node.h"
#include "launcher/coordinator/core/placement.h"
#include "launcher/coordinator/core/slots.h"

namespace regroup::coordinator {
namespace {

// Whoever is called last, backs off, or waits for a member, for slots that are about to be free or
// for a verdict has another reason: it is not ready, and keeps its turn.
bool WaitsForNodesOnly(const State& state, const Job& job) {
  const bool due = job.wake && *job.wake <= state.now;  // It is looked at by the next Tick.
  if (FormedOf(job) || ProposedOf(job) || !job.wait.reason || due) return false;
  const WaitReason& reason = *job.wait.reason;
  return std::holds_alternative<BelowMinimum>(reason) ||
         std::holds_alternative<BehindJob>(reason) || std::holds_alternative<CannotFit>(reason);
}

// Of each node only what is ready: none that is lost, away, excluded, leaving or backing off.
Asking AskingOf(const State& state, const Job& job, const Demand& demand,
                const std::vector<Supply>& supplies) {
  Asking asking{demand, WaitsForNodesOnly(state, job)};
  for (const Supply& supply : supplies) {
    const std::optional<Candidate> candidate =
        CandidateOf(state, job, state.NodeAt(supply.node), false);
    const bool ready = candidate && candidate->readiness == Readiness::kReady;
    asking.own[supply.node] = ready ? candidate->free_slots : 0;
  }
  return asking;
}

}  // namespace

void CheckNothingIsWithheld(const State& state) {
  std::vector<Supply> supplies;
  for (const auto& entry : state.nodes)
    if (!entry.second.row.launched) supplies.push_back(SupplyOf(state, entry.second));
  std::vector<Asking> askings;
  for (const auto& entry : state.index.by_sequence) {
    const Job& job = state.jobs.at(entry.second);
    if (const std::optional<Demand> demand = DemandOf(job))
      askings.push_back(AskingOf(state, job, *demand, supplies));
  }
  for (const Grant& grant : Place(askings, supplies)) {
    const Job& job = state.jobs.at(grant.job);
    if (!WaitsForNodesOnly(state, job)) continue;
    CHECK(grant.nodes.empty());
    CHECK(grant.why_not->index() == job.wait.reason->index());
  }
}

}  // namespace regroup::coordinator
