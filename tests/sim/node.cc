#include "tests/sim/node.h"

#include <algorithm>
#include <utility>

namespace regroup::sim {
using namespace coordinator;  // NOLINT: events and actions are all this file is about.

namespace {
constexpr Duration kFirstRedial = std::chrono::milliseconds(50);
constexpr Duration kLastRedial = std::chrono::seconds(2);
constexpr Duration kAfterRefusal = std::chrono::seconds(2);
constexpr Duration kUnkillableAfter = std::chrono::milliseconds(500);

bool IsFree(const Group& group) { return group.phase == Phase::kFree; }
}  // namespace

Node::Node(NodeWorld& world, std::string name, NodeOptions options, Behaviour behaviour)
    : world_(world),
      name_(std::move(name)),
      id_("id-" + name_),
      options_(std::move(options)),
      behaviour_(std::move(behaviour)) {
  if (options_.address.empty())
    options_.address = "10.0.1." + std::to_string(1 + std::hash<std::string>{}(name_) % 250);
}

// ---- sessions

void Node::StartAgent() {
  if (agent_up_) return;
  powered_ = true;
  agent_up_ = true;
  ++life_;
  ++incarnation_;
  obeyed_ = OrderNo();
  backoff_ = Duration{};
  born_ = world_.clock().now() - options_.launch_age;
  Redial(Duration{});
}

void Node::Redial(Duration delay) {
  world_.clock().After(delay, [this, life = life_] {
    if (agent_up_ && life == life_ && !session_) Dial();
  });
}

void Node::Dial() {
  if (silent_ || !world_.CoordinatorAnswers()) {
    backoff_ = std::clamp(backoff_ * 2, kFirstRedial, kLastRedial);
    Redial(backoff_);
    return;
  }
  backoff_ = Duration{};
  session_ = world_.NewSession();
  unsaid_.clear();
  obeyed_ = OrderNo();
  Say(SessionOpened{*session_, MakeHello()});
}

Hello Node::MakeHello() const {
  Hello hello;
  hello.cluster = cluster;
  hello.highest_epoch = highest_epoch;
  hello.node = id_;
  hello.incarnation = Incarnation(incarnation_);
  hello.boot = BootId("boot-" + name_ + "-" + std::to_string(boot_));
  hello.name = name_;
  hello.name_explicit = options_.explicit_name;
  hello.slots = options_.slots;
  hello.address = options_.address;
  hello.dialled = options_.dialled;
  hello.launched = options_.launched;
  for (const auto& job : groups_)
    for (const auto& group : job.second) hello.groups.push_back(ReportOf(group.second));
  if (notice_) {
    regroup::Notice notice = notice_->second;
    notice.left = std::max(notice_->first - world_.clock().now(), Duration{});
    hello.notices.push_back(notice);
  }
  return hello;
}

// After the network; lost when this agent dies before, held back while the network is silent.
void Node::Say(Event event) {
  world_.clock().After(behaviour_.net,
                       [this, life = life_, session = session_, event = std::move(event)] {
                         auto send = [this, life, session, event] {
                           if (life == life_ && session == session_ && session_)
                             world_.ToCoordinator(*this, event);
                         };
                         if (silent_) {
                           held_.push_back(send);
                         } else {
                           send();
                         }
                       });
}

void Node::BreakSession() {
  if (!session_) return;
  const SessionId session = *session_;
  session_.reset();
  welcomed_ = false;
  if (!silent_)
    world_.clock().After(behaviour_.net,
                         [this, session] { world_.ToCoordinator(*this, SessionBroken{session}); });
}

void Node::OnCoordinatorGone() {
  if (!session_) return;
  session_.reset();
  welcomed_ = false;
  if (agent_up_) Redial(kFirstRedial);
}

void Node::ResetSession() {
  if (!session_) return;
  BreakSession();
  Redial(kFirstRedial);
}

void Node::SetSilent(bool silent) {
  if (silent_ == silent) return;
  silent_ = silent;
  if (silent) return;
  silent_until_ = world_.clock().now();
  std::deque<std::function<void()>> held = std::exchange(held_, {});
  for (const auto& send : held) send();
}

void Node::Deliver(SessionId session, const Action& action) {
  if (silent_) {
    held_.push_back([this, session, action] { Deliver(session, action); });
    return;
  }
  if (!agent_up_ || session_ != session) return;
  if (const auto* welcome = std::get_if<SendWelcome>(&action)) {
    OnWelcome(welcome->welcome);
  } else if (const auto* order = std::get_if<SendOrder>(&action)) {
    Obey(order->order);
  } else if (const auto* answer = std::get_if<AnswerLaunch>(&action)) {
    if (answer->refused.ok()) launched_job = answer->job;
    if (!answer->refused.ok()) refused = answer->refused;
    if (!answer->refused.ok()) LeaveIfFree();
  } else if (const auto* sent = std::get_if<SendResult>(&action)) {
    result = sent->job;
    LeaveIfFree();
  } else if (const auto* news_of = std::get_if<SendNews>(&action)) {
    news.push_back(news_of->event);
  } else if (const auto* commit = std::get_if<AnswerCommit>(&action)) {
    commit_answers.push_back(commit->answer);
  } else if (const auto* closed = std::get_if<CloseSession>(&action)) {
    if (!welcomed_) refused = closed->why;
    session_.reset();
    welcomed_ = false;
    Redial(refused ? kAfterRefusal : kFirstRedial);
  }
}

void Node::OnWelcome(const Welcome& welcome) {
  const bool other = !cluster.empty() && cluster != welcome.cluster;
  if (other || welcome.epoch < highest_epoch) {
    refused = absl::FailedPreconditionError("coordinator of cluster " + welcome.cluster.value() +
                                            " epoch " + std::to_string(welcome.epoch.value()) +
                                            ", this agent follows " + cluster.value() + " epoch " +
                                            std::to_string(highest_epoch.value()));
    BreakSession();
    Redial(kAfterRefusal);
    return;
  }
  refused.reset();
  cluster = welcome.cluster;
  highest_epoch = welcome.epoch;
  given_name_ = welcome.name;
  welcomed_ = true;
  if (options_.launch && !left_with_) {
    LaunchRequest request = *options_.launch;
    request.age = world_.clock().now() - born_;
    Say(LaunchAsked{*session_, request});
  }
  if (left_with_) Say(LeaveAsked{*session_, *left_with_, leave_now_});
  for (const auto& changed : std::exchange(unsaid_, {}))
    if (const Group* group = Find(changed.first, changed.second)) Report(*group);
  Beat();
}

void Node::Beat() {
  if (!session_ || !welcomed_) return;
  Say(HeartbeatReceived{*session_, obeyed_});
  world_.clock().After(behaviour_.heartbeat, [this, life = life_, session = session_] {
    if (life == life_ && session == session_) Beat();
  });
}

// ---- faults

void Node::KillAgent() {
  if (!agent_up_) return;
  agent_up_ = false;
  BreakSession();
  ++life_;
  pending_.clear();
  if (!options_.launched) return;
  for (auto& job : groups_) {  // The lifeline closes: every shim stops its group.
    for (auto& group : job.second) {
      if (!IsFree(group.second)) world_.Disturbed(group.second);
      StopGroup(group.second, std::chrono::seconds(30));
    }
  }
}

void Node::DropEverything() {
  for (auto& job : groups_)
    for (auto& entry : job.second)
      for (Rank& rank : entry.second.ranks) rank.alive = false;
}

void Node::KillNode() {
  agent_up_ = false;
  BreakSession();
  ++life_;
  pending_.clear();
  for (auto& job : groups_) {
    for (auto& entry : job.second) {
      Group& group = entry.second;
      if (IsFree(group)) continue;
      world_.Disturbed(group);
      group.supervisor_lost = true;
      for (Rank& rank : group.ranks) rank.alive = false;
      group.phase = Phase::kFree;
    }
  }
}

void Node::CutPower() {
  SetSilent(true);
  held_.clear();
  KillNode();
  DropEverything();
  groups_.clear();
  stopped_.clear();
  powered_ = false;
  ++boot_;
}

void Node::Reboot() {
  KillNode();
  groups_.clear();
  stopped_.clear();
  notice_.reset();
  ++boot_;
  held_.clear();
  silent_ = false;
  StartAgent();
}

void Node::ExitRank(const JobId& job, int local_rank, int code) {
  Group* group = const_cast<Group*>(Live(job));
  if (group == nullptr || local_rank >= static_cast<int>(group->ranks.size())) return;
  if (!group->ranks[local_rank].alive) return;
  EndRank(*group, group->ranks[local_rank], ExitKind::kExited, code,
          group->stop_deadline.has_value());
  Settle(*group);
}

void Node::EndRankByNotice(const JobId& job, int local_rank) {
  Group* group = const_cast<Group*>(Live(job));
  if (group == nullptr || !group->ranks.at(local_rank).alive) return;
  EndRank(*group, group->ranks[local_rank], ExitKind::kSignaled, SIGTERM, /*after_stop=*/true);
  Settle(*group);
}

void Node::TellWords(const JobId& job, Generation generation, int local_rank, std::string words,
                     ErrorEvidence evidence) {
  Group* group = Find(job, generation);
  if (group == nullptr || !group->ranks[local_rank].exit) return;
  group->ranks[local_rank].exit->error = std::move(words);
  group->ranks[local_rank].exit->evidence = evidence;
  Report(*group);
}

void Node::SignalRank(const JobId& job, int local_rank, int signal) {
  Group* group = const_cast<Group*>(Live(job));
  if (group == nullptr || local_rank >= static_cast<int>(group->ranks.size())) return;
  if (!group->ranks[local_rank].alive) return;
  EndRank(*group, group->ranks[local_rank], ExitKind::kSignaled, signal,
          group->stop_deadline.has_value());
  Settle(*group);
}

void Node::LoseSupervisor(const JobId& job) {
  Group* group = const_cast<Group*>(Live(job));
  if (group == nullptr) return;
  for (Rank& rank : group->ranks) rank.alive = false;
  world_.Disturbed(*group);
  group->supervisor_lost = true;
  group->phase = Phase::kFree;
  Report(*group);
  TryPending(job);
}

void Node::LoseStore(const JobId& job) {
  Group* group = const_cast<Group*>(Live(job));
  if (group == nullptr || !group->host_store) return;
  world_.Disturbed(*group);
  group->store_lost = true;
  Report(*group);
}

void Node::AskCommit(const JobId& job, Generation generation, std::int64_t step,
                     std::string manifest_hash) {
  if (!session_ || !welcomed_) return;
  CommitRequest request;
  request.job = job;
  request.generation = generation;
  request.step = step;
  request.manifest_hash = std::move(manifest_hash);
  Say(CommitAsked{*session_, request});
}

void Node::Notice(Duration left) {
  notice_ = {world_.clock().now() + left, regroup::Notice{NoticeSource::kCloud, 0, left, false}};
  if (session_ && welcomed_) Say(Noticed{*session_, notice_->second});
}

void Node::Signal(int signal, bool now) {
  if (!agent_up_) return;
  if (!left_with_) left_with_ = signal;
  leave_now_ = leave_now_ || now;
  if (session_ && welcomed_) Say(LeaveAsked{*session_, *left_with_, leave_now_});
  LeaveIfFree();
}

// ---- look-ups

Group* Node::Find(const JobId& job, Generation generation) {
  auto groups = groups_.find(job);
  if (groups == groups_.end()) return nullptr;
  auto found = groups->second.find(generation);
  return found == groups->second.end() ? nullptr : &found->second;
}

const Group* Node::Live(const JobId& job) const {
  auto groups = groups_.find(job);
  if (groups == groups_.end()) return nullptr;
  for (auto it = groups->second.rbegin(); it != groups->second.rend(); ++it) {
    const bool lives = std::any_of(it->second.ranks.begin(), it->second.ranks.end(),
                                   [](const Rank& r) { return r.alive; });
    if (lives) return &it->second;
  }
  return nullptr;
}

std::vector<std::int64_t> Node::Pids(const JobId& job) const {
  std::vector<std::int64_t> pids;
  if (const Group* group = Live(job))
    for (const Rank& rank : group->ranks)
      if (rank.alive) pids.push_back(rank.pid);
  return pids;
}

int Node::LiveRanks() const {
  int live = 0;
  for (const auto& job : groups_)
    for (const auto& group : job.second)
      for (const Rank& rank : group.second.ranks) live += rank.alive ? 1 : 0;
  return live;
}

ProbeResult Node::Witness(const JobId& job, Generation generation, const Address& address) const {
  if (silent_ || !powered_) return ProbeResult::kSilent;
  auto groups = groups_.find(job);
  if (groups == groups_.end()) return ProbeResult::kRefused;
  auto found = groups->second.find(generation);
  if (found == groups->second.end() || IsFree(found->second)) return ProbeResult::kRefused;
  return found->second.witness == address ? ProbeResult::kAccepted : ProbeResult::kRefused;
}

// ---- orders

void Node::Obey(const Order& order) {
  if (order.number <= obeyed_) return;
  obeyed_ = order.number;
  const JobId& job = order.job;
  if (order.forget)
    std::erase_if(groups_[job], [&](const auto& entry) {
      return entry.first <= order.forget->up_to && IsFree(entry.second);
    });
  if (order.stop) ObeyStop(*order.stop, job);
  if (order.prepare) {
    const Generation wanted = order.prepare->generation;
    const bool stale = wanted <= stopped_[job] || wanted <= highest_[job];
    if (!stale) pending_[job] = *order.prepare;
    TryPending(job);
  }
  if (order.run) {
    Group* group = Find(job, order.run->generation);
    if (group && group->phase == Phase::kPrepared && !group->run) StartRanks(*group, *order.run);
  }
  if (order.notice) OnWorkerNotice(job, *order.notice);
  LeaveIfFree();
}

void Node::ObeyStop(const Stop& stop, const JobId& job) {
  stopped_[job] = std::max(stopped_[job], stop.up_to);
  if (auto pending = pending_.find(job);
      pending != pending_.end() && pending->second.generation <= stop.up_to)
    pending_.erase(pending);
  for (auto& entry : groups_[job]) {
    if (entry.first > stop.up_to) continue;
    const bool lives = std::any_of(entry.second.ranks.begin(), entry.second.ranks.end(),
                                   [](const Rank& r) { return r.alive; });
    if (lives && !entry.second.stop_deadline) world_.Stopped(*this, entry.second);
    StopGroup(entry.second, stop.grace);
  }
}

void Node::TryPending(const JobId& job) {
  auto pending = pending_.find(job);
  if (pending == pending_.end()) return;
  for (const auto& entry : groups_[job])
    if (!IsFree(entry.second)) return;
  const Prepare prepare = pending->second;
  pending_.erase(pending);
  StartPrepare(job, prepare);
}

void Node::StartPrepare(const JobId& job, const Prepare& prepare) {
  if (behaviour_.dies_in_prepare) {
    KillNode();
    return;
  }
  highest_[job] = prepare.generation;
  Group& group = groups_[job][prepare.generation];
  group = Group{};
  group.job = job;
  group.generation = prepare.generation;
  group.workers = prepare.spec.workers;
  group.host_store = prepare.host_store;
  if (!behaviour_.refuses.empty()) {
    group.phase = Phase::kFree;
    group.refused = behaviour_.refuses;
    Report(group);
    return;
  }
  if (behaviour_.never_prepares) return;
  world_.clock().After(behaviour_.prepare,
                       [this, job, generation = prepare.generation, boot = boot_] {
                         if (boot == boot_) Prepared(job, generation);
                       });
}

void Node::Prepared(const JobId& job, Generation generation) {
  Group* group = Find(job, generation);
  if (group == nullptr || group->phase != Phase::kPreparing) return;
  group->phase = Phase::kPrepared;
  if (group->host_store) group->store = Address{options_.address, next_port_++};
  if (behaviour_.witness) group->witness = Address{options_.address, next_port_++};
  Report(*group);
}

void Node::StartRanks(Group& group, const Run& run) {
  group.run = run;
  group.phase = Phase::kStarting;
  group.first_step = run.resume_step;
  if (behaviour_.never_starts) {
    Report(group);
    return;
  }
  world_.clock().After(
      behaviour_.start, [this, job = group.job, generation = group.generation, boot = boot_] {
        Group* mine = Find(job, generation);
        if (boot != boot_ || mine == nullptr || mine->phase != Phase::kStarting) return;
        for (const RankAssignment& assigned : mine->run->mine) {
          Rank rank;
          rank.rank = assigned.rank;
          rank.pid = world_.NewPid();
          rank.started = world_.clock().now();
          rank.alive = behaviour_.exec_error == 0;
          mine->ranks.push_back(rank);
          if (rank.alive) world_.RankStarted(*this, *mine, mine->ranks.back());
        }
        mine->phase = Phase::kRunning;
        if (behaviour_.exec_error != 0)
          for (Rank& rank : mine->ranks)
            EndRank(*mine, rank, ExitKind::kExecFailed, behaviour_.exec_error, false);
        Report(*mine);
        Settle(*mine);
        if (behaviour_.speaks) TellProgress(job, generation);
      });
}

void Node::StopGroup(Group& group, Duration grace) {
  if (IsFree(group) || group.phase == Phase::kUnkillable) return;
  const Instant deadline = world_.clock().now() + grace;
  const bool known = group.stop_deadline.has_value();
  if (known && *group.stop_deadline <= deadline) return;
  group.stop_deadline = deadline;
  const bool has_ranks =
      std::any_of(group.ranks.begin(), group.ranks.end(), [](const Rank& r) { return r.alive; });
  if (group.phase != Phase::kStopping) {
    group.phase = Phase::kStopping;
    Report(group);
  }
  Instant end = world_.clock().now() + behaviour_.die;
  if (!has_ranks) end = world_.clock().now() + std::chrono::milliseconds(1);
  if (has_ranks && (behaviour_.ignores_term || behaviour_.unkillable)) end = deadline;
  world_.clock().At(
      std::min(end, std::max(deadline, world_.clock().now() + std::chrono::milliseconds(1))),
      [this, job = group.job, generation = group.generation, boot = boot_] {
        if (boot == boot_) EndStop(job, generation);
      });
}

void Node::EndStop(const JobId& job, Generation generation) {
  Group* group = Find(job, generation);
  if (group == nullptr || group->phase != Phase::kStopping || behaviour_.wedged) return;
  const bool has_ranks =
      std::any_of(group->ranks.begin(), group->ranks.end(), [](const Rank& r) { return r.alive; });
  if (has_ranks && behaviour_.unkillable) {
    world_.clock().After(kUnkillableAfter, [this, job, generation, boot = boot_] {
      Group* stuck = boot == boot_ ? Find(job, generation) : nullptr;
      if (stuck == nullptr || stuck->phase != Phase::kStopping) return;
      stuck->phase = Phase::kUnkillable;
      Report(*stuck);
    });
    return;
  }
  for (Rank& rank : group->ranks) {
    if (!rank.alive) continue;
    EndRank(*group, rank, ExitKind::kSignaled, behaviour_.ignores_term ? SIGKILL : SIGTERM, true);
  }
  Settle(*group);
}

void Node::EndRank(Group& group, Rank& rank, ExitKind kind, int code, bool after_stop) {
  rank.alive = false;
  rank.ended = world_.clock().now();
  RankExit exit;
  exit.local_rank = static_cast<int>(&rank - group.ranks.data());
  exit.kind = kind;
  exit.code = code;
  exit.after_stop = after_stop;
  exit.pid = rank.pid;
  rank.exit = exit;
  const bool done = kind == ExitKind::kExited && code == 0;
  if (!after_stop && !done) world_.Disturbed(group);
}

void Node::Settle(Group& group) {
  const bool lives =
      std::any_of(group.ranks.begin(), group.ranks.end(), [](const Rank& r) { return r.alive; });
  if (!lives) group.phase = Phase::kFree;
  Report(group);
  if (lives) return;
  TryPending(group.job);
  LeaveIfFree();
}

// ---- workers that speak

void Node::TellProgress(const JobId& job, Generation generation) {
  Group* group = Find(job, generation);
  const bool lives = group && std::any_of(group->ranks.begin(), group->ranks.end(),
                                          [](const Rank& r) { return r.alive; });
  if (!lives || group->stop_deadline) return;
  if (!group->saved) {
    const auto steps = (world_.clock().now() - group->ranks[0].started) / behaviour_.step;
    training_step = group->first_step + steps;
    WorkerProgress progress;
    progress.job = job;
    progress.generation = generation;
    progress.rank = group->ranks[0].rank;
    progress.step = training_step;
    progress.tokens = 1000 * training_step;
    progress.restored_step = group->first_step;
    if (session_ && welcomed_) Say(Progressed{*session_, progress});
  }
  world_.clock().After(behaviour_.step, [this, job, generation, boot = boot_] {
    if (boot == boot_) TellProgress(job, generation);
  });
}

void Node::OnWorkerNotice(const JobId& job, const WorkerNotice& notice) {
  Group* group = Find(job, notice.generation);
  if (group == nullptr || group->saved || group->ranks.empty() || !behaviour_.speaks) return;
  group->saved = true;
  if (behaviour_.ends_on_notice) {
    world_.clock().After(behaviour_.die, [this, job, generation = notice.generation] {
      Group* mine = Find(job, generation);
      if (mine == nullptr || mine->phase != Phase::kRunning) return;
      for (Rank& rank : mine->ranks)
        if (rank.alive) EndRank(*mine, rank, ExitKind::kExited, 0, true);
      Settle(*mine);
    });
    return;
  }
  if (group->ranks[0].rank != 0) return;
  world_.clock().After(behaviour_.save, [this, job, generation = notice.generation] {
    Group* mine = Find(job, generation);
    if (mine == nullptr || !mine->ranks[0].alive || !session_) return;
    CommitRequest request;
    request.job = job;
    request.generation = generation;
    request.attempt = 1;
    request.step = training_step + 1;
    request.manifest_hash = "hash" + std::to_string(request.step);
    request.path = "/checkpoints";
    request.for_notice = true;
    Say(CommitAsked{*session_, request});
  });
}

// ---- reports

GroupReport Node::ReportOf(const Group& group) const {
  const Instant now = world_.clock().now();
  GroupReport report;
  report.number = ReportNo(++report_);
  report.job = group.job;
  report.generation = group.generation;
  report.phase = group.phase;
  report.store = group.store;
  report.witness = group.witness;
  report.supervisor_lost = group.supervisor_lost;
  report.store_lost = group.store_lost;
  report.refused = group.refused;
  for (const Rank& rank : group.ranks) {
    const int local = static_cast<int>(&rank - group.ranks.data());
    report.started.push_back({local, rank.pid, now - rank.started});
    if (!rank.exit) continue;
    RankExit exit = *rank.exit;
    exit.age = now - rank.ended;
    report.exits.push_back(exit);
  }
  return report;
}

void Node::Report(const Group& group) {
  if (!agent_up_ || !session_) return;
  if (welcomed_) Say(Reported{*session_, ReportOf(group)});
  if (!welcomed_) unsaid_.emplace_back(group.job, group.generation);
}

void Node::LeaveIfFree() {
  if (!options_.launched || done || !agent_up_) return;
  const bool over =
      result.has_value() || left_with_ || (refused && !launched_job && options_.launch);
  if (!over) return;
  for (const auto& job : groups_)
    for (const auto& entry : job.second)
      if (!IsFree(entry.second)) return;
  // Its last reports leave first.
  world_.clock().After(behaviour_.net * 4, [this, life = life_] {
    if (life != life_) return;
    done = true;
    KillAgent();
  });
}

}  // namespace regroup::sim
