// The host's side of a node: run directories, shims, stores and workers. Models: what they do is
// what agent/shim and agent/shell do, and what a Behaviour makes them do.

#include <algorithm>
#include <utility>

#include "tests/sim/node.h"

namespace regroup::sim {

namespace {
constexpr Duration kUnkillableAfter = std::chrono::milliseconds(500);
constexpr Duration kKillTime = std::chrono::milliseconds(1);
}  // namespace

bool Group::lives() const {
  return std::any_of(ranks.begin(), ranks.end(), [](const Rank& r) { return r.alive; });
}

// ---- look-ups

Group* Node::Find(const JobId& job, Generation generation) {
  auto groups = groups_.find(job);
  if (groups == groups_.end()) return nullptr;
  auto found = groups->second.find(generation);
  return found == groups->second.end() ? nullptr : &found->second;
}

const Group* Node::Find(const JobId& job, Generation generation) const {
  return const_cast<Node*>(this)->Find(job, generation);
}

const Group* Node::Live(const JobId& job) const {
  auto groups = groups_.find(job);
  if (groups == groups_.end()) return nullptr;
  for (auto it = groups->second.rbegin(); it != groups->second.rend(); ++it)
    if (it->second.lives()) return &it->second;
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

// A shim accepts until an agent has released it, also once its group is free.
coordinator::ProbeResult Node::Witness(const JobId& job, Generation generation,
                                       const Address& address) const {
  using coordinator::ProbeResult;
  if (silent() || !powered_) return ProbeResult::kSilent;
  if (options_.walled) return ProbeResult::kRefused;
  auto groups = groups_.find(job);
  if (groups == groups_.end()) return ProbeResult::kRefused;
  auto found = groups->second.find(generation);
  while (found != groups->second.end() && found->second.handed_to)
    found = groups->second.find(*found->second.handed_to);
  if (found == groups->second.end() || found->second.shim != ShimState::kAlive)
    return ProbeResult::kRefused;
  return found->second.witness == address ? ProbeResult::kAccepted : ProbeResult::kRefused;
}

// What the next agent finds. A shim that has not taken its lock yet dies with its agent.
std::vector<agent::RunRecord> Node::Records() const {
  std::vector<agent::RunRecord> records;
  for (const auto& job : groups_) {
    for (const auto& entry : job.second) {
      records.push_back(RecordOf(entry.second));
      records.back().unheard = false;
    }
  }
  return records;
}

agent::RunRecord Node::RecordOf(const Group& group) const {
  agent::RunRecord record;
  record.key = group.key();
  record.boot = boot_id_;
  if (group.damaged) {  // Its names say whose it is, its lock that something lives.
    record.started = true;
    record.killed = group.killed;
    return record;
  }
  record.workers = group.workers;
  record.slots = group.slots;
  record.store.hosted = group.host_store;
  record.started = group.run.has_value();
  record.signalled = group.signalled;
  record.shim_alive = group.shim == ShimState::kAlive;
  record.unheard = group.shim == ShimState::kNone || group.shim == ShimState::kStarting;
  record.store.alive = group.store_alive;
  record.store.closed = group.store_closed;
  record.empty = group.empty;
  record.killed = group.killed;
  record.checking = group.checking;
  record.check_failed = group.check_failed;
  record.unkillable = group.stuck;
  record.stop_deadline = group.stop_deadline;
  record.store.address = group.store;
  record.witness = group.witness;
  for (const Rank& rank : group.ranks) {
    const int local = static_cast<int>(&rank - group.ranks.data());
    if (rank.kept) record.kept.insert(local);
    const bool ran = !rank.exit || rank.exit->kind != ExitKind::kExecFailed;
    if (ran && rank.started > Instant{}) record.starts.push_back({local, rank.pid, rank.started});
    if (rank.exit) record.exits.push_back(*rank.exit);
  }
  return record;
}

// Until its new shim has answered, a group that was handed over is what it was.
void Node::See(const Group& group) {
  if (group.damaged) return;
  agent::RunRecord record = RecordOf(group);
  const Group* next = group.handed_to ? Find(group.job, *group.handed_to) : nullptr;
  if (group.answers_for) {
    record.shim_alive = false;
    record.unheard = true;
  } else if (next != nullptr && next->answers_for == group.generation) {
    record.shim_alive = true;
    record.empty = false;
  }
  Post(agent::GroupSeen{std::move(record)});
}

void Node::Later(const agent::GroupKey& key, Duration delay, std::function<void(Group&)> what) {
  world_.clock().After(delay, [this, key, what = std::move(what), boot = boot_] {
    Group* group = boot == boot_ ? Find(key) : nullptr;
    if (group != nullptr) what(*group);
  });
}

// ---- what an agent orders

void Node::Carry(const agent::WriteRunDirectory& action) {
  if (behaviour_.dies_in_prepare) {
    world_.clock().After(Duration{}, [this, life = life_] {
      if (life == life_) KillNode();
    });
    return;
  }
  Group& group = groups_[action.key.job][action.key.generation];
  group = Group{};
  group.job = action.key.job;
  group.generation = action.key.generation;
  group.workers = action.prepare.spec.workers;
  group.slots = action.slots;
  group.host_store = action.prepare.host_store;
  group.checking = action.prepare.spec.job.node_check.wanted();
  if (!behaviour_.refuses.empty())
    return Post(agent::PrepareFailed{action.key, behaviour_.refuses});
  Post(agent::RunDirectoryWritten{action.key});
}

void Node::Carry(const agent::WarmUp& action) {
  if (settled_.contains(action.key.job)) return Post(agent::WarmedUp{action.key});
  if (behaviour_.never_warms_up) return;
  Later(action.key, behaviour_.warm_up, [this, life = life_](Group& group) {
    if (life != life_) return;
    settled_.insert(group.job);
    Post(agent::WarmedUp{group.key()});
  });
}

void Node::Carry(const agent::SpawnShim& action) {
  Find(action.key)->shim = ShimState::kStarting;
  settled_.insert(action.key.job);  // What was not ready by now is given up.
  if (behaviour_.never_prepares) return;
  Later(action.key, behaviour_.prepare, [this, life = life_](Group& group) {
    if (group.shim != ShimState::kStarting || life != life_) return;
    group.shim = ShimState::kAlive;
    if (behaviour_.witness) group.witness = Address{options_.address, next_port_++};
    See(group);
    if (group.checking) CheckNode(group);
  });
}

// It is done at once or not at all; the answer takes its time, and may find nobody.
void Node::Carry(const agent::HandOver& action) {
  Group* last = Find(action.from);
  Group* next = Find(action.to);
  settled_.insert(action.to.job);
  if (behaviour_.never_prepares) return;
  if (last->shim != ShimState::kAlive || last->empty || last->stop_deadline ||
      behaviour_.keeps_shim)
    return Post(agent::PrepareFailed{action.to, "its shim does not take it"});
  next->checking = false;  // It was checked when its shim came.
  TakeOver(*last, *next);
  Later(action.to, behaviour_.prepare, [this, life = life_](Group& group) {
    const std::optional<Generation> from = std::exchange(group.answers_for, std::nullopt);
    if (!from || group.shim != ShimState::kAlive || life != life_) return;
    See(group);
    if (const Group* last = Find(group.job, *from)) See(*last);
  });
}

void Node::Carry(const agent::SpawnStore& action) {
  Find(action.key)->store.reset();
  Later(action.key, behaviour_.prepare, [this, life = life_](Group& group) {
    if (life != life_) return;
    group.store = Address{options_.address, next_port_++};
    group.store_alive = true;
    See(group);
  });
}

void Node::Carry(const agent::StartRanks& action) {
  Group* group = Find(action.key);
  if (group == nullptr || group->shim != ShimState::kAlive || group->run || group->stop_deadline)
    return;
  group->run = action.run;
  group->first_step = action.run.resume_step;
  if (behaviour_.never_starts) return;
  Later(action.key, behaviour_.start, [this](Group& mine) {
    if (mine.shim == ShimState::kAlive && !mine.empty) StartNow(mine);
  });
}

void Node::Carry(const agent::StopRanks& action) {
  Group* group = Find(action.key);
  if (group == nullptr || group->shim != ShimState::kAlive || group->empty) return;
  // By an order, unless its job is over or the node itself leaves, which it may tell nobody.
  if (group->lives() && !group->stop_deadline && !result)
    left_with_ ? world_.Disturbed(*group) : world_.Stopped(*this, *group);
  StopNow(*group, action.deadline);
}

// Of a notice: programs that do not speak go on as if they had not heard it (EndRankByNotice: this
// one ends). Of a stop in place: as of any stop.
void Node::Carry(const agent::SignalRank& action) {
  Group* group = Find(action.key);
  if (group == nullptr) return;
  group->noticed = true;
  group->signalled.insert(action.local_rank);
  if (!core_->groups().at(action.key).in_place.retiring) return;
  BeginRetiring(action.key);
  Later(action.key, behaviour_.die, [this, action](Group& mine) {
    Rank& rank = mine.ranks[action.local_rank];
    const bool deaf = behaviour_.unkillable || behaviour_.wedged || behaviour_.ignores_term;
    if (deaf || mine.shim != ShimState::kAlive || !rank.alive) return;
    EndRank(mine, rank, ExitKind::kSignaled, action.signal, mine.retiring);
    EmptyIfSo(mine);
  });
}

void Node::Carry(const agent::KillRank& action) {
  Later(action.key, kKillTime, [this, local = action.local_rank](Group& group) {
    const bool deaf = behaviour_.unkillable || behaviour_.wedged;
    if (deaf || group.shim != ShimState::kAlive || !group.ranks[local].alive) return;
    EndRank(group, group.ranks[local], ExitKind::kSignaled, SIGKILL, group.retiring);
    EmptyIfSo(group);
  });
}

// Whatever its shim has taken along is found as well: it has one name for all of it.
void Node::Carry(const agent::KillGroup& action) {
  Later(action.key, kKillTime, [this](Group& group) {
    Group& owner = Owner(group);
    const bool none = !owner.lives();
    if (none || !(behaviour_.unkillable || behaviour_.wedged)) {
      for (Rank& rank : owner.ranks) rank.alive = false;
      if (group.damaged) group.shim = ShimState::kDead;
    }
    Post(agent::LeftoversKilled{group.key(), none});
  });
}

void Node::Carry(const agent::MarkKilled& action) {
  if (Group* group = Find(action.key)) group->killed = true;
}

void Node::Carry(const agent::KillShim& action) {
  Group* group = Find(action.key);
  if (group == nullptr || behaviour_.wedged) return;
  if (!group->empty) world_.Disturbed(*group);
  EndShim(Owner(*group));
}

void Node::Carry(const agent::ReleaseShim& action) {
  if (Group* group = Find(action.key)) EndShim(*group);
}

void Node::Carry(const agent::CloseStore& action) {
  Group* group = Find(action.key);
  if (group == nullptr) return;
  group->store_alive = false;
  group->store_closed = true;
}

void Node::Carry(const agent::RemoveRunDirectory& action) {
  const Group* group = Find(action.key);
  if (group == nullptr) return;
  if (group->lives())
    world_.Violated("15: " + name_ + " lost the record of live ranks of " + group->job.value());
  // Perhaps without having told anybody.
  if (left_with_ && !options_.launched) world_.Disturbed(*group);
  groups_[action.key.job].erase(action.key.generation);
}

void Node::BeginRetiring(const agent::GroupKey& key) {
  Group* group = Find(key);
  if (group == nullptr || !group->lives()) return;
  if (!group->retiring && !left_with_ && !result) world_.Stopped(*this, *group);
  group->retiring = true;
}

void Node::Carry(const agent::TellRetire& action) {
  const Group* group = Find(action.key);
  if (group == nullptr || !group->ranks[action.local_rank].alive) return;
  BeginRetiring(action.key);
  Later(action.key, behaviour_.retire, [this, local = action.local_rank](Group& mine) {
    if (mine.ranks[local].alive && !mine.stop_deadline) Retire(mine, mine.ranks[local]);
  });
}

void Node::Carry(const agent::TellNotice& action) {
  if (Group* group = Find(action.key)) SaveOnNotice(*group);
}

// ---- shims

// A stop ends the check as well.
void Node::CheckNode(Group& group) {
  Later(group.key(), behaviour_.check, [this](Group& mine) {
    if (mine.shim != ShimState::kAlive || mine.stop_deadline) return;
    mine.checking = false;
    if (!behaviour_.fails_check) return See(mine);
    mine.check_failed = "the node check has failed";
    StopNow(mine, world_.clock().now());  // As the shim does, whoever is there to order it.
    See(mine);
  });
}

Group& Node::Owner(Group& group) {
  Group* owner = &group;
  while (owner->handed_to) {
    Group* next = Find(owner->job, *owner->handed_to);
    if (next == nullptr) break;
    owner = next;
  }
  return *owner;
}

// What has ended is to be started anew; what lives is of the new generation from here on, and of
// the old one nothing does.
void Node::TakeOver(Group& last, Group& next) {
  next.shim = std::exchange(last.shim, ShimState::kDead);
  next.witness = last.witness;
  next.ranks = last.ranks;
  next.answers_for = last.generation;
  last.handed_to = next.generation;
  next.taken_over = static_cast<int>(next.ranks.size());
  last.empty = true;
  for (Rank& rank : last.ranks) rank.alive = false;
  for (Rank& rank : next.ranks) {
    if (!rank.alive) rank = Rank{};
    rank.kept = rank.alive;
  }
}

void Node::StartNow(Group& group) {
  group.ranks.resize(group.run->mine.size());
  group.begun = world_.clock().now();
  for (std::size_t i = 0; i < group.ranks.size(); ++i) {
    Rank& rank = group.ranks[i];
    const bool kept = rank.alive;
    if (!kept && !rank.exit) {
      rank = Rank{};
      rank.pid = world_.NewPid();
      rank.alive = behaviour_.exec_error == 0;
      if (rank.alive) rank.started = world_.clock().now();
      rank.in_place = behaviour_.speaks && behaviour_.in_place;
      if (rank.in_place && behaviour_.joins > Duration::zero()) ComeToItsLoop(group, rank);
      rank.told = rank.generation = group.generation;
    }
    rank.rank = group.run->mine[i].rank;
    if (!rank.alive) continue;
    if (kept) group.first_step = std::max(group.first_step, training_step);
    world_.RankStarted(*this, group, rank);
    if (kept) TellNewGeneration(group, static_cast<int>(i));
  }
  if (group.lives()) See(group);
  if (behaviour_.exec_error != 0) {
    for (Rank& rank : group.ranks)
      if (!rank.alive && !rank.exit)
        EndRank(group, rank, ExitKind::kExecFailed, behaviour_.exec_error, false);
    return EmptyIfSo(group);
  }
  Speak(group);
  TellProgress(group);
  CrashLater(group);
}

void Node::CrashLater(const Group& group) {
  if (behaviour_.crashes == Duration::zero()) return;
  Later(group.key(), behaviour_.crashes, [this](Group& mine) {
    if (mine.shim != ShimState::kAlive || !mine.ranks[0].alive) return;
    EndRank(mine, mine.ranks[0], ExitKind::kExited, 1, mine.stop_deadline.has_value());
    EmptyIfSo(mine);
  });
}

void Node::ComeToItsLoop(Group& group, Rank& newcomer) {
  newcomer.in_place = false;
  const int local = static_cast<int>(&newcomer - group.ranks.data());
  Later(group.key(), behaviour_.joins, [this, local, pid = newcomer.pid](Group& mine) {
    Rank& rank = mine.ranks[local];
    if (!rank.alive || rank.pid != pid) return;
    rank.in_place = true;
    Post(agent::WorkerSaid{mine.key(), rank.rank, local, agent::WorkerHello{true, true}});
  });
}

void Node::StopNow(Group& group, Instant deadline) {
  if (group.stop_deadline && *group.stop_deadline <= deadline) return;
  group.stop_deadline = deadline;
  const Instant now = world_.clock().now();
  Instant end = now + behaviour_.die;
  if (!group.lives()) end = now + kKillTime;
  if (group.lives() && (behaviour_.ignores_term || behaviour_.unkillable)) end = deadline;
  end = std::min(end, std::max(deadline, now + kKillTime));
  Later(group.key(), end - now, [this](Group& mine) { EndStop(mine); });
}

void Node::EndStop(Group& group) {
  if (group.shim != ShimState::kAlive || group.empty || behaviour_.wedged) return;
  if (group.lives() && behaviour_.unkillable) {
    Later(group.key(), kUnkillableAfter, [this](Group& mine) {
      if (mine.shim != ShimState::kAlive || !mine.lives()) return;
      mine.stuck = true;
      See(mine);
    });
    return;
  }
  for (Rank& rank : group.ranks) {
    if (!rank.alive) continue;
    EndRank(group, rank, ExitKind::kSignaled, behaviour_.ignores_term ? SIGKILL : SIGTERM, true);
  }
  EmptyIfSo(group);
}

void Node::EndRank(Group& group, Rank& rank, ExitKind kind, int code, bool after_stop) {
  rank.alive = false;
  after_stop |= group.retiring;
  agent::RankEnded exit;
  exit.local_rank = static_cast<int>(&rank - group.ranks.data());
  exit.kind = kind;
  exit.code = code;
  exit.after_stop = after_stop;
  exit.pid = rank.pid;
  exit.at = world_.clock().now();
  if (!group.run && !group.stop_deadline) {  // It is started anew, and its end told to nobody.
    rank = Rank{};
    return;
  }
  rank.exit = exit;
  world_.RankEnded(*this, group, rank);
  const bool done = kind == ExitKind::kExited && code == 0;
  if (!after_stop && !done) world_.Disturbed(group);
  if (group.shim == ShimState::kAlive) See(group);
}

void Node::EmptyIfSo(Group& group) {
  if (group.shim != ShimState::kAlive || group.empty || group.lives()) return;
  // A shim that was told to start the others does so at once: it waits for their ends, too.
  const bool all = std::all_of(group.ranks.begin(), group.ranks.end(),
                               [](const Rank& rank) { return rank.exit.has_value(); });
  if (!group.stop_deadline && (!group.run || !all)) return;
  group.empty = true;
  group.stuck = false;
  if (!agent_up_) AwaitAgent(group);
  See(group);  // Its directory may be gone from here on.
}

// A shim whose group is empty stays while its agent is there.
void Node::AwaitAgent(const Group& group) {
  Later(group.key(), behaviour_.agent_restart, [this, life = life_](Group& mine) {
    if (life != life_) return;
    // Nobody has read how it ended, and a witness that refuses is a node that died.
    if (mine.shim == ShimState::kAlive) world_.Disturbed(mine);
    EndShim(mine);
  });
}

void Node::EndShim(Group& group) {
  if (group.shim == ShimState::kDead || group.shim == ShimState::kNone) return;
  group.shim = ShimState::kDead;
  if (!behaviour_.unkillable)
    for (Rank& rank : group.ranks) rank.alive = false;
  const std::optional<Generation> from = std::exchange(group.answers_for, std::nullopt);
  if (!from) return See(group);
  const Group* last = Find(group.job, *from);
  if (last == nullptr) return;
  agent::RunRecord record = RecordOf(*last);
  record.empty = false;
  Post(agent::GroupSeen{std::move(record)});
}

// ---- faults of what runs

void Node::ExitRank(const JobId& job, int local_rank, int code) {
  Group* group = const_cast<Group*>(Live(job));
  if (group == nullptr || local_rank >= static_cast<int>(group->ranks.size())) return;
  if (!group->ranks[local_rank].alive) return;
  EndRank(*group, group->ranks[local_rank], ExitKind::kExited, code,
          group->stop_deadline.has_value());
  EmptyIfSo(*group);
}

void Node::EndRankByNotice(const JobId& job, int local_rank) {
  Group* group = const_cast<Group*>(Live(job));
  if (group == nullptr || local_rank >= static_cast<int>(group->ranks.size())) return;
  if (!group->ranks[local_rank].alive) return;
  EndRank(*group, group->ranks[local_rank], ExitKind::kSignaled, SIGTERM, /*after_stop=*/true);
  EmptyIfSo(*group);
}

void Node::SignalRank(const JobId& job, int local_rank, int signal) {
  Group* group = const_cast<Group*>(Live(job));
  if (group == nullptr || local_rank >= static_cast<int>(group->ranks.size())) return;
  if (!group->ranks[local_rank].alive) return;
  EndRank(*group, group->ranks[local_rank], ExitKind::kSignaled, signal,
          group->stop_deadline.has_value());
  EmptyIfSo(*group);
}

void Node::TellWords(const JobId& job, Generation generation, int local_rank, std::string words,
                     ErrorEvidence evidence) {
  Group* group = Find(job, generation);
  if (group == nullptr || !group->ranks[local_rank].exit) return;
  group->ranks[local_rank].exit->error = words;
  group->ranks[local_rank].exit->evidence = evidence;
  Post(agent::RankErrorRead{group->key(), local_rank, std::move(words), evidence});
}

void Node::TellWords(const JobId& job, std::string words) {
  auto groups = groups_.find(job);
  if (groups == groups_.end()) return;
  for (auto& [generation, group] : groups->second)
    if (!group.ranks.empty() && group.ranks[0].exit && !group.damaged)
      return TellWords(job, generation, 0, std::move(words), ErrorEvidence::kNone);
}

void Node::HangUp(const JobId& job) {
  const Group* group = Live(job);
  if (group != nullptr) Post(agent::WorkerHungUp{group->key(), 0});
}

void Node::LoseSupervisor(const JobId& job) {
  Group* group = const_cast<Group*>(Live(job));
  if (group == nullptr || group->shim != ShimState::kAlive) return;
  world_.Disturbed(*group);
  for (Rank& rank : group->ranks) rank.alive = false;
  EndShim(*group);
}

void Node::LoseStore(const JobId& job) {
  Group* group = const_cast<Group*>(Live(job));
  if (group == nullptr || !group->host_store) return;
  world_.Disturbed(*group);
  group->store_alive = false;
  See(*group);
}

// ---- workers that speak

void Node::Speak(Group& group) {
  for (const Rank& rank : group.ranks) {
    const int local = static_cast<int>(&rank - group.ranks.data());
    if (!rank.alive || (!behaviour_.speaks && !rank.in_place)) continue;
    Post(agent::WorkerSaid{
        {group.job, rank.generation}, rank.rank, local, agent::WorkerHello{true, rank.in_place}});
    // Its agent was not there, or was another one.
    if (group.run && rank.generation < group.generation) TellNewGeneration(group, local);
  }
}

void Node::TellProgress(Group& group) {
  if (!behaviour_.speaks || !group.lives() || group.stop_deadline || group.retiring) return;
  if (!group.saved) {
    const auto steps = (world_.clock().now() - group.begun) / behaviour_.step;
    training_step = group.first_step + steps;
    WorkerProgress progress;
    progress.job = group.job;
    progress.generation = group.generation;
    progress.rank = group.ranks[0].rank;
    progress.step = training_step;
    progress.tokens = 1000 * training_step;
    progress.restored_step = group.first_step;
    Post(agent::WorkerSaid{group.key(), progress.rank, 0, progress});
  }
  Later(group.key(), behaviour_.step, [this](Group& mine) { TellProgress(mine); });
}

void Node::Retire(Group& group, Rank& rank) {
  const int local = static_cast<int>(&rank - group.ranks.data());
  switch (behaviour_.retires) {
    case Obeys::kYes:
      return Post(agent::WorkerSaid{group.key(), rank.rank, local, agent::WorkerRetired{}});
    case Obeys::kNever: return;
    case Obeys::kRefuses:
      return Post(agent::WorkerSaid{group.key(), rank.rank, local,
                                    agent::WorkerCannotGoOn{"a kernel hangs"}});
    case Obeys::kDies: EndRank(group, rank, ExitKind::kExited, 1, true); return EmptyIfSo(group);
  }
}

void Node::TellNewGeneration(Group& group, int local_rank) {
  if (!core_) return;  // It is told when it speaks to the next agent.
  group.ranks[local_rank].told = group.generation;
  Later(group.key(), behaviour_.retire, [this, local_rank](Group& mine) {
    Rank& rank = mine.ranks[local_rank];
    if (rank.alive && rank.generation < mine.generation) GoOn(mine, rank);
  });
}

void Node::GoOn(Group& group, Rank& rank) {
  const int local = static_cast<int>(&rank - group.ranks.data());
  const auto say = [&](auto what) {
    Post(agent::WorkerSaid{group.key(), rank.rank, local, std::move(what)});
  };
  switch (behaviour_.goes_on) {
    case Obeys::kYes:
      rank.generation = group.generation;
      return say(agent::WorkerHello{true, true});
    case Obeys::kNever: return;
    case Obeys::kRefuses: return say(agent::WorkerCannotGoOn{"no device answers"});
    case Obeys::kDies:
      EndRank(group, rank, ExitKind::kExited, 1, group.stop_deadline.has_value());
      return EmptyIfSo(group);
  }
}

void Node::SaveOnNotice(Group& group) {
  if (group.saved || group.ranks.empty() || !behaviour_.speaks) return;
  group.saved = true;
  if (behaviour_.ends_on_notice) {
    Later(group.key(), behaviour_.die, [this](Group& mine) {
      if (mine.stop_deadline) return;
      for (Rank& rank : mine.ranks)
        if (rank.alive) EndRank(mine, rank, ExitKind::kExited, 0, true);
      EmptyIfSo(mine);
    });
    return;
  }
  if (group.ranks[0].rank != 0) return;
  Later(group.key(), behaviour_.save, [this](Group& mine) {
    if (!mine.ranks[0].alive) return;
    CommitRequest request;
    request.job = mine.job;
    request.generation = mine.generation;
    request.attempt = 1;
    request.step = training_step + 1;
    request.manifest_hash = "hash" + std::to_string(request.step);
    request.path = "/checkpoints";
    request.for_notice = true;
    Post(agent::WorkerSaid{mine.key(), 0, 0, request});
  });
}

}  // namespace regroup::sim
