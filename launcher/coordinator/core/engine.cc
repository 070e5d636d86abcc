#include "launcher/coordinator/core/engine.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/check.h"
#include "common/base/user_error.h"

namespace regroup::coordinator {
namespace {

// A step takes on another job or deadline only below these, so that the largest one still fits.
constexpr std::size_t kRowsBeforeNext = 16;
constexpr std::size_t kBytesBeforeNext = 64u << 10;

struct KeyOf {
  std::uint64_t ring;
  Key operator()(const MetaRow&) const { return MetaKey(); }
  Key operator()(const NodeRow& row) const { return NodeKey(row.node); }
  Key operator()(const JobSpecRow& row) const { return JobSpecKey(row.job); }
  Key operator()(const JobStateRow& row) const { return JobStateKey(row.job); }
  Key operator()(const GenerationRow& row) const { return GenerationKey(row.job, row.generation); }
  Key operator()(const DoneRow& row) const { return DoneKey(row.job, row.node); }
  Key operator()(const CommitRow& row) const { return CommitKey(row.job); }
  Key operator()(const JobEventRow& row) const {
    return JobEventKey(row.job, row.event.number % ring);
  }
};

// Causes that an inventory shows, and shows again to the next coordinator.
bool IsToldAgain(const EndReason& reason) {
  return std::holds_alternative<WorkerFailed>(reason) ||
         std::holds_alternative<ExecFailed>(reason) ||
         std::holds_alternative<SupervisorLost>(reason) ||
         std::holds_alternative<StoreLost>(reason);
}

}  // namespace

Engine::Engine(Config config, Epoch epoch, std::span<const Row> rows, Instant now)
    : config_(std::move(config)), epoch_(epoch), recovered_at_(now), now_(now) {
  for (const Row& row : rows) Apply(row);
  if (meta_.cluster.empty()) meta_.cluster = config_.new_cluster;
  if (config_.ad_hoc) idle_since_ = now;
  RecoverNodes();
  RecoverJobs();
}

// ---- steps -----------------------------------------------------------------------------------

Effects Engine::Step(Instant now, WallTime wall, const Event& event) {
  now_ = std::max(now_, now);
  wall_ = wall;
  effects_ = Effects{};
  row_of_.clear();
  bytes_ = 0;
  if (!first_step_done_) FirstStep();
  if (!stepped_down_) {
    std::visit([this](const auto& e) { On(e); }, event);
    Drain();
    SweepOldJobs();
    if (HasRoom()) PurgeSome();
    FlushOrders();
    CheckAdHocExit();
  }
  CHECK(effects_.rows.size() <= kMaxRowsPerStep);
  CHECK(bytes_ <= kMaxBytesPerStep);
  return std::move(effects_);
}

std::optional<Instant> Engine::NextDeadline() const {
  if (!first_step_done_) return recovered_at_;
  if (stepped_down_ || finished_) return std::nullopt;
  if (!dirty_.empty() || !purging_.empty()) return now_;
  std::optional<Instant> next = AdHocExitAt();
  if (retention_at_ && !over_.empty())
    next = next ? std::min(*next, *retention_at_) : *retention_at_;
  if (!deadlines_.empty()) {
    const Instant due = std::get<0>(*deadlines_.begin());
    next = next ? std::min(*next, due) : due;
  }
  return next;
}

void Engine::FirstStep() {
  first_step_done_ = true;
  if (meta_.older_than > Epoch() && !config_.accept_journal) {
    StepDownNow();
    return;
  }
  MetaRow meta = meta_;
  meta.epoch = epoch_;
  meta.older_than = Epoch();
  Put(meta);
}

void Engine::StepDownNow() {
  stepped_down_ = true;
  Do(StepDown{UserError(
      absl::StatusCode::kFailedPrecondition, "the journal is older than the fleet",
      absl::StrCat("an agent of cluster ", meta_.cluster.value(), " follows epoch ",
                   meta_.older_than.value(), ", this journal gave epoch ", epoch_.value()),
      "restore the newest state directory, or regroup coordinator --accept-journal; nothing was "
      "stopped")});
}

void Engine::On(const Tick&) { HandleDueDeadlines(); }

void Engine::HandleDueDeadlines() {
  while (!deadlines_.empty() && HasRoom()) {
    const auto [at, kind, id] = *deadlines_.begin();
    if (at > now_) return;
    if (kind == DueKind::kNode) {
      Node& node = nodes_.at(NodeId(id));
      ArmNode(node, std::nullopt);
      OnNodeDeadline(node);
    } else {
      Job& job = jobs_.at(JobId(id));
      ArmJob(job);
      MarkDirty(job);
      Drain();
    }
  }
}

void Engine::Drain() {
  do {
    while (!dirty_.empty() && HasRoom()) {
      const std::uint64_t sequence = *dirty_.begin();
      dirty_.erase(dirty_.begin());
      if (Job* job = FindJob(by_sequence_.at(sequence))) Advance(*job);
    }
    OfferCapacity();
  } while (!dirty_.empty() && HasRoom());
}

bool Engine::HasRoom() const {
  return effects_.rows.size() < kRowsBeforeNext && bytes_ < kBytesBeforeNext;
}

void Engine::Say(Severity severity, std::string what,
                 std::vector<std::pair<std::string, std::string>> fields) {
  effects_.notes.push_back({severity, std::move(what), std::move(fields)});
}

void Engine::MarkDirty(Job& job) { dirty_.insert(job.spec.sequence); }

void Engine::MarkOrder(Job& job, const NodeId& node) {
  job.order_dirty.insert(node);
  orders_dirty_.insert(job.id());
}

void Engine::MarkOrders(Job& job, const GenerationSoft& soft) {
  for (const auto& member : soft.members) MarkOrder(job, member.first);
}

void Engine::MarkHungry() {
  if (QueueHead() != 0) dirty_.insert(QueueHead());
  dirty_.insert(hungry_.begin(), hungry_.end());
}

// What a job gives back to itself, its survivors' slots say, is more for nobody else.
void Engine::OfferCapacity() {
  CountFreeSlots();
  if (std::exchange(more_slots_, false)) MarkHungry();
}

void Engine::Wake(Job& job, Instant at) {
  if (job.wake && *job.wake <= at) return;
  if (job.wake) deadlines_.erase({*job.wake, DueKind::kJob, job.id().value()});
  job.wake = at;
  deadlines_.insert({at, DueKind::kJob, job.id().value()});
}

void Engine::ArmJob(Job& job) {
  if (job.wake) deadlines_.erase({*job.wake, DueKind::kJob, job.id().value()});
  job.wake.reset();
}

void Engine::ArmNode(Node& node, std::optional<Instant> at) {
  if (node.wake) deadlines_.erase({*node.wake, DueKind::kNode, node.row.node.value()});
  node.wake = at;
  if (at) deadlines_.insert({*at, DueKind::kNode, node.row.node.value()});
}

// ---- rows ------------------------------------------------------------------------------------

void Engine::Put(Value value) {
  Row row{std::visit(KeyOf{static_cast<std::uint64_t>(config_.max_events_per_job)}, value),
          std::move(value)};
  Apply(row);
  auto [slot, fresh] = row_of_.try_emplace(row.key, effects_.rows.size());
  bytes_ += EstimateBytes(row);
  if (fresh) {
    effects_.rows.push_back(std::move(row));
  } else {
    Row& before = effects_.rows[slot->second];
    bytes_ -= EstimateBytes(before);
    before = std::move(row);
  }
}

void Engine::Delete(Key key) {
  Row row{std::move(key), std::nullopt};
  Apply(row);
  auto [slot, fresh] = row_of_.try_emplace(row.key, effects_.rows.size());
  bytes_ += EstimateBytes(row);
  if (fresh) {
    effects_.rows.push_back(std::move(row));
  } else {
    bytes_ -= EstimateBytes(effects_.rows[slot->second]);
    effects_.rows[slot->second] = std::move(row);
  }
}

void Engine::Apply(const Row& row) {
  if (row.value) {
    ApplyValue(*row.value);
  } else {
    ApplyDeletion(row.key);
  }
}

void Engine::ApplyValue(const Value& value) {
  if (auto* meta = std::get_if<MetaRow>(&value)) {
    meta_ = *meta;
  } else if (auto* node = std::get_if<NodeRow>(&value)) {
    Node& known = nodes_[node->node];
    IndexNode(known.row.node.empty() ? nullptr : &known.row, node);
    known.row = *node;
    SlotsChanged(known);
  } else if (auto* spec = std::get_if<JobSpecRow>(&value)) {
    Job& job = jobs_[spec->job];
    job.spec = *spec;
    IndexJob(job);
  } else if (auto* state = std::get_if<JobStateRow>(&value)) {
    Job& job = jobs_[state->job];
    job.state = *state;
    IndexJob(job);
  } else if (auto* generation = std::get_if<GenerationRow>(&value)) {
    jobs_[generation->job].generations[generation->generation] = *generation;
  } else if (auto* done = std::get_if<DoneRow>(&value)) {
    jobs_[done->job].done[done->node] = *done;
  } else if (auto* commit = std::get_if<CommitRow>(&value)) {
    jobs_[commit->job].commit = *commit;
  } else if (auto* event = std::get_if<JobEventRow>(&value)) {
    std::deque<JobEvent>& events = jobs_[event->job].events;
    auto at =
        std::upper_bound(events.begin(), events.end(), event->event.number,
                         [](std::uint64_t number, const JobEvent& e) { return number < e.number; });
    events.insert(at, event->event);
    if (events.size() > static_cast<std::size_t>(config_.max_events_per_job)) events.pop_front();
  }
}

void Engine::ApplyDeletion(const Key& key) {
  if (key.starts_with("node/")) {
    auto node = nodes_.find(NodeId(key.substr(5)));
    if (node == nodes_.end()) return;
    IndexNode(&node->second.row, nullptr);
    SlotsChanged(node->second);
    nodes_.erase(node);
    return;
  }
  const std::vector<std::string> parts = absl::StrSplit(key, absl::MaxSplits('/', 3));
  if (parts.size() < 3 || parts[0] != "job") return;
  auto found = jobs_.find(JobId(parts[1]));
  if (found == jobs_.end()) return;
  Job& job = found->second;
  std::uint64_t number = 0;
  if (parts[2] == "gen" && absl::SimpleAtoi(parts[3], &number)) {
    job.generations.erase(Generation(number));
  } else if (parts[2] == "done") {
    job.done.erase(NodeId(parts[3]));
  } else if (parts[2] == "commit") {
    job.commit.reset();
  } else if (parts[2] == "event" && absl::SimpleAtoi(parts[3], &number)) {
    const auto ring = static_cast<std::uint64_t>(config_.max_events_per_job);
    std::erase_if(job.events, [&](const JobEvent& event) { return event.number % ring == number; });
  } else if (parts[2] == "spec") {  // The last one of a job.
    by_sequence_.erase(job.spec.sequence);
    over_.erase(job.spec.sequence);
    by_key_.erase(job.spec.key);
    auto newest = newest_by_name_.find(job.spec.spec.name);
    if (newest != newest_by_name_.end() && newest->second == job.id())
      newest_by_name_.erase(newest);
    for (const NodeId& id : job.touched)
      if (const Node* node = FindNode(id)) SlotsChanged(*node);
    jobs_.erase(found);
  }
}

void Engine::IndexNode(const NodeRow* before, const NodeRow* after) {
  const NodeId& id = before ? before->node : after->node;
  if (before && !before->lost) {
    auto named = names_.find(before->name);
    if (named != names_.end() && named->second.erase(id) && named->second.empty())
      names_.erase(named);
  }
  if (after && !after->lost) names_[after->name].insert(id);
  const int slots_before = before && !before->lost && !before->launched ? before->slots : 0;
  const int slots_after = after && !after->lost && !after->launched ? after->slots : 0;
  if (slots_before != slots_after) {
    if (slots_before > 0 && --daemons_by_slots_.at(slots_before) == 0)
      daemons_by_slots_.erase(slots_before);
    if (slots_after > 0) ++daemons_by_slots_[slots_after];
    RefreshFits();
  }
  if (before && before->launch) {
    if (Job* job = FindJob(before->launch->job)) job->launchers.erase(id);
  }
  if (after && after->launch) {
    if (Job* job = FindJob(after->launch->job)) job->launchers.insert(id);
  }
}

void Engine::IndexJob(const Job& job) {
  if (job.spec.job.empty() || job.state.job.empty()) return;
  const std::uint64_t sequence = job.spec.sequence;
  by_sequence_[sequence] = job.id();
  if (!job.launched()) by_key_[job.spec.key] = job.id();
  if (job.launched() && !job.spec.standalone) {
    auto [newest, fresh] = newest_by_name_.try_emplace(job.spec.spec.name, job.id());
    if (!fresh && jobs_.at(newest->second).spec.sequence < sequence) newest->second = job.id();
  }
  const bool queued = job.state.phase == JobPhase::kQueued;
  const bool over = job.state.phase == JobPhase::kEnded || job.state.phase == JobPhase::kPreempted;
  const std::uint64_t head_before = QueueHead();
  if (queued && queue_.insert(sequence).second && Fits(FitOf(job.spec.spec)))
    fitting_.insert(sequence);
  if (!queued && queue_.erase(sequence) > 0) fitting_.erase(sequence);
  const std::uint64_t head = QueueHead();
  if (head != head_before) {  // The new one may start, and the old one has another reason to wait.
    if (head != 0) dirty_.insert(head);
    if (queue_.contains(head_before)) dirty_.insert(head_before);
    if (head == 0) dirty_.merge(deferred_);
  }
  if (over) over_.insert(sequence);
  if (!over) over_.erase(sequence);
}

void Engine::UpdateState(Job& job, const StateChange& change) {
  JobStateRow next = job.state;
  change(next);
  next.charges = ChargeAges(job);
  Put(std::move(next));
}

void Engine::UpdateGeneration(Job& job, Generation generation, const GenerationChange& change) {
  GenerationRow next = job.generations.at(generation);
  change(next);
  Put(std::move(next));
}

std::vector<Row> Engine::Rows() const {
  std::map<Key, Value> rows;
  const KeyOf key{static_cast<std::uint64_t>(config_.max_events_per_job)};
  auto add = [&](Value value) {
    Key name = std::visit(key, value);
    rows.emplace(std::move(name), std::move(value));
  };
  if (meta_.epoch > Epoch()) add(meta_);
  for (const auto& [id, node] : nodes_) add(node.row);
  for (const auto& [id, job] : jobs_) {
    add(job.spec);
    add(job.state);
    for (const auto& entry : job.generations) add(entry.second);
    for (const auto& entry : job.done) add(entry.second);
    if (job.commit) add(*job.commit);
    for (const JobEvent& event : job.events) add(JobEventRow{job.id(), event});
  }
  std::vector<Row> all;
  all.reserve(rows.size());
  for (auto& entry : rows) all.push_back({entry.first, std::move(entry.second)});
  return all;
}

// ---- recovery --------------------------------------------------------------------------------

void Engine::RecoverNodes() {
  const auto known = std::count_if(nodes_.begin(), nodes_.end(),
                                   [](const auto& node) { return !node.second.row.lost; });
  const Instant until =
      now_ + config_.awaited_leases * config_.lease + known * config_.awaited_per_node;
  for (auto& [id, node] : nodes_) {
    node.last_heard = node.lease_from = node.broken_at = node.lost_at = now_;
    node.awaited_until = until;
    node.probe_at = now_ + config_.probe_interval;
    node.recovered = true;
    if (node.row.launch) {
      if (Job* job = FindJob(node.row.launch->job)) job->launchers.insert(id);
    }
    if (node.row.lost) {
      node.link = Link::kLost;
      node.proved_dead = node.row.lost_how != kHowSilent && node.row.lost_how != kHowAway &&
                         node.row.lost_how != kHowCrowded;
      RememberLost(node);
    } else {
      SetLink(node, Link::kAwaited);
      ArmNode(node, node.probe_at);
    }
    for (const TakenSlots& taken : node.row.taken) {
      if (Job* job = FindJob(taken.job)) Touch(*job, node);
    }
  }
}

void Engine::RecoverJobs() {
  for (auto& [id, job] : jobs_) {
    if (job.spec.job.empty() || job.state.job.empty()) continue;
    if (job.state.phase == JobPhase::kEnded) continue;
    job.gather_since = now_;
    job.membership_known =
        job.state.last_formed > Generation() && job.state.phase != JobPhase::kPreempted;
    for (const auto& entry : job.generations) {
      const GenerationRow& row = entry.second;
      const bool newest =
          row.generation == job.state.last_formed || row.generation == job.state.last_number;
      if (row.phase != GenerationPhase::kOver || row.verdict_open) RecoverGeneration(job, row);
      if (!newest) continue;
      for (const GenerationMember& member : row.members) {
        if (Node* node = FindNode(member.node)) Touch(job, *node);
      }
    }
    for (const Duration age : job.state.charges) job.charge_times.push_back(now_ - age);
    RecoverBackOff(job);
    if (job.state.phase == JobPhase::kEnding) {
      const bool cancelled =
          job.state.verdict && job.state.verdict->state == VerdictState::kCancelled;
      const bool succeeded =
          job.state.verdict && job.state.verdict->state == VerdictState::kSucceeded;
      const Duration grace =
          cancelled && !job.state.stop_now ? job.spec.spec.grace : config_.failure_grace;
      job.stop = StopOrder{job.state.last_number,
                           cancelled   ? StopReason::kCancelled
                           : succeeded ? StopReason::kElective
                                       : StopReason::kFailure,
                           now_ + grace,
                           now_ + grace + config_.stop_margin,
                           {}};
    }
    UpdateClaims(job);
    MarkDirty(job);
  }
}

void Engine::RecoverGeneration(Job& job, const GenerationRow& row) {
  GenerationSoft& soft = job.soft[row.generation];
  soft.since = now_;
  soft.recovered = row.phase == GenerationPhase::kProposed;
  for (std::size_t rank = 0; rank < row.members.size(); ++rank) {
    const GenerationMember& member = row.members[rank];
    soft.members[member.node] = static_cast<int>(rank);
    Node* node = FindNode(member.node);
    if (node == nullptr) continue;
    Touch(job, *node);
    if (row.phase == GenerationPhase::kFormed && member.witness)
      node->watches[job.id()] =
          Watch{row.generation, *member.witness, member.witness_verified, false, false};
    soft.done_ranks += DoneRanksOf(job, row.generation, member.node);
  }
  if (row.phase == GenerationPhase::kFormed) {
    for (const auto& member : soft.members) soft.not_started.insert(member.first);
    if (job.commit && job.commit->generation == row.generation && job.commit->for_notice)
      soft.saving = GenerationSoft::Saving{"", now_, true};
  }
  if (row.phase == GenerationPhase::kOver && row.ended)
    soft.fallback = *row.ended;  // Unless its members' inventories tell it better.
  if (soft.fallback && !IsToldAgain(*soft.fallback))
    soft.cause = CauseAt{*row.ended, Instant::max()};
  soft.close_by = now_ + config_.failure_grace + config_.stop_margin + config_.verdict_limit;
  for (const auto& member : soft.members) {
    if (row.phase == GenerationPhase::kOver && !IsSettled(job, row.generation, member.first))
      soft.waiting.insert(member.first);
    Node* node = FindNode(member.first);
    if (node != nullptr && node->link == Link::kLost) Refresh(job, *node);
  }
}

// ---- look-ups --------------------------------------------------------------------------------

Job* Engine::FindJob(const JobId& id) {
  auto found = jobs_.find(id);
  return found == jobs_.end() ? nullptr : &found->second;
}
const Job* Engine::FindJob(const JobId& id) const {
  auto found = jobs_.find(id);
  return found == jobs_.end() ? nullptr : &found->second;
}
Node* Engine::FindNode(const NodeId& id) {
  auto found = nodes_.find(id);
  return found == nodes_.end() ? nullptr : &found->second;
}
const Node* Engine::FindNode(const NodeId& id) const {
  auto found = nodes_.find(id);
  return found == nodes_.end() ? nullptr : &found->second;
}
Node* Engine::NodeOf(SessionId session) {
  auto found = sessions_.find(session);
  return found == sessions_.end() ? nullptr : FindNode(found->second);
}
std::string Engine::NameOf(const NodeId& id) const {
  const Node* node = FindNode(id);
  return node ? node->row.name : id.value();
}

}  // namespace regroup::coordinator
