#include "launcher/coordinator/core/slots.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "common/base/check.h"
#include "launcher/coordinator/core/accounts.h"
#include "launcher/coordinator/core/job.h"
#include "launcher/coordinator/core/node.h"
#include "launcher/coordinator/core/node_in_job.h"
#include "launcher/coordinator/core/placement.h"
#include "launcher/coordinator/core/rows.h"
#include "launcher/coordinator/core/step.h"

namespace regroup::coordinator {
namespace {

constexpr std::size_t kMostChecked = 64;  // Nodes.

// Tests: what was told change by change is what a count of all nodes and jobs says.
void CheckPlacement(const State& state) {
  Placement counted;
  for (const auto& [id, node] : state.nodes) {
    const Supply supply = SupplyOf(state, node);
    counted.SetSize(id, supply.name, supply.slots, supply.gpus);
    counted.SetFree(id, supply.free);
  }
  for (const auto& entry : state.jobs)
    if (const std::optional<Demand> demand = DemandOf(entry.second)) counted.Set(*demand);
  CHECK(counted.SaysTheSame(state.placement));
}

}  // namespace

bool ChecksIndices(const State& state) {
  return state.config.check_indices && state.nodes.size() <= kMostChecked;
}

void OfferAgain(Step& step) { step.state.agenda.dirty.merge(step.state.placement.Takers()); }

void OfferCapacity(Step& step) {
  CountFreeSlots(step);
  step.state.agenda.dirty.merge(step.state.placement.TakeOffers());
}

void CountFreeSlots(Step& step) {
  for (const NodeId& id : step.state.agenda.slots_dirty) {
    const Node* node = step.state.FindNode(id);
    step.state.placement.SetFree(id, node == nullptr ? 0 : SupplyOf(step.state, *node).free);
  }
  step.state.agenda.slots_dirty.clear();
  if (ChecksIndices(step.state)) CheckPlacement(step.state);
}

int FreeSlotsFor(const State& state, const Job& job, const Node& node) {
  int used = SlotsUsed(state, node);
  // What the job holds here already is free for its next generation.
  if (node.claims.contains(job.id()) || !SlotsFree(job, node)) used -= WorkersOn(job, node);
  return node.row.slots - used;
}

Supply SupplyOf(const State& state, const Node& node) {
  Supply supply{node.row.node, node.row.name};
  if (node.row.lost || node.row.launched) return supply;
  supply.slots = node.row.slots;
  supply.gpus = node.row.gpu_slots;
  // A node that is suspected has slots and cannot be asked; one that leaves would take its job
  // along.
  if (node.Is<Attached>() && !node.leaving) supply.free = node.row.slots - SlotsUsed(state, node);
  return supply;
}

int SlotsUsed(const State& state, const Node& node) {
  std::set<JobId> users = node.claims;
  for (const auto& entry : node.orders.unanswered) users.insert(entry.first);
  int used = 0;
  for (const auto& entry : node.groups) {
    const Job* job = state.FindJob(entry.first);
    if (job != nullptr && !SlotsFree(*job, node)) users.insert(entry.first);
    for (const auto& group :
         entry.second) {  // Of a job that this journal does not know: never touched.
      if (job == nullptr && group.second.phase != Phase::kFree)
        used += std::max(1, static_cast<int>(group.second.started.size()));
    }
  }
  for (const JobId& id : users)
    if (const Job* job = state.FindJob(id)) used += WorkersOn(*job, node);
  return used;
}

void UpdateClaims(Step& step, Job& job) {
  job.nodes.claims_dirty = false;
  CountHeld(step.state, job);
  std::set<NodeId> wanted;
  for (const GenerationRow* row : {FormedOf(job), ProposedOf(job)}) {
    if (row == nullptr || job.state.phase == JobPhase::kEnding) continue;
    for (const GenerationMember& member : row->members) wanted.insert(member.node);
  }
  // Between two generations a job keeps the nodes of the last one; else the queue's head would take
  // them while its survivors still stop.
  const bool holds = !job.launched() && (job.state.phase == JobPhase::kRegrouping ||
                                         job.state.phase == JobPhase::kForming);
  auto last = job.generations.find(job.state.last_formed);
  if (holds && wanted.empty() && last != job.generations.end()) {
    for (const GenerationMember& member : last->second.members) {
      const Node* node = step.state.FindNode(member.node);
      if (node && !node->Is<Lost>() && !IsLeaving(job, *node)) wanted.insert(member.node);
    }
  }
  for (const NodeId& id : job.nodes.claimed) {
    Node* node = step.state.FindNode(id);
    if (node == nullptr || wanted.contains(id)) continue;
    node->claims.erase(job.id());
    step.state.SlotsChanged(*node);
  }
  for (const NodeId& id : wanted) {
    Node* node = step.state.FindNode(id);
    if (node != nullptr && node->claims.insert(job.id()).second) step.state.SlotsChanged(*node);
  }
  job.nodes.claimed = std::move(wanted);
}

}  // namespace regroup::coordinator
