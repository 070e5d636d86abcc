#include "launcher/coordinator/core/node_in_job.h"

#include <algorithm>
#include <set>
#include <vector>

#include "launcher/coordinator/core/job.h"
#include "launcher/coordinator/core/node.h"
#include "launcher/coordinator/core/rows.h"
#include "launcher/coordinator/core/state.h"

namespace regroup::coordinator {
namespace {

template <class Allowed>
bool AllGroups(const Job& job, const Node& node, Allowed allowed) {
  // A Prepare that is on its way may take the slots at any moment.
  if (node.orders.unanswered.contains(job.id())) return false;
  auto groups = node.groups.find(job.id());
  if (groups == node.groups.end()) return true;
  return std::all_of(groups->second.begin(), groups->second.end(),
                     [&](const auto& entry) { return allowed(entry.second.phase); });
}

}  // namespace

void Touch(Job& job, Node& node) {
  job.nodes.touched.insert(node.row.node);
  node.jobs.insert(job.id());
}

void Untouch(Job& job, Node& node) {
  job.nodes.touched.erase(node.row.node);
  node.jobs.erase(job.id());
  node.orders.sent.erase(job.id());
}

const GroupReport* Shown(const Node& node, const JobId& job, Generation generation) {
  auto groups = node.groups.find(job);
  if (groups == node.groups.end()) return nullptr;
  auto report = groups->second.find(generation);
  return report == groups->second.end() ? nullptr : &report->second;
}

bool GroupIsDead(const Node& node, const JobId& job, Generation generation) {
  auto watch = node.watches.find(job);
  // A watch is of one generation: what refused for an older one says nothing about this one.
  return watch != node.watches.end() && watch->second.generation == generation &&
         watch->second.dead;
}

bool IsSettled(const State& state, const Job& job, Generation generation, const NodeId& id) {
  const Node* node = state.FindNode(id);
  if (node == nullptr || node->Is<Lost>() || GroupIsDead(*node, job.id(), generation)) return true;
  if (!node->Is<Attached>()) return false;
  const GroupReport* report = Shown(*node, job.id(), generation);
  // An attached node has shown all groups that it has, so that a group it did not show is none. An
  // unkillable one will never be free, and nobody waits for it.
  return report == nullptr || report->phase == Phase::kFree ||
         report->phase == Phase::kUnkillable ||
         (report->phase == Phase::kRetired && KeepsRetired(job));
}

int DoneRanksOf(const Job& job, Generation generation, const NodeId& node) {
  auto done = job.done.find(node);
  if (done == job.done.end() || done->second.generation != generation) return 0;
  return static_cast<int>(done->second.local_ranks.size());
}

bool IsLeaving(const Job& job, const Node& node) {
  return node.leaving ||
         (node.row.launch && node.row.launch->job == job.id() && node.row.launch->left);
}

bool IsExcluded(const Job& job, const NodeId& id) {
  return std::any_of(job.state.excluded.begin(), job.state.excluded.end(),
                     [&](const ExcludedNode& excluded) { return excluded.node == id; });
}

int NodesLeft(const State& state, const Job& job, const std::vector<ExcludedNode>& excluded) {
  const std::set<NodeId>& nodes = job.launched() ? job.launch.nodes : state.fleet.attached_daemons;
  return static_cast<int>(std::count_if(nodes.begin(), nodes.end(), [&](const NodeId& id) {
    const Node* node = state.FindNode(id);
    const bool out = std::any_of(excluded.begin(), excluded.end(),
                                 [&](const ExcludedNode& e) { return e.node == id; });
    return !out && node && !node->Is<Lost>() && !IsLeaving(job, *node);
  }));
}

bool SlotsFree(const Job& job, const Node& node) {
  return AllGroups(job, node, [](Phase phase) { return phase == Phase::kFree; });
}

bool MayPrepare(const Job& job, const Node& node) {
  const bool keeps = KeepsRetired(job);
  return AllGroups(job, node, [keeps](Phase phase) {
    return phase == Phase::kFree || (keeps && phase == Phase::kRetired);
  });
}

bool KeepsRetired(const Job& job) {
  return job.stop && job.stop->in_place && (FormedOf(job) == nullptr || IsEnding(job));
}

int WorkersOn(const Job& job, const Node& node) {
  // Each launch command brings as many workers as it was told; a submitted job has the same number
  // everywhere, or whole nodes.
  if (node.row.launch && node.row.launch->job == job.id()) return node.row.launch->workers;
  const int each = job.spec.spec.workers_per_node;
  return each == kWorkerPerGpu ? node.row.slots : each;
}

}  // namespace regroup::coordinator
