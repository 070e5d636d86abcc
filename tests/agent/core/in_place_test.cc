#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "agent/core/core.h"
#include "tests/agent/core/driver.h"

namespace regroup::agent {
namespace {

using namespace regroup::agent::testing;

const GroupKey kOne = Key("a-1", 1), kTwo = Key("a-1", 2), kThree = Key("a-1", 3);
const Address kWitness{"10.0.0.2", 5000};

Phase PhaseOf(Driver& agent, const GroupKey& key) { return agent.core().groups().at(key).phase; }
const Group& GroupOf(Driver& agent, const GroupKey& key) { return agent.core().groups().at(key); }

void Greet(Driver& agent, const GroupKey& key, int local_rank, bool in_place = true) {
  agent.Do(WorkerSaid{key, local_rank, local_rank, WorkerHello{true, in_place}});
}
void SayRetired(Driver& agent, const GroupKey& key, int local_rank) {
  agent.Do(WorkerSaid{key, local_rank, local_rank, WorkerRetired{}});
}
void End(Driver& agent, const GroupKey& key, int local_rank, std::int64_t pid) {
  agent.Do(RankExited{key,
                      {.local_rank = local_rank,
                       .kind = ExitKind::kSignaled,
                       .code = 9,
                       .pid = pid,
                       .at = agent.now()}});
}
// Of whom the last step asked this.
template <class Asked>
std::vector<int> Ranks(Driver& agent) {
  std::vector<int> ranks;
  for (const Action& action : agent.effects().actions) {
    if (const auto* asked = std::get_if<Asked>(&action)) ranks.push_back(asked->local_rank);
  }
  return ranks;
}

// Generation 1 runs with two ranks that can retire, as local ranks 0 and 1 with pids 100 and 101.
Driver Running(int slots = 2) {
  Driver agent(ServiceConfig(slots));
  agent.Attach();
  BringUp(agent, 1, 2);
  Greet(agent, kOne, 0);
  Greet(agent, kOne, 1);
  return agent;
}
Driver Retired(int slots = 2) {
  Driver agent = Running(slots);
  agent.Do(Ordered{RetireOrder(3, 1)});
  SayRetired(agent, kOne, 0);
  SayRetired(agent, kOne, 1);
  return agent;
}
// Generation 2 is being prepared, and the shim of generation 1 was asked to take it.
Driver HandingOver(bool host_store = false) {
  Driver agent = Retired();
  agent.Do(Ordered{PrepareOrder(4, 2, 2, host_store)});
  agent.Do(RunDirectoryWritten{kTwo});
  return agent;
}
Driver HandedOver() {
  Driver agent = HandingOver();
  agent.Do(ShimReady{kTwo, kWitness});
  agent.Do(GroupEmpty{kOne});
  return agent;
}
Driver GoingOn() {
  Driver agent = HandedOver();
  agent.Do(Ordered{RunOrder(5, 2, 2)});
  agent.Do(RanksStarted{kTwo, {{0, 100, agent.now()}, {1, 101, agent.now()}}});
  return agent;
}

// ---- retiring -----------------------------------------------------------------------------------

TEST(InPlace, RanksAreToldToRetireAndThenTheirGroupIsRetired) {
  Driver agent = Running();
  agent.Do(Ordered{RetireOrder(3, 1, 2s)});
  EXPECT_THAT(Ranks<TellRetire>(agent), ::testing::ElementsAre(0, 1));
  EXPECT_EQ(agent.Last<TellRetire>()->left, 2s);
  EXPECT_EQ(agent.Last<SendReport>()->report.phase, Phase::kStopping);
  SayRetired(agent, kOne, 1);
  EXPECT_EQ(PhaseOf(agent, kOne), Phase::kStopping);
  SayRetired(agent, kOne, 0);
  EXPECT_EQ(agent.Last<SendReport>()->report.phase, Phase::kRetired);
  // The order stands in each later one, and nothing comes of it.
  agent.Do(Ordered{RetireOrder(4, 1, 0s)});
  agent.AdvanceTo(60s);
  EXPECT_EQ(PhaseOf(agent, kOne), Phase::kRetired);
  EXPECT_EQ(agent.CountEver<StopRanks>() + agent.CountEver<KillRank>(), 0);
}

// Also where there are slots for both: new processes would be started beside ranks that may stay.
TEST(InPlace, ANextGenerationWaitsForRanksThatStillRetire) {
  Driver agent = Running(4);
  agent.Do(Ordered{RetireOrder(3, 1)});
  SayRetired(agent, kOne, 0);
  agent.Do(Ordered{PrepareOrder(4, 2, 2)});
  EXPECT_EQ(agent.Last<WriteRunDirectory>(), nullptr);
  SayRetired(agent, kOne, 1);
  ASSERT_NE(agent.Last<WriteRunDirectory>(), nullptr);
  EXPECT_EQ(GroupOf(agent, kTwo).in_place.from, Generation(1));
}

TEST(InPlace, WhoCanRetireDoesAndTheOthersAreSignalled) {
  struct Row {
    const char* what;
    bool runs, first, second;  // Its ranks; whether each can retire.
    int ended;                 // So many of them.
    std::vector<int> told, signalled;
  };
  for (const Row& row : {Row{"both can", true, true, true, 0, {0, 1}, {}},
                         Row{"one cannot", true, true, false, 0, {0}, {1}},
                         Row{"the other one cannot", true, false, true, 0, {1}, {0}},
                         Row{"neither can", true, false, false, 0, {}, {}},
                         Row{"who cannot has ended", true, false, true, 1, {1}, {}},
                         Row{"who can has ended", true, true, false, 1, {}, {}},
                         Row{"all have ended", true, true, true, 2, {}, {}},
                         Row{"it is starting", false, true, true, 0, {}, {}}}) {
    Driver agent(ServiceConfig());
    agent.Attach();
    if (row.runs) {
      BringUp(agent, 1, 2);
    } else {
      agent.Do(Ordered{PrepareOrder(1, 1, 2)});
      agent.Do(RunDirectoryWritten{kOne});
      agent.Do(ShimReady{kOne, kWitness});
      agent.Do(Ordered{RunOrder(2, 1, 2)});
    }
    Greet(agent, kOne, 0, row.first);
    Greet(agent, kOne, 1, row.second);
    for (int i = 0; i < row.ended; ++i) End(agent, kOne, i, 100 + i);
    agent.Do(Ordered{RetireOrder(3, 1)});
    EXPECT_EQ(Ranks<TellRetire>(agent), row.told) << row.what;
    EXPECT_EQ(Ranks<SignalRank>(agent), row.signalled) << row.what;
    EXPECT_EQ(agent.Last<StopRanks>() == nullptr, !row.told.empty()) << row.what;
  }
}

TEST(InPlace, WhoWasSignalledIsReplaced) {
  Driver agent(ServiceConfig());
  agent.Attach();
  BringUp(agent, 1, 2);
  Greet(agent, kOne, 0);
  agent.Do(Ordered{RetireOrder(3, 1, 2s)});
  SayRetired(agent, kOne, 0);
  EXPECT_EQ(PhaseOf(agent, kOne), Phase::kStopping) << "the other one may be saving";
  Greet(agent, kOne, 1);  // It has come to its loop, and ends once it looks at its signal.
  EXPECT_THAT(Ranks<TellRetire>(agent), ::testing::IsEmpty());
  SayRetired(agent, kOne, 1);
  EXPECT_EQ(PhaseOf(agent, kOne), Phase::kStopping);
  agent.AdvanceTo(2s);
  EXPECT_EQ(agent.Last<KillRank>()->local_rank, 1);
  End(agent, kOne, 1, 101);
  EXPECT_EQ(PhaseOf(agent, kOne), Phase::kRetired);
  EXPECT_TRUE(agent.Last<SendReport>()->report.exits.at(0).after_stop);
}

TEST(InPlace, AnotherAgentKnowsThatRanksWereSignalled) {
  for (const bool ended_before : {false, true}) {
    RunRecord record = RunningRecord("a-1", 1, 2);
    record.signalled = {1};
    const RankEnded end{.local_rank = 1, .kind = ExitKind::kSignaled, .code = 15, .pid = 101};
    if (ended_before) record.exits.push_back(end);
    Driver agent(ServiceConfig(), {record});
    agent.Attach();
    if (!ended_before) agent.Do(RankExited{kOne, end});
    ASSERT_NE(agent.Last<SendReport>(), nullptr);
    ASSERT_EQ(agent.Last<SendReport>()->report.exits.size(), 1u);
    EXPECT_TRUE(agent.Last<SendReport>()->report.exits[0].after_stop);
  }
}

// Nothing else tells: its shim was told of no stop.
TEST(InPlace, AnotherAgentKnowsThatTheStoreWasClosed) {
  for (const bool closed : {false, true}) {
    RunRecord record = RunningRecord("a-1", 1, 2);
    record.store.hosted = true;
    record.store.address = Address{"10.0.0.2", 4000};
    record.store.closed = closed;
    Driver agent(ServiceConfig(), {record});
    EXPECT_EQ(GroupOf(agent, kOne).store.lost, !closed);
  }
}

TEST(InPlace, ARankWithoutAConnectionMayDialAgain) {
  Driver agent = Running();
  agent.Do(WorkerHungUp{kOne, 1});
  agent.Do(Ordered{RetireOrder(3, 1, 2s)});
  EXPECT_THAT(Ranks<TellRetire>(agent), ::testing::ElementsAre(0));
  EXPECT_EQ(
      agent.CountEver<SignalRank>() + agent.CountEver<KillRank>() + agent.CountEver<StopRanks>(),
      0);
  agent.AdvanceTo(900ms);
  Greet(agent, kOne, 1);
  EXPECT_THAT(Ranks<TellRetire>(agent), ::testing::ElementsAre(1));
  SayRetired(agent, kOne, 0);
  SayRetired(agent, kOne, 1);
  EXPECT_EQ(PhaseOf(agent, kOne), Phase::kRetired);
  agent.AdvanceTo(60s);
  EXPECT_EQ(
      agent.CountEver<SignalRank>() + agent.CountEver<KillRank>() + agent.CountEver<StopRanks>(),
      0);
}

TEST(InPlace, WhoHasNotTakenItsGenerationYetRetiresFromItToo) {
  Driver agent = GoingOn();
  Greet(agent, kTwo, 0);
  agent.Do(Ordered{RetireOrder(6, 2, 2s)});
  EXPECT_THAT(Ranks<TellRetire>(agent), ::testing::ElementsAre(0));
  SayRetired(agent, kTwo, 0);
  Greet(agent, kTwo, 1);
  EXPECT_THAT(Ranks<TellRetire>(agent), ::testing::ElementsAre(1));
  SayRetired(agent, kTwo, 1);
  EXPECT_EQ(PhaseOf(agent, kTwo), Phase::kRetired);
  EXPECT_EQ(
      agent.CountEver<SignalRank>() + agent.CountEver<KillRank>() + agent.CountEver<StopRanks>(),
      0);
}

TEST(InPlace, WhoDoesNotDialAgainIsSignalled) {
  struct Row {
    const char* what;
    Duration grace, at;
  };
  for (const Row& row :
       {Row{"at half of the stop", 1s, 500ms}, Row{"after three seconds", 30s, 3s}}) {
    Driver agent = Running();
    agent.Do(WorkerHungUp{kOne, 1});
    agent.Do(Ordered{RetireOrder(3, 1, row.grace)});
    agent.AdvanceTo(row.at - 1ms);
    EXPECT_EQ(agent.CountEver<SignalRank>(), 0) << row.what;
    agent.AdvanceTo(row.at);
    EXPECT_THAT(Ranks<SignalRank>(agent), ::testing::ElementsAre(1)) << row.what;
    Greet(agent, kOne, 1);
    EXPECT_THAT(Ranks<TellRetire>(agent), ::testing::IsEmpty()) << row.what;
    EXPECT_EQ(agent.CountEver<StopRanks>(), 0) << row.what;
  }
}

TEST(InPlace, WhereNobodyDialsAgainTheGroupIsStopped) {
  Driver agent = Running();
  agent.Do(WorkerHungUp{kOne, 0});
  agent.Do(WorkerHungUp{kOne, 1});
  agent.Do(Ordered{RetireOrder(3, 1, 2s)});
  agent.AdvanceTo(1s);
  EXPECT_EQ(agent.CountEver<KillRank>(), 0);
  ASSERT_NE(agent.Last<StopRanks>(), nullptr);
  EXPECT_EQ(agent.Last<StopRanks>()->deadline, At(2s));
}

TEST(InPlace, TheStoreIsClosedAsForAnyStopThatBreaks) {
  Driver agent(ServiceConfig());
  agent.Attach();
  agent.Do(Ordered{PrepareOrder(1, 1, 1, /*host_store=*/true)});
  agent.Do(RunDirectoryWritten{kOne});
  agent.Do(ShimReady{kOne, kWitness});
  agent.Do(StoreBound{kOne, {"10.0.0.2", 4000}});
  agent.Do(Ordered{RunOrder(2, 1)});
  agent.Do(RanksStarted{kOne, {{0, 100, agent.now()}}});
  Greet(agent, kOne, 0);
  agent.Do(Ordered{RetireOrder(3, 1)});
  EXPECT_NE(agent.Last<CloseStore>(), nullptr);
  EXPECT_EQ(agent.CountEver<StopRanks>(), 0);
}

TEST(InPlace, WhoSaysHelloAnewIsToldAgain) {
  Driver agent = Running();
  agent.Do(Ordered{RetireOrder(3, 1, 2s)});
  SayRetired(agent, kOne, 0);
  agent.AdvanceTo(500ms);
  agent.Do(WorkerHungUp{kOne, 1});
  Greet(agent, kOne, 1);
  EXPECT_THAT(Ranks<TellRetire>(agent), ::testing::ElementsAre(1));
  EXPECT_EQ(agent.Last<TellRetire>()->left, 1500ms);
  Greet(agent, kOne, 0);
  EXPECT_THAT(Ranks<TellRetire>(agent), ::testing::IsEmpty()) << "it has said so";
}

TEST(InPlace, WhoHasNotRetiredByTheDeadlineIsKilled) {
  Driver agent = Running();
  agent.Do(Ordered{RetireOrder(3, 1, 2s)});
  SayRetired(agent, kOne, 0);
  agent.Do(Ordered{RetireOrder(4, 1, 30s)});  // Never later.
  agent.AdvanceTo(1999ms);
  EXPECT_EQ(agent.CountEver<KillRank>(), 0);
  agent.AdvanceTo(2s);
  ASSERT_EQ(agent.CountEver<KillRank>(), 1);
  EXPECT_EQ(agent.Last<KillRank>()->local_rank, 1);
  EXPECT_EQ(PhaseOf(agent, kOne), Phase::kStopping);
  End(agent, kOne, 1, 101);
  EXPECT_EQ(agent.Last<SendReport>()->report.phase, Phase::kRetired);
  EXPECT_TRUE(agent.Last<SendReport>()->report.exits.at(0).after_stop);
  agent.AdvanceTo(60s);
  EXPECT_EQ(PhaseOf(agent, kOne), Phase::kRetired);
}

TEST(InPlace, WhoCannotRetireIsReplaced) {
  Driver agent = Running();
  agent.Do(Ordered{RetireOrder(3, 1)});
  agent.Do(WorkerSaid{kOne, 0, 0, WorkerCannotGoOn{"a kernel hangs"}});
  ASSERT_NE(agent.Last<KillRank>(), nullptr);
  EXPECT_EQ(agent.Last<KillRank>()->local_rank, 0);
  SayRetired(agent, kOne, 1);
  EXPECT_EQ(PhaseOf(agent, kOne), Phase::kStopping) << "it is not gone yet";
  End(agent, kOne, 0, 100);
  EXPECT_EQ(PhaseOf(agent, kOne), Phase::kRetired);
}

TEST(InPlace, AGroupInWhichNoRankRetiresIsStopped) {
  Driver agent = Running();
  agent.Do(Ordered{RetireOrder(3, 1)});
  End(agent, kOne, 0, 100);
  End(agent, kOne, 1, 101);
  ASSERT_NE(agent.Last<StopRanks>(), nullptr) << "what they have started may live";
  EXPECT_EQ(agent.Last<StopRanks>()->deadline, agent.now());
  agent.Do(GroupEmpty{kOne});
  EXPECT_EQ(PhaseOf(agent, kOne), Phase::kFree);
}

TEST(InPlace, AKilledRankThatIsNotGoneEndsTheWholeGroup) {
  Driver agent = Running();
  agent.Do(Ordered{RetireOrder(3, 1, 2s)});
  SayRetired(agent, kOne, 0);
  agent.AdvanceTo(3999ms);
  EXPECT_EQ(agent.CountEver<StopRanks>(), 0);
  agent.AdvanceTo(4s);
  EXPECT_EQ(agent.CountEver<StopRanks>(), 1);
  agent.AdvanceTo(6s);
  EXPECT_EQ(agent.CountEver<KillShim>(), 1) << "its shim hangs";
}

TEST(InPlace, AStopThatIsNotInPlaceEndsWhatHasRetiredOrDoes) {
  for (const bool retired : {false, true}) {
    Driver agent = retired ? Retired() : Running();
    agent.Do(Ordered{RetireOrder(4, 1, 1s)});
    agent.Do(Ordered{StopOrder(5, 1, 5s)});
    ASSERT_NE(agent.Last<StopRanks>(), nullptr);
    EXPECT_EQ(agent.Last<StopRanks>()->deadline, At(5s));
    EXPECT_EQ(PhaseOf(agent, kOne), Phase::kStopping);
    agent.Do(Ordered{RetireOrder(6, 1, 4s)});
    SayRetired(agent, kOne, 0);
    SayRetired(agent, kOne, 1);
    EXPECT_EQ(PhaseOf(agent, kOne), Phase::kStopping) << "it is not undone";
    agent.AdvanceTo(3s);
    EXPECT_EQ(agent.CountEver<KillRank>(), 0);
    agent.Do(GroupEmpty{kOne});
    EXPECT_EQ(PhaseOf(agent, kOne), Phase::kFree);
  }
}

TEST(InPlace, TheLastRetiredRankTakesItsGroupAlong) {
  Driver agent = Retired();
  End(agent, kOne, 0, 100);
  EXPECT_EQ(PhaseOf(agent, kOne), Phase::kRetired);
  EXPECT_TRUE(agent.Last<SendReport>()->report.exits.at(0).after_stop);
  End(agent, kOne, 1, 101);
  ASSERT_NE(agent.Last<StopRanks>(), nullptr);
  EXPECT_EQ(agent.Last<StopRanks>()->deadline, agent.now());
}

TEST(InPlace, AShimThatIsLostTakesItsRetiredRanksAlong) {
  Driver agent = Retired();
  agent.Do(ShimGone{kOne});
  EXPECT_NE(agent.Last<KillGroup>(), nullptr);
  EXPECT_TRUE(agent.Last<SendReport>()->report.supervisor_lost);
  agent.Do(GroupEmpty{kOne});
  EXPECT_EQ(PhaseOf(agent, kOne), Phase::kFree);
}

TEST(InPlace, ANodeThatLeavesEndsWhatHasRetired) {
  Driver agent = Retired();
  agent.Do(CoordinatorAway{});
  EXPECT_EQ(PhaseOf(agent, kOne), Phase::kRetired) << "its coordinator may come back";
  Driver other(LaunchedConfig());
  other.Attach();
  BringUp(other, 1, 1);
  Greet(other, kOne, 0);
  other.Do(Ordered{RetireOrder(3, 1)});
  SayRetired(other, kOne, 0);
  other.Do(SignalCaught{15});
  EXPECT_EQ(other.Last<Leave>(), nullptr) << "its ranks live";
  other.Do(CoordinatorAway{});
  EXPECT_NE(other.Last<StopRanks>(), nullptr);
}

// ---- going on -----------------------------------------------------------------------------------

TEST(InPlace, TheNextGenerationGetsTheShimAndTheRanks) {
  Driver agent = Retired();
  agent.Do(Ordered{PrepareOrder(4, 2, 2, /*host_store=*/true)});
  EXPECT_NE(agent.Last<WriteRunDirectory>(), nullptr);
  agent.Do(RunDirectoryWritten{kTwo});
  ASSERT_NE(agent.Last<HandOver>(), nullptr);
  EXPECT_EQ(agent.Last<HandOver>()->from, kOne);
  EXPECT_EQ(agent.Last<HandOver>()->to, kTwo);
  agent.Do(ShimReady{kTwo, kWitness});
  EXPECT_NE(agent.Last<SpawnStore>(), nullptr);
  agent.Do(GroupEmpty{kOne});
  EXPECT_EQ(agent.Last<SendReport>()->report.phase, Phase::kFree);
  agent.Do(ReportAcked{agent.Last<SendReport>()->report.number});
  agent.Do(StoreBound{kTwo, {"10.0.0.2", 4000}});
  EXPECT_EQ(agent.Last<SendReport>()->report.phase, Phase::kPrepared);
  EXPECT_TRUE(agent.Last<SendReport>()->report.started.empty());
  agent.Do(Ordered{RunOrder(5, 2, 2)});
  ASSERT_NE(agent.Last<StartRanks>(), nullptr);
  EXPECT_EQ(agent.Last<StartRanks>()->kept, (std::set<int>{0, 1}));
  agent.Do(RanksStarted{kTwo, {{0, 100, agent.now()}, {1, 101, agent.now()}}});
  EXPECT_EQ(PhaseOf(agent, kTwo), Phase::kRunning) << "before any hello";
  EXPECT_EQ(agent.CountEver<SpawnShim>(), 1);
  EXPECT_EQ(agent.CountEver<ReleaseShim>(), 0) << "the shim is that of generation 2";
  EXPECT_EQ(agent.CountEver<StopRanks>(), 0);
}

TEST(InPlace, AnEndedRankIsStartedBesideTheKeptOnes) {
  Driver agent = Retired();
  End(agent, kOne, 0, 100);
  agent.Do(Ordered{PrepareOrder(4, 2, 2)});
  agent.Do(RunDirectoryWritten{kTwo});
  agent.Do(ShimReady{kTwo, kWitness});
  agent.Do(Ordered{RunOrder(5, 2, 2)});
  EXPECT_EQ(agent.Last<StartRanks>()->kept, (std::set<int>{1}));
  EXPECT_EQ(PhaseOf(agent, kTwo), Phase::kStarting);
  agent.Do(RanksStarted{kTwo, {{0, 200, agent.now()}, {1, 101, agent.now()}}});
  EXPECT_EQ(agent.Last<SendReport>()->report.phase, Phase::kRunning);
  EXPECT_EQ(agent.Last<SendReport>()->report.started.at(0).pid, 200);
}

TEST(InPlace, ARankThatEndsWhileItsShimIsHandedOverIsNotKept) {
  Driver agent = HandingOver();
  End(agent, kOne, 0, 100);
  agent.Do(ShimReady{kTwo, kWitness});
  agent.Do(GroupEmpty{kOne});
  agent.Do(Ordered{RunOrder(5, 2, 2)});
  EXPECT_EQ(agent.Last<StartRanks>()->kept, (std::set<int>{1}));
}

// The order that follows the forming of a generation stops all that were before it.
TEST(InPlace, AStopOfTheGroupThatWasHandedOverReachesNoShim) {
  Driver agent = HandingOver();
  agent.Do(ShimReady{kTwo, kWitness});
  agent.Do(Ordered{StopOrder(5, 1, 1s)});
  agent.AdvanceTo(4s);
  EXPECT_EQ(agent.CountEver<StopRanks>() + agent.CountEver<KillShim>(), 0);
  agent.Do(GroupEmpty{kOne});
  EXPECT_EQ(PhaseOf(agent, kOne), Phase::kFree);
  EXPECT_EQ(PhaseOf(agent, kTwo), Phase::kPrepared);
}

TEST(InPlace, APrepareWaitsForRanksThatRetire) {
  Driver agent = Running(/*slots=*/4);
  Order order = PrepareOrder(3, 2, 2);
  order.stop = RetireOrder(3, 1).stop;
  agent.Do(Ordered{order});
  EXPECT_EQ(agent.Last<WriteRunDirectory>(), nullptr) << "also where there are slots for both";
  SayRetired(agent, kOne, 0);
  SayRetired(agent, kOne, 1);
  EXPECT_NE(agent.Last<WriteRunDirectory>(), nullptr);
}

TEST(InPlace, AGenerationThatStartsBesideARetiredOneEndsIt) {
  Driver agent = Running(/*slots=*/4);
  agent.Do(Ordered{PrepareOrder(3, 2, 2)});  // It was not stopped yet.
  agent.Do(RunDirectoryWritten{kTwo});
  agent.Do(ShimReady{kTwo, kWitness});
  agent.Do(Ordered{RetireOrder(4, 1)});
  SayRetired(agent, kOne, 0);
  SayRetired(agent, kOne, 1);
  Order order = RunOrder(5, 2, 2);
  order.stop = RetireOrder(5, 1).stop;
  agent.Do(Ordered{order});
  ASSERT_NE(agent.Last<StopRanks>(), nullptr) << "it would wait for ever";
  EXPECT_EQ(agent.Last<StopRanks>()->key, kOne);
  EXPECT_NE(agent.Last<StartRanks>(), nullptr);
}

TEST(InPlace, AnotherNumberOfWorkersStartsAnew) {
  Driver agent = Retired();
  agent.Do(Ordered{PrepareOrder(4, 2, 1)});
  EXPECT_NE(agent.Last<StopRanks>(), nullptr);
  EXPECT_EQ(agent.Last<WriteRunDirectory>(), nullptr);
  agent.Do(GroupEmpty{kOne});
  EXPECT_NE(agent.Last<WriteRunDirectory>(), nullptr);
  agent.Do(RunDirectoryWritten{kTwo});
  EXPECT_NE(agent.Last<SpawnShim>(), nullptr);
}

TEST(InPlace, TheSlotsAreItsJobsAloneAndCountOnce) {
  Driver agent = Retired(/*slots=*/3);
  agent.Do(Ordered{PrepareOrder(4, 1, 2, false, "b-1")});
  EXPECT_THAT(agent.Last<SendReport>()->report.refused, ::testing::HasSubstr("2 of 3 slots"));
  agent.Do(Ordered{PrepareOrder(5, 2, 2)});
  agent.Do(Ordered{PrepareOrder(6, 1, 1, false, "c-1")});
  EXPECT_NE(agent.Last<WriteRunDirectory>(), nullptr) << "generations 1 and 2 hold two of three";
  agent.Do(Ordered{PrepareOrder(7, 1, 1, false, "d-1")});
  EXPECT_THAT(agent.Last<SendReport>()->report.refused, ::testing::HasSubstr("3 of 3 slots"));
}

TEST(InPlace, AKeptRankThatEndsBeforeItsGenerationBeginsIsNotKept) {
  Driver agent = HandedOver();
  agent.Do(RanksStarted{kTwo, {{0, 100, agent.now()}, {1, 101, agent.now()}}});
  EXPECT_EQ(PhaseOf(agent, kTwo), Phase::kPrepared) << "they live, which starts nothing";
  End(agent, kTwo, 0, 100);
  EXPECT_EQ(agent.Last<SendReport>(), nullptr) << "no end of generation 2, which has not begun";
  agent.Do(Ordered{RunOrder(5, 2, 2)});
  EXPECT_EQ(agent.Last<StartRanks>()->kept, (std::set<int>{1}));
}

TEST(InPlace, ANewProcessInThePlaceOfAKeptRankIsNotAwaited) {
  Driver agent = HandedOver();
  agent.Do(Ordered{RunOrder(5, 2, 2)});
  agent.Do(RanksStarted{kTwo, {{0, 200, agent.now()}, {1, 101, agent.now()}}});
  EXPECT_EQ(agent.Last<SendReport>()->report.started.at(0).pid, 200);
  Greet(agent, kTwo, 1);
  agent.AdvanceTo(60s);
  EXPECT_EQ(agent.CountEver<KillRank>(), 0);
}

TEST(InPlace, AKeptRankThatDoesNotTakeItsGenerationHasFailed) {
  Driver agent = GoingOn();
  Greet(agent, kTwo, 0);
  agent.AdvanceTo(9999ms);
  EXPECT_EQ(agent.CountEver<KillRank>(), 0);
  agent.AdvanceTo(10s);
  ASSERT_EQ(agent.CountEver<KillRank>(), 1);
  EXPECT_EQ(agent.Last<KillRank>()->local_rank, 1);
  End(agent, kTwo, 1, 101);
  const RankExit exit = agent.Last<SendReport>()->report.exits.at(0);
  EXPECT_FALSE(exit.after_stop);
  EXPECT_TRUE(exit.given_up);
  EXPECT_THAT(exit.error, ::testing::HasSubstr("within 10 s"));
  agent.Do(RankErrorRead{kTwo, 1, "Killed", ErrorEvidence::kErrorFile});
  EXPECT_EQ(agent.Last<SendReport>(), nullptr) << "it is known better";
  agent.AdvanceTo(60s);
  EXPECT_EQ(agent.CountEver<KillRank>(), 1);
}

TEST(InPlace, AKeptRankThatCannotGoOnHasFailed) {
  Driver agent = GoingOn();
  agent.Do(WorkerSaid{kTwo, 0, 0, WorkerCannotGoOn{"no such group"}});
  ASSERT_NE(agent.Last<KillRank>(), nullptr);
  End(agent, kTwo, 0, 100);
  const RankExit exit = agent.Last<SendReport>()->report.exits.at(0);
  EXPECT_FALSE(exit.after_stop);
  EXPECT_THAT(exit.error, ::testing::HasSubstr("no such group"));
}

TEST(InPlace, WhoWasKeptRetiresAgain) {
  Driver agent = GoingOn();
  Greet(agent, kTwo, 0);
  Greet(agent, kTwo, 1);
  agent.Do(Ordered{RetireOrder(6, 2)});
  SayRetired(agent, kTwo, 0);
  SayRetired(agent, kTwo, 1);
  agent.Do(Ordered{PrepareOrder(7, 3, 2)});
  agent.Do(RunDirectoryWritten{kThree});
  ASSERT_NE(agent.Last<HandOver>(), nullptr);
  EXPECT_EQ(agent.Last<HandOver>()->from, kTwo);
}

// ---- proposals that come to nothing -------------------------------------------------------------

TEST(InPlace, RanksOfAVoidedProposalHaveRetiredAlready) {
  Driver agent = HandedOver();
  agent.Do(Ordered{RetireOrder(5, 2)});
  EXPECT_EQ(agent.Last<SendReport>()->report.phase, Phase::kRetired);
  EXPECT_EQ(agent.Last<TellRetire>(), nullptr);
  agent.Do(Ordered{PrepareOrder(6, 3, 2)});
  agent.Do(RunDirectoryWritten{kThree});
  ASSERT_NE(agent.Last<HandOver>(), nullptr);
  EXPECT_EQ(agent.Last<HandOver>()->from, kTwo);
  agent.Do(ShimReady{kThree, kWitness});
  agent.Do(GroupEmpty{kTwo});
  agent.Do(Ordered{RunOrder(7, 3, 2)});
  EXPECT_EQ(agent.Last<StartRanks>()->kept, (std::set<int>{0, 1}));
  EXPECT_EQ(GroupOf(agent, kThree).ranks.kept.at(1).pid, 101);
  // Without kept ranks it is stopped as ever.
  Driver other(ServiceConfig());
  other.Attach();
  other.Do(Ordered{PrepareOrder(1, 1)});
  other.Do(RunDirectoryWritten{kOne});
  other.Do(ShimReady{kOne, kWitness});
  other.Do(Ordered{RetireOrder(2, 1)});
  EXPECT_NE(other.Last<StopRanks>(), nullptr);
}

TEST(InPlace, AVoidedProposalWaitsForTheAnswerOfItsShim) {
  {
    Driver agent = HandingOver(/*host_store=*/true);
    agent.Do(Ordered{RetireOrder(5, 2)});
    EXPECT_EQ(PhaseOf(agent, kTwo), Phase::kStopping);
    agent.Do(ShimReady{kTwo, kWitness});
    EXPECT_EQ(PhaseOf(agent, kTwo), Phase::kRetired);
    EXPECT_EQ(agent.CountEver<SpawnStore>(), 0);
  }
  {
    Driver agent = HandingOver();
    agent.Do(Ordered{RetireOrder(5, 2)});
    agent.Do(PrepareFailed{kTwo, "no"});
    EXPECT_EQ(PhaseOf(agent, kTwo), Phase::kFree);
    EXPECT_EQ(PhaseOf(agent, kOne), Phase::kRetired);
  }
  Driver agent = HandingOver();
  agent.Do(Ordered{RetireOrder(5, 2, 2s)});
  agent.AdvanceTo(6s);  // The deadline, for who would be killed, and for the shim.
  ASSERT_NE(agent.Last<KillShim>(), nullptr);
  EXPECT_EQ(agent.Last<KillShim>()->key, kOne) << "it has not taken generation 2";
  agent.Do(ShimGone{kOne});
  EXPECT_EQ(PhaseOf(agent, kTwo), Phase::kFree);
  agent.Do(GroupEmpty{kOne});
  EXPECT_EQ(PhaseOf(agent, kOne), Phase::kFree);
}

TEST(InPlace, AProposalThatIsVoidedBeforeItsDirectoryIsThereTakesNothing) {
  Driver agent = Retired();
  agent.Do(Ordered{PrepareOrder(4, 2, 2)});
  agent.Do(Ordered{RetireOrder(5, 2)});
  agent.Do(RunDirectoryWritten{kTwo});
  EXPECT_EQ(agent.Last<HandOver>(), nullptr);
  EXPECT_EQ(PhaseOf(agent, kTwo), Phase::kFree);
  EXPECT_EQ(PhaseOf(agent, kOne), Phase::kRetired);
}

TEST(InPlace, AShimThatCannotBeHandedOverKeepsItsRanksAndIsAskedOnce) {
  Driver agent = HandingOver();
  agent.Do(PrepareFailed{kTwo, "it does not know how"});
  EXPECT_EQ(agent.Last<SendReport>()->report.refused, "it does not know how");
  EXPECT_EQ(PhaseOf(agent, kTwo), Phase::kFree);
  EXPECT_EQ(PhaseOf(agent, kOne), Phase::kRetired);
  agent.Do(Ordered{PrepareOrder(5, 3, 2)});
  EXPECT_NE(agent.Last<StopRanks>(), nullptr) << "else this node could never prepare again";
  agent.Do(GroupEmpty{kOne});
  agent.Do(RunDirectoryWritten{kThree});
  EXPECT_NE(agent.Last<SpawnShim>(), nullptr);
}

TEST(InPlace, NothingIsPreparedBesideRanksThatWereNotHandedOver) {
  for (const bool killable : {true, false}) {
    Driver agent = Retired(/*slots=*/4);
    agent.Do(Ordered{PrepareOrder(4, 2, 2)});
    agent.Do(RunDirectoryWritten{kTwo});
    agent.Do(PrepareFailed{kTwo, "it does not know how"});
    const auto written = agent.CountEver<WriteRunDirectory>();
    agent.Do(Ordered{PrepareOrder(5, 3, 2)});
    EXPECT_NE(agent.Last<StopRanks>(), nullptr);
    agent.AdvanceTo(1s);
    EXPECT_EQ(agent.CountEver<WriteRunDirectory>(), written) << "though there are slots for both";
    if (killable) {
      agent.Do(GroupEmpty{kOne});
      EXPECT_EQ(agent.CountEver<WriteRunDirectory>(), written + 1);
    } else {
      agent.Do(GroupStuck{kOne});
      EXPECT_EQ(agent.CountEver<WriteRunDirectory>(), written);
      EXPECT_EQ(agent.Last<SendReport>()->report.refused, "ranks of an older generation live on");
    }
  }
}

TEST(InPlace, ADirectoryThatCannotBeWrittenSaysNothingOfTheShim) {
  Driver agent = Retired();
  agent.Do(Ordered{PrepareOrder(4, 2, 2)});
  agent.Do(PrepareFailed{kTwo, "disk full"});
  agent.Do(Ordered{PrepareOrder(5, 3, 2)});
  agent.Do(RunDirectoryWritten{kThree});
  ASSERT_NE(agent.Last<HandOver>(), nullptr);
  EXPECT_EQ(agent.Last<HandOver>()->from, kOne);
}

TEST(InPlace, AShimThatIsBeingHandedOverIsToldToStopWhereItAnswers) {
  for (const bool taken : {false, true}) {
    Driver agent = HandingOver();
    agent.Do(Ordered{StopOrder(5, 2, 2s)});
    EXPECT_EQ(agent.CountEver<StopRanks>(), 0) << "whose shim it is, is not known";
    if (taken) {
      agent.Do(ShimReady{kTwo, kWitness});
    } else {
      agent.Do(PrepareFailed{kTwo, "no"});
    }
    ASSERT_EQ(agent.CountEver<StopRanks>(), 1);
    EXPECT_EQ(agent.Last<StopRanks>()->key, taken ? kTwo : kOne);
    EXPECT_EQ(agent.Last<StopRanks>()->deadline, At(2s));
    agent.Do(GroupEmpty{kOne});
    if (taken) agent.Do(GroupEmpty{kTwo});
    EXPECT_EQ(PhaseOf(agent, kOne), Phase::kFree);
    EXPECT_EQ(PhaseOf(agent, kTwo), Phase::kFree);
  }
}

TEST(InPlace, RanksThatEndWhileTheDirectoryIsWrittenAreNotHandedOver) {
  Driver agent = Retired();
  agent.Do(Ordered{PrepareOrder(4, 2, 2)});
  End(agent, kOne, 0, 100);
  End(agent, kOne, 1, 101);
  agent.Do(RunDirectoryWritten{kTwo});
  EXPECT_EQ(agent.CountEver<HandOver>(), 0);
  EXPECT_THAT(agent.Last<SendReport>()->report.refused, ::testing::HasSubstr("have ended"));
}

TEST(InPlace, AShimThatDiesWhileItIsHandedOverLeavesNothing) {
  Driver agent = HandingOver();
  agent.Do(ShimGone{kOne});
  ASSERT_NE(agent.Last<KillGroup>(), nullptr);
  EXPECT_EQ(agent.Last<KillGroup>()->key, kOne);
  EXPECT_EQ(PhaseOf(agent, kTwo), Phase::kFree);
  agent.Do(GroupEmpty{kOne});
  EXPECT_EQ(PhaseOf(agent, kOne), Phase::kFree);
}

// ---- another agent ------------------------------------------------------------------------------

RunRecord PreparedRecord() {
  RunRecord record = LiveRecord("a-1", 2, 2);
  record.starts = {{0, 100, At(0s)}, {1, 101, At(0s)}};
  record.kept = {0, 1};
  return record;
}

TEST(InPlace, AfterARestartRetiredRanksRetireAgainOrAreStopped) {
  enum class Dials { kNever, kBefore, kAfter };
  for (const Dials dials : {Dials::kNever, Dials::kBefore, Dials::kAfter}) {
    Driver agent(ServiceConfig(), {RunningRecord("a-1", 1, 2)});
    agent.Attach();
    if (dials == Dials::kBefore) {
      Greet(agent, kOne, 0);
      Greet(agent, kOne, 1);
      SayRetired(agent, kOne, 0);  // Of the life before: it is not known why.
      EXPECT_EQ(PhaseOf(agent, kOne), Phase::kRunning);
    }
    agent.Do(Ordered{RetireOrder(1, 1, 2s)});
    EXPECT_EQ(Ranks<TellRetire>(agent).size(), dials == Dials::kBefore ? 2u : 0u);
    if (dials == Dials::kAfter) {
      agent.AdvanceTo(900ms);
      Greet(agent, kOne, 0);
      Greet(agent, kOne, 1);
    }
    agent.AdvanceTo(1s);
    EXPECT_EQ(agent.CountEver<StopRanks>(), dials == Dials::kNever ? 1 : 0);
    EXPECT_EQ(agent.CountEver<KillRank>(), 0);
  }
}

TEST(InPlace, AfterARestartAHandedOverGroupGoesOn) {
  RunRecord last = RunningRecord("a-1", 1, 2);
  last.shim_alive = false;
  last.empty = true;
  Driver agent(ServiceConfig(), {last, PreparedRecord()});
  agent.Attach();
  EXPECT_EQ(PhaseOf(agent, kOne), Phase::kFree);
  EXPECT_EQ(PhaseOf(agent, kTwo), Phase::kPrepared);
  agent.Do(Ordered{RunOrder(1, 2, 2)});
  ASSERT_NE(agent.Last<StartRanks>(), nullptr);
  EXPECT_EQ(agent.Last<StartRanks>()->kept, (std::set<int>{0, 1}));

  Driver voided(ServiceConfig(), {last, PreparedRecord()});
  voided.Attach();
  voided.Do(Ordered{RetireOrder(1, 2)});
  EXPECT_EQ(PhaseOf(voided, kTwo), Phase::kRetired);
}

TEST(InPlace, AfterARestartKeptRanksAreAwaitedAnew) {
  RunRecord record = PreparedRecord();
  record.started = true;
  Driver agent(ServiceConfig(), {record});
  agent.Attach();
  EXPECT_EQ(PhaseOf(agent, kTwo), Phase::kRunning);
  Greet(agent, kTwo, 1);
  agent.AdvanceTo(10s);
  ASSERT_EQ(agent.CountEver<KillRank>(), 1);
  EXPECT_EQ(agent.Last<KillRank>()->local_rank, 0);
}

TEST(InPlace, AfterARestartWhatALostShimHadTakenOverIsKilled) {
  RunRecord record = PreparedRecord();
  record.shim_alive = false;
  Driver agent(ServiceConfig(), {record});
  EXPECT_NE(agent.Last<KillGroup>(), nullptr) << "it was never started, and had ranks";
  EXPECT_EQ(agent.CountEver<RemoveRunDirectory>(), 0);
  agent.Attach();
  agent.Do(GroupEmpty{kTwo});
  EXPECT_EQ(PhaseOf(agent, kTwo), Phase::kFree);
}

TEST(InPlace, AfterARestartAShimThatWasToldIsBelieved) {
  Driver agent(ServiceConfig(), {PreparedRecord()});
  agent.Attach();
  agent.Do(RanksStarted{kTwo, {{0, 100, At(0s)}, {1, 200, agent.now()}}});
  EXPECT_EQ(PhaseOf(agent, kTwo), Phase::kRunning);
  agent.AdvanceTo(10s);
  ASSERT_EQ(agent.CountEver<KillRank>(), 1);
  EXPECT_EQ(agent.Last<KillRank>()->local_rank, 0) << "the other one is a new process";
}

}  // namespace
}  // namespace regroup::agent
