// The agent's side: its core, its session, and faults. What needs no agent is in host.cc.

#include "tests/sim/node.h"

#include <algorithm>
#include <csignal>
#include <utility>

namespace regroup::sim {
using namespace coordinator;  // NOLINT: events and actions are all this file is about.

namespace {
constexpr Duration kFirstRedial = std::chrono::milliseconds(50);
constexpr Duration kLastRedial = std::chrono::seconds(2);
constexpr Duration kLastHurried = std::chrono::seconds(1);
constexpr Duration kAfterRefusal = std::chrono::seconds(2);
constexpr Duration kSecondSignal = std::chrono::milliseconds(600);
constexpr Duration kLifelineGrace = std::chrono::seconds(30);
constexpr Duration kLateHello = std::chrono::seconds(1);
}  // namespace

Node::Node(NodeWorld& world, std::string name, NodeOptions options, Behaviour behaviour)
    : world_(world),
      name_(std::move(name)),
      id_("id-" + name_),
      options_(std::move(options)),
      behaviour_(std::move(behaviour)) {
  if (options_.address.empty())
    options_.address = "10.0.1." + std::to_string(1 + std::hash<std::string>{}(name_) % 250);
  boot_ = 0;
  Reboots();
}

void Node::Reboots() {
  ++boot_;
  boot_id_ = BootId("boot-" + name_ + "-" + std::to_string(boot_));
}

// ---- the agent

agent::Config Node::AgentConfig() const {
  agent::Config config = world_.config();
  config.node = id_;
  config.incarnation = Incarnation(incarnation_);
  config.boot = boot_id_;
  config.version = options_.version;
  config.name = name_;
  config.name_explicit = options_.explicit_name;
  config.slots = options_.slots;
  config.gpu_slots = options_.gpu_slots;
  config.launched = options_.launched;
  if (options_.join_timeout) config.join_timeout = options_.join_timeout;
  config.sigterm_is_notice = options_.sigterm_is_notice;
  if (!options_.launched) {  // A launch command has no memory.
    config.cluster = cluster;
    config.highest_epoch = highest_epoch;
    config.join_timeout.reset();
  }
  return config;
}

void Node::StartAgent() {
  if (agent_up_) return;
  powered_ = true;
  agent_up_ = true;
  ++life_;
  ++incarnation_;
  backoff_ = Duration{};
  hurries_ = false;
  left_with_.reset();
  born_ = world_.clock().now() - options_.launch_age;
  armed_.reset();
  core_.emplace(AgentConfig(), world_.clock().now());
  promises_.emplace(AgentConfig());
  Post(agent::Scanned{Records()});
  for (auto& job : groups_)
    for (auto& entry : job.second) Speak(entry.second);
  Redial(Duration{});
}

// Actions may cause events at once: those wait until the step that caused them is carried out.
void Node::Post(agent::Event event) {
  if (!core_) return;
  events_.push_back(std::move(event));
  if (!stepping_ && !stalled_) StepAll();
}

void Node::StepAll() {
  stepping_ = true;
  while (!events_.empty()) {
    const agent::Event event = std::move(events_.front());
    events_.pop_front();
    const agent::Effects effects = core_->Step(world_.clock().now(), event);
    world_.Decided(*this, event, effects);
    promises_->Check(world_.clock().now(), event, effects, *core_);
    for (const std::string& broken : std::exchange(promises_->broken, {}))
      world_.Violated("agent " + name_ + ": " + broken);
    Coverage& coverage = world_.coverage();
    ++coverage.agent_events[event.index()];
    for (const agent::Action& action : effects.actions) {
      ++coverage.agent_actions[action.index()];
      std::visit([this](const auto& a) { Carry(a); }, action);
    }
    for (const auto& [key, seen] : core_->groups()) {
      Group* group = Find(key);
      if (group == nullptr || group->phase == seen.phase) continue;
      coverage.OnGroup(group->phase, seen.phase);
      group->phase = seen.phase;
    }
  }
  stepping_ = false;
  Arm();
}

void Node::Arm() {
  const std::optional<Instant> next = core_->NextDeadline();
  if (next == armed_) return;
  armed_ = next;
  if (!next) return;
  world_.clock().At(*next, [this, life = life_, at = *next] {
    if (life != life_ || armed_ != at) return;
    armed_.reset();
    Post(agent::Tick{});
  });
}

void Node::EndAgent() {
  agent_up_ = stalled_ = steady_ = false;
  settled_.clear();
  CloseSocket();
  core_.reset();
  events_.clear();
  ++life_;
  for (const auto& job : groups_)
    for (const auto& entry : job.second)
      if (entry.second.empty) AwaitAgent(entry.second);
}

// ---- sessions

void Node::Redial(Duration delay) {
  world_.clock().After(delay, [this, life = life_] {
    if (agent_up_ && life == life_ && !session_) Dial();
  });
}

void Node::Dial() {
  if (silent() || !world_.CoordinatorAnswers()) {
    backoff_ = std::clamp(backoff_ * 2, kFirstRedial, hurries_ ? kLastHurried : kLastRedial);
    Redial(backoff_);
    return;
  }
  backoff_ = Duration{};
  session_ = world_.NewSession();
  Post(agent::CoordinatorFound{options_.address, options_.dialled});
}

// After the network; lost when this agent dies before, held back while the network is cut.
void Node::Say(Event event) {
  said_ = std::max(said_, world_.clock().now() + behaviour_.net);
  const bool opens = std::holds_alternative<SessionOpened>(event);
  auto send = [this, life = life_, session = session_, opens, event = std::move(event)] {
    if (life == life_ && session == session_ && session_) return world_.ToCoordinator(*this, event);
    if (behaviour_.late && !opens) world_.TooLate(event);
    if (!behaviour_.late_hello || !opens || life == life_) return;
    world_.clock().After(kLateHello, [this, event] {
      world_.TooLate(event);
      world_.TooLate(SessionBroken{std::get<SessionOpened>(event).session});
    });
  };
  world_.clock().At(said_, [this, send] {
    if (!cut_out_) return send();
    held_.push_back({true, send});
  });
}

// The coordinator hears of it, unless the network is silent.
void Node::CloseSocket() {
  if (!session_) return;
  const SessionId session = *session_;
  session_.reset();
  if (cut_out_) return;
  said_ = std::max(said_, world_.clock().now() + behaviour_.net);
  world_.clock().At(said_,
                    [this, session] { world_.ToCoordinator(*this, SessionBroken{session}); });
}

void Node::OnCoordinatorGone() {
  if (!session_) return;
  session_.reset();
  Post(agent::CoordinatorAway{});
  if (agent_up_) Redial(kFirstRedial);
}

void Node::ResetSession() {
  if (!session_) return;
  CloseSocket();
  Post(agent::CoordinatorAway{});
  Redial(kFirstRedial);
}

void Node::SetCut(bool out, bool in) {
  if (cut_out_ == out && cut_in_ == in) return;
  steady_ = false;
  if ((cut_out_ && !out) || (cut_in_ && !in)) silent_until_ = world_.clock().now();
  cut_out_ = out;
  cut_in_ = in;
  std::deque<Held> held = std::exchange(held_, {});
  for (Held& word : held) {
    if (word.out ? cut_out_ : cut_in_) {
      held_.push_back(std::move(word));
    } else {
      word.arrive();
    }
  }
}

void Node::StallAgent(Duration gap) {
  if (!core_ || stalled_) return;
  stalled_ = true;
  steady_ = false;
  world_.clock().After(gap, [this, life = life_] {
    if (life != life_) return;
    stalled_ = false;
    if (!events_.empty()) StepAll();
  });
}

void Node::DamageDirectories() {
  for (auto& job : groups_)
    for (auto& entry : job.second) {
      if (entry.second.empty || entry.second.shim != ShimState::kAlive) continue;
      entry.second.damaged = true;
      world_.Disturbed(entry.second);
    }
}

void Node::AnswerHeartbeat(SessionId session) {
  if (cut_in_) {
    held_.push_back({false, [this, session] { AnswerHeartbeat(session); }});
    return;
  }
  if (core_ && session_ == session) Post(agent::CoordinatorSpoke{});
}

void Node::Deliver(SessionId session, const Action& action) {
  if (cut_in_) {
    held_.push_back({false, [this, session, action] { Deliver(session, action); }});
    return;
  }
  if (!agent_up_ || session_ != session) return;
  Post(agent::CoordinatorSpoke{});
  if (const auto* welcome = std::get_if<SendWelcome>(&action)) {
    Welcome said = welcome->welcome;
    said.heartbeat = behaviour_.heartbeat;
    Post(agent::Welcomed{said});
    if (!attached()) return;
    refused.reset();
    hurries_ = false;
    given_name_ = said.name;
  } else if (const auto* order = std::get_if<SendOrder>(&action)) {
    Post(agent::Ordered{order->order});
  } else if (const auto* ack = std::get_if<AckReport>(&action)) {
    Post(agent::ReportAcked{ack->number});
  } else if (const auto* answer = std::get_if<AnswerLaunch>(&action)) {
    if (answer->refused.ok()) {
      launched_job = answer->job;
      Post(agent::LaunchAccepted{});
    } else {
      refused = answer->refused;
      Post(agent::CoordinatorRefused{std::string(answer->refused.message())});
    }
  } else if (const auto* sent = std::get_if<SendResult>(&action)) {
    result = *sent->job;
    Post(agent::JobOver{sent->job->exit_code});
  } else if (const auto* news_of = std::get_if<SendNews>(&action)) {
    news.push_back(news_of->event);
    const auto* joined = std::get_if<NodeJoined>(&news_of->event.body);
    if (joined != nullptr && joined->have > joined->max) Post(agent::EnoughJoined{});
  } else if (const auto* commit = std::get_if<AnswerCommit>(&action)) {
    commit_answers.push_back(commit->answer);
    Post(agent::CommitAnswered{commit->answer});
  } else if (const auto* closed = std::get_if<CloseSession>(&action)) {
    session_.reset();
    const bool stays_away = coordinator::TellsToStayAway(closed->why.code());
    if (stays_away) {
      refused = closed->why;
      Post(agent::CoordinatorRefused{std::string(closed->why.message())});
    }
    Post(agent::CoordinatorAway{});
    Redial(stays_away ? kAfterRefusal : kFirstRedial);
  }
}

// ---- what the core orders of the network

void Node::Carry(const agent::SendHello& action) {
  Hello hello = action.hello;
  if (notice_) {  // Its core here has caught no signal, and knows nothing of it.
    regroup::Notice notice = notice_->second;
    notice.left = std::max(notice_->first - world_.clock().now(), Duration{});
    hello.notices.push_back(notice);
  }
  Say(SessionOpened{*session_, std::move(hello)});
}
void Node::Carry(const agent::RememberCoordinator& action) {
  cluster = action.cluster;
  highest_epoch = action.epoch;
}
void Node::Carry(const agent::RefuseCoordinator& action) {
  refused = absl::FailedPreconditionError(action.why);
  CloseSocket();
  Redial(kAfterRefusal);
}
void Node::Carry(const agent::BreakSession&) {
  CloseSocket();
  hurries_ = true;
  Redial(kFirstRedial);
}
void Node::Carry(const agent::SendLaunch&) {
  if (!options_.launch) return;
  LaunchRequest request = *options_.launch;
  request.age = world_.clock().now() - born_;
  LaunchAsked asked;
  asked.session = *session_;
  asked.request = std::move(request);
  Say(asked);
}
void Node::Carry(const agent::SendReport& action) {
  Say(Reported{*session_, action.report});
  if (behaviour_.doubles) Say(Reported{*session_, action.report});
}
void Node::Carry(const agent::SendProgress& action) { Say(Progressed{*session_, action.progress}); }
void Node::Carry(const agent::SendCommit& action) { Say(CommitAsked{*session_, action.request}); }
void Node::Carry(const agent::SendNotice& action) { Say(Noticed{*session_, action.notice}); }
void Node::Carry(const agent::SendLeave& action) {
  Say(LeaveAsked{*session_, action.signal, action.now});
}
void Node::Carry(const agent::ShowLeaving&) {}
void Node::Carry(const agent::SendHeartbeat& action) {
  Say(HeartbeatReceived{*session_, action.obeyed});
}
void Node::Carry(const agent::TellCommit&) {}
void Node::Carry(const agent::StartCoordinator&) {}
void Node::Carry(const agent::Leave&) {
  // Its last words leave first.
  world_.clock().After(behaviour_.net * 4, [this, life = life_] {
    if (life != life_) return;
    done = true;
    KillAgent();
  });
}

// ---- faults

void Node::KillAgent() {
  if (!agent_up_) return;
  EndAgent();
  if (!options_.launched) return;
  for (auto& job : groups_) {  // The lifeline closes: every shim stops its group.
    for (auto& entry : job.second) {
      Group& group = entry.second;
      if (group.shim != ShimState::kAlive || group.empty) continue;
      world_.Disturbed(group);
      StopNow(group, world_.clock().now() + kLifelineGrace);
    }
  }
}

void Node::KillNode() {
  EndAgent();
  world_.Struck(*this);
  for (auto& job : groups_) {
    for (auto& entry : job.second) {
      Group& group = entry.second;
      if (!group.empty && !group.killed) world_.Disturbed(group);
      for (Rank& rank : group.ranks) rank.alive = false;
      group.shim = ShimState::kDead;
      group.store_alive = false;
    }
  }
}

// With that of ranks that were done: who was not told of it yet never will be.
void Node::LoseDirectories() {
  for (const auto& job : groups_)
    for (const auto& entry : job.second) world_.Disturbed(entry.second);
  groups_.clear();
}

void Node::CutPower() {
  SetSilent(true);
  held_.clear();
  KillNode();
  LoseDirectories();
  powered_ = false;
  Reboots();
}

void Node::Reboot() {
  KillNode();
  LoseDirectories();
  notice_.reset();
  Reboots();
  held_.clear();
  cut_out_ = cut_in_ = false;
  StartAgent();
}

// Of any generation and step, past the agent: what one of an older version might ask.
void Node::AskCommit(const JobId& job, Generation generation, std::int64_t step,
                     std::string manifest_hash) {
  if (!session_ || !attached()) return;
  CommitRequest request;
  request.job = job;
  request.generation = generation;
  request.step = step;
  request.manifest_hash = std::move(manifest_hash);
  Say(CommitAsked{*session_, request});
}

void Node::Notice(Duration left) {
  if (options_.sigterm_is_notice) return Signal(SIGTERM);
  const regroup::Notice notice{NoticeSource::kSignal, SIGTERM, left};
  notice_ = {world_.clock().now() + left, notice};
  if (session_ && attached()) Say(Noticed{*session_, notice});
}

void Node::Signal(int signal, bool now) {
  if (!agent_up_) return;
  if (now && !left_with_) {
    world_.clock().After(kSecondSignal, [this, life = life_, signal] {
      if (life == life_) Post(agent::SignalCaught{signal});
    });
  }
  if (!left_with_) left_with_ = signal;
  Post(agent::SignalCaught{signal});
}

}  // namespace regroup::sim
