#include "launcher/coordinator/core/slots.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <utility>

#include "common/base/check.h"
#include "launcher/coordinator/core/accounts.h"
#include "launcher/coordinator/core/free_slots.h"
#include "launcher/coordinator/core/job.h"
#include "launcher/coordinator/core/node.h"
#include "launcher/coordinator/core/node_in_job.h"
#include "launcher/coordinator/core/rows.h"
#include "launcher/coordinator/core/step.h"

namespace regroup::coordinator {
namespace {

// For a job that has nothing there; 0: it takes none.
int FreeSlotsOf(const State& state, const Node& node) {
  // A node that is suspected has slots and cannot be asked; one that leaves would
  // take its job along.
  const bool takes = node.Is<Attached>() && !node.row.launched && !node.leaving;
  return takes ? node.row.slots - SlotsUsed(state, node) : 0;
}

}  // namespace

void MarkHungry(Step& step) {
  if (step.state.queue.Head() != 0) step.state.agenda.dirty.insert(step.state.queue.Head());
  step.state.agenda.dirty.insert(step.state.queue.hungry.begin(), step.state.queue.hungry.end());
}

void OfferCapacity(Step& step) {
  CountFreeSlots(step);
  // Less or the same is no offer: those who wait have seen it.
  if (std::exchange(step.state.slots.more, false)) MarkHungry(step);
}

int MaxNodesNow(const Job& job) {
  const int max = std::min(job.spec.spec.max_nodes, kMaxNodesPerJob);
  auto previous = job.generations.find(job.state.last_formed);
  if (job.spec.spec.scale_up != ScaleUp::kNever || previous == job.generations.end()) return max;
  std::size_t largest = previous->second.members.size();  // A loss may be made good, no more.
  for (const auto& entry : job.generations)
    if (!entry.second.voided) largest = std::max(largest, entry.second.members.size());
  return std::min(max, static_cast<int>(largest));
}

void CountFreeSlots(Step& step) {
  for (const NodeId& id : step.state.slots.recount) {
    const Node* node = step.state.FindNode(id);
    if (node == nullptr) {
      step.state.slots.free.Remove(id);
    } else {
      step.state.slots.more |=
          step.state.slots.free.Set(id, node->row.name, FreeSlotsOf(step.state, *node));
    }
  }
  step.state.slots.recount.clear();
  // Tests: the index says what a count of all nodes says.
  if (!step.config().check_indices || step.state.nodes.size() > kMostChecked) return;
  FreeSlots counted;
  for (const auto& [id, node] : step.state.nodes)
    counted.Set(id, node.row.name, FreeSlotsOf(step.state, node));
  CHECK(counted == step.state.slots.free);
}

int FreeSlotsFor(const State& state, const Job& job, const Node& node) {
  int used = SlotsUsed(state, node);
  // What the job holds here already is free for its next generation.
  if (node.claims.contains(job.id()) || !SlotsFree(job, node)) used -= WorkersOn(job, node);
  return node.row.slots - used;
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

void UpdateHunger(Step& step, Job& job) {
  const JobPhase phase = job.state.phase;
  bool hungry = !job.launched() && (phase == JobPhase::kRegrouping || phase == JobPhase::kForming);
  if (!job.launched() && phase == JobPhase::kRunning) {
    const GenerationRow* formed = FormedOf(job);
    hungry = formed && static_cast<int>(formed->members.size()) < MaxNodesNow(job);
  }
  // Also while it gathers: what becomes free may complete its next generation.
  if (hungry) step.state.queue.hungry.insert(job.spec.sequence);
  if (!hungry) step.state.queue.hungry.erase(job.spec.sequence);
}

}  // namespace regroup::coordinator
