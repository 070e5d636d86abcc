// Seeded random lives of one node: orders in any sequence, ranks that exit when they like, sessions
// that break, and an agent that dies between any two actions. What must hold whatever happens is
// checked at every step; in the end all faults stop, everything is stopped and forgotten, and
// nothing may be left.
//
// REGROUP_AGENT_LIVES=N: N lives in place of the default.
// REGROUP_SEED=N: only that life, with all that its agent heard and ordered.

#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <set>
#include <utility>
#include <vector>

#include "tests/agent/core/driver.h"
#include "tests/agent/core/random_host.h"
#include "tests/agent/promises/promises.h"
#include "tests/sim/text.h"

namespace regroup::agent {
namespace {

using namespace regroup::agent::testing;

constexpr Duration kAdopt = 500ms;

const JobId kJobs[2] = {JobId("a-1"), JobId("b-1")};

class World : private RandomHost {
 public:
  explicit World(std::uint64_t seed) : RandomHost(seed), launched_(seed % 4 == 0) { StartAgent(); }

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
    Config config = launched_ ? LaunchedConfig(kSlots) : ServiceConfig(kSlots);
    config.grace = 1500ms;
    config.waits.warm_up = 100ms;
    config.waits.adopt = kAdopt;
    config.waits.nursery = 300ms;
    config.waits.redial = 300ms;
    config.cluster = cluster_;
    config.highest_epoch = epoch_;
    stops_.clear();
    attached_ = left_ = false;
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
    promises_.emplace(config);
    Scanned scanned;
    for (const auto& [key, directory] : node_.directories) {
      scanned.records.push_back(RecordOf(key, directory));
      scanned.records.back().shim_alive = directory.shim && directory.shim->alive;  // Its lock.
    }
    Feed(scanned);
  }

  void Feed(const Event& event) {
    const Effects effects = Step(event);
    for (const Action& action : effects.actions) {
      if (faults_ && rng_.Below(60) == 0) {  // Killed between two actions.
        StartAgent();
        return;
      }
      std::visit([this](const auto& a) { Carry(a); }, action);
    }
    if (left_) return StartAgent();  // Somebody types the command again.
    Check();
  }
  Effects Step(const Event& event) {
    Effects effects = core_->Step(now_, event);
    if (std::getenv("REGROUP_SEED") != nullptr) Show(event, effects);
    promises_->Check(now_, event, effects, *core_);
    for (const std::string& broken : std::exchange(promises_->broken, {})) ADD_FAILURE() << broken;
    return effects;
  }

  void Show(const Event& event, const Effects& effects) const {
    const auto show = [&](const char* lead, const auto& what) {
      std::string line = std::to_string(Seconds(now_ - At(0s))) + lead;
      std::visit([&](const auto& value) { sim::Write(line, value); }, what);
      std::fprintf(stderr, "%s\n", line.c_str());
    };
    if (!std::holds_alternative<Tick>(event)) show(" hears ", event);
    for (const Action& action : effects.actions) show("   orders ", action);
  }

  void Later(Event event) override { queue_.push_back(std::move(event)); }

  // ---- carrying out

  void Carry(const WriteRunDirectory& a) {
    ASSERT_FALSE(node_.directories.contains(a.key));
    node_.directories[a.key].prepare = a.prepare;
    node_.directories[a.key].slots = a.slots;
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
    directory.shim->checking = directory.prepare.spec.job.node_check.wanted();
  }
  void Carry(const HandOver& a) {
    ASSERT_TRUE(node_.directories.contains(a.to)) << "its record comes first";
    ASSERT_FALSE(node_.directories[a.to].shim);
    Shim& shim = *node_.directories.at(a.from).shim;
    if (shim.alive && !shim.free) {
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
                          IsAsked(other) || other.generation > StoppedUpTo(a.key.job);
      for (const Rank& rank : directory.shim->ranks)
        EXPECT_FALSE(rank.alive && rank.told && !theirs)
            << "ranks that have retired live beside a newer generation";
    }
    Shim& shim = *node_.directories.at(a.key).shim;
    for (const int local_rank : a.kept)
      EXPECT_FALSE(shim.ranks.at(local_rank).gone_on_without) << "a rank that ends is kept";
    shim.inbox.push_back(a);
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
    ASSERT_FALSE(rank.signalled);
    ASSERT_EQ(rank.generation, a.key.generation) << "told by a generation that it is not of";
    rank.retire = rank.told = true;
  }
  void Carry(const SignalRank& a) {
    node_.directories.at(a.key).signalled.insert(a.local_rank);
    Rank& rank = node_.directories.at(a.key).shim->ranks.at(a.local_rank);
    rank.signalled = true;
    rank.gone_on_without |= core_->groups().at(a.key).in_place.retiring.has_value();
  }
  void Carry(const KillGroup& a) {
    Shim& shim = *node_.directories.at(a.key).shim;
    ASSERT_FALSE(shim.alive);
    Directory& directory = node_.directories.at(a.key);
    const bool none = !directory.strays;
    directory.clean_rounds = none ? directory.clean_rounds + 1 : 0;
    // One that is killed, or was not seen yet, may have started another one.
    directory.strays =
        directory.had_strays && faults_ && directory.clean_rounds < 2 && rng_.Below(4) == 0;
    Later(LeftoversKilled{a.key, none});
  }
  void Carry(const MarkKilled& a) { node_.directories.at(a.key).shim->killed = true; }
  void Carry(const ShowLateOutput&) {}
  void Carry(const KillShim& a) {
    Shim& shim = *node_.directories.at(a.key).shim;
    if (!shim.alive) return;
    LoseShim(node_.directories.at(a.key));
    See(a.key);
  }
  void Carry(const ReleaseShim& a) {
    Shim& shim = *node_.directories.at(a.key).shim;
    for (const Rank& rank : shim.ranks) ASSERT_FALSE(rank.alive) << "a shim with ranks released";
    if (shim.alive && shim.free) EndFreeShim(a.key, shim);
  }
  void Carry(const CloseStore& a) {
    node_.directories.at(a.key).store_alive = false;
    node_.directories.at(a.key).store_closed = true;
  }
  void Carry(const RemoveRunDirectory& a) {
    ASSERT_TRUE(node_.directories.contains(a.key));
    ASSERT_FALSE(node_.directories[a.key].strays) << "what a lost shim had started lost its record";
    if (node_.directories[a.key].shim) {
      for (const Rank& rank : node_.directories[a.key].shim->ranks)
        ASSERT_FALSE(rank.alive) << "a live rank lost its record";
    }
    node_.directories.erase(a.key);
  }
  void Carry(const SendHello& a) {
    for (auto& known : coordinator_) known.clear();
    for (const GroupReport& report : a.hello.groups) Learn(report);
    const bool older = faults_ && epoch_ > Epoch(1) && rng_.Below(15) == 0;
    Later(Welcomed{{.cluster = ClusterId("c"),
                    .epoch = older ? Epoch(epoch_.value() - 1) : epoch_.Next(),
                    .name = "a",
                    .version = {},
                    .heartbeat = 1s,
                    .lease = 5s}});
    attached_ = true;
    next_order_ = 1;
    said_.clear();
  }
  void Carry(const RememberCoordinator& a) {
    ASSERT_TRUE(launched_ || a.epoch >= epoch_);
    cluster_ = a.cluster;
    epoch_ = a.epoch;
  }
  void Carry(const RefuseCoordinator&) { attached_ = false; }
  void Carry(const BreakSession&) { attached_ = false; }
  void Carry(const Leave&) { left_ = true; }
  // Sometimes an answer to what was asked in an earlier session comes first.
  void Carry(const SendCommit& a) {
    CommitAnswer answer;
    answer.job = a.request.job;
    answer.generation = a.request.generation;
    answer.step = a.request.step;
    answer.attempt = a.request.attempt - 1;
    if (faults_ && rng_.Below(4) == 0) Later(CommitAnswered{answer});
    answer.attempt = a.request.attempt;
    Later(CommitAnswered{answer});
  }
  void Carry(const SendReport& a) {
    ASSERT_TRUE(attached_);
    Learn(a.report);
    if (!faults_ || rng_.Below(2) == 0) Later(ReportAcked{a.report.number});
  }
  template <class Other>
  void Carry(const Other&) {}

  void Learn(const GroupReport& report) {
    const Directory* directory = nullptr;
    if (const auto found = node_.directories.find({report.job, report.generation});
        found != node_.directories.end())
      directory = &found->second;
    EXPECT_FALSE(report.store && directory != nullptr && directory->store_closed)
        << "somebody may be sent to a store that is closed";
    EXPECT_TRUE(report.phase != Phase::kPrepared || directory == nullptr || directory->checked ||
                !directory->prepare.spec.job.node_check.wanted())
        << "what is being checked is said to be prepared";
    coordinator_[report.job == kJobs[0] ? 0 : 1][report.generation] = report;
    highest_[report.job == kJobs[0] ? 0 : 1] =
        std::max(highest_[report.job == kJobs[0] ? 0 : 1], report.generation);
  }
  Generation& StoppedUpTo(const JobId& job) { return node_.stopped_up_to[job == kJobs[0] ? 0 : 1]; }

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
      // Some numbers are left out, and asked for when a later one has been.
      if (rng_.Below(8) == 0) skipped_[which] = highest_[which] = highest_[which].Next();
      prepare.generation = highest_[which] = highest_[which].Next();
      prepare.spec.workers = 1 + static_cast<int>(rng_.Below(kSlots));
      const auto last = core_->groups().find({kJobs[which], newest});
      if (last != core_->groups().end() && last->second.workers > 0 && rng_.Below(4) != 0)
        prepare.spec.workers = last->second.workers;
      prepare.host_store = rng_.Below(2) == 0;
      if (prepare.generation.value() % 5 < 2) prepare.spec.job.warm.emplace();
      if (prepare.generation.value() % 7 < 2) prepare.spec.job.node_check.command = "check";
      const auto later = core_->groups().lower_bound({kJobs[which], skipped_[which]});
      if (faults_ && skipped_[which] > Generation() && later != core_->groups().end() &&
          later->first.job == kJobs[which] && rng_.Below(8) == 0)
        prepare.generation = std::exchange(skipped_[which], Generation());
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
      // Of a growth, whose newcomers are ready: what was before it.
      const bool grows = now == Phase::kPrepared && known.size() > 1;
      order.stop = StopAll(which, grows ? std::next(known.rbegin())->first : newest);
      // Nobody would stop what has retired, were its job forgotten here.
      if (!order.stop->in_place && rng_.Below(2) == 0) order.forget = Forget{newest};
    }
    if (faults_ && now == Phase::kRunning && rng_.Below(8) == 0)
      order.notice = WorkerNotice{newest, 2s};
    said_.push_back(order);
    Feed(Ordered{order});
  }
  // One that a newer one has overtaken has nothing to add.
  void OldOrder() {
    if (said_.size() < 2 || !core_->attached()) return;
    for (const Action& action : Step(Ordered{said_[rng_.Below(said_.size() - 1)]}).actions) {
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
  void RandomStep() {
    Advance(std::chrono::milliseconds(rng_.Below(200)));
    if (launched_ && rng_.Below(60) == 0) {  // Under `timeout` it arrives twice.
      Feed(SignalCaught{SIGINT});
      Advance(std::chrono::milliseconds(rng_.Below(2)));
      Feed(SignalCaught{SIGINT});
    }
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
      case 5:
        ShimsStep();
        if (std::exchange(takes_agent_along_, false)) StartAgent();
        break;
      default:
        for (int i = 0; i < 3; ++i) DeliverOne();
    }
  }
  void DeliverOne() {
    if (queue_.empty()) return;
    const Event event = std::move(queue_.front());
    queue_.pop_front();
    Feed(event);
    const bool again = faults_ && std::holds_alternative<LeftoversKilled>(event);
    if (again && rng_.Below(5) == 0) Feed(event);  // What is said twice is one thing.
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
    for (const auto& [key, directory] : node_.directories) {
      const auto group = core_->groups().find(key);
      EXPECT_TRUE(!directory.strays || group == core_->groups().end() ||
                  group->second.phase != Phase::kFree)
          << "what a lost shim had started lives in slots that are free";
    }
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
    for (int i = 0; i < 50 && !::testing::Test::HasFailure(); ++i) {
      Advance(500ms);
      ShimsStep();
      while (!queue_.empty()) DeliverOne();
    }
    if (::testing::Test::HasFailure()) return;
    for (const auto& [key, group] : core_->groups()) {
      const bool waits = group.in_place.retiring.has_value();
      EXPECT_FALSE(waits) << "ranks retire for ever";
      const bool prepares = group.phase == Phase::kPreparing;
      EXPECT_TRUE(!prepares || IsWedged(key) ||
                  IsWedged({key.job, group.in_place.from.value_or(key.generation)}))
          << "what is asked for is neither done nor refused";
      if (group.phase != Phase::kRunning || IsWedged(key)) continue;
      for (const Rank& rank : node_.directories.at(key).shim->ranks)
        EXPECT_TRUE(!rank.alive || !rank.able || rank.generation == key.generation)
            << "a kept rank waits for ever";
    }
  }

  std::optional<Core> core_;
  std::deque<Event> queue_;
  std::map<GroupKey, Instant> stops_;  // Deadlines that this life of the agent ordered.
  std::optional<Promises> promises_;   // Of it.
  std::vector<Order> said_;            // In this session.
  bool attached_ = false;
  bool left_ = false;
  const bool launched_;
  Generation skipped_[2];
  ClusterId cluster_;
  Epoch epoch_;
  std::uint64_t next_order_ = 1;
  std::map<Generation, GroupReport> coordinator_[2];
  Generation highest_[2];
  bool in_place_[2] = {false, false};  // The last stop was.
};

TEST(AgentCoreRandom, NothingStartsTwiceAndNothingIsLeft) {
  const char* only = std::getenv("REGROUP_SEED");
  const std::uint64_t first = only != nullptr ? std::strtoull(only, nullptr, 10) : 1;
  const char* asked = std::getenv("REGROUP_AGENT_LIVES");
  const std::uint64_t lives = asked != nullptr ? std::strtoull(asked, nullptr, 10) : 2500;
  const std::uint64_t count = only != nullptr ? 1 : lives;
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
