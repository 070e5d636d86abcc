// The end of a generation, its verdict, and the end of a job. PROTOCOL §2, §3.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "launcher/coordinator/core/engine.h"
#include "launcher/coordinator/core/failure_policy.h"

namespace regroup::coordinator {
namespace {

constexpr std::size_t kMaxNames = 16;
// Of a consequence's error text; the root cause keeps kMaxErrorBytes.
constexpr std::size_t kMaxConsequenceBytes = 512;
constexpr int kTakenPerStep = 12;  // Rows of unreachable nodes written in one step.
constexpr std::size_t kMaxCharges = 1'000;

// Equal on every machine, unlike std::hash.
std::uint64_t SeedOf(const JobId& job, Generation generation) {
  std::uint64_t hash = 14695981039346656037ull;  // FNV-1a.
  for (char c : job.value()) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  return hash ^ generation.value();
}

// REQUIRES: the generation ends, or is over.
EndReason ReasonOf(const GenerationSoft& soft) {
  if (!soft.cause) return *soft.fallback;
  // It lost a peer, and that peer had been told to go: not all ranks hear of a notice in one step.
  const auto* failed = std::get_if<WorkerFailed>(&soft.cause->reason);
  if (failed && failed->cause.exit.evidence == ErrorEvidence::kCommunicator &&
      !soft.ended_by_notice.empty())
    return Preempted{soft.ended_by_notice, false};
  return soft.cause->reason;
}

struct MarkSaved {
  bool saved;
  void operator()(Preempted& reason) const { reason.saved = reason.saved || saved; }
  template <class R>
  void operator()(R&) const {}
};

}  // namespace

// ---- the end of a generation -----------------------------------------------------------------

void Engine::BeginEnding(Job& job, Generation generation, StopReason reason, Duration grace) {
  GenerationSoft& soft = job.soft.at(generation);
  if (soft.saving && soft.cause) std::visit(MarkSaved{soft.saving->saved}, soft.cause->reason);
  soft.saving.reset();
  job.outage = Outage{};
  const bool elective = reason == StopReason::kElective || reason == StopReason::kNotice;
  if (!elective) job.outage.event_at = soft.cause ? std::min(soft.cause->at, now_) : now_;
  job.outage.detected_at = job.outage.held_until = now_;
  job.outage.nodes = static_cast<int>(soft.members.size());
  const Instant deadline = now_ + grace, give_up = deadline + config_.stop_margin;
  soft.ending = GenerationSoft::Ending{give_up};
  std::map<NodeId, Instant> sooner;
  for (const auto& member : soft.members) {
    if (!IsSettled(job, generation, member.first)) soft.waiting.insert(member.first);
    const Node* node = FindNode(member.first);
    if (node && node->leaving) sooner[member.first] = node->leaving->until;
  }
  job.stop = StopOrder{generation, reason, deadline, give_up, std::move(sooner)};
  job.membership_known = true;
  if (const GenerationRow* next = ProposedOf(job); next && reason != StopReason::kElective)
    Void(job, next->generation, {});
  PutOnTrial(job, soft);
  MarkOrders(job, soft);
  Say(Severity::kInfo, "generation ends",
      {{"job", job.id().value()},
       {"generation", absl::StrCat(generation.value())},
       {"stop_s", absl::StrCat(Seconds(grace))}});
}

// Whoever is lost is on trial: lost again within it, it flaps.
void Engine::PutOnTrial(Job& job, const GenerationSoft& soft) {
  std::erase_if(job.newcomers, [&](const auto& newcomer) {
    return newcomer.second.since + config_.newcomer_trial <= now_;
  });
  std::set<NodeId> lost = soft.blinked;
  for (const auto& entry : soft.lost) lost.insert(entry.first);
  for (const NodeId& id : lost) {
    auto [newcomer, first] = job.newcomers.try_emplace(id);
    newcomer->second.since = now_;
    newcomer->second.flaps = !first;
    if (!first) ++job.lost_newcomers;
  }
}

bool Engine::AdvanceEnding(Job& job, Generation generation, GenerationSoft& soft) {
  if (!soft.waiting.empty() && now_ < soft.ending->give_up) {
    std::vector<std::string> names;
    for (const NodeId& id : soft.waiting)
      if (names.size() < kMaxNames) names.push_back(NameOf(id));
    SetWait(job, SlotsStopping{names, Duration{}}, soft.ending->give_up);
    Wake(job, soft.ending->give_up);
    return false;
  }
  EndGeneration(job, generation, soft);
  return true;
}

bool Engine::HasProgressed(const Job& job, const GenerationSoft& soft) const {
  if (soft.last_step && *soft.last_step > job.state.best_step) return true;
  if (job.commit && soft.running_at && job.commit->generation == job.state.last_formed) return true;
  // A script may ask for notices and tell of no step: of its progress that says nothing.
  return !soft.first_step && soft.running_at && now_ - *soft.running_at >= config_.silent_progress;
}

// Its verdict stays open until all members have told, or `close_by`. REQUIRES: it ends for a
// reason.
void Engine::PutEnded(Job& job, Generation generation, GenerationSoft& soft, JobStateRow& state) {
  GenerationRow row = job.generations.at(generation);
  row.phase = GenerationPhase::kOver;
  row.ended_at = wall_;
  row.ended = ReasonOf(soft);
  row.verdict_open = true;
  row.progressed = HasProgressed(job, soft);
  CloseAccount(job, soft, row, state);
  FitRow(row);
  Put(row);
  soft.close_by = std::max(now_, soft.ending->give_up) + config_.verdict_limit;
}

void Engine::EndGeneration(Job& job, Generation generation, GenerationSoft& soft) {
  const EndReason reason = ReasonOf(soft);
  JobStateRow state = job.state;
  PutEnded(job, generation, soft, state);
  const GenerationRow& row = job.generations.at(generation);
  state.phase = JobPhase::kRegrouping;
  UpdateState(job, [&](JobStateRow& next) { next = state; });
  const Streak streak = StreakWith(job, row);
  const GenerationRow* next = ProposedOf(job);
  if (next && !std::holds_alternative<Resized>(reason)) Void(job, next->generation, {});
  job.not_before = *job.outage.detected_at + BackOffAfter(job, row, streak);
  job.awaited_until = soft.ending->give_up;
  job.outage.free_at = now_;
  job.gather_since = now_;
  job.below_since.reset();
  job.last_change = now_;
  job.claims_dirty = true;
}

// With the end of `row`, whose verdict is open. REQUIRES: that has ended.
Streak Engine::StreakWith(const Job& job, const GenerationRow& row) const {
  Streak streak =
      AfterEnd({job.state.own_failures, job.state.free_ends}, row.progressed, KindOf(*row.ended));
  streak.same_node = SameNodeUpTo(job, row);
  return streak;
}

int Engine::SameNodeUpTo(const Job& job, const GenerationRow& row) const {
  std::vector<PastEnd> ends;
  for (const auto& [generation, past] : job.generations)
    if (generation <= row.generation && past.ended) ends.push_back({&*past.ended, past.progressed});
  return SameNodeEnds(ends);
}

// `streak`: with the end of `row`. REQUIRES: that has ended.
Duration Engine::BackOffAfter(const Job& job, const GenerationRow& row,
                              const Streak& streak) const {
  return RestartDelay(streak, KindOf(*row.ended), config_, SeedOf(job.id(), row.generation));
}

// Rows hold no instants: what a crash cut short begins again in full.
void Engine::RecoverBackOff(Job& job) {
  auto last = job.generations.find(job.state.last_formed);
  if (last == job.generations.end() || !last->second.ended) return;
  Streak streak{job.state.own_failures, job.state.free_ends, SameNodeUpTo(job, last->second)};
  if (last->second.verdict_open) streak = StreakWith(job, last->second);
  job.not_before = now_ + BackOffAfter(job, last->second, streak);
}

void Engine::CloseAccount(const Job& job, const GenerationSoft& soft, GenerationRow& row,
                          JobStateRow& state) const {
  row.first_step = soft.first_step;
  row.last_step = soft.last_step;
  row.restored_step = soft.restored_step;
  row.phases.init = soft.init;
  row.phases.restore = soft.restore;
  row.phases.first_step = soft.first_step_took;
  if (soft.last_step) state.best_step = std::max(state.best_step, *soft.last_step);
  state.samples = std::max(state.samples, soft.samples);
  state.tokens = std::max(state.tokens, soft.tokens);
  Book(RunAccount(job, row, soft, now_), state);
}

// ---- the verdict -----------------------------------------------------------------------------

// With what is known by then: a member that reports neither its end nor its loss ends no window.
bool Engine::CloseVerdicts(Job& job) {
  for (auto& entry : job.soft) {
    if (job.generations.at(entry.first).phase != GenerationPhase::kOver) continue;
    if (entry.second.waiting.empty() || now_ >= entry.second.close_by) {
      CloseVerdict(job, entry.first, entry.second);
      return true;
    }
    Wake(job, entry.second.close_by);
  }
  return false;
}

void Engine::CloseVerdict(Job& job, Generation generation, GenerationSoft& soft) {
  const EndReason reason = ReasonOf(soft);
  const GenerationRow& row = job.generations.at(generation);
  const Streak streak =
      AfterEnd({job.state.own_failures, job.state.free_ends}, row.progressed, KindOf(reason));
  std::vector<ExcludedNode> excluded = job.state.excluded;
  std::optional<FailReason> failed;
  if (std::holds_alternative<ExecFailed>(reason)) {
    const ExecFailed& exec = std::get<ExecFailed>(reason);
    excluded.push_back(ExcludedOf(row, exec));
    const ExecObstacle obstacle = exec.cause.exit.obstacle;
    failed = FailsForExec(
        excluded, NodesLeft(job, excluded),
        obstacle == ExecObstacle::kDirectory ? job.spec.spec.directory : ProgramOf(job));
  } else {
    failed = FailsJob(job.spec.spec, reason, Charges(job), streak, config_);
  }
  const bool charged = ChargesBudget(reason) && !failed;
  RecordVerdict(job, generation, soft, charged);
  if (charged && job.spec.spec.restart_window) {
    if (job.charge_times.size() >= kMaxCharges) job.charge_times.erase(job.charge_times.begin());
    job.charge_times.push_back(now_);
  }
  UpdateState(job, [&](JobStateRow& state) {
    state.own_failures = streak.own;
    state.free_ends = streak.free;
    state.excluded = excluded;
    if (charged) ++state.restarts_charged;
  });
  MarkOrders(job, soft);
  job.soft.erase(generation);
  AddEvent(job, GenerationEnded{generation, reason, charged, job.state.restarts_charged,
                                job.spec.spec.max_restarts});
  if (failed && !job.state.verdict) FailJob(job, *failed, reason);
}

void Engine::RecordVerdict(Job& job, Generation generation, const GenerationSoft& soft,
                           bool charged) {
  std::vector<RankCause> consequences;
  for (const auto& entry : soft.consequences) {
    consequences.push_back(entry.second);
    std::string& error = consequences.back().exit.error;
    if (error.size() > kMaxConsequenceBytes) error.resize(kMaxConsequenceBytes);
  }
  UpdateGeneration(job, generation, [&](GenerationRow& next) {
    next.ended = ReasonOf(soft);
    next.consequences = consequences;
    next.verdict_open = false;
    next.charged = charged;
    FitRow(next);
  });
}

ExcludedNode Engine::ExcludedOf(const GenerationRow& row, const ExecFailed& failed) const {
  ExcludedNode excluded{NodeId(), failed.cause.node, failed.cause.exit.code,
                        failed.cause.exit.obstacle};
  for (const GenerationMember& member : row.members)
    if (member.name == failed.cause.node) excluded.node = member.node;
  return excluded;
}

// Nodes that could still take part.
int Engine::NodesLeft(const Job& job, const std::vector<ExcludedNode>& excluded) const {
  const std::set<NodeId>& nodes = job.launched() ? job.launchers : attached_daemons_;
  return static_cast<int>(std::count_if(nodes.begin(), nodes.end(), [&](const NodeId& id) {
    const Node* node = FindNode(id);
    const bool out = std::any_of(excluded.begin(), excluded.end(),
                                 [&](const ExcludedNode& e) { return e.node == id; });
    return !out && node && node->link != Link::kLost && !IsLeaving(job, *node);
  }));
}

std::string Engine::ProgramOf(const Job& job) const {
  return job.spec.spec.command.empty() ? job.spec.spec.name : job.spec.spec.command[0];
}

std::vector<Duration> Engine::ChargeAges(const Job& job) const {
  std::vector<Duration> ages;
  for (Instant at : job.charge_times) ages.push_back(now_ - at);
  return ages;
}

// What has left the window leaves its row, too: after a crash the ages that it holds begin anew.
void Engine::DropOldCharges(Job& job) {
  const bool ended = job.state.phase == JobPhase::kEnded;
  if (ended || job.charge_times.empty() || !job.spec.spec.restart_window) return;
  const Duration window = *job.spec.spec.restart_window;
  const auto left = std::erase_if(job.charge_times, [&](Instant at) { return now_ - at > window; });
  if (left > 0) UpdateState(job, [](JobStateRow&) {});
  if (!job.charge_times.empty())
    Wake(job, job.charge_times.front() + window + std::chrono::milliseconds(1));
}

int Engine::Charges(const Job& job) const {
  return ChargesInWindow(job.state.restarts_charged, ChargeAges(job), job.spec.spec.restart_window);
}

int Engine::OpenCharges(const Job& job) const {
  int open = 0;
  for (const auto& entry : job.soft) {
    const bool over = job.generations.at(entry.first).phase == GenerationPhase::kOver;
    if (over && ChargesBudget(ReasonOf(entry.second))) ++open;
  }
  return open;
}

// ---- the end of a job ------------------------------------------------------------------------

void Engine::FailJob(Job& job, const FailReason& failed, const std::optional<EndReason>& root) {
  SetVerdict(job, Verdict{VerdictState::kFailed, ExitCodeOf(failed, root), failed},
             Cancelled{"the job has failed"}, StopReason::kFailure, config_.failure_grace);
}

// A generation that ran until the job's verdict.
void Engine::PutStopped(Job& job, Generation generation, const EndReason& reason,
                        JobStateRow& state) {
  GenerationRow row = job.generations.at(generation);
  row.phase = GenerationPhase::kOver;
  row.ended = reason;
  row.ended_at = wall_;
  CloseAccount(job, job.soft.at(generation), row, state);
  FitRow(row);
  Put(row);
  job.soft.erase(generation);
  AddEvent(job, GenerationEnded{generation, reason, false, job.state.restarts_charged,
                                job.spec.spec.max_restarts});
}

// Final. `reason`: how a generation that still runs is recorded.
void Engine::SetVerdict(Job& job, Verdict verdict, const EndReason& reason, StopReason stop,
                        Duration grace) {
  if (const GenerationRow* next = ProposedOf(job)) Void(job, next->generation, {});
  const bool succeeded = verdict.state == VerdictState::kSucceeded;
  JobStateRow state = job.state;
  for (const auto& entry : job.soft) MarkOrders(job, entry.second);
  if (const GenerationRow* formed = FormedOf(job)) {
    const Generation generation = formed->generation;
    GenerationSoft& soft = job.soft.at(generation);
    if (soft.ending) {  // For a cause of its own, which the job's verdict does not change.
      PutEnded(job, generation, soft, state);
    } else {
      PutStopped(job, generation, reason, state);
    }
  }
  Book(OutageAccount(job, now_), state);
  job.outage = Outage{};
  state.phase = JobPhase::kEnding;
  state.verdict = std::move(verdict);
  UpdateState(job, [&](JobStateRow& next) { next = state; });
  const Instant deadline = now_ + grace;
  const bool already = job.stop && job.stop->up_to == job.state.last_formed && !succeeded;
  StopOrder order{job.state.last_number, stop, deadline, {}, {}};
  if (already) {
    order.deadline = std::min(deadline, job.stop->deadline);
    order.sooner = std::move(job.stop->sooner);
  }
  order.give_up = order.deadline + config_.stop_margin;
  job.stop = std::move(order);
  for (const NodeId& id : job.touched) MarkOrder(job, id);
  SetWait(job, std::nullopt, std::nullopt);
  job.claims_dirty = true;
  Say(Severity::kInfo, "verdict",
      {{"job", job.id().value()}, {"exit_code", absl::StrCat(job.state.verdict->exit_code)}});
}

// Terminal when every reachable member has shown its slots free; the others stay taken on their
// nodes' rows.
bool Engine::FinishEnding(Job& job) {
  bool wait = false;
  int taken = 0;
  const std::set<NodeId> touched = job.touched;
  for (const NodeId& id : touched) {
    Node* node = FindNode(id);
    if (node == nullptr || node->link == Link::kLost)
      continue;  // Its row says what it may still hold.
    if (node->link == Link::kAttached && SlotsFree(job, *node)) continue;
    const bool unkillable = node->link == Link::kAttached && HasUnkillable(job, *node);
    if (!unkillable && now_ < job.stop->give_up) {
      wait = true;
    } else if (RecordTaken(job, *node, unkillable) && ++taken >= kTakenPerStep) {
      MarkDirty(job);
      return false;
    }
  }
  if (wait) {
    Wake(job, job.stop->give_up);
    return false;
  }
  if (!job.soft.empty()) {  // Nothing more will be learned in time.
    CloseVerdict(job, job.soft.begin()->first, job.soft.begin()->second);
    return true;
  }
  EndJob(job);
  return true;
}

bool Engine::HasUnkillable(const Job& job, const Node& node) const {
  auto groups = node.groups.find(job.id());
  if (groups == node.groups.end()) return false;
  return std::all_of(groups->second.begin(), groups->second.end(), [](const auto& entry) {
    return entry.second.phase == Phase::kFree || entry.second.phase == Phase::kUnkillable;
  });
}

// False: it is recorded already.
bool Engine::RecordTaken(Job& job, Node& node, bool unkillable) {
  for (const TakenSlots& taken : node.row.taken)
    if (taken.job == job.id()) return false;
  NodeRow row = node.row;
  row.taken.push_back({job.id(), job.state.last_formed, WorkersOn(job, node), unkillable});
  Put(std::move(row));
  return true;
}

void Engine::EndJob(Job& job) {
  const Verdict verdict = *job.state.verdict;
  UpdateState(job, [&](JobStateRow& state) {
    state.phase = JobPhase::kEnded;
    state.ended_at = wall_;
    state.ran_for = AgeOf(job, Here());
  });
  AddEvent(job, JobEnded{verdict.exit_code, StateName(job)});
  for (const NodeId& id : job.touched) MarkOrder(job, id);
  job.ended = now_;
  NoteOver(job);
  Say(Severity::kInfo, "job ended", {{"job", job.id().value()}, {"state", StateName(job)}});
}

// A launched job without a launch command to serve it: preempted when all have left, or were lost
// for good.
bool Engine::CheckAbandoned(Job& job) {
  Instant lost_at{};
  bool any = false;
  for (const NodeId& id : job.launchers) {
    const Node* node = FindNode(id);
    if (node == nullptr || IsLeaving(job, *node)) continue;
    if (node->link != Link::kLost) return false;
    any = true;
    lost_at = std::max(lost_at, node->lost_at);
  }
  // Nobody can come back to a run without an endpoint.
  const Duration hold = job.spec.standalone ? Duration{} : config_.orphan_hold;
  if (any && now_ < lost_at + hold) {
    Wake(job, lost_at + hold);
    return false;
  }
  PreemptJob(job);
  return true;
}

void Engine::PreemptJob(Job& job) {
  UpdateState(job, [&](JobStateRow& state) { state.phase = JobPhase::kPreempted; });
  AddEvent(job, JobEnded{143, "preempted"});
  SetWait(job, std::nullopt, std::nullopt);
  job.membership_known = false;
  job.enough_since.reset();
  NoteOver(job);
  Say(Severity::kInfo, "job preempted", {{"job", job.id().value()}});
}

}  // namespace regroup::coordinator
