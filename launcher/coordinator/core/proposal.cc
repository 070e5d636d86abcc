#include "launcher/coordinator/core/proposal.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "launcher/coordinator/core/actions.h"
#include "launcher/coordinator/core/admission.h"
#include "launcher/coordinator/core/budget.h"
#include "launcher/coordinator/core/failure_policy.h"
#include "launcher/coordinator/core/job.h"
#include "launcher/coordinator/core/news.h"
#include "launcher/coordinator/core/node.h"
#include "launcher/coordinator/core/node_in_job.h"
#include "launcher/coordinator/core/ranks.h"
#include "launcher/coordinator/core/rows.h"
#include "launcher/coordinator/core/slots.h"
#include "launcher/coordinator/core/step.h"

namespace regroup::coordinator {
namespace {

// Survivors keep their ranks, so that caches and shards stay where they are; who comes back gets
// its old rank where that is free (ranks.h).
std::vector<NodeId> RankOrder(const State& state, const Job& job,
                              const std::vector<NodeId>& chosen) {
  std::vector<NodeId> previous;
  auto last = job.generations.find(job.state.last_formed);
  if (last != job.generations.end())
    for (const GenerationMember& member : last->second.members) previous.push_back(member.node);
  // Older generations are looked through from the newest on, and only until each
  // newcomer was found.
  std::set<NodeId> unknown(chosen.begin(), chosen.end());
  for (const NodeId& id : previous) unknown.erase(id);
  std::map<NodeId, int> former;
  for (auto it = job.generations.rbegin();
       it != job.generations.rend() && former.size() < unknown.size(); ++it) {
    const GenerationRow& row = it->second;
    if (row.voided || row.generation >= job.state.last_formed) continue;
    for (std::size_t rank = 0; rank < row.members.size(); ++rank)
      if (unknown.contains(row.members[rank].node))
        former.try_emplace(row.members[rank].node, static_cast<int>(rank));
  }
  std::vector<RankCandidate> candidates;
  for (const NodeId& id : chosen) {
    RankCandidate candidate{id, state.NameOf(id), std::nullopt};
    if (auto found = former.find(id); found != former.end()) candidate.former = found->second;
    candidates.push_back(std::move(candidate));
  }
  return AssignGroupRanks(previous, candidates);
}

std::vector<GenerationMember> MembersOf(const State& state, const Job& job,
                                        const std::vector<NodeId>& ranks) {
  // Where other hosts take part, a member that sits beside the coordinator is known to them by the
  // address at which they reached the coordinator, not by its own loopback.
  std::string reached_at;
  for (const NodeId& id : ranks) {
    const NodeRow& row = state.NodeAt(id).row;
    if (!IsLoopback(row.address) && reached_at.empty()) reached_at = row.dialled;
  }
  std::vector<GenerationMember> members;
  for (const NodeId& id : ranks) {
    const Node& node = state.NodeAt(id);
    GenerationMember member;
    member.node = id;
    member.name = node.row.name;
    member.address =
        IsLoopback(node.row.address) && !reached_at.empty() ? reached_at : node.row.address;
    member.workers = WorkersOn(job, node);
    // Kept for `explain`, which says why these nodes were taken.
    if (!job.nodes.touched.contains(id)) member.free_slots = FreeSlotsFor(state, job, node);
    members.push_back(std::move(member));
  }
  return members;
}

// How long a member may take to prepare.
Duration AckLimit(const State& state, const Job& job) {
  const JobSpec& spec = job.spec.spec;
  Duration limit = state.config.forming.ack;
  if (spec.warm) limit += state.config.forming.warm_up;
  if (spec.node_check.wanted()) limit += spec.node_check.timeout;  // After the imports.
  return limit;
}

void BeginAckWait(const Step& step, const Job& job, Proposed& proposed) {
  proposed.fewest_unacked = proposed.unacked.size();
  proposed.wait_began = step.now();
  proposed.ack_deadline = step.now() + AckLimit(step.state, job);
}

// While members answer, the others are waited for: thousands do not answer in the time of one. Only
// when fewer are left than ever does the wait begin anew: at most once for each member, however
// often one comes and goes.
void ExtendAckWait(const Step& step, Proposed& proposed) {
  if (proposed.unacked.size() >= proposed.fewest_unacked) return;
  proposed.fewest_unacked = proposed.unacked.size();
  proposed.wait_began = step.now();
  proposed.ack_deadline =
      std::max(proposed.ack_deadline, step.now() + step.state.config.forming.ack);
}

void DropOldGenerations(Step& step, Job& job) {
  if (job.generations.size() <= static_cast<std::size_t>(step.config().limits.generations_per_job))
    return;
  // A node that refuses for hours voids many; what ran is worth more.
  auto oldest = std::find_if(
      job.generations.begin(), job.generations.end(),
      [&](const auto& entry) { return entry.second.voided && !job.soft.contains(entry.first); });
  if (oldest == job.generations.end()) oldest = job.generations.begin();
  if (job.soft.contains(oldest->first) || oldest->first == job.state.last_formed) return;
  step.Delete(GenerationKey(job.id(), oldest->first));
}

// The old generation is over: its survivors prepare, beside the newcomers that already have.
bool AskSurvivors(Step& step, Job& job, GenerationSoft& soft) {
  Proposed& proposed = As<Proposed>(soft);
  for (const auto& member : soft.members) {
    const NodeId& id = member.first;
    if (proposed.asked.contains(id)) continue;
    const Node* node = step.state.FindNode(id);
    if (node == nullptr || !node->Is<Attached>() || !MayPrepare(job, *node)) {
      proposed.failed[id] = "its slots were not free in time";
      continue;
    }
    proposed.asked.insert(id);
    proposed.unacked.insert(id);
    step.Reorder(job, id);
  }
  BeginAckWait(step, job, proposed);
  job.outage.proposed_at = step.now();
  return true;
}

void FormGeneration(Step& step, Job& job, Generation generation) {
  GenerationSoft& soft = job.soft.at(generation);
  const Proposed proposed = std::move(As<Proposed>(soft));
  Formed& formed = soft.state.emplace<Formed>();
  // Now they may be told to run: the start timeout counts from here.
  for (const auto& member : soft.members) formed.starts.not_started.insert(member.first);
  auto before = job.generations.find(job.state.last_formed);
  const std::size_t nodes_before =
      before == job.generations.end() ? 0 : before->second.members.size();
  const bool again = job.state.last_formed > Generation();
  const bool grew = job.generations.at(generation).elective && soft.members.size() > nodes_before;
  std::set<NodeId> known;
  for (std::size_t i = 0; i < nodes_before; ++i) known.insert(before->second.members[i].node);
  for (const auto& member : soft.members) {
    if (again && !known.contains(member.first))
      job.unsteady.newcomers[member.first].since = step.now();
  }
  step.UpdateGeneration(job, generation, [&](GenerationRow& row) {
    row.phase = GenerationPhase::kFormed;
    row.formed_at = step.wall();
    row.resume_step = job.commit ? job.commit->step : 0;
    // The store told its port; its host is the name under which the other members
    // reach group rank 0.
    row.store = Address{row.members[0].address, proposed.store->port};
    for (GenerationMember& member : row.members) {
      auto watch = step.state.NodeAt(member.node).watches.find(job.id());
      if (watch == step.state.NodeAt(member.node).watches.end() ||
          watch->second.generation != generation)
        continue;
      // A coordinator that starts anew can ask the witnesses at once, before any agent has dialled.
      member.witness = watch->second.witness;
      member.witness_verified = watch->second.verified;
    }
    FitRow(row);
  });
  step.UpdateState(job, [&](JobStateRow& state) {
    state.last_formed = generation;
    state.phase = again ? JobPhase::kRegrouping : JobPhase::kForming;
    if (again) ++state.regroups;
    if (!again) state.started_at = step.wall();
    if (grew) ++state.growths;
  });
  soft.since = step.now();
  job.outage.formed_at = job.times.last_change = step.now();
  const GenerationRow& row = job.generations.at(generation);
  GenerationFormed event{
      generation, static_cast<int>(row.members.size()), 0, step.now() - proposed.proposed_at, {}};
  for (const GenerationMember& member : row.members) {
    event.world += member.workers;
    if (event.members.size() < 4 * kMaxNames) event.members.push_back(member.name);
  }
  AddEvent(step, job, std::move(event));
  SetWait(step, job, std::nullopt, std::nullopt);
  step.ReorderMembers(job, soft);
}

}  // namespace

void Propose(Step& step, Job& job, const std::vector<NodeId>& chosen, bool elective) {
  // Durable with the proposal, before any member hears of it: no number can be used twice.
  const Generation generation = job.state.last_number.Next();
  GenerationRow row;
  row.job = job.id();
  row.generation = generation;
  row.elective = elective;
  row.members = MembersOf(step.state, job, RankOrder(step.state, job, chosen));
  row.restart_count = job.state.ends.charged + OpenCharges(job);
  row.resume_step = job.commit ? job.commit->step : 0;
  row.proposed_at = step.wall();

  GenerationSoft& soft = job.soft[generation];
  soft.since = step.now();
  Proposed& proposed = As<Proposed>(soft);
  proposed.proposed_at = step.now();
  const GenerationRow* formed = FormedOf(job);
  for (std::size_t rank = 0; rank < row.members.size(); ++rank) {
    const NodeId& id = row.members[rank].node;
    soft.members[id] = static_cast<int>(rank);
    // A survivor of an elective change prepares when its slots are free (AskSurvivors).
    const bool survivor = formed && job.soft.at(formed->generation).members.contains(id);
    if (!survivor) proposed.asked.insert(id);
    Touch(job, step.state.NodeAt(id));
  }
  proposed.unacked = proposed.asked;
  BeginAckWait(step, job, proposed);
  step.Put(row);
  if (!elective) job.outage.proposed_at = step.now();
  step.UpdateState(job, [&](JobStateRow& state) {
    state.last_number = generation;
    if (elective) return;
    state.phase = state.last_formed > Generation() ? JobPhase::kRegrouping : JobPhase::kForming;
  });
  DropOldGenerations(step, job);
  job.gather.below_since.reset();
  job.nodes.claims_dirty = true;
  SetWait(step, job, std::nullopt, std::nullopt);
  // Ranks that have retired elsewhere are of no use from here on.
  for (const NodeId& id : job.nodes.touched) step.Reorder(job, id);
  step.Say(Severity::kInfo, "generation proposed",
           {{"job", job.id().value()},
            {"generation", absl::StrCat(generation.value())},
            {"nodes", absl::StrCat(row.members.size())}});
}

void AskAgain(Step& step, Job& job, const NodeId& node) {
  const GenerationRow* row = ProposedOf(job);
  if (row == nullptr) return;
  GenerationSoft& soft = job.soft.at(row->generation);
  Proposed& proposed = As<Proposed>(soft);
  if (!proposed.unacked.contains(node)) return;
  Instant& deadline = proposed.ack_deadline;
  const Duration limit = AckLimit(step.state, job);
  deadline = std::max(deadline, std::min(step.now() + limit,
                                         proposed.wait_began + limit + step.config().leases.lease));
}

bool AdvanceProposal(Step& step, Job& job) {
  const GenerationRow& row = *ProposedOf(job);
  const Generation generation = row.generation;
  GenerationSoft& soft = job.soft.at(generation);
  Proposed& proposed = As<Proposed>(soft);
  // Who was asked before the crash cannot be told apart from who was not.
  if (proposed.recovered) {
    VoidProposal(step, job, generation, {});
    return true;
  }
  // An agent that says it is prepared without a store would form a generation that cannot meet.
  const bool host_without_store = proposed.asked.contains(row.members[0].node) &&
                                  !proposed.unacked.contains(row.members[0].node) &&
                                  !proposed.store;
  if (host_without_store) proposed.failed[row.members[0].node] = "it prepared no store";
  ExtendAckWait(step, proposed);
  if (proposed.failed.empty() && !proposed.unacked.empty() && step.now() >= proposed.ack_deadline) {
    for (const NodeId& id : proposed.unacked) proposed.failed[id] = "it did not prepare in time";
  }
  if (!proposed.failed.empty()) {
    const std::map<NodeId, std::string> failed = proposed.failed;
    VoidProposal(step, job, generation, failed);
    return true;
  }
  if (!proposed.unacked.empty()) {
    step.Wake(job, proposed.ack_deadline);
    if (!FormedOf(job)) SetWait(step, job, MembersPreparing{}, std::nullopt);
    return false;
  }
  if (FormedOf(job)) return false;  // Its end is under way; survivors prepare once they are free.
  if (proposed.asked.size() < soft.members.size()) return AskSurvivors(step, job, soft);
  FormGeneration(step, job, generation);
  return true;
}

void VoidProposal(Step& step, Job& job, Generation generation,
                  const std::map<NodeId, std::string>& failed) {
  const bool elective = job.generations.at(generation).elective;
  const Proposed& proposed = As<Proposed>(job.soft.at(generation));
  const bool recovered = proposed.recovered;
  const Duration took = recovered ? Duration{} : step.now() - proposed.proposed_at;
  step.Say(Severity::kWarning, "proposal voided",
           {{"job", job.id().value()},
            {"generation", absl::StrCat(generation.value())},
            {"why", failed.empty() ? (recovered ? "the coordinator restarted" : "superseded")
                                   : absl::StrCat(step.state.NameOf(failed.begin()->first), ": ",
                                                  failed.begin()->second)}});
  // Nor does a restart wait for newcomers that check or import: they come as those that join do.
  if (elective && failed.empty() && !recovered && job.spec.spec.prepares_slowly()) {
    for (const NodeId& id : proposed.unacked) {
      MemberTrial& trial = job.unsteady.trials[id];
      if (trial.failures == 0) trial.why = "it was still preparing when the job restarted";
    }
  }
  for (const auto& entry : failed) {
    MemberTrial& trial = job.unsteady.trials[entry.first];
    const Node* node = step.state.FindNode(entry.first);
    const bool stays = node && node->Is<Attached>();
    trial.until = step.now() + MemberBackoff(++trial.failures, step.config());
    // While a check or imports run into their time, nobody else can join: half of it at most.
    if (job.spec.spec.prepares_slowly()) trial.until = std::max(trial.until, step.now() + took);
    trial.why = entry.second;
    const bool news = !stays || std::has_single_bit(static_cast<unsigned>(trial.failures));
    // One that stays and only refuses has cost nobody anything: it waits, others that come do not.
    if (elective && !stays) ++job.unsteady.lost_newcomers;
    if (news && failed.size() <= kMaxNames / 4)
      AddEvent(step, job, NodeLeft{step.state.NameOf(entry.first), entry.second, stays});
  }
  step.UpdateGeneration(job, generation, [&](GenerationRow& row) {
    row.phase = GenerationPhase::kOver;
    row.voided = true;
    row.ended_at = step.wall();
  });
  if (!FormedOf(job) && !job.state.verdict) {
    step.UpdateState(job, [&](JobStateRow& state) {
      if (state.last_formed > Generation()) {
        state.phase = JobPhase::kRegrouping;
      } else {
        state.phase = job.launched() ? JobPhase::kGathering : JobPhase::kQueued;
      }
    });
  }
  step.ReorderMembers(job, job.soft.at(generation));
  job.soft.erase(generation);
  // Members that did prepare stop again now: their slots are waited for, since the next proposal
  // will want most of them.
  job.gather.awaited_until =
      std::max(job.gather.awaited_until,
               step.now() + step.config().ending.failure_grace + step.config().ending.stop_margin);
  job.nodes.claims_dirty = true;
}

}  // namespace regroup::coordinator
