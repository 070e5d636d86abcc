// The next generation: gather, propose, form. PROTOCOL §2.

#include <algorithm>
#include <bit>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "launcher/coordinator/core/engine.h"
#include "launcher/coordinator/core/failure_policy.h"
#include "launcher/coordinator/core/ranks.h"

namespace regroup::coordinator {
namespace {

constexpr int kMaxTransitions = 8;  // Of one job in one step; the rest follows in the next Tick.
// Above this no further transition is taken in this step: each writes one large row at most.
constexpr std::size_t kBytesBeforeTransition = 250u << 10;
// With this many nodes a wait is decided without looking at each of them.
constexpr int kManyNodes = 64;
constexpr std::size_t kMaxNames = 16;
constexpr std::size_t kMostChecked = 64;  // Nodes, where tests have indices checked.

}  // namespace

void Engine::Advance(Job& job) {
  ArmJob(job);
  int transitions = 0;
  while (AdvanceOnce(job)) {
    if (++transitions < kMaxTransitions && bytes_ < kBytesBeforeTransition) continue;
    MarkDirty(job);
    break;
  }
  if (job.claims_dirty) UpdateClaims(job);
  UpdateHunger(job);
  DropOldCharges(job);
}

bool Engine::AdvanceOnce(Job& job) {
  if (job.state.phase == JobPhase::kEnded) return false;
  if (CloseVerdicts(job)) return true;
  if (job.state.phase == JobPhase::kEnding) return FinishEnding(job);
  if (job.state.phase == JobPhase::kPreempted) return false;
  if (const GenerationRow* formed = FormedOf(job)) {
    const Generation generation = formed->generation;
    if (AdvanceFormed(job, generation)) return true;
  } else if (!ProposedOf(job)) {
    return Gather(job);
  }
  return ProposedOf(job) ? AdvanceProposal(job) : false;
}

// ---- gather ----------------------------------------------------------------------------------

bool Engine::Gather(Job& job) {
  if (job.launched() && CheckAbandoned(job)) return true;
  if (CheapWait(job)) return false;
  std::vector<Candidate> candidates = CandidatesOf(job);
  LeaveOutUnsteady(job, candidates);
  const auto ready = std::count_if(
      candidates.begin(), candidates.end(),
      [](const Candidate& candidate) { return candidate.readiness == Readiness::kReady; });
  HasEnough(job, static_cast<int>(ready));
  const GenerationDecision decision = DecideGeneration(PolicyOf(job), candidates, now_);
  if (const auto* form = std::get_if<Form>(&decision)) {
    Propose(job, form->members, false);
    return true;
  }
  return GatherWaits(job, std::get<Wait>(decision));
}

// A node that failed its check comes back as one that joins does, and under `settle` so does one
// that flaps: unless the job needs them to run. The others do not wait for what may fail again.
void Engine::LeaveOutUnsteady(const Job& job, std::vector<Candidate>& candidates) const {
  const JobSpec& spec = job.spec.spec;
  if (spec.scale_up != ScaleUp::kSettle && spec.scale_up != ScaleUp::kNow) return;
  const auto unsteady = [&](const Candidate& candidate) {
    if (spec.node_check.wanted() && job.trials.contains(candidate.node)) return true;
    if (spec.scale_up != ScaleUp::kSettle) return false;
    auto found = job.newcomers.find(candidate.node);
    return found != job.newcomers.end() && found->second.flaps &&
           now_ < found->second.since + config_.newcomer_trial;
  };
  const auto steady =
      std::count_if(candidates.begin(), candidates.end(), [&](const Candidate& candidate) {
        return !unsteady(candidate) && candidate.readiness != Readiness::kBackingOff;
      });
  if (UsableSize(static_cast<int>(steady), spec.min_nodes, MaxNodesNow(job), spec.unit) > 0)
    std::erase_if(candidates, unsteady);
}

// Waits that need no look at any node: so that a thousand joins, or a thousand slots that become
// free one by one, cost as many cheap steps.
bool Engine::CheapWait(Job& job) {
  const JobSpec& spec = job.spec.spec;
  if (job.state.phase == JobPhase::kQueued && !fitting_.contains(job.spec.sequence)) {
    SetWait(job, FitOf(spec), std::nullopt);
    return true;
  }
  if (job.state.phase == JobPhase::kQueued && QueueHead() != job.spec.sequence) {
    SetWait(job, BehindJob{by_sequence_.at(QueueHead())}, std::nullopt);
    return true;
  }
  const int need = (spec.min_nodes + spec.unit - 1) / spec.unit * spec.unit;
  const bool nowhere = job.touched.empty() && job.trials.empty() && job.state.excluded.empty();
  const bool redialling = now_ < recovered_at_ + config_.redial && broken_ > 0;
  if (job.state.phase == JobPhase::kQueued && job.state.last_formed == Generation() && nowhere &&
      !redialling) {
    CountFreeSlots();
    const int free = free_.CountWith(spec.workers_per_node);
    if (!HasEnough(job, free)) {
      GatherWaits(job, Wait{BelowMinimum{free, need, Duration{}, {}}, std::nullopt});
      return true;
    }
  }
  const int nodes =
      static_cast<int>(job.launched() ? job.launchers.size() : attached_daemons_.size());
  if (nodes < kManyNodes || job.membership_known) return false;
  if (!HasEnough(job, nodes)) {
    SetWait(job, BelowMinimum{nodes, need, Duration{}, {}}, std::nullopt);
    return true;
  }
  const std::optional<Instant> last_call = LastCallEnd(job);
  if (nodes >= MaxNodesNow(job) || !last_call || *last_call <= now_) return false;
  SetWait(job, LastCall{nodes, *last_call - now_}, last_call);
  Wake(job, *last_call);
  return true;
}

// What this job asks of the nodes that are known, were they all free.
CannotFit Engine::FitOf(const JobSpec& spec) const {
  CannotFit fit;
  fit.need = (spec.min_nodes + spec.unit - 1) / spec.unit * spec.unit;
  fit.slots = spec.workers_per_node;
  for (auto it = daemons_by_slots_.lower_bound(fit.slots); it != daemons_by_slots_.end(); ++it)
    fit.known += it->second;
  if (Fits(fit) || daemons_by_slots_.empty()) return fit;
  fit.largest = daemons_by_slots_.rbegin()->first;
  for (const auto& entry : nodes_) {
    const NodeRow& row = entry.second.row;
    if (row.lost || row.launched || row.slots != fit.largest) continue;
    fit.node = row.name;
    break;
  }
  return fit;
}

// A node came, went, or has another number of slots.
void Engine::RefreshFits() {
  const std::uint64_t head = QueueHead();
  for (std::uint64_t sequence : queue_) {
    const bool fits = Fits(FitOf(jobs_.at(by_sequence_.at(sequence)).spec.spec));
    const bool changed = fits ? fitting_.insert(sequence).second : fitting_.erase(sequence) > 0;
    if (changed) dirty_.insert(sequence);
  }
  if (QueueHead() == head) return;
  if (QueueHead() != 0) dirty_.insert(QueueHead());
  if (QueueHead() == 0) dirty_.merge(deferred_);
  if (queue_.contains(head)) dirty_.insert(head);
}

bool Engine::HasEnough(Job& job, int nodes) {
  const JobSpec& spec = job.spec.spec;
  const bool enough = UsableSize(nodes, spec.min_nodes, MaxNodesNow(job), spec.unit) > 0;
  if (!enough) job.enough_since.reset();
  if (enough && !job.enough_since) job.enough_since = now_;
  return enough;
}

bool Engine::GatherWaits(Job& job, const Wait& wait) {
  if (wait.until) Wake(job, *wait.until);
  const bool below = std::holds_alternative<BelowMinimum>(wait.reason);
  if (!below) job.below_since.reset();
  if (below) {
    job.membership_known = false;  // Whoever comes now may be followed by more.
    if (!job.below_since) job.below_since = now_;
    const bool holds = !job.launched() && job.state.phase != JobPhase::kQueued;
    if (holds && now_ >= *job.below_since + config_.hold) {
      Say(Severity::kInfo, "job gives its nodes back and queues again",
          {{"job", job.id().value()}});
      UpdateState(job, [](JobStateRow& state) { state.phase = JobPhase::kQueued; });
      job.claims_dirty = true;
      return true;
    }
    if (holds) Wake(job, *job.below_since + config_.hold);
  }
  SetWait(job, wait.reason, wait.until);
  return false;
}

void Engine::SetWait(Job& job, std::optional<WaitReason> reason, std::optional<Instant> until) {
  const bool same = reason && job.wait && reason->index() == job.wait->index();
  job.wait = std::move(reason);
  job.wait_until = until;
  if (same) return;
  job.wait_since = now_;
  if (!job.wait) return;
  const bool regroups = job.state.last_formed > Generation();
  const bool worth_telling =
      std::holds_alternative<BackingOff>(*job.wait) ||
      std::holds_alternative<UnreachableHold>(*job.wait) ||
      std::holds_alternative<FinishHold>(*job.wait) ||
      std::holds_alternative<SavingBeforeLeave>(*job.wait) ||
      (std::holds_alternative<BelowMinimum>(*job.wait) && (regroups || job.launched()));
  if (worth_telling) AddEvent(job, Waits{*job.wait});
}

std::optional<Instant> Engine::LastCallEnd(const Job& job) const {
  const std::optional<Instant> last = job.launched() ? job.last_join : fleet_join_;
  if (job.membership_known || !last || !job.enough_since) return std::nullopt;
  return std::min(*last + config_.last_call_quiet, *job.enough_since + config_.last_call_limit);
}

GenerationPolicy Engine::PolicyOf(const Job& job) const {
  const JobSpec& spec = job.spec.spec;
  GenerationPolicy policy;
  policy.min = spec.min_nodes;
  policy.max = MaxNodesNow(job);
  policy.unit = spec.unit;
  policy.failures = job.state.own_failures + job.state.free_ends;
  policy.not_before = job.not_before;
  policy.last_call_until = LastCallEnd(job);
  policy.unreachable_until = UnreachableUntil(job);
  auto previous = job.generations.find(job.state.last_formed);
  if (previous != job.generations.end()) {
    for (const GenerationMember& member : previous->second.members) {
      const Node* node = FindNode(member.node);
      if (node && node->link == Link::kAttached) continue;
      if (policy.missing.size() < kMaxNames) policy.missing.push_back(member.name);
    }
  }
  if (policy.unreachable_until > now_) policy.unreachable = policy.missing;
  if (Charges(job) + OpenCharges(job) <= spec.max_restarts) return policy;
  for (const auto& entry : job.soft) {
    for (const NodeId& node : entry.second.waiting)
      if (policy.verdict_open.size() < kMaxNames) policy.verdict_open.push_back(NameOf(node));
  }
  return policy;
}

// A wholly lost generation can train on unseen, unless one of its members is proved dead.
Instant Engine::UnreachableUntil(const Job& job) const {
  auto previous = job.generations.find(job.state.last_formed);
  if (previous == job.generations.end()) return Instant{};
  Instant until{};
  for (const GenerationMember& member : previous->second.members) {
    const Node* node = FindNode(member.node);
    if (node == nullptr || node->link != Link::kLost || node->proved_dead) return Instant{};
    until = std::max(until, node->lost_at + config_.unreachable_hold);
  }
  return until;
}

int Engine::MaxNodesNow(const Job& job) const {
  const int max = std::min(job.spec.spec.max_nodes, kMaxNodesPerJob);
  auto previous = job.generations.find(job.state.last_formed);
  if (job.spec.spec.scale_up != ScaleUp::kNever || previous == job.generations.end()) return max;
  std::size_t largest = previous->second.members.size();  // A loss may be made good, no more.
  for (const auto& entry : job.generations)
    if (!entry.second.voided) largest = std::max(largest, entry.second.members.size());
  return std::min(max, static_cast<int>(largest));
}

// ---- candidates ------------------------------------------------------------------------------

void Engine::SlotsChanged(const Node& node) { recount_slots_.insert(node.row.node); }

// For a job that has nothing there; 0: it takes none.
int Engine::FreeSlotsOf(const Node& node) const {
  const bool takes = node.link == Link::kAttached && !node.row.launched && !node.leaving;
  return takes ? node.row.slots - SlotsUsed(node) : 0;
}

void Engine::CountFreeSlots() {
  for (const NodeId& id : recount_slots_) {
    const Node* node = FindNode(id);
    if (node == nullptr) {
      free_.Remove(id);
    } else {
      more_slots_ |= free_.Set(id, node->row.name, FreeSlotsOf(*node));
    }
  }
  recount_slots_.clear();
  if (!config_.check_indices || nodes_.size() > kMostChecked) return;
  FreeSlots counted;
  for (const auto& [id, node] : nodes_) counted.Set(id, node.row.name, FreeSlotsOf(node));
  CHECK(counted == free_);
}

// Of a submitted job: the nodes that know it, and of the others as many as it can take. Each of
// those is ready, since a node with something of this job is `touched` by it.
std::set<NodeId> Engine::NodesToLookAt(const Job& job) const {
  std::set<NodeId> nodes = job.touched;
  for (const auto& entry : job.trials) nodes.insert(entry.first);
  for (const auto& entry : job.newcomers) nodes.insert(entry.first);
  for (const ExcludedNode& excluded : job.state.excluded) nodes.insert(excluded.node);
  std::erase_if(nodes, [&](const NodeId& id) { return !attached_daemons_.contains(id); });
  const std::size_t limit = nodes.size() + static_cast<std::size_t>(MaxNodesNow(job));
  for (NodeId& id : free_.First(job.spec.spec.workers_per_node, limit)) nodes.insert(std::move(id));
  return nodes;
}

// Tests: whoever was not looked at would not have been taken.
void Engine::CheckCandidates(const Job& job, const std::vector<Candidate>& candidates) const {
  const auto looked_at = [&](const NodeId& id) {
    return std::any_of(candidates.begin(), candidates.end(),
                       [&](const Candidate& candidate) { return candidate.node == id; });
  };
  for (const NodeId& id : attached_daemons_) {
    const std::optional<Candidate> other = CandidateOf(job, nodes_.at(id), false);
    if (!other || looked_at(id)) continue;
    CHECK(other->readiness == Readiness::kReady && !other->former);
    CHECK(std::count_if(candidates.begin(), candidates.end(), [&](const Candidate& candidate) {
            return candidate.readiness == Readiness::kReady && Preferred(candidate, *other);
          }) >= MaxNodesNow(job));
  }
}

std::vector<Candidate> Engine::CandidatesOf(const Job& job) {
  std::set<NodeId> previous;
  auto last = job.generations.find(job.state.last_formed);
  if (last != job.generations.end())
    for (const GenerationMember& member : last->second.members) previous.insert(member.node);
  std::set<NodeId> nodes = job.launchers;
  if (!job.launched()) {
    CountFreeSlots();
    nodes = NodesToLookAt(job);
    nodes.insert(previous.begin(), previous.end());
    const bool redialling = now_ < recovered_at_ + config_.redial && broken_ > 0;
    for (const auto& entry : nodes_)
      if (redialling && !entry.second.row.launched && entry.second.link == Link::kAwaited)
        nodes.insert(entry.first);
  }
  std::vector<Candidate> candidates;
  for (const NodeId& id : nodes) {
    const Node* node = FindNode(id);
    if (node == nullptr) continue;
    if (std::optional<Candidate> candidate = CandidateOf(job, *node, previous.contains(id)))
      candidates.push_back(*std::move(candidate));
  }
  const bool check = config_.check_indices && nodes_.size() <= kMostChecked;
  if (check && !job.launched()) CheckCandidates(job, candidates);
  return candidates;
}

std::optional<Candidate> Engine::CandidateOf(const Job& job, const Node& node,
                                             bool previous) const {
  const NodeId& id = node.row.node;
  if (node.link == Link::kLost || IsLeaving(job, node) || IsExcluded(job, id)) return std::nullopt;
  Candidate candidate{id, node.row.name, Readiness::kReady, Instant{}, previous, false};
  if (node.link != Link::kAttached) {
    std::optional<Instant> until = WorthAwaiting(job, node, previous);
    if (!until) return std::nullopt;
    candidate.readiness = Readiness::kAwaited;
    candidate.until = *until;
    return candidate;
  }
  if (auto trial = job.trials.find(id); trial != job.trials.end() && trial->second.until > now_) {
    candidate.readiness = Readiness::kBackingOff;
    candidate.until = trial->second.until;
    candidate.why = trial->second.why;
    return candidate;
  }
  if (!SlotsFree(job, node)) {
    candidate.readiness = Readiness::kStopping;
    candidate.until =
        std::max(job.awaited_until, node.attached_at + config_.failure_grace + config_.stop_margin);
    return candidate;
  }
  if (!job.launched()) {
    candidate.free_slots = FreeSlotsFor(job, node);
    if (candidate.free_slots < job.spec.spec.workers_per_node) return std::nullopt;
  }
  candidate.former = !previous && job.touched.contains(id);
  return candidate;
}

std::optional<Instant> Engine::WorthAwaiting(const Job& job, const Node& node,
                                             bool previous) const {
  if (node.link == Link::kAwaited)
    return previous || job.launched() ? node.awaited_until : recovered_at_ + config_.redial;
  if (previous && job.membership_known) return job.awaited_until;
  if (job.launched() || previous) return LeaseEnd(node);
  return std::nullopt;
}

bool Engine::IsLeaving(const Job& job, const Node& node) const {
  return node.leaving ||
         (node.row.launch && node.row.launch->job == job.id() && node.row.launch->left);
}

bool Engine::IsExcluded(const Job& job, const NodeId& id) const {
  return std::any_of(job.state.excluded.begin(), job.state.excluded.end(),
                     [&](const ExcludedNode& excluded) { return excluded.node == id; });
}

bool Engine::SlotsFree(const Job& job, const Node& node) const {
  if (node.unanswered.contains(job.id())) return false;
  auto groups = node.groups.find(job.id());
  if (groups == node.groups.end()) return true;
  return std::all_of(groups->second.begin(), groups->second.end(),
                     [](const auto& entry) { return entry.second.phase == Phase::kFree; });
}

int Engine::WorkersOn(const Job& job, const Node& node) const {
  if (node.row.launch && node.row.launch->job == job.id()) return node.row.launch->workers;
  return job.spec.spec.workers_per_node;
}

int Engine::FreeSlotsFor(const Job& job, const Node& node) const {
  int used = SlotsUsed(node);
  if (node.claims.contains(job.id()) || !SlotsFree(job, node)) used -= WorkersOn(job, node);
  return node.row.slots - used;
}

int Engine::SlotsUsed(const Node& node) const {
  std::set<JobId> users = node.claims;
  for (const auto& entry : node.unanswered) users.insert(entry.first);
  int used = 0;
  for (const auto& entry : node.groups) {
    const Job* job = FindJob(entry.first);
    if (job != nullptr && !SlotsFree(*job, node)) users.insert(entry.first);
    for (const auto& group :
         entry.second) {  // Of a job that this journal does not know: never touched.
      if (job == nullptr && group.second.phase != Phase::kFree)
        used += std::max(1, static_cast<int>(group.second.started.size()));
    }
  }
  for (const JobId& id : users)
    if (const Job* job = FindJob(id)) used += WorkersOn(*job, node);
  return used;
}

void Engine::UpdateClaims(Job& job) {
  job.claims_dirty = false;
  CountHeld(job);
  std::set<NodeId> wanted;
  for (const GenerationRow* row : {FormedOf(job), ProposedOf(job)}) {
    if (row == nullptr || job.state.phase == JobPhase::kEnding) continue;
    for (const GenerationMember& member : row->members) wanted.insert(member.node);
  }
  const bool holds = !job.launched() && (job.state.phase == JobPhase::kRegrouping ||
                                         job.state.phase == JobPhase::kForming);
  auto last = job.generations.find(job.state.last_formed);
  if (holds && wanted.empty() && last != job.generations.end()) {
    for (const GenerationMember& member : last->second.members) {
      const Node* node = FindNode(member.node);
      if (node && node->link != Link::kLost && !IsLeaving(job, *node)) wanted.insert(member.node);
    }
  }
  for (const NodeId& id : job.claimed) {
    Node* node = FindNode(id);
    if (node == nullptr || wanted.contains(id)) continue;
    node->claims.erase(job.id());
    SlotsChanged(*node);
  }
  for (const NodeId& id : wanted) {
    Node* node = FindNode(id);
    if (node != nullptr && node->claims.insert(job.id()).second) SlotsChanged(*node);
  }
  job.claimed = std::move(wanted);
}

void Engine::UpdateHunger(Job& job) {
  const JobPhase phase = job.state.phase;
  bool hungry = !job.launched() && (phase == JobPhase::kRegrouping || phase == JobPhase::kForming);
  if (!job.launched() && phase == JobPhase::kRunning) {
    const GenerationRow* formed = FormedOf(job);
    hungry = formed && static_cast<int>(formed->members.size()) < MaxNodesNow(job);
  }
  if (hungry) hungry_.insert(job.spec.sequence);
  if (!hungry) hungry_.erase(job.spec.sequence);
}

// ---- propose ---------------------------------------------------------------------------------

std::vector<NodeId> Engine::RankOrder(const Job& job, const std::vector<NodeId>& chosen) const {
  std::vector<NodeId> previous;
  auto last = job.generations.find(job.state.last_formed);
  if (last != job.generations.end())
    for (const GenerationMember& member : last->second.members) previous.push_back(member.node);
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
    RankCandidate candidate{id, NameOf(id), std::nullopt};
    if (auto found = former.find(id); found != former.end()) candidate.former = found->second;
    candidates.push_back(std::move(candidate));
  }
  return AssignGroupRanks(previous, candidates);
}

std::vector<GenerationMember> Engine::MembersOf(const Job& job,
                                                const std::vector<NodeId>& ranks) const {
  // Where other hosts take part, a member that sits beside the coordinator is known to them by the
  // address at which they reached the coordinator, not by its own loopback.
  std::string reached_at;
  for (const NodeId& id : ranks) {
    const NodeRow& row = nodes_.at(id).row;
    if (!IsLoopback(row.address) && reached_at.empty()) reached_at = row.dialled;
  }
  std::vector<GenerationMember> members;
  for (const NodeId& id : ranks) {
    const Node& node = nodes_.at(id);
    GenerationMember member;
    member.node = id;
    member.name = node.row.name;
    member.address =
        IsLoopback(node.row.address) && !reached_at.empty() ? reached_at : node.row.address;
    member.workers = WorkersOn(job, node);
    if (!job.touched.contains(id)) member.free_slots = FreeSlotsFor(job, node);
    members.push_back(std::move(member));
  }
  return members;
}

void Engine::Propose(Job& job, const std::vector<NodeId>& chosen, bool elective) {
  const Generation generation = job.state.last_number.Next();
  GenerationRow row;
  row.job = job.id();
  row.generation = generation;
  row.elective = elective;
  row.members = MembersOf(job, RankOrder(job, chosen));
  row.restart_count = job.state.restarts_charged + OpenCharges(job);
  row.resume_step = job.commit ? job.commit->step : 0;
  row.proposed_at = wall_;

  GenerationSoft& soft = job.soft[generation];
  soft.since = now_;
  soft.proposed_at = now_;
  soft.ack_deadline = now_ + AckLimit(job);
  const GenerationRow* formed = FormedOf(job);
  for (std::size_t rank = 0; rank < row.members.size(); ++rank) {
    const NodeId& id = row.members[rank].node;
    soft.members[id] = static_cast<int>(rank);
    const bool survivor = formed && job.soft.at(formed->generation).members.contains(id);
    if (!survivor) soft.asked.insert(id);
    Touch(job, nodes_.at(id));
  }
  soft.unacked = soft.asked;
  Put(row);
  if (!elective) job.outage.proposed_at = now_;
  UpdateState(job, [&](JobStateRow& state) {
    state.last_number = generation;
    if (elective) return;
    state.phase = state.last_formed > Generation() ? JobPhase::kRegrouping : JobPhase::kForming;
  });
  DropOldGenerations(job);
  job.below_since.reset();
  job.claims_dirty = true;
  SetWait(job, std::nullopt, std::nullopt);
  MarkOrders(job, soft);
  Say(Severity::kInfo, "generation proposed",
      {{"job", job.id().value()},
       {"generation", absl::StrCat(generation.value())},
       {"nodes", absl::StrCat(row.members.size())}});
}

// How long a member may take to prepare.
Duration Engine::AckLimit(const Job& job) const {
  const NodeCheck& check = job.spec.spec.node_check;
  return config_.ack + (check.wanted() ? check.timeout : Duration::zero());
}

void Engine::DropOldGenerations(Job& job) {
  if (job.generations.size() <= static_cast<std::size_t>(config_.max_generations_per_job)) return;
  // A node that refuses for hours voids many; what ran is worth more.
  auto oldest = std::find_if(
      job.generations.begin(), job.generations.end(),
      [&](const auto& entry) { return entry.second.voided && !job.soft.contains(entry.first); });
  if (oldest == job.generations.end()) oldest = job.generations.begin();
  if (job.soft.contains(oldest->first) || oldest->first == job.state.last_formed) return;
  Delete(GenerationKey(job.id(), oldest->first));
}

bool Engine::AdvanceProposal(Job& job) {
  const GenerationRow& row = *ProposedOf(job);
  const Generation generation = row.generation;
  GenerationSoft& soft = job.soft.at(generation);
  if (soft.recovered) {
    Void(job, generation, {});
    return true;
  }
  const bool host_without_store = soft.asked.contains(row.members[0].node) &&
                                  !soft.unacked.contains(row.members[0].node) && !soft.store;
  if (host_without_store) soft.failed_members[row.members[0].node] = "it prepared no store";
  if (soft.failed_members.empty() && !soft.unacked.empty() && now_ >= soft.ack_deadline) {
    for (const NodeId& id : soft.unacked) soft.failed_members[id] = "it did not prepare in time";
  }
  if (!soft.failed_members.empty()) {
    const std::map<NodeId, std::string> failed = soft.failed_members;
    Void(job, generation, failed);
    return true;
  }
  if (!soft.unacked.empty()) {
    Wake(job, soft.ack_deadline);
    std::vector<std::string> names;
    for (const NodeId& id : soft.unacked)
      if (names.size() < kMaxNames) names.push_back(NameOf(id));
    if (!FormedOf(job)) SetWait(job, MembersPreparing{names, Duration{}}, std::nullopt);
    return false;
  }
  if (FormedOf(job)) return false;  // Its end is under way; survivors prepare once they are free.
  if (soft.asked.size() < soft.members.size()) return AskSurvivors(job, soft);
  FormGeneration(job, generation);
  return true;
}

// The old generation is over: its survivors prepare, beside the newcomers that already have.
bool Engine::AskSurvivors(Job& job, GenerationSoft& soft) {
  for (const auto& member : soft.members) {
    const NodeId& id = member.first;
    if (soft.asked.contains(id)) continue;
    const Node* node = FindNode(id);
    if (node == nullptr || node->link != Link::kAttached || !SlotsFree(job, *node)) {
      soft.failed_members[id] = "its slots were not free in time";
      continue;
    }
    soft.asked.insert(id);
    soft.unacked.insert(id);
    MarkOrder(job, id);
  }
  soft.ack_deadline = now_ + AckLimit(job);
  job.outage.proposed_at = now_;
  return true;
}

// The number is burned. Members that failed are candidates again later; the others at once.
void Engine::Void(Job& job, Generation generation, const std::map<NodeId, std::string>& failed) {
  const bool elective = job.generations.at(generation).elective;
  const bool recovered = job.soft.at(generation).recovered;
  const Duration took = now_ - job.soft.at(generation).proposed_at.value_or(now_);
  Say(Severity::kWarning, "proposal voided",
      {{"job", job.id().value()},
       {"generation", absl::StrCat(generation.value())},
       {"why", failed.empty()
                   ? (recovered ? "the coordinator restarted" : "superseded")
                   : absl::StrCat(NameOf(failed.begin()->first), ": ", failed.begin()->second)}});
  for (const auto& entry : failed) {
    MemberTrial& trial = job.trials[entry.first];
    const Node* node = FindNode(entry.first);
    const bool stays = node && node->link == Link::kAttached;
    trial.until = now_ + MemberBackoff(++trial.failures, config_);
    // While a check runs into its time, nobody else can join: half of the time at most.
    if (job.spec.spec.node_check.wanted()) trial.until = std::max(trial.until, now_ + took);
    trial.why = entry.second;
    const bool news = !stays || std::has_single_bit(static_cast<unsigned>(trial.failures));
    // One that stays and only refuses has cost nobody anything: it waits, others that come do not.
    if (elective && !stays) ++job.lost_newcomers;
    if (news && failed.size() <= kMaxNames / 4)
      AddEvent(job, NodeLeft{NameOf(entry.first), entry.second, stays});
  }
  UpdateGeneration(job, generation, [&](GenerationRow& row) {
    row.phase = GenerationPhase::kOver;
    row.voided = true;
    row.ended_at = wall_;
  });
  if (!FormedOf(job) && !job.state.verdict) {
    UpdateState(job, [&](JobStateRow& state) {
      if (state.last_formed > Generation()) {
        state.phase = JobPhase::kRegrouping;
      } else {
        state.phase = job.launched() ? JobPhase::kGathering : JobPhase::kQueued;
      }
    });
  }
  MarkOrders(job, job.soft.at(generation));
  job.soft.erase(generation);
  job.awaited_until =
      std::max(job.awaited_until, now_ + config_.failure_grace + config_.stop_margin);
  job.claims_dirty = true;
}

void Engine::FormGeneration(Job& job, Generation generation) {
  GenerationSoft& soft = job.soft.at(generation);
  auto before = job.generations.find(job.state.last_formed);
  const std::size_t nodes_before =
      before == job.generations.end() ? 0 : before->second.members.size();
  const bool again = job.state.last_formed > Generation();
  const bool grew = job.generations.at(generation).elective && soft.members.size() > nodes_before;
  for (const auto& member : soft.members) {
    const bool known =
        before != job.generations.end() &&
        std::any_of(before->second.members.begin(), before->second.members.end(),
                    [&](const GenerationMember& m) { return m.node == member.first; });
    if (again && !known) job.newcomers[member.first].since = now_;
  }
  UpdateGeneration(job, generation, [&](GenerationRow& row) {
    row.phase = GenerationPhase::kFormed;
    row.formed_at = wall_;
    row.resume_step = job.commit ? job.commit->step : 0;
    row.store = Address{row.members[0].address, soft.store->port};
    for (GenerationMember& member : row.members) {
      auto watch = nodes_.at(member.node).watches.find(job.id());
      if (watch == nodes_.at(member.node).watches.end() || watch->second.generation != generation)
        continue;
      member.witness = watch->second.witness;
      member.witness_verified = watch->second.verified;
    }
    FitRow(row);
  });
  UpdateState(job, [&](JobStateRow& state) {
    state.last_formed = generation;
    state.phase = again ? JobPhase::kRegrouping : JobPhase::kForming;
    if (again) ++state.regroups;
    if (!again) state.started_at = wall_;
    if (grew) ++state.growths;
  });
  soft.since = now_;
  soft.formed_at = job.outage.formed_at = job.last_change = now_;
  for (const auto& member : soft.members) soft.not_started.insert(member.first);
  const GenerationRow& row = job.generations.at(generation);
  GenerationFormed formed{
      generation, static_cast<int>(row.members.size()), 0, now_ - *soft.proposed_at, {}};
  for (const GenerationMember& member : row.members) {
    formed.world += member.workers;
    if (formed.members.size() < 4 * kMaxNames) formed.members.push_back(member.name);
  }
  AddEvent(job, std::move(formed));
  SetWait(job, std::nullopt, std::nullopt);
  MarkOrders(job, soft);
}

}  // namespace regroup::coordinator
