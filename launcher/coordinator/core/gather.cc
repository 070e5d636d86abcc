#include "launcher/coordinator/core/gather.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "launcher/coordinator/core/actions.h"
#include "launcher/coordinator/core/budget.h"
#include "launcher/coordinator/core/candidates.h"
#include "launcher/coordinator/core/decide_generation.h"
#include "launcher/coordinator/core/job.h"
#include "launcher/coordinator/core/leases.h"
#include "launcher/coordinator/core/news.h"
#include "launcher/coordinator/core/node.h"
#include "launcher/coordinator/core/proposal.h"
#include "launcher/coordinator/core/rows.h"
#include "launcher/coordinator/core/slots.h"
#include "launcher/coordinator/core/step.h"
#include "launcher/coordinator/core/verdict.h"

namespace regroup::coordinator {
namespace {

// A node that failed its check comes back as one that joins does, and under `settle` so does one
// that flaps: unless the job needs them to run. The others do not wait for what may fail again.
void LeaveOutUnsteady(const State& state, const Job& job, std::vector<Candidate>& candidates) {
  const JobSpec& spec = job.spec.spec;
  // Under `next` and `never` a node that is left out now would stay out for good.
  if (spec.scale_up != ScaleUp::kSettle && spec.scale_up != ScaleUp::kNow) return;
  const auto unsteady = [&](const Candidate& candidate) {
    if (spec.prepares_slowly() && job.unsteady.trials.contains(candidate.node)) return true;
    if (spec.scale_up != ScaleUp::kSettle) return false;
    auto found = job.unsteady.newcomers.find(candidate.node);
    return found != job.unsteady.newcomers.end() && found->second.flaps &&
           state.now < found->second.since + state.config.forming.newcomer_trial;
  };
  const auto steady =
      std::count_if(candidates.begin(), candidates.end(), [&](const Candidate& candidate) {
        // Whoever is no longer waited for is no reason to leave anyone out.
        const bool comes = candidate.readiness == Readiness::kReady || candidate.until > state.now;
        return comes && !unsteady(candidate) && candidate.readiness != Readiness::kBackingOff;
      });
  if (UsableSize(static_cast<int>(steady), spec.min_nodes, MaxNodesNow(job), spec.unit) > 0)
    std::erase_if(candidates, unsteady);
}

// Also keeps since when there are enough nodes: the last call ends at the latest so
// long after that.
bool HasEnough(Step& step, Job& job, int nodes) {
  const JobSpec& spec = job.spec.spec;
  const bool enough = UsableSize(nodes, spec.min_nodes, MaxNodesNow(job), spec.unit) > 0;
  if (!enough) job.gather.enough_since.reset();
  if (enough && !job.gather.enough_since) job.gather.enough_since = step.now();
  return enough;
}

bool GatherWaits(Step& step, Job& job, const Wait& wait) {
  if (wait.until) step.Wake(job, *wait.until);
  const bool below = std::holds_alternative<BelowMinimum>(wait.reason);
  if (!below) job.gather.below_since.reset();
  if (below) {
    job.gather.membership_known = false;  // Whoever comes now may be followed by more.
    if (!job.gather.below_since) job.gather.below_since = step.now();
    // A job that has run keeps its survivors for a while, so that others do not take them while a
    // lost node restarts; then it gives them back and stands in the queue.
    const bool holds = !job.launched() && job.state.phase != JobPhase::kQueued;
    if (holds && step.now() >= *job.gather.below_since + step.config().holds.nodes) {
      step.Say(Severity::kInfo, "job gives its nodes back and queues again",
               {{"job", job.id().value()}});
      step.UpdateState(job, [](JobStateRow& state) { state.phase = JobPhase::kQueued; });
      job.nodes.claims_dirty = true;
      // Ranks that have retired go with it.
      for (const NodeId& id : job.nodes.touched) step.Reorder(job, id);
      return true;
    }
    if (holds) step.Wake(job, *job.gather.below_since + step.config().holds.nodes);
  }
  SetWait(step, job, wait.reason, wait.until);
  return false;
}

std::optional<Instant> LastCallEnd(const State& state, const Job& job) {
  const std::optional<Instant> last = job.launched() ? job.launch.last_join : state.fleet.last_join;
  if (job.gather.membership_known || !last || !job.gather.enough_since) return std::nullopt;
  return std::min(*last + state.config.forming.last_call_quiet,
                  *job.gather.enough_since + state.config.forming.last_call_limit);
}

// Waits that need no look at any node: so that a thousand joins, or a thousand slots that become
// free one by one, cost as many cheap steps.
bool CheapWait(Step& step, Job& job) {
  const JobSpec& spec = job.spec.spec;
  if (std::optional<WaitReason> why = step.state.placement.WhyNot(job.spec.sequence)) {
    SetWait(step, job, *std::move(why), std::nullopt);
    return true;
  }
  const int need = SmallestSize(spec.min_nodes, spec.unit);
  const bool nowhere =
      job.nodes.touched.empty() && job.unsteady.trials.empty() && job.state.excluded.empty();
  if (job.state.phase == JobPhase::kQueued && job.state.last_formed == Generation() && nowhere &&
      !IsRedialling(step.state)) {
    CountFreeSlots(step);
    const int free = step.state.placement.CountFree(spec.workers_per_node);
    if (!HasEnough(step, job, free)) {
      GatherWaits(step, job, Wait{BelowMinimum{free, need, Duration{}, {}}, std::nullopt});
      return true;
    }
  }
  const int nodes = static_cast<int>(job.launched() ? job.launch.nodes.size()
                                                    : step.state.fleet.attached_daemons.size());
  if (nodes < kManyNodes || job.gather.membership_known) return false;
  if (!HasEnough(step, job, nodes)) {
    SetWait(step, job, BelowMinimum{nodes, need, Duration{}, {}}, std::nullopt);
    return true;
  }
  const std::optional<Instant> last_call = LastCallEnd(step.state, job);
  if (nodes >= MaxNodesNow(job) || !last_call || *last_call <= step.now()) return false;
  SetWait(step, job, LastCall{nodes, *last_call - step.now()}, last_call);
  step.Wake(job, *last_call);
  return true;
}

// A wholly lost generation can train on unseen, unless one of its members is proved dead.
Instant UnreachableUntil(const State& state, const Job& job) {
  auto previous = job.generations.find(job.state.last_formed);
  if (previous == job.generations.end()) return Instant{};
  Instant until{};
  for (const GenerationMember& member : previous->second.members) {
    const Node* node = state.FindNode(member.node);
    // One member that is heard, or proved dead, says that this side of the network is not the one
    // that is cut off.
    if (node == nullptr || !node->lost() || node->lost()->proved) return Instant{};
    until = std::max(until, node->lost()->at + state.config.holds.unreachable);
  }
  return until;
}

GenerationPolicy PolicyOf(const State& state, const Job& job) {
  const JobSpec& spec = job.spec.spec;
  GenerationPolicy policy;
  policy.min = spec.min_nodes;
  policy.max = MaxNodesNow(job);
  policy.unit = spec.unit;
  // Only for the reason; the back-off itself is already an instant.
  policy.failures = job.state.ends.own + job.state.ends.free;
  policy.not_before = job.gather.not_before;
  policy.last_call_until = LastCallEnd(state, job);
  policy.unreachable_until = UnreachableUntil(state, job);
  auto previous = job.generations.find(job.state.last_formed);
  if (previous != job.generations.end()) {
    for (const GenerationMember& member : previous->second.members) {
      const Node* node = state.FindNode(member.node);
      if (node && node->Is<Attached>()) continue;
      if (policy.missing.size() < kMaxNames) policy.missing.push_back(member.name);
    }
  }
  if (policy.unreachable_until > state.now) policy.unreachable = policy.missing;
  const bool within_budget = Charges(state, job) + OpenCharges(job) <= spec.max_restarts;
  if (within_budget && !OpenPreemptionsFail(job)) return policy;
  for (const auto& entry : job.soft) {
    const Over* over = std::get_if<Over>(&entry.second.state);
    if (over == nullptr) continue;
    for (const NodeId& node : over->waiting)
      if (policy.verdict_open.size() < kMaxNames) policy.verdict_open.push_back(state.NameOf(node));
  }
  return policy;
}

}  // namespace

bool Gather(Step& step, Job& job) {
  if (job.gather.done == job.state.last_formed) {
    SetVerdict(step, job, Verdict{VerdictState::kSucceeded, 0, std::nullopt}, Finished{},
               StopReason::kElective, step.config().ending.failure_grace);
    return true;
  }
  if (job.launched() && CheckAbandoned(step, job)) return true;
  if (CheapWait(step, job) || step.Rests(job)) return false;
  std::vector<Candidate> candidates = CandidatesOf(step, job);
  LeaveOutUnsteady(step.state, job, candidates);
  const auto ready = std::count_if(
      candidates.begin(), candidates.end(),
      [](const Candidate& candidate) { return candidate.readiness == Readiness::kReady; });
  HasEnough(step, job, static_cast<int>(ready));
  const GenerationDecision decision =
      DecideGeneration(PolicyOf(step.state, job), candidates, step.now());
  if (const auto* form = std::get_if<Form>(&decision)) {
    Propose(step, job, form->members, false);
    return true;
  }
  step.Rest(job, static_cast<int>(candidates.size()));
  return GatherWaits(step, job, std::get<Wait>(decision));
}

}  // namespace regroup::coordinator
