#include "tests/sim/world.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "tests/sim/text.h"

namespace regroup::sim {
using namespace coordinator;  // NOLINT: events and actions are all this file is about.

JobSpec SpecOf(const std::string& name, int min_nodes, int max_nodes, int max_restarts) {
  JobSpec spec;
  spec.name = name;
  spec.min_nodes = min_nodes;
  spec.max_nodes = max_nodes;
  spec.max_restarts = max_restarts;
  spec.command = {"train"};
  return spec;
}

LaunchRequest LaunchOf(const std::string& key, const JobSpec& spec) {
  LaunchRequest request;
  request.key = key;
  request.rdzv_id = spec.name;
  request.spec = spec;
  request.spec.origin = JobOrigin::kLaunched;
  return request;
}

World::World(Config config, std::uint64_t seed)
    : config_([&] {
        if (config.journal.new_cluster.empty())
          config.journal.new_cluster = ClusterId("cluster-" + std::to_string(seed));
        config.check_indices = true;
        return config;
      }()),
      start_(clock_.now()) {
  checker.config = config_;
  checker.lease = config_.leases.lease;
  checker.first_backoff = config_.retries.backoff_first;
  checker.backoff_limit =
      std::min(config_.retries.backoff_limit, config_.retries.free_backoff_limit);
  checker.node_of = [this](const NodeId& id) -> const Node* {
    for (const auto& entry : nodes_)
      if (entry.second->id() == id) return entry.second.get();
    return nullptr;
  };
  checker.heartbeat = config_.leases.heartbeat;
  checker.unreachable_hold = config_.holds.unreachable;
  StartCoordinator();
}

// ---- the coordinator

void World::StartCoordinator() {
  if (core_) return;
  std::vector<Row> rows;
  Epoch epoch(1);
  for (const auto& entry : rows_) {
    if (!IsHistory(entry.first)) rows.push_back({entry.first, entry.second});
    if (const auto* meta = std::get_if<MetaRow>(&entry.second)) epoch = meta->epoch.Next();
  }
  ++life_;
  stepped_down_.reset();
  finished_ = false;
  armed_.reset();
  core_.emplace(config_, epoch, rows, clock_.now());
  standstill_.emplace(clock_.now());
  entered_ = clock_.now();
  checker.OnRecovery(rows, core_->Rows());
  checker.OnCoordinatorStart(clock_.now(), epoch);
  Step(Tick{});
  if (core_) Arm();
}

void World::CrashCoordinator() {
  if (!core_) return;
  core_.reset();
  ++life_;
  journal_.clear();
  committing_ = false;
  stalled_ = false;
  waiting_.clear();
  for (auto& entry : nodes_) {
    Node* node = entry.second.get();
    clock_.After(node->behaviour().net, [node, session = node->session()] {
      if (node->session() == session) node->OnCoordinatorGone();
    });
  }
}

void World::StallCoordinator(Duration gap) {
  // Where the disk is slow it stands still often enough.
  if (!core_ || stalled_ || commit_delay > Standstill::kCommit) return;
  stalled_ = true;
  clock_.After(gap, [this, life = life_, gap] {
    if (life != life_) return;
    stalled_ = false;
    checker.OnStall(gap, clock_.now());
    std::deque<Event> waiting = std::exchange(waiting_, {});
    Step(Stalled{gap, clock_.now(), false});
    for (const Event& event : waiting)
      if (core_) Post(event);
    if (core_) Arm();
  });
}

bool World::Point() {
  ++points_;
  if (crash_in_ < 0 || crash_in_-- > 0) return false;
  CrashCoordinator();
  return true;
}

void World::Post(Event event) {
  if (!core_) return;
  if (stalled_) {
    waiting_.push_back(std::move(event));
    return;
  }
  TellStandstill();
  TickDue();
  if (core_) Step(event);
  if (core_) Arm();
}

// The loop looks at itself each 500 ms, whatever else happens.
void World::TellStandstill() {
  Duration gap{};
  while (entered_ < clock_.now()) {
    entered_ = std::min(clock_.now(), entered_ + std::chrono::milliseconds(500));
    if (const auto told = standstill_->Enter(entered_)) gap += told->gap;
  }
  if (gap == Duration{}) return;
  checker.OnStall(gap, clock_.now());
  Step(Stalled{gap, clock_.now(), true});
}

void World::TickDue() {
  for (int ticks = 0; core_ && core_->NextDeadline() && *core_->NextDeadline() <= clock_.now();
       ++ticks) {
    CHECK(ticks < 10'000);  // The core must come to rest.
    Step(Tick{});
  }
}

void World::Step(const Event& event) {
  ++steps;
  checker.OnEvent(event, clock_.now());
  const WallTime wall = clock_.wall() + std::chrono::duration_cast<WallTime::duration>(wall_skew);
  Effects effects;
  if (mishear) {
    Event heard = event;
    mishear(heard);
    effects = core_->Step(clock_.now(), wall, heard);
  } else {
    effects = core_->Step(clock_.now(), wall, event);
  }
  ++checker.coverage.events[event.index()];
  for (const Action& action : effects.actions) ++checker.coverage.actions[action.index()];
  if (tamper) tamper(effects);
  checker.OnDecided(rows_, effects, clock_.now());
  if (tracing)
    for (const Note& note : effects.notes) {
      std::string line = note.what;
      for (const auto& field : note.fields) line += " " + field.first + "=" + field.second;
      Trace(line);
    }
  Journal(std::move(effects));
}

void World::Arm() {
  const std::optional<Instant> next = core_->NextDeadline();
  if (!next || (armed_ && *armed_ <= *next && *armed_ > clock_.now())) return;
  armed_ = std::max(*next, clock_.now());
  clock_.At(*armed_, [this, life = life_, at = *armed_] {
    if (life != life_ || stalled_ || armed_ != at) return;
    armed_.reset();
    TellStandstill();
    TickDue();
    if (core_) Arm();
  });
}

// ---- the journal

void World::Journal(Effects effects) {
  journal_.push_back(std::move(effects));
  Flush();
}

// What wrote nothing has nothing to wait for but what was decided before it. With a disk that is
// not slow it waits as well, so that many heartbeats and orders cross each other on the way.
void World::Flush() {
  const bool slow = commit_delay > Standstill::kCommit;
  const auto is_free = [&] {
    return commit_delay == Duration{} || (slow && journal_.front().rows.empty());
  };
  while (core_ && !committing_ && !journal_.empty() && is_free()) CommitNext();
  if (core_ && !committing_ && !journal_.empty()) CommitBatch();
}

// One batch is in flight while the next collects.
void World::CommitBatch() {
  committing_ = true;
  standstill_->BeginCommit(clock_.now());
  clock_.After(commit_delay, [this, life = life_, steps = journal_.size()] {
    if (life != life_) return;
    TellStandstill();
    standstill_->EndCommit(clock_.now());
    for (std::size_t i = 0; i < steps && life == life_; ++i) CommitNext();
    if (life != life_) return;
    committing_ = false;
    Arm();
    Flush();
  });
}

// What no start reads: of a job that has ended all but its newest generations.
bool World::IsHistory(const Key& key) const {
  if (!key.starts_with("job/")) return false;
  const std::string job = key.substr(4, key.find('/', 4) - 4);
  const auto state = rows_.find(JobStateKey(JobId(job)));
  if (state == rows_.end() || std::get<JobStateRow>(state->second).phase != JobPhase::kEnded)
    return false;
  const std::string folder = JobFolder(JobId(job));
  if (key.starts_with(folder + "event/") || key.starts_with(folder + "done/")) return true;
  if (!key.starts_with(folder + "gen/")) return false;
  auto newer = rows_.find(key);
  for (std::size_t i = 0; i < kGenerationsKept; ++i)
    if (++newer == rows_.end() || !newer->first.starts_with(folder + "gen/")) return false;
  return true;
}

void World::Erase(const Key& key) {
  if (!key.ends_with('/')) {
    rows_.erase(key);
    return;
  }
  std::erase_if(rows_, [&](const auto& row) { return row.first.starts_with(key); });
}

// The oldest step becomes durable, then its actions are carried out in order.
void World::CommitNext() {
  const bool outer = std::exchange(committing_, true);
  Effects effects = std::move(journal_.front());
  journal_.pop_front();
  if (answers_before_commit && !CarryOutAll(effects.actions)) return;
  if (!effects.rows.empty() && Point()) return;
  checker.OnCommit(rows_, effects.rows, clock_.now());
  for (const Row& row : effects.rows) {
    if (row.value) rows_[row.key] = *row.value;
    if (!row.value) Erase(row.key);
  }
  if (!effects.rows.empty() && Point()) return;
  if (!answers_before_commit && !CarryOutAll(effects.actions)) return;
  committing_ = outer;
}

// False: the coordinator has died in between.
bool World::CarryOutAll(const std::vector<Action>& actions) {
  const std::uint64_t life = life_;
  for (const Action& action : actions) {
    const bool heavy = !std::holds_alternative<AckReport>(action);
    if (heavy && Point()) return false;
    if (!CarryOut(action) || life != life_) return false;
  }
  return true;
}

// False: the coordinator is gone.
bool World::CarryOut(const Action& action) {
  const bool leaves =
      std::holds_alternative<StepDown>(action) || std::holds_alternative<coordinator::Quit>(action);
  if (!leaves) checker.OnCoordinatorSeen();
  if (const auto* answer = std::get_if<Answer>(&action)) {
    OnAnswer(*answer);
  } else if (const auto* probe = std::get_if<Probe>(&action)) {
    Node* found = nullptr;
    for (auto& entry : nodes_)
      if (entry.second->id() == probe->node) found = entry.second.get();
    ProbeResult result = ProbeResult::kSilent;
    if (found) result = found->Witness(probe->job, probe->generation, probe->address);
    const Duration took = result == ProbeResult::kSilent ? Duration(std::chrono::milliseconds(200))
                                                         : Duration(std::chrono::milliseconds(1));
    clock_.After(took, [this, life = life_, probe = *probe, result] {
      if (life == life_) Post(Probed{probe.node, probe.job, probe.generation, result});
    });
  } else if (const auto* step_down = std::get_if<StepDown>(&action)) {
    const absl::Status why = step_down->why;
    CrashCoordinator();
    stepped_down_ = why;
    return false;
  } else if (std::holds_alternative<coordinator::Quit>(action)) {
    checker.OnFinished(rows_);
    for (const auto& entry : nodes_) checker.OnLeft(rows_, *entry.second, clock_.now());
    CrashCoordinator();
    finished_ = true;
    return false;
  } else {
    const SessionId session = std::visit(
        [](const auto& a) {
          if constexpr (requires { a.session; }) return a.session;
          return SessionId();
        },
        action);
    auto owner = owners_.find(session);
    if (owner == owners_.end()) return true;
    Node* node = nodes_.at(owner->second).get();
    if (const auto* order = std::get_if<SendOrder>(&action))
      checker.OnOrder(*node, order->order, clock_.now());
    if (const auto* commit = std::get_if<AnswerCommit>(&action))
      checker.OnCommitAnswered(commit->session, commit->answer);
    clock_.After(node->behaviour().net,
                 [node, session, action] { node->Deliver(session, action); });
    if (std::holds_alternative<CloseSession>(action)) owners_.erase(owner);
  }
  return true;
}

void World::OnAnswer(const Answer& answer) {
  replies_[answer.call] = answer.reply;
  if (const auto* submitted = std::get_if<SubmitReply>(&answer.reply))
    checker.OnSubmitAnswered(submit_keys_[answer.call], submitted->job);
  if (const auto* cancelled = std::get_if<CancelReply>(&answer.reply))
    checker.OnCancelAnswered(cancelled->job, clock_.now());
  if (const auto asked = cancels_.find(answer.call); asked != cancels_.end()) {
    const auto* failed = std::get_if<absl::Status>(&answer.reply);
    if (failed == nullptr || failed->code() != absl::StatusCode::kNotFound)
      checker.OnCancelAnswered(asked->second.key, failed == nullptr);
  }
  if (const auto* read = std::get_if<ReadReply>(&answer.reply); read && polls_.erase(answer.call))
    checker.OnRead(*read);
}

// ---- nodes

Node& World::Add(const std::string& name, NodeOptions options, Behaviour behaviour) {
  auto [slot, fresh] = nodes_.try_emplace(name, nullptr);
  if (fresh)
    slot->second = std::make_unique<Node>(*this, name, std::move(options), std::move(behaviour));
  slot->second->StartAgent();
  return *slot->second;
}

Node& World::AddLauncher(const std::string& name, const JobSpec& spec, Duration age) {
  NodeOptions options;
  options.launched = true;
  options.launch = LaunchOf("key-" + name, spec);
  options.launch_age = age;
  return Add(name, options);
}

void World::Trace(const std::string& what) {
  trace.push_back(std::to_string(Seconds(SinceStart())) + " " + what);
}

void World::Decided(const Node& node, const agent::Event& event, const agent::Effects& effects) {
  if (on_agent) on_agent(node, effects);
  if (node.name() != traced) return;
  const auto tell = [&](const char* arrow, const char* name, const auto& what) {
    std::string line = traced + arrow + name + " ";
    Write(line, what);
    Trace(line);
  };
  if (!std::holds_alternative<agent::Tick>(event)) tell(" hears ", NameOf(event), event);
  for (const agent::Action& action : effects.actions) tell(" orders ", NameOf(action), action);
}

void World::ToCoordinator(Node& node, Event event) {
  if (node.name() == traced && !std::holds_alternative<HeartbeatReceived>(event)) {
    std::string line = traced + (core_ ? " tells " : " tells nobody ") + NameOf(event) + " ";
    Write(line, event);
    Trace(line);
  }
  if (!core_) return;
  const auto* opened = std::get_if<SessionOpened>(&event);
  if (opened) owners_[opened->session] = node.name();
  // A Hello counts once it is welcome (Checker::OnDecided), and nothing does without one.
  const bool greeted = std::visit(
      [this](const auto& e) {
        if constexpr (requires { e.session; }) return owners_.contains(e.session);
        return true;
      },
      event);
  const bool counts = greeted && !opened && !std::holds_alternative<SessionBroken>(event);
  if (counts) checker.OnWord(node.id(), clock_.now());
  // The shell answers a heartbeat without the core.
  if (const auto* beat = std::get_if<HeartbeatReceived>(&event); beat && !stalled_) {
    clock_.After(node.behaviour().net,
                 [&node, session = beat->session] { node.AnswerHeartbeat(session); });
  }
  Post(std::move(event));
}

void World::RankStarted(Node& node, const Group& group, const Rank& rank) {
  checker.OnRankStarted(node, group, rank, clock_.now());
}
void World::RankEnded(Node& node, const Group& group, const Rank& rank) {
  checker.OnRankEnded(node, group, rank);
}
void World::Struck(Node& node) { checker.OnStruck(node.id()); }
void World::Disturbed(const Group& group) { checker.OnDisturbed(group, clock_.now()); }
void World::Stopped(Node& node, const Group& group) { checker.OnStopped(node, group); }
void World::Violated(const std::string& what) { checker.Expect(false, what); }

// ---- clients

CallId World::Submit(const JobSpec& spec, const std::string& key) {
  const CallId call(++call_);
  submit_keys_[call] = key;
  SubmitAsked asked;
  asked.call = call;
  asked.spec = spec;
  asked.key = key;
  asked.free_bytes = free_bytes;
  Post(asked);
  return call;
}

CallId World::Cancel(const std::string& job, bool now) {
  const CallId call(++call_);
  CancelAsked asked{call, job, "tester", now, 0, "cancel-" + std::to_string(call.value())};
  cancels_[call] = asked;
  Post(asked);
  return call;
}

CallId World::CancelAgain() {
  const CallId call(++call_);
  if (cancels_.empty()) return call;
  CancelAsked again = cancels_.rbegin()->second;
  again.call = call;
  cancels_[call] = again;
  Post(again);
  return call;
}

CallId World::WaitFor(const std::string& job) {
  const CallId call(++call_);
  ReadAsked asked;
  asked.call = call;
  asked.filter.job = job;
  asked.wait_for_end = true;
  Post(asked);
  return call;
}

CallId World::Poll() {
  const CallId call(++call_);
  polls_.insert(call);
  ReadAsked asked;
  asked.call = call;
  asked.filter.ended = true;
  Post(asked);
  return call;
}

CallId World::Forget(const std::string& node) {
  const CallId call(++call_);
  Post(ForgetNodeAsked{call, node});
  return call;
}

const Reply* World::ReplyTo(CallId call) const {
  auto found = replies_.find(call);
  return found == replies_.end() ? nullptr : &found->second;
}

// ---- time

void World::RunFor(Duration duration) { clock_.RunUntil(clock_.now() + duration); }

bool World::RunUntil(const std::function<bool()>& condition, Duration limit) {
  const Instant until = clock_.now() + limit;
  while (!condition()) {
    if (!clock_.RunOne(until)) return condition();
  }
  return true;
}

// ---- views

JobView World::View(const JobId& job) {
  CHECK(core_.has_value());
  ReadFilter filter;
  filter.job = job.value();
  filter.detail = true;
  absl::StatusOr<ReadReply> reply = core_->Read(filter, clock_.now(), clock_.wall());
  CHECK(reply.ok());
  if (reply->jobs.at(0).history_away) {  // As the shell does: from its rows alone.
    std::vector<Row> rows;
    for (auto at = rows_.lower_bound(JobFolder(job));
         at != rows_.end() && at->first.starts_with(JobFolder(job)); ++at)
      rows.push_back({at->first, at->second});
    reply = Core(config_, Epoch(1), rows, clock_.now()).Read(filter, clock_.now(), clock_.wall());
    CHECK(reply.ok() && !reply->jobs.at(0).history_away);
  }
  return reply->jobs.at(0);
}

std::string World::StateOf(const JobId& job) {
  if (!core_) return "";
  ReadFilter filter;
  filter.job = job.value();
  absl::StatusOr<ReadReply> reply = core_->Read(filter, clock_.now(), clock_.wall());
  return reply.ok() ? reply->jobs.at(0).state : "";
}

NodeRow World::NodeRowOf(const std::string& name) {
  auto found = rows_.find(NodeKey(nodes_.at(name)->id()));
  return found == rows_.end() ? NodeRow{} : std::get<NodeRow>(found->second);
}

int World::LiveRanks(const JobId& job) const { return static_cast<int>(Pids(job).size()); }

std::vector<std::int64_t> World::Pids(const JobId& job) const {
  std::vector<std::int64_t> pids;
  for (const auto& entry : nodes_)
    for (std::int64_t pid : entry.second->Pids(job)) pids.push_back(pid);
  std::sort(pids.begin(), pids.end());
  return pids;
}

}  // namespace regroup::sim
