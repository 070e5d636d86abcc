#include "launcher/coordinator/core/candidates.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include "common/base/check.h"
#include "launcher/coordinator/core/decide_generation.h"
#include "launcher/coordinator/core/job.h"
#include "launcher/coordinator/core/leases.h"
#include "launcher/coordinator/core/node.h"
#include "launcher/coordinator/core/node_in_job.h"
#include "launcher/coordinator/core/rows.h"
#include "launcher/coordinator/core/slots.h"
#include "launcher/coordinator/core/step.h"

namespace regroup::coordinator {
namespace {

// Tests: whoever was not looked at would not have been taken.
void CheckCandidates(const State& state, const Job& job, const std::vector<Candidate>& candidates) {
  const auto looked_at = [&](const NodeId& id) {
    return std::any_of(candidates.begin(), candidates.end(),
                       [&](const Candidate& candidate) { return candidate.node == id; });
  };
  for (const NodeId& id : state.fleet.attached_daemons) {
    const std::optional<Candidate> other = CandidateOf(state, job, state.NodeAt(id), false);
    if (!other || looked_at(id)) continue;
    CHECK(other->readiness == Readiness::kReady && !other->former);
    CHECK(std::count_if(candidates.begin(), candidates.end(), [&](const Candidate& candidate) {
            return candidate.readiness == Readiness::kReady && Preferred(candidate, *other);
          }) >= MaxNodesNow(job));
  }
}

std::optional<Instant> WorthAwaiting(const State& state, const Job& job, const Node& node,
                                     bool previous) {
  // After a recovery a former member may take as long as the fleet may; any other daemon only as
  // long as an agent needs to dial again, because the job can do without it.
  if (const auto* awaited = std::get_if<Awaited>(&node.link))
    return previous || job.launched() ? awaited->away.awaited_until
                                      : state.recovered_at + state.config.leases.redial;
  // After a loss or failure the survivors are known: who blinked meanwhile has until
  // the stop order gives it up.
  if (previous && job.gather.membership_known) return job.gather.awaited_until;
  if (job.launched() || previous) return LeaseEnd(state, node);
  return std::nullopt;
}

}  // namespace

std::set<NodeId> NodesToLookAt(const State& state, const Job& job) {
  std::set<NodeId> nodes = job.nodes.touched;
  // They are looked at though they may not be ready, since the reason why a job waits names them.
  for (const auto& entry : job.unsteady.trials) nodes.insert(entry.first);
  for (const auto& entry : job.unsteady.newcomers) nodes.insert(entry.first);
  for (const ExcludedNode& excluded : job.state.excluded) nodes.insert(excluded.node);
  std::erase_if(nodes,
                [&](const NodeId& id) { return !state.fleet.attached_daemons.contains(id); });
  // So many that the job would be full even if all that know it were among the first
  // and could not be taken.
  const std::size_t limit = nodes.size() + static_cast<std::size_t>(MaxNodesNow(job));
  for (NodeId& id : state.placement.FirstFree(job.spec.spec.workers_per_node, limit))
    nodes.insert(std::move(id));
  return nodes;
}

std::vector<Candidate> CandidatesOf(Step& step, const Job& job) {
  std::set<NodeId> previous;
  auto last = job.generations.find(job.state.last_formed);
  if (last != job.generations.end())
    for (const GenerationMember& member : last->second.members) previous.insert(member.node);
  std::set<NodeId> nodes = job.launch.nodes;
  if (!job.launched()) {
    CountFreeSlots(step);
    nodes = NodesToLookAt(step.state, job);
    nodes.insert(previous.begin(), previous.end());
    // A recovery that took a queued job to free nodes before the fleet has dialled again would
    // start it on too few.
    const bool redialling = IsRedialling(step.state);
    for (const auto& entry : step.state.nodes)
      if (redialling && !entry.second.row.launched && entry.second.Is<Awaited>())
        nodes.insert(entry.first);
  }
  std::vector<Candidate> candidates;
  for (const NodeId& id : nodes) {
    const Node* node = step.state.FindNode(id);
    if (node == nullptr) continue;
    if (std::optional<Candidate> candidate =
            CandidateOf(step.state, job, *node, previous.contains(id)))
      candidates.push_back(*std::move(candidate));
  }
  if (ChecksIndices(step.state) && !job.launched()) CheckCandidates(step.state, job, candidates);
  return candidates;
}

std::optional<Candidate> CandidateOf(const State& state, const Job& job, const Node& node,
                                     bool previous) {
  const NodeId& id = node.row.node;
  // Whatever it shows, nothing may be asked of it any more.
  if (node.Is<Lost>() || IsLeaving(job, node) || IsExcluded(job, id)) return std::nullopt;
  Candidate candidate{id, node.row.name, Readiness::kReady, Instant{}, previous, false};
  if (!node.Is<Attached>()) {
    std::optional<Instant> until = WorthAwaiting(state, job, node, previous);
    if (!until) return std::nullopt;
    candidate.readiness = Readiness::kAwaited;
    candidate.until = *until;
    return candidate;
  }
  if (auto trial = job.unsteady.trials.find(id);
      trial != job.unsteady.trials.end() && trial->second.until > state.now) {
    candidate.readiness = Readiness::kBackingOff;
    candidate.until = trial->second.until;
    candidate.why = trial->second.why;
    return candidate;
  }
  if (!MayPrepare(job, node)) {
    candidate.readiness = Readiness::kStopping;
    // A node that has just come back with a group of an older generation is told to stop it now: it
    // gets the time that a stop takes.
    candidate.until = std::max(job.gather.awaited_until, node.attached()->since +
                                                             state.config.ending.failure_grace +
                                                             state.config.ending.stop_margin);
    return candidate;
  }
  if (!job.launched()) {
    candidate.free_slots = FreeSlotsFor(state, job, node);
    if (candidate.free_slots < WorkersOn(job, node)) return std::nullopt;
    if (job.spec.spec.workers_per_node == kWorkerPerGpu && !node.row.gpu_slots) return std::nullopt;
  }
  candidate.workers = WorkersOn(job, node);
  // Its caches and its rank are worth more to the job than a node with more room.
  candidate.former = !previous && job.nodes.touched.contains(id);
  return candidate;
}

}  // namespace regroup::coordinator
