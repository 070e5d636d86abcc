// The formed generation: started, done, lost, noticed, growing. PROTOCOL §2, §4.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "launcher/coordinator/core/engine.h"
#include "launcher/coordinator/core/failure_policy.h"

namespace regroup::coordinator {
namespace {

constexpr std::size_t kMaxNames = 16;

}  // namespace

const GenerationRow* Engine::FormedOf(const Job& job) const {
  auto found = job.generations.find(job.state.last_formed);
  const bool formed =
      found != job.generations.end() && found->second.phase == GenerationPhase::kFormed;
  return formed ? &found->second : nullptr;
}

const GenerationRow* Engine::ProposedOf(const Job& job) const {
  auto found = job.generations.find(job.state.last_number);
  const bool proposed =
      found != job.generations.end() && found->second.phase == GenerationPhase::kProposed;
  return proposed ? &found->second : nullptr;
}

bool Engine::AdvanceFormed(Job& job, Generation generation) {
  GenerationSoft& soft = job.soft.at(generation);
  if (soft.ending) return AdvanceEnding(job, generation, soft);
  if (soft.not_started.empty() && !soft.running_at) EnterRunning(job, generation, soft);
  if (CheckDone(job, generation, soft)) return true;
  if (soft.cause || soft.fallback) {
    BeginEnding(job, generation, StopReason::kFailure, config_.failure_grace);
    return true;
  }
  if (CheckLost(job, generation, soft)) return true;
  if (soft.held) return false;
  return CheckStart(job, generation, soft) || CheckNotices(job, generation, soft) ||
         CheckSaving(job, generation, soft) || CheckGrowth(job, generation, soft);
}

void Engine::EnterRunning(Job& job, Generation generation, GenerationSoft& soft) {
  // Workers know how old they are: after a restart of the coordinator the clock goes on.
  Duration age = Duration::max();
  for (const auto& entry : soft.started)
    for (const RankStart& start : entry.second) age = std::min(age, start.age);
  const bool first = job.state.phase != JobPhase::kRunning;
  const bool known = age != Duration::max();
  age = std::min(age, AgeOf(job.generations.at(generation), soft));
  soft.running_at = first || !known ? now_ : now_ - age;
  SetWait(job, std::nullopt, std::nullopt);
  if (!first) return;
  // Who is still out of it has not shown that it can take part.
  std::erase_if(job.trials, [&](const auto& trial) {
    return soft.members.contains(trial.first) || FindNode(trial.first) == nullptr;
  });
  const RestartPhases phases = PhasesOf(job.outage, now_);
  const OpenAccount outage = OutageAccount(job, now_);
  UpdateGeneration(job, generation, [&](GenerationRow& row) {
    row.phases = phases;
    for (GenerationMember& member : row.members) {
      member.pids.assign(member.workers, 0);
      for (const RankStart& start : soft.started[member.node])
        if (start.local_rank >= 0 && start.local_rank < member.workers)
          member.pids[start.local_rank] = start.pid;
      auto watch = nodes_.find(member.node);
      if (watch == nodes_.end()) continue;
      auto seen = watch->second.watches.find(job.id());
      if (seen != watch->second.watches.end() && seen->second.generation == generation)
        member.witness_verified = seen->second.verified;
    }
    FitRow(row);
  });
  UpdateState(job, [&](JobStateRow& state) {
    state.phase = JobPhase::kRunning;
    Book(outage, state);
  });
  if (!job.running_since) job.running_since = now_;
  AddEvent(job, GenerationRunning{generation, phases});
  job.outage = Outage{};
}

RestartPhases Engine::PhasesOf(const Outage& outage, Instant running_at) const {
  RestartPhases phases;
  const std::optional<Instant> begin = outage.event_at ? outage.event_at : outage.detected_at;
  const std::optional<Instant> first = begin ? begin : outage.proposed_at;
  if (!first) return phases;
  phases.down = running_at - *first;
  if (outage.event_at && outage.detected_at) phases.detect = *outage.detected_at - *outage.event_at;
  if (outage.detected_at && outage.free_at) phases.stop = *outage.free_at - *outage.detected_at;
  if (outage.free_at && outage.proposed_at) phases.decide = *outage.proposed_at - *outage.free_at;
  if (outage.proposed_at && outage.formed_at) phases.form = *outage.formed_at - *outage.proposed_at;
  if (outage.formed_at) phases.spawn = running_at - *outage.formed_at;
  return phases;
}

// ---- done, lost, late ------------------------------------------------------------------------

bool Engine::CheckDone(Job& job, Generation generation, GenerationSoft& soft) {
  if (soft.done_ranks < WorldOf(job.generations.at(generation))) return false;
  SetVerdict(job, Verdict{VerdictState::kSucceeded, 0, std::nullopt}, regroup::Finished{},
             StopReason::kElective, config_.failure_grace);
  return true;
}

// A loss ends the generation, unless every rank that can still be heard is done: then the lost node
// may come back with the same news. And unless no member at all is heard.
bool Engine::CheckLost(Job& job, Generation generation, GenerationSoft& soft) {
  const GenerationRow& row = job.generations.at(generation);
  std::vector<NodeId> undone;  // Lost members whose ranks are not all done.
  for (const auto& entry : soft.lost) {
    const GenerationMember& member = row.members[soft.members.at(entry.first)];
    if (DoneRanksOf(job, generation, entry.first) < member.workers) undone.push_back(entry.first);
  }
  const bool held = soft.held;
  soft.held = !undone.empty() &&
              (HoldsForSilence(job, row, soft, undone) || FinishHolds(job, row, soft, undone));
  if (held && !soft.held) SetWait(job, std::nullopt, std::nullopt);
  if (undone.empty() || soft.held) return false;
  for (const NodeId& id : undone) {
    const Node* node = FindNode(id);
    const GenerationMember& member = row.members[soft.members.at(id)];
    const Instant heard = node ? node->last_heard : soft.lost.at(id);
    if (soft.leaving.contains(id)) {
      FoldCause(soft, {Preempted{member.name, soft.saving && soft.saving->saved}, heard});
    } else {
      const std::string how = node && node->link == Link::kLost ? node->row.lost_how : kHowRefused;
      FoldCause(soft, {NodeLost{member.name, how, now_ - heard}, heard});
    }
  }
  BeginEnding(job, generation, StopReason::kFailure, config_.failure_grace);
  return true;
}

// While no member is heard, their silence tells as much about our network as about them, and the
// generation may train on unseen: it stays until one is proved dead, or for `unreachable_hold`.
// Once one is heard again, the others have a lease to follow it.
bool Engine::HoldsForSilence(Job& job, const GenerationRow& row, GenerationSoft& soft,
                             const std::vector<NodeId>& lost) {
  Instant until{};
  std::vector<std::string> names;
  for (const NodeId& id : lost) {
    const Node* node = FindNode(id);
    const bool silent = node && node->link == Link::kLost && !node->proved_dead;
    // A launched agent that was away for longer than its grace has no workers left.
    if (!silent || soft.leaving.contains(id) ||
        (node->row.launched && node->row.lost_how == kHowAway))
      return false;
    until = std::max(until, node->lost_at + config_.unreachable_hold);
    if (names.size() < kMaxNames) names.push_back(node->row.name);
  }
  const bool heard = std::any_of(row.members.begin(), row.members.end(),
                                 [&](const GenerationMember& m) { return IsHeard(m.node); });
  if (heard) {
    if (soft.unheard) soft.return_until = now_ + config_.lease;
    soft.unheard = false;
    if (now_ >= soft.return_until) return false;
    SetWait(job, AwaitReattach{names, Duration{}}, soft.return_until);
    Wake(job, soft.return_until);
    return true;
  }
  if (now_ >= until) return false;
  soft.unheard = true;
  SetWait(job, UnreachableHold{names, Duration{}}, until);
  // A heartbeat alone makes no job look again.
  const bool others = soft.lost.size() < soft.members.size();
  Wake(job, others ? std::min(until, now_ + config_.heartbeat) : until);
  return true;
}

// Its host can be reached: it said something lately, or its witness accepts.
bool Engine::IsHeard(const NodeId& id) const {
  const Node* node = FindNode(id);
  if (node == nullptr) return false;
  return node->link == Link::kAgentAway || (node->link == Link::kAttached && !node->kept_until &&
                                            now_ - node->lease_from <= 2 * config_.heartbeat);
}

bool Engine::FinishHolds(Job& job, const GenerationRow& row, GenerationSoft& soft,
                         const std::vector<NodeId>& lost) {
  int undone = 0;
  Instant first = Instant::max();
  for (const NodeId& id : lost) {
    undone += row.members[soft.members.at(id)].workers - DoneRanksOf(job, row.generation, id);
    first = std::min(first, soft.lost.at(id));
  }
  const bool others_done = soft.done_ranks > 0 && soft.done_ranks + undone == WorldOf(row);
  if (!others_done || now_ >= first + config_.finish_hold) return false;
  SetWait(job, FinishHold{NameOf(lost.front()), Duration{}}, first + config_.finish_hold);
  Wake(job, first + config_.finish_hold);
  return true;
}

bool Engine::CheckStart(Job& job, Generation generation, GenerationSoft& soft) {
  const Duration limit = job.spec.spec.start_timeout;
  if (soft.not_started.empty()) return false;
  if (now_ < soft.since + limit) {
    Wake(job, soft.since + limit);
    return false;
  }
  for (const NodeId& id : soft.not_started) {
    const Node* node = FindNode(id);
    if (node == nullptr || node->link != Link::kAttached) continue;  // Its lease decides.
    if (!IsHeard(id)) {  // Here too; its ranks may run, and only the word of it be on its way.
      Wake(job, now_ + config_.heartbeat);
      continue;
    }
    const Instant due = std::max(soft.since, node->attached_at) + limit;
    if (now_ < due) {
      Wake(job, due);
      continue;
    }
    FoldCause(soft, {StartTimedOut{node->row.name, limit}, now_});
    BeginEnding(job, generation, StopReason::kFailure, config_.failure_grace);
    return true;
  }
  return false;
}

// ---- notices ---------------------------------------------------------------------------------

bool Engine::CheckNotices(Job& job, Generation generation, GenerationSoft& soft) {
  if (soft.leaving.empty()) return false;
  Instant until = Instant::max();
  bool now = false;
  for (const NodeId& id : soft.leaving) {
    const Node* node = FindNode(id);
    if (node == nullptr) continue;
    if (node->leaving) until = std::min(until, node->leaving->until);
    now = now || (node->leaving && node->leaving->until <= now_);
    if (soft.told_leaving.insert(id).second && node->leaving)
      AddEvent(job, NodeWillLeave{node->row.name, node->leaving->notice});
  }
  if (until == Instant::max()) until = now_ + job.spec.spec.grace;
  const std::string name = NameOf(*soft.leaving.begin());
  if (soft.saving) {
    soft.saving->until = std::min(soft.saving->until, until - config_.notice_margin);
    if (soft.saving->node.empty()) soft.saving->node = name;
    return false;
  }
  // While ranks finish, or save, the generation goes on until the notice's last moment.
  if (!now && (soft.spoke || soft.done_ranks > 0)) {
    soft.saving = GenerationSoft::Saving{name, until - config_.notice_margin, false};
    SetWait(job, SavingBeforeLeave{name, Duration{}}, soft.saving->until);
    MarkOrders(job, soft);
    return false;
  }
  FoldCause(soft, {Preempted{name, false}, now_});
  const Duration left = std::max(until - now_, Duration{});
  BeginEnding(job, generation, StopReason::kNotice,
              now ? std::min(config_.failure_grace, job.spec.spec.grace)
                  : std::min(job.spec.spec.grace, left));
  return true;
}

bool Engine::CheckSaving(Job& job, Generation generation, GenerationSoft& soft) {
  if (!soft.saving) return false;
  if (!soft.saving->saved && !soft.saving->stopped && now_ < soft.saving->until) {
    Wake(job, soft.saving->until);
    return false;
  }
  const bool saved = soft.saving->saved;
  const int nodes = static_cast<int>(soft.members.size());
  Duration grace = job.spec.spec.grace;
  if (!soft.leaving.empty()) {
    FoldCause(soft, {Preempted{NameOf(*soft.leaving.begin()), saved}, now_});
    for (const NodeId& id : soft.leaving) {
      const Node* node = FindNode(id);
      if (node && node->leaving)
        grace = std::min(grace, std::max(node->leaving->until - now_, Duration{}));
    }
    BeginEnding(job, generation, StopReason::kNotice, grace);
    return true;
  }
  Resized resized{nodes, nodes, {}};
  if (const GenerationRow* next = ProposedOf(job)) {
    resized.to = static_cast<int>(next->members.size());
    for (const GenerationMember& member : next->members)
      if (!soft.members.contains(member.node)) resized.joined.push_back(member.name);
  }
  FoldCause(soft, {resized, now_});
  BeginEnding(job, generation, StopReason::kElective, grace);
  return true;
}

// ---- growth ----------------------------------------------------------------------------------

std::vector<NodeId> Engine::Newcomers(Job& job, const GenerationSoft& soft) {
  std::vector<Candidate> ready;
  if (!job.launched()) CountFreeSlots();
  for (const NodeId& id : job.launched() ? job.launchers : NodesToLookAt(job)) {
    if (soft.members.contains(id)) continue;
    const Node* node = FindNode(id);
    if (node == nullptr || node->link != Link::kAttached) continue;
    const std::optional<Candidate> candidate = CandidateOf(job, *node, false);
    if (!candidate) continue;
    if (candidate->readiness == Readiness::kReady) ready.push_back(*candidate);
    if (candidate->readiness != Readiness::kReady && candidate->until > now_)
      Wake(job, candidate->until);
  }
  std::sort(ready.begin(), ready.end(), Preferred);
  std::vector<NodeId> newcomers;
  for (const Candidate& candidate : ready) newcomers.push_back(candidate.node);
  return newcomers;
}

bool Engine::CheckGrowth(Job& job, Generation generation, GenerationSoft& soft) {
  const JobSpec& spec = job.spec.spec;
  const int nodes = static_cast<int>(soft.members.size());
  if (const GenerationRow* next = ProposedOf(job)) {
    // Newcomers have acked: now the old generation may save and stop.
    if (!job.soft.at(next->generation).unacked.empty() || soft.saving) return false;
    if (job.soft.at(next->generation).failed_members.empty() &&
        job.soft.at(next->generation).recovered)
      return false;
    const Instant until = soft.spoke ? now_ + spec.grace : now_;
    soft.saving = GenerationSoft::Saving{"", until, false};
    MarkOrders(job, soft);
    return CheckSaving(job, generation, soft);
  }
  const std::optional<Duration> settle =
      SettleTime(spec.scale_up, job.state.growths, job.lost_newcomers, config_);
  if (!settle || nodes >= MaxNodesNow(job) || soft.done_ranks > 0 || !soft.running_at) return false;
  if (!job.launched() && QueueHead() != 0) {
    deferred_.insert(job.spec.sequence);
    return false;
  }
  if (job.launched() && static_cast<int>(job.launchers.size()) <= nodes) return false;
  Instant due = job.last_change.value_or(recovered_at_) + *settle;
  const std::optional<Instant> last_join = job.launched() ? job.last_join : fleet_join_;
  if (last_join) due = std::max(due, *last_join + config_.join_batch);
  if (due > now_) {
    Wake(job, due);
    return false;
  }
  const std::vector<NodeId> newcomers = Newcomers(job, soft);
  const int size = UsableSize(nodes + static_cast<int>(newcomers.size()), spec.min_nodes,
                              MaxNodesNow(job), spec.unit);
  if (size <= nodes) return false;
  std::vector<NodeId> chosen;
  for (const auto& member : soft.members) {
    const Node* node = FindNode(member.first);
    if (node == nullptr || node->link != Link::kAttached)
      return false;  // Whether it stays is not known yet.
    chosen.push_back(member.first);
  }
  chosen.insert(chosen.end(), newcomers.begin(), newcomers.begin() + (size - nodes));
  std::sort(chosen.begin(), chosen.end());
  Propose(job, chosen, true);
  return true;
}

}  // namespace regroup::coordinator
