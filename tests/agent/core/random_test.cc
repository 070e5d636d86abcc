// Seeded random lives of one node: orders in any sequence, ranks that exit when they like, sessions
// that break, and an agent that dies between any two actions. What must hold whatever happens is
// checked at every step; in the end all faults stop, everything is stopped and forgotten, and
// nothing may be left.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <set>
#include <utility>
#include <vector>

#include "common/base/rng.h"
#include "tests/agent/core/driver.h"

namespace regroup::agent {
namespace {

using namespace regroup::agent::testing;

constexpr int kSlots = 3;
constexpr Duration kAdopt = 500ms;

struct Rank {
  std::int64_t pid = 0;
  bool alive = false;
  bool exited = false;
  Instant at{};
  // The worker in it.
  bool able = false;     // It can retire.
  bool greeted = false;  // Its connection to this life of the agent is open.
  bool retire = false;   // It was told to, and has not answered.
  bool signalled = false;
  bool told = false;      // It was told to, by this life of the agent.
  bool hangs = false;     // From what it was told last on.
  Generation generation;  // That it takes itself to be of.
  Generation next;        // That it was told of. Not: none.
};
struct Shim {
  bool alive = true, ready = false, free = false, killed = false;
  bool started = false;       // Its mark.
  std::vector<Action> inbox;  // Sent by an agent, alive or dead; not read yet.
  std::vector<Rank> ranks;
  std::set<int> kept;  // Ranks whose process is older than its generation.
  std::optional<Instant> stop_deadline;
};
struct Directory {
  Prepare prepare;
  std::optional<Shim> shim;
  bool store_alive = false;
  std::optional<Address> store;
};

// The node: what survives an agent.
struct Node {
  std::map<GroupKey, Directory> directories;
  std::map<GroupKey, int> rank_starts;  // Ever, by group; outlives the directory.
  int handed_over = 0;                  // Shims, ever.
  Generation stopped_up_to[2];          // What an agent has obeyed, by job.
  int LiveRanks() const {
    int live = 0;
    for (const auto& [key, directory] : directories) {
      if (!directory.shim) continue;
      for (const Rank& rank : directory.shim->ranks) live += rank.alive;
    }
    return live;
  }
};

const JobId kJobs[2] = {JobId("a-1"), JobId("b-1")};

class World {
 public:
  explicit World(std::uint64_t seed) : rng_(seed) { StartAgent(); }

  void Run(int steps) {
    for (int i = 0; i < steps && !::testing::Test::HasFailure(); ++i) RandomStep();
    faults_ = false;
    CheckThatNoneWaits();
    for (int round = 0; round < 200 && !Quiet(); ++round) SettleRound();
    EXPECT_TRUE(Quiet()) << node_.directories.size() << " directories, " << core_->groups().size()
                         << " groups left";
    EXPECT_EQ(node_.LiveRanks(), 0);
  }
  std::size_t generations_started() const { return node_.rank_starts.size(); }
  int handed_over() const { return node_.handed_over; }

 private:
  // ---- the agent

  void StartAgent() {
    Config config = ServiceConfig(kSlots);
    config.waits.warm_up = 100ms;
    config.waits.adopt = kAdopt;
    config.cluster = cluster_;
    config.highest_epoch = epoch_;
    queue_.clear();
    stops_.clear();
    closed_.clear();
    clean_rounds_.clear();
    attached_ = false;
    // Whoever holds the lock of a new directory is heard before anything is made of it.
    std::vector<GroupKey> keys;
    for (const auto& [key, directory] : node_.directories) keys.push_back(key);
    for (const GroupKey& key : keys) AnswerHandOver(key);
    queue_.clear();
    for (auto& [key, directory] : node_.directories) {
      if (!directory.shim) continue;
      for (Rank& rank : directory.shim->ranks) {
        rank.greeted = rank.told = false;
        if (rank.alive) rank.next = Generation();  // What the shell knew went with it.
      }
    }
    core_.emplace(config, now_);
    Scanned scanned;
    for (const auto& [key, directory] : node_.directories) {
      scanned.records.push_back(RecordOf(key, directory));
      scanned.records.back().shim_alive = directory.shim && directory.shim->alive;  // Its lock.
    }
    Feed(scanned);
  }

  RunRecord RecordOf(const GroupKey& key, const Directory& directory) {
    RunRecord record;
    record.key = key;
    record.boot = BootId("boot");
    record.workers = directory.prepare.spec.workers;
    record.store.hosted = directory.prepare.host_store;
    record.store.alive = directory.store_alive;
    record.store.address = directory.store;
    record.unheard = !directory.shim;
    if (!directory.shim) return record;
    const Shim& shim = *directory.shim;
    record.shim_alive = shim.alive && shim.ready;
    record.unheard = shim.alive && !shim.ready;
    record.witness = Address{"10.0.0.2", 5000};
    record.started = shim.started;
    record.empty = shim.free;
    record.killed = shim.killed;
    record.stop_deadline = shim.stop_deadline;
    for (std::size_t i = 0; i < shim.ranks.size(); ++i) {
      const int local = static_cast<int>(i);
      const Rank& rank = shim.ranks[i];
      if (rank.alive || rank.exited) record.starts.push_back({local, rank.pid, rank.at});
      if (rank.exited) record.exits.push_back(ExitOf(local, rank));
    }
    record.kept = shim.kept;
    return record;
  }
  static RankEnded ExitOf(int local_rank, const Rank& rank) {
    return {.local_rank = local_rank, .pid = rank.pid, .at = rank.at};
  }

  void Feed(const Event& event) {
    const Effects effects = core_->Step(now_, event);
    for (const Action& action : effects.actions) {
      if (faults_ && rng_.Below(60) == 0) {  // Killed between two actions.
        StartAgent();
        return;
      }
      std::visit([this](const auto& a) { Carry(a); }, action);
    }
    Check();
  }

  void Later(Event event) { queue_.push_back(std::move(event)); }
  void See(const GroupKey& key) { Later(GroupSeen{RecordOf(key, node_.directories.at(key))}); }

  // ---- carrying out

  void Carry(const WriteRunDirectory& a) {
    ASSERT_FALSE(node_.directories.contains(a.key));
    node_.directories[a.key].prepare = a.prepare;
    if (faults_ && rng_.Below(20) == 0) {
      Later(PrepareFailed{a.key, "disk full"});
    } else {
      Later(RunDirectoryWritten{a.key});
    }
  }
  void Carry(const WarmUp& a) {
    ASSERT_TRUE(node_.directories.contains(a.key));
    if (a.key.generation.value() % 2 == 0) Later(WarmedUp{a.key});  // Else its time will be over.
  }
  void Carry(const SpawnShim& a) {
    ASSERT_TRUE(node_.directories.contains(a.key)) << "its record comes first";
    Directory& directory = node_.directories[a.key];
    ASSERT_FALSE(directory.shim);
    directory.shim.emplace();
    directory.shim->ranks.resize(directory.prepare.spec.workers);
  }
  void Carry(const HandOver& a) {
    ASSERT_TRUE(node_.directories.contains(a.to)) << "its record comes first";
    ASSERT_FALSE(node_.directories[a.to].shim);
    Shim& shim = *node_.directories.at(a.from).shim;
    if (shim.alive) {
      shim.inbox.push_back(a);
    } else if (shim.free) {
      Later(PrepareFailed{a.to, "it has ended"});
    }  // Else its end is on its way.
  }
  void Carry(const SpawnStore& a) {
    Directory& directory = node_.directories.at(a.key);
    directory.store = Address{"10.0.0.2", 4000};
    directory.store_alive = true;
    See(a.key);
  }
  void Carry(const StartRanks& a) {
    ASSERT_GT(a.key.generation, StoppedUpTo(a.key.job)) << "a stopped generation was started";
    for (const auto& [other, directory] : node_.directories) {
      if (other.job != a.key.job || other.generation >= a.key.generation || !directory.shim)
        continue;
      // What is being stopped, or was not, is the coordinator's to wait for.
      const bool theirs = directory.shim->stop_deadline || stops_.contains(other) ||
                          other.generation > StoppedUpTo(a.key.job);
      for (const Rank& rank : directory.shim->ranks)
        EXPECT_FALSE(rank.alive && rank.told && !theirs)
            << "ranks that have retired live beside a newer generation";
    }
    node_.directories.at(a.key).shim->inbox.push_back(a);
  }
  void Carry(const StopRanks& a) {
    const auto [earlier, first] = stops_.emplace(a.key, a.deadline);
    ASSERT_TRUE(first || a.deadline < earlier->second) << "a stop deadline moved later";
    ASSERT_FALSE(IsAsked(a.key)) << "its shim may be another group's";
    earlier->second = a.deadline;
    node_.directories.at(a.key).shim->inbox.push_back(a);
  }
  void Carry(const KillRank& a) {
    ASSERT_FALSE(IsAsked(a.key)) << "its shim may be another group's";
    node_.directories.at(a.key).shim->inbox.push_back(a);
  }
  void Carry(const TellRetire& a) {
    Rank& rank = node_.directories.at(a.key).shim->ranks.at(a.local_rank);
    ASSERT_TRUE(rank.able);
    ASSERT_EQ(rank.generation, a.key.generation) << "told by a generation that it is not of";
    rank.retire = rank.told = true;
  }
  void Carry(const SignalRank& a) {
    node_.directories.at(a.key).shim->ranks.at(a.local_rank).signalled = true;
  }
  void Carry(const KillGroup& a) {
    Shim& shim = *node_.directories.at(a.key).shim;
    ASSERT_FALSE(shim.alive);
    for (Rank& rank : shim.ranks) rank.alive = false;
    const bool none = !faults_ || rng_.Below(3) != 0;
    clean_rounds_[a.key] = none ? clean_rounds_[a.key] + 1 : 0;
    Later(LeftoversKilled{a.key, none});
  }
  void Carry(const MarkKilled& a) {
    EXPECT_GE(clean_rounds_[a.key], 2) << "what was killed may have left others";
    node_.directories.at(a.key).shim->killed = true;
  }
  void Carry(const ShowLateOutput&) {}
  void Carry(const KillShim& a) {
    Shim& shim = *node_.directories.at(a.key).shim;
    if (!std::exchange(shim.alive, false)) return;
    shim.inbox.clear();
    for (Rank& rank : shim.ranks) rank.alive = false;  // PDEATHSIG.
    See(a.key);
  }
  void Carry(const ReleaseShim& a) {
    const Shim& shim = *node_.directories.at(a.key).shim;
    for (const Rank& rank : shim.ranks) ASSERT_FALSE(rank.alive) << "a shim with ranks released";
  }
  void Carry(const CloseStore& a) {
    node_.directories.at(a.key).store_alive = false;
    closed_.insert(a.key);
  }
  void Carry(const RemoveRunDirectory& a) {
    ASSERT_TRUE(node_.directories.contains(a.key));
    if (node_.directories[a.key].shim) {
      for (const Rank& rank : node_.directories[a.key].shim->ranks)
        ASSERT_FALSE(rank.alive) << "a live rank lost its record";
    }
    node_.directories.erase(a.key);
    closed_.erase(a.key);
    clean_rounds_.erase(a.key);
  }
  void Carry(const SendHello& a) {
    for (auto& known : coordinator_) known.clear();
    for (const GroupReport& report : a.hello.groups) Learn(report);
    Later(Welcomed{{.cluster = ClusterId("c"),
                    .epoch = epoch_.Next(),
                    .name = "a",
                    .version = {},
                    .heartbeat = 1s,
                    .lease = 5s}});
    attached_ = true;
    next_order_ = 1;
    said_.clear();
  }
  void Carry(const RememberCoordinator& a) {
    ASSERT_GE(a.epoch, epoch_);
    cluster_ = a.cluster;
    epoch_ = a.epoch;
  }
  void Carry(const SendReport& a) {
    ASSERT_TRUE(attached_);
    Learn(a.report);
    if (!faults_ || rng_.Below(2) == 0) Later(ReportAcked{a.report.number});
  }
  template <class Other>
  void Carry(const Other&) {}

  void Learn(const GroupReport& report) {
    EXPECT_FALSE(report.store && closed_.contains({report.job, report.generation}))
        << "somebody may be sent to a store that is closed";
    coordinator_[report.job == kJobs[0] ? 0 : 1][report.generation] = report;
    highest_[report.job == kJobs[0] ? 0 : 1] =
        std::max(highest_[report.job == kJobs[0] ? 0 : 1], report.generation);
  }
  Generation& StoppedUpTo(const JobId& job) { return node_.stopped_up_to[job == kJobs[0] ? 0 : 1]; }

  // ---- shims

  // Its shim has yet to say whether it takes another generation.
  bool IsAsked(const GroupKey& key) {
    const Directory& directory = node_.directories.at(key);
    return directory.shim && directory.shim->alive &&
           std::any_of(directory.shim->inbox.begin(), directory.shim->inbox.end(),
                       [](const Action& a) { return std::holds_alternative<HandOver>(a); });
  }

  void AnswerHandOver(const GroupKey& key) {
    Directory& directory = node_.directories.at(key);
    if (!directory.shim || !IsAsked(key) || directory.shim->free) return;
    Shim& last = *directory.shim;
    HandOver asked;
    for (const Action& action : std::exchange(last.inbox, {})) {
      if (const auto* over = std::get_if<HandOver>(&action)) asked = *over;
    }
    const auto to = node_.directories.find(asked.to);
    if (to == node_.directories.end() || last.stop_deadline || (faults_ && rng_.Below(10) == 0))
      return Later(PrepareFailed{asked.to, "it stops"});
    Shim& next = to->second.shim.emplace(last);
    last.alive = false;
    last.free = true;
    next.started = false;
    next.kept.clear();
    for (std::size_t i = 0; i < next.ranks.size(); ++i) {
      if (next.ranks[i].alive) next.kept.insert(static_cast<int>(i));
      next.ranks[i].exited = false;  // It is started anew.
      last.ranks[i].alive = false;
    }
    ++node_.handed_over;
    See(asked.to);
    See(key);
  }

  void StartAll(const GroupKey& key, Shim& shim, const StartRanks& start) {
    shim.started = true;
    const bool able = rng_.Below(4) != 0;
    for (std::size_t i = 0; i < shim.ranks.size(); ++i) {
      Rank& rank = shim.ranks[i];
      const int local = static_cast<int>(i);
      if (rank.alive) {
        EXPECT_TRUE(start.kept.contains(local)) << "a kept rank is not told of its generation";
        EXPECT_FALSE(rank.signalled) << "a rank that was told to end is kept";
        rank.next = key.generation;
      } else {
        shim.kept.erase(local);
        rank = Rank{};
        rank.pid = ++pid_;
        rank.alive = true;
        rank.at = now_;
        rank.generation = key.generation;
        rank.able = able || rng_.Below(3) == 0;
      }
    }
    EXPECT_EQ(++node_.rank_starts[key], 1) << "a generation was started twice";
    See(key);
  }

  void EndRank(const GroupKey& key, Shim& shim, Rank& rank) {
    rank.alive = false;
    rank.at = now_;
    rank.exited = shim.started || shim.stop_deadline;  // Else it is started anew.
    See(key);
  }

  // What the worker in a rank does of its own accord, or is told.
  void Work(const JobId& job, int local_rank, Rank& rank) {
    const auto say = [&](auto what) {
      Later(WorkerSaid{{job, rank.generation}, local_rank, local_rank, std::move(what)});
    };
    const auto greet = [&] {
      rank.greeted = true;
      say(WorkerHello{true, true});
    };
    if (!rank.able || rank.hangs) return;
    if (!rank.greeted) greet();
    if (!rank.retire && rank.next <= rank.generation) return;
    if (faults_ && rng_.Below(16) == 0) {
      rank.hangs = true;
    } else if (faults_ && rng_.Below(20) == 0) {
      rank.hangs = true;
      if (rank.next > rank.generation) rank.generation = rank.next;
      say(WorkerCannotGoOn{"no"});
    } else if (std::exchange(rank.retire, false)) {
      say(WorkerRetired{});
    } else {
      rank.generation = rank.next;
      rank.told = false;
      greet();
    }
  }

  void ShimStep(const GroupKey& key, Directory& directory) {
    Shim& shim = *directory.shim;
    if (!shim.alive || shim.free) return;
    if (IsAsked(key)) return AnswerHandOver(key);
    if (!shim.ready) {
      shim.ready = true;
      See(key);
    }
    for (const Action& action : std::exchange(shim.inbox, {})) {
      if (const auto* stop = std::get_if<StopRanks>(&action)) {
        // Of two agents' lives the earlier deadline counts.
        shim.stop_deadline = std::min(stop->deadline, shim.stop_deadline.value_or(stop->deadline));
      } else if (const auto* kill = std::get_if<KillRank>(&action)) {
        Rank& rank = shim.ranks[static_cast<std::size_t>(kill->local_rank)];
        if (rank.alive && (!faults_ || rng_.Below(10) != 0)) EndRank(key, shim, rank);
      } else if (const auto* start = std::get_if<StartRanks>(&action)) {
        if (!shim.started && !shim.stop_deadline) StartAll(key, shim, *start);
      }
    }
    const bool dying =
        shim.stop_deadline && (rng_.Below(3) == 0 || now_ >= *shim.stop_deadline || !faults_);
    bool any = false;
    for (std::size_t i = 0; i < shim.ranks.size(); ++i) {
      Rank& rank = shim.ranks[i];
      const bool obeys = rank.signalled && rng_.Below(3) == 0;
      if (rank.alive && (dying || obeys || (faults_ && rng_.Below(60) == 0)))
        EndRank(key, shim, rank);
      if (rank.alive) Work(key.job, static_cast<int>(i), rank);
      any |= rank.alive;
    }
    if (!any && (shim.stop_deadline || shim.started)) {
      shim.free = true;
      shim.alive = false;
      See(key);
    } else if (faults_ && rng_.Below(150) == 0) {  // SIGKILLed; PDEATHSIG takes its ranks.
      shim.alive = false;
      for (Rank& rank : shim.ranks) rank.alive = false;
      shim.inbox.clear();
      if (shim.ready) {
        See(key);
      } else {
        Later(PrepareFailed{key, "the shim ended"});
      }
    }
  }

  // ---- the coordinator

  void RandomOrder() {
    if (!core_->attached()) return;
    const int which = static_cast<int>(rng_.Below(2));
    Order order;
    order.number = OrderNo(next_order_++);
    order.job = kJobs[which];
    auto& known = coordinator_[which];
    const Generation newest = known.empty() ? Generation() : known.rbegin()->first;
    // Mostly what a coordinator would do next.
    const Phase now = known.empty() ? Phase::kFree : known.rbegin()->second.phase;
    const bool runs = now == Phase::kPrepared && rng_.Below(2) == 0;
    const bool goes_on = now == Phase::kRetired && rng_.Below(4) != 0;
    const std::uint64_t pick = runs ? 4 : goes_on ? 0 : rng_.Below(10);
    // Stops are cumulative: every later order repeats the last one.
    const Generation stopped = StoppedUpTo(kJobs[which]);
    if (stopped > Generation())
      order.stop = Stop{stopped, 10s, StopReason::kElective, in_place_[which]};
    if (pick < 4) {
      Prepare prepare;
      prepare.generation = highest_[which] = highest_[which].Next();
      prepare.spec.workers = 1 + static_cast<int>(rng_.Below(kSlots));
      const auto last = core_->groups().find({kJobs[which], newest});
      if (last != core_->groups().end() && last->second.workers > 0 && rng_.Below(4) != 0)
        prepare.spec.workers = last->second.workers;
      prepare.host_store = rng_.Below(2) == 0;
      if (prepare.generation.value() % 5 < 2) prepare.spec.job.warm.emplace();
      order.prepare = prepare;
      if (!goes_on && rng_.Below(2) == 0) order.stop = StopAll(which, newest);
    } else if (pick < 8 && !known.empty()) {
      const GroupReport& report = known.rbegin()->second;
      const Phase phase = report.phase;
      if (newest <= stopped) return;
      if (phase != Phase::kPrepared && phase != Phase::kRunning && phase != Phase::kFree) return;
      regroup::Run run;
      run.generation = newest;
      const auto group = core_->groups().find({kJobs[which], newest});
      if (group == core_->groups().end()) return;
      for (int i = 0; i < group->second.workers; ++i) run.mine.push_back({i, i});
      order.run = run;
    } else {
      order.stop = StopAll(which, newest);
      // Nobody would stop what has retired, were its job forgotten here.
      if (!order.stop->in_place && rng_.Below(2) == 0) order.forget = Forget{newest};
    }
    said_.push_back(order);
    Feed(Ordered{order});
  }
  // One that a newer one has overtaken has nothing to add.
  void OldOrder() {
    if (said_.size() < 2 || !core_->attached()) return;
    for (const Action& action :
         core_->Step(now_, Ordered{said_[rng_.Below(said_.size() - 1)]}).actions) {
      EXPECT_FALSE(std::holds_alternative<WriteRunDirectory>(action) ||
                   std::holds_alternative<StartRanks>(action) ||
                   std::holds_alternative<StopRanks>(action) ||
                   std::holds_alternative<TellRetire>(action))
          << "an order was obeyed after a newer one";
      std::visit([this](const auto& a) { Carry(a); }, action);
    }
  }
  Stop StopAll(int which, Generation up_to) {
    StoppedUpTo(kJobs[which]) = std::max(StoppedUpTo(kJobs[which]), up_to);
    in_place_[which] = faults_ && rng_.Below(5) != 0;
    return {up_to, std::chrono::milliseconds(rng_.Below(3000)), StopReason::kFailure,
            in_place_[which]};
  }

  // ---- time

  void Connect() {
    attached_ = false;
    Feed(CoordinatorFound{"10.0.0.2", "10.0.0.1"});
  }
  void Advance(Duration by) {
    now_ += by;
    while (core_->NextDeadline() && *core_->NextDeadline() <= now_) {
      const auto before = core_->NextDeadline();
      Feed(Tick{});
      if (core_->NextDeadline() == before) {
        ADD_FAILURE() << "a deadline that a Tick does not clear";
        return;
      }
    }
  }
  void ShimsStep() {
    for (auto& [key, directory] : node_.directories) {
      if (directory.shim) ShimStep(key, directory);
    }
  }
  void RandomStep() {
    Advance(std::chrono::milliseconds(rng_.Below(200)));
    switch (rng_.Below(8)) {
      case 0:
        if (!core_->attached()) Connect();
        break;
      case 1:
        if (rng_.Below(6) == 0) {
          attached_ = false;
          Feed(CoordinatorAway{});
        }
        break;
      case 2:
      case 3:
        RandomOrder();
        if (rng_.Below(10) == 0) OldOrder();
        break;
      case 4:
      case 5: ShimsStep(); break;
      default:
        for (int i = 0; i < 3; ++i) DeliverOne();
    }
  }
  void DeliverOne() {
    if (queue_.empty()) return;
    const Event event = std::move(queue_.front());
    queue_.pop_front();
    Feed(event);
  }
  void SettleRound() {
    Advance(100ms);
    ShimsStep();
    while (!queue_.empty()) DeliverOne();
    if (!core_->attached()) {
      Connect();
      return;
    }
    for (int which = 0; which < 2; ++which) {
      Order order;
      order.number = OrderNo(next_order_++);
      order.job = kJobs[which];
      order.stop = StopAll(which, highest_[which]);
      order.forget = Forget{highest_[which]};
      Feed(Ordered{order});
    }
  }
  bool Quiet() const {
    return core_->attached() && queue_.empty() && node_.directories.empty() &&
           core_->groups().empty();
  }

  void Check() {
    EXPECT_LE(node_.LiveRanks(), kSlots) << "more ranks than slots";
    int slots = 0;
    for (const auto& [key, group] : core_->groups()) {
      if (group.holds_slots() && !HasHeir(key)) slots += group.workers;
      EXPECT_FALSE(group.phase == Phase::kRetired && group.stop_deadline);
      EXPECT_FALSE(group.phase == Phase::kRetired && group.in_place.retired.empty());
      EXPECT_FALSE(group.phase == Phase::kRunning &&
                   static_cast<int>(group.ranks.starts.size()) < group.workers);
    }
    EXPECT_LE(slots, kSlots);
    EXPECT_LE(node_.LiveRanks(), slots) << "ranks live in slots that are free";
  }
  // Its slots are counted with that group.
  bool HasHeir(const GroupKey& key) {
    return std::any_of(core_->groups().begin(), core_->groups().end(), [&](const auto& entry) {
      return entry.first.job == key.job && entry.second.in_place.from == key.generation &&
             entry.second.holds_slots();
    });
  }
  // In a generation that runs no rank waits to be told of it, however long ago it was lost.
  void CheckThatNoneWaits() {
    for (int i = 0; i < 30 && !::testing::Test::HasFailure(); ++i) {
      Advance(500ms);
      ShimsStep();
      while (!queue_.empty()) DeliverOne();
    }
    for (const auto& [key, group] : core_->groups()) {
      const bool waits = group.in_place.retiring.has_value();
      EXPECT_FALSE(waits) << "ranks retire for ever";
      if (group.phase != Phase::kRunning) continue;
      for (const Rank& rank : node_.directories.at(key).shim->ranks)
        EXPECT_TRUE(!rank.alive || !rank.able || rank.generation == key.generation)
            << "a kept rank waits for ever";
    }
  }

  Rng rng_;
  Instant now_ = At(0s);
  Node node_;
  std::optional<Core> core_;
  std::deque<Event> queue_;
  // Of this life of the agent: deadlines that it ordered, stores that it closed, how often in a row
  // nothing was left to kill.
  std::map<GroupKey, Instant> stops_;
  std::set<GroupKey> closed_;
  std::map<GroupKey, int> clean_rounds_;
  std::vector<Order> said_;  // In this session.
  bool attached_ = false;
  bool faults_ = true;
  ClusterId cluster_;
  Epoch epoch_;
  std::uint64_t next_order_ = 1;
  std::map<Generation, GroupReport> coordinator_[2];
  Generation highest_[2];
  bool in_place_[2] = {false, false};  // The last stop was.
  std::int64_t pid_ = 100;
};

TEST(AgentCoreRandom, NothingStartsTwiceAndNothingIsLeft) {
  const char* only = std::getenv("REGROUP_SEED");
  const std::uint64_t first = only != nullptr ? std::strtoull(only, nullptr, 10) : 1;
  const std::uint64_t count = only != nullptr ? 1 : 2500;
  std::size_t started = 0;
  int handed_over = 0;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    SCOPED_TRACE(::testing::Message() << "REGROUP_SEED=" << seed);
    World world(seed);
    world.Run(400);
    started += world.generations_started();
    handed_over += world.handed_over();
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_TRUE(only != nullptr || started > count)
      << started << " starts: lives too dull to show anything";
  EXPECT_TRUE(only != nullptr || handed_over > static_cast<int>(count) / 8)
      << handed_over << " shims were handed over";
}

}  // namespace
}  // namespace regroup::agent
