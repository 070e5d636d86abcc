// Seeded random lives of one node: orders in any sequence, ranks that exit when they like, sessions
// that break, and an agent that dies between any two actions. What must hold whatever happens is
// checked at every step; in the end all faults stop, everything is stopped and forgotten, and
// nothing may be left.

#include <gtest/gtest.h>

#include <cstdlib>
#include <deque>

#include "common/base/rng.h"
#include "tests/agent/core/driver.h"

namespace regroup::agent {
namespace {

using namespace regroup::agent::testing;

constexpr int kSlots = 3;

struct Rank {
  int starts = 0;
  bool alive = false;
  bool exited = false;
  Instant at{};
};
struct Shim {
  bool alive = true, ready = false, free = false, killed = false;
  bool started = false;       // Its mark.
  std::vector<Action> inbox;  // Sent by an agent, alive or dead; not read yet.
  std::vector<Rank> ranks;
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
    for (int round = 0; round < 200 && !Quiet(); ++round) SettleRound();
    EXPECT_TRUE(Quiet()) << node_.directories.size() << " directories, " << core_->groups().size()
                         << " groups left";
    EXPECT_EQ(node_.LiveRanks(), 0);
  }
  std::size_t generations_started() const { return node_.rank_starts.size(); }

 private:
  // ---- the agent

  void StartAgent() {
    Config config = ServiceConfig(kSlots);
    config.waits.warm_up = 100ms;
    config.cluster = cluster_;
    config.highest_epoch = epoch_;
    queue_.clear();
    stops_.clear();
    attached_ = false;
    core_.emplace(config, now_);
    Scanned scanned;
    for (const auto& [key, directory] : node_.directories)
      scanned.records.push_back(RecordOf(key, directory));
    Feed(scanned);
  }

  RunRecord RecordOf(const GroupKey& key, const Directory& directory) {
    RunRecord record;
    record.key = key;
    record.boot = BootId("boot");
    record.workers = directory.prepare.spec.workers;
    record.host_store = directory.prepare.host_store;
    record.store_alive = directory.store_alive;
    record.store = directory.store;
    if (!directory.shim) return record;
    const Shim& shim = *directory.shim;
    record.shim_alive = shim.alive;
    record.started = shim.started;
    record.empty = shim.free;
    record.killed = shim.killed;
    record.stop_deadline = shim.stop_deadline;
    for (std::size_t i = 0; i < shim.ranks.size(); ++i) {
      const int local = static_cast<int>(i);
      if (shim.ranks[i].starts > 0) record.starts.push_back({local, 100 + local, shim.ranks[i].at});
      if (shim.ranks[i].exited) record.exits.push_back(ExitOf(local, shim.ranks[i]));
    }
    return record;
  }
  static RankEnded ExitOf(int local_rank, const Rank& rank) {
    return {.local_rank = local_rank, .pid = 100 + local_rank, .at = rank.at};
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
  void Carry(const SpawnStore& a) {
    Directory& directory = node_.directories.at(a.key);
    directory.store = Address{"10.0.0.2", 4000};
    directory.store_alive = true;
    Later(StoreBound{a.key, *directory.store});
  }
  void Carry(const StartRanks& a) {
    ASSERT_GT(a.key.generation, StoppedUpTo(a.key.job)) << "a stopped generation was started";
    node_.directories.at(a.key).shim->inbox.push_back(a);
  }
  void Carry(const StopRanks& a) {
    const auto [earlier, first] = stops_.emplace(a.key, a.deadline);
    ASSERT_TRUE(first || a.deadline < earlier->second) << "a stop deadline moved later";
    earlier->second = a.deadline;
    node_.directories.at(a.key).shim->inbox.push_back(a);
  }
  void Carry(const SignalRank&) {}
  void Carry(const KillGroup& a) {
    Shim& shim = *node_.directories.at(a.key).shim;
    ASSERT_FALSE(shim.alive);
    for (Rank& rank : shim.ranks) rank.alive = false;
    shim.killed = true;
    Later(GroupEmpty{a.key});
  }
  void Carry(const KillShim& a) {
    Shim& shim = *node_.directories.at(a.key).shim;
    if (!std::exchange(shim.alive, false)) return;
    for (Rank& rank : shim.ranks) rank.alive = false;  // PDEATHSIG.
    Later(ShimGone{a.key});
  }
  void Carry(const CloseStore& a) { node_.directories.at(a.key).store_alive = false; }
  void Carry(const RemoveRunDirectory& a) {
    ASSERT_TRUE(node_.directories.contains(a.key));
    if (node_.directories[a.key].shim) {
      for (const Rank& rank : node_.directories[a.key].shim->ranks)
        ASSERT_FALSE(rank.alive) << "a live rank lost its record";
    }
    node_.directories.erase(a.key);
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
    coordinator_[report.job == kJobs[0] ? 0 : 1][report.generation] = report;
    highest_[report.job == kJobs[0] ? 0 : 1] =
        std::max(highest_[report.job == kJobs[0] ? 0 : 1], report.generation);
  }
  Generation& StoppedUpTo(const JobId& job) { return node_.stopped_up_to[job == kJobs[0] ? 0 : 1]; }

  // ---- shims

  void ShimStep(const GroupKey& key, Directory& directory) {
    Shim& shim = *directory.shim;
    if (!shim.alive || shim.free) return;
    if (!shim.ready) {
      shim.ready = true;
      Later(ShimReady{key, Address{"10.0.0.2", 5000}});
    }
    for (const Action& action : std::exchange(shim.inbox, {})) {
      if (const auto* stop = std::get_if<StopRanks>(&action)) {
        // Of two agents' lives the earlier deadline counts.
        shim.stop_deadline = std::min(stop->deadline, shim.stop_deadline.value_or(stop->deadline));
      } else if (!shim.started && !shim.stop_deadline) {
        shim.started = true;
        RanksStarted started{key, {}};
        for (std::size_t i = 0; i < shim.ranks.size(); ++i) {
          shim.ranks[i] = {1, true, false, now_};
          started.starts.push_back({static_cast<int>(i), 100 + static_cast<int>(i), now_});
        }
        EXPECT_EQ(++node_.rank_starts[key], 1) << "a generation was started twice";
        Later(started);
      }
    }
    const bool dying =
        shim.stop_deadline && (rng_.Below(3) == 0 || now_ >= *shim.stop_deadline || !faults_);
    bool any = false;
    for (std::size_t i = 0; i < shim.ranks.size(); ++i) {
      Rank& rank = shim.ranks[i];
      if (rank.alive && (dying || (faults_ && rng_.Below(30) == 0))) {
        rank.alive = false;
        rank.exited = true;
        rank.at = now_;
        Later(RankExited{key, ExitOf(static_cast<int>(i), rank)});
      }
      any |= rank.alive;
    }
    if (!any && (shim.stop_deadline || shim.started)) {
      shim.free = true;
      shim.alive = false;
      Later(GroupEmpty{key});
      Later(ShimGone{key});
    } else if (faults_ && rng_.Below(150) == 0) {  // SIGKILLed; PDEATHSIG takes its ranks.
      shim.alive = false;
      for (Rank& rank : shim.ranks) rank.alive = false;
      if (shim.ready) {
        Later(ShimGone{key});
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
    const std::uint64_t pick = rng_.Below(10);
    // Stops are cumulative: every later order repeats the last one.
    const Generation stopped = StoppedUpTo(kJobs[which]);
    if (stopped > Generation()) order.stop = Stop{stopped, 10s, StopReason::kElective};
    if (pick < 4) {
      Prepare prepare;
      prepare.generation = highest_[which] = highest_[which].Next();
      prepare.spec.workers = 1 + static_cast<int>(rng_.Below(kSlots));
      prepare.host_store = rng_.Below(2) == 0;
      if (prepare.generation.value() % 5 < 2) prepare.spec.job.warm.emplace();
      order.prepare = prepare;
      if (rng_.Below(2) == 0) order.stop = StopAll(which, newest);
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
      if (rng_.Below(2) == 0) order.forget = Forget{newest};
    }
    Feed(Ordered{order});
  }
  Stop StopAll(int which, Generation up_to) {
    StoppedUpTo(kJobs[which]) = std::max(StoppedUpTo(kJobs[which]), up_to);
    return {up_to, std::chrono::milliseconds(rng_.Below(3000)), StopReason::kFailure};
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
      case 3: RandomOrder(); break;
      case 4:
      case 5:
        for (auto& [key, directory] : node_.directories) {
          if (directory.shim) ShimStep(key, directory);
        }
        break;
      default: DeliverOne();
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
    for (auto& [key, directory] : node_.directories) {
      if (directory.shim) ShimStep(key, directory);
    }
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
      if (group.holds_slots()) slots += group.workers;
      EXPECT_FALSE(group.phase == Phase::kRunning &&
                   static_cast<int>(group.ranks.starts.size()) < group.workers);
    }
    EXPECT_LE(slots, kSlots);
  }

  Rng rng_;
  Instant now_ = At(0s);
  Node node_;
  std::optional<Core> core_;
  std::deque<Event> queue_;
  std::map<GroupKey, Instant> stops_;  // Deadlines ordered in this life of the agent.
  bool attached_ = false;
  bool faults_ = true;
  ClusterId cluster_;
  Epoch epoch_;
  std::uint64_t next_order_ = 1;
  std::map<Generation, GroupReport> coordinator_[2];
  Generation highest_[2];
};

TEST(AgentCoreRandom, NothingStartsTwiceAndNothingIsLeft) {
  const char* only = std::getenv("REGROUP_SEED");
  const std::uint64_t first = only != nullptr ? std::strtoull(only, nullptr, 10) : 1;
  const std::uint64_t count = only != nullptr ? 1 : 2500;
  std::size_t started = 0;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    SCOPED_TRACE(::testing::Message() << "REGROUP_SEED=" << seed);
    World world(seed);
    world.Run(400);
    started += world.generations_started();
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_TRUE(only != nullptr || started > count)
      << started << " starts: lives too dull to show anything";
}

}  // namespace
}  // namespace regroup::agent
