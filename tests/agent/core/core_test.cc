#include "agent/core/core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "tests/agent/core/driver.h"

namespace regroup::agent {
namespace {

using namespace regroup::agent::testing;

CommitRequest Asked(const GroupKey& key, std::uint64_t attempt) {
  CommitRequest request;
  request.job = key.job;
  request.generation = key.generation;
  request.attempt = attempt;
  request.step = 50;
  return request;
}
CommitAnswer Accepted(const GroupKey& key, std::uint64_t attempt) {
  CommitAnswer answer;
  answer.job = key.job;
  answer.generation = key.generation;
  answer.attempt = attempt;
  answer.step = 50;
  answer.accepted = true;
  return answer;
}

void AttachToOneThatAnswers(Driver& agent) {
  agent.Do(CoordinatorFound{"10.0.0.2", "10.0.0.1"});
  Welcome welcome = Driver::WelcomeOf();
  welcome.answers_heartbeats = true;
  agent.Do(Welcomed{welcome});
}

TEST(AgentCore, PrepareWritesTheRecordThenSpawnsThenReports) {
  Driver agent(ServiceConfig());
  agent.Attach();
  agent.Do(Ordered{PrepareOrder(1, 1, 2, /*host_store=*/true)});
  ASSERT_NE(agent.Last<WriteRunDirectory>(), nullptr);
  EXPECT_EQ(agent.Last<SpawnShim>(), nullptr);
  agent.Do(RunDirectoryWritten{Key("a-1", 1)});
  EXPECT_NE(agent.Last<SpawnShim>(), nullptr);
  EXPECT_NE(agent.Last<SpawnStore>(), nullptr);
  agent.Do(ShimReady{Key("a-1", 1), Address{"10.0.0.2", 5000}});
  EXPECT_EQ(agent.Last<SendReport>(), nullptr) << "the store is not bound yet";
  agent.Do(StoreBound{Key("a-1", 1), {"10.0.0.2", 4000}});
  const SendReport* report = agent.Last<SendReport>();
  ASSERT_NE(report, nullptr);
  EXPECT_EQ(report->report.phase, Phase::kPrepared);
  EXPECT_EQ(report->report.store, (Address{"10.0.0.2", 4000}));
  EXPECT_EQ(report->report.witness, (Address{"10.0.0.2", 5000}));
}

TEST(AgentCore, ANodeCheckIsAwaitedAndItsFailureToldWithWhatItSaid) {
  const GroupKey key = Key("a-1", 1);
  for (const bool passes : {true, false}) {
    Driver agent(ServiceConfig());
    agent.Attach();
    agent.Do(Ordered{PrepareOrder(1, 1, 2)});
    agent.Do(RunDirectoryWritten{key});
    agent.Do(ShimReady{key, std::nullopt, /*checking=*/true});
    EXPECT_EQ(agent.Last<SendReport>(), nullptr) << "it is not prepared yet";
    if (passes) {
      agent.Do(NodeChecked{key});
      EXPECT_EQ(agent.Last<SendReport>()->report.phase, Phase::kPrepared);
      continue;
    }
    agent.Do(PrepareFailed{key, "its node check exited with 3"});
    EXPECT_NE(agent.Last<StopRanks>(), nullptr) << "its slots are taken until nothing is left";
    EXPECT_EQ(agent.Last<SendReport>()->report.refused, "its node check exited with 3");
    agent.Do(GroupEmpty{key});
    EXPECT_EQ(agent.Last<SendReport>()->report.phase, Phase::kFree);
    EXPECT_EQ(agent.Last<SendReport>()->report.refused, "its node check exited with 3");
  }
}

TEST(AgentCore, ANodeCheckSurvivesTheAgentAndNotItsShim) {
  const GroupKey key = Key("a-1", 1);
  RunRecord record = LiveRecord("a-1", 1);
  record.checking = true;
  Driver agent(ServiceConfig(), {record});
  agent.Attach();
  EXPECT_EQ(agent.core().groups().at(key).phase, Phase::kPreparing);
  agent.Do(NodeChecked{key});
  EXPECT_EQ(agent.Last<SendReport>()->report.phase, Phase::kPrepared);

  Driver other(ServiceConfig(), {record});
  other.Attach();
  other.Do(ShimGone{key});
  EXPECT_NE(other.Last<KillGroup>(), nullptr) << "what the check started may live";
  EXPECT_EQ(other.Last<SendReport>()->report.phase, Phase::kStopping);
  other.Do(GroupEmpty{key});
  EXPECT_EQ(other.Last<SendReport>()->report.phase, Phase::kFree);

  record.shim_alive = false;  // Agent and shim died together.
  Driver later(ServiceConfig(), {record});
  EXPECT_NE(later.Last<KillGroup>(), nullptr);
  EXPECT_EQ(later.CountEver<RemoveRunDirectory>(), 0);

  record.shim_alive = true;
  record.checking = false;
  record.stop_deadline = At(0s);
  record.check_failed = "its node check exited with 3";
  Driver told(ServiceConfig(), {record});
  told.Do(CoordinatorFound{"10.0.0.2", "10.0.0.1"});
  EXPECT_EQ(told.Last<SendHello>()->hello.groups.at(0).refused, record.check_failed);
}

TEST(AgentCore, ACheckThatFailedBeforeAnybodyLookedIsNeverPrepared) {
  const GroupKey key = Key("a-1", 1);
  Driver agent(ServiceConfig());
  agent.Attach();
  agent.Do(Ordered{PrepareOrder(1, 1)});
  agent.Do(RunDirectoryWritten{key});
  agent.Do(ShimReady{key, std::nullopt, /*checking=*/true});
  agent.Do(PrepareFailed{key, "its node check exited with 3"});
  EXPECT_EQ(agent.Last<SendReport>()->report.phase, Phase::kStopping);
  agent.Do(NodeChecked{key});  // Not that it could come.
  EXPECT_EQ(agent.core().groups().at(key).phase, Phase::kStopping);
}

TEST(AgentCore, NothingIsSentOrObeyedBeforeTheScan) {
  Core core(ServiceConfig(), At(0s));
  EXPECT_TRUE(core.Step(At(0s), CoordinatorFound{"10.0.0.2", "10.0.0.1"}).actions.empty());
  const Effects effects = core.Step(At(0s), Scanned{{RunningRecord("a-1", 3)}});
  ASSERT_EQ(effects.actions.size(), 1u);
  const auto& hello = std::get<SendHello>(effects.actions[0]).hello;
  ASSERT_EQ(hello.groups.size(), 1u);
  EXPECT_EQ(hello.groups[0].phase, Phase::kRunning);
  EXPECT_EQ(hello.groups[0].started.at(0).pid, 100);
  EXPECT_EQ(hello.groups[0].started.at(0).age, 990s);
}

TEST(AgentCore, ANodeWithoutACgroupSaysSo) {
  Config config = ServiceConfig();
  config.no_cgroup = "no cgroup v2 hierarchy is mounted";
  Driver agent(config);
  agent.Do(CoordinatorFound{"10.0.0.2", "10.0.0.1"});
  EXPECT_EQ(agent.Last<SendHello>()->hello.no_cgroup, config.no_cgroup);
}

TEST(AgentCore, RunIsObeyedOnce) {
  Driver agent(ServiceConfig());
  agent.Attach();
  BringUp(agent, 1, 1);
  EXPECT_EQ(agent.CountEver<StartRanks>(), 1);
  agent.Do(RankExited{Key("a-1", 1), {.local_rank = 0, .pid = 100, .at = agent.now()}});
  agent.Do(GroupEmpty{Key("a-1", 1)});
  // The report is lost with the session; the coordinator orders again what it knows.
  agent.Do(CoordinatorAway{});
  agent.Attach();
  agent.Do(Ordered{RunOrder(1, 1)});
  EXPECT_EQ(agent.CountEver<StartRanks>(), 1);
  // So does an agent that comes back to the run directory of a rank that exited 0.
  RunRecord record = RunningRecord("a-1", 1);
  record.shim_alive = false;
  record.empty = true;
  record.exits.push_back({.local_rank = 0, .pid = 100, .at = Instant(20s)});
  Driver later(ServiceConfig(), {record});
  later.Attach();
  const Effects& ordered = later.Do(Ordered{RunOrder(1, 1)});
  EXPECT_TRUE(ordered.actions.empty());
  // Forgotten, and only then its directory goes.
  later.Do(Ordered{ForgetOrder(2, 1)});
  EXPECT_NE(later.Last<RemoveRunDirectory>(), nullptr);
  EXPECT_TRUE(later.core().groups().empty());
}

// A Hello has a limit, and says all that is short whatever ranks left as their last words.
TEST(AgentCore, OfLongErrorsAHelloHasTheFirst) {
  std::vector<RunRecord> records;
  for (const char* job : {"a-1", "b-1", "c-1", "d-1", "e-1", "f-1"}) {
    records.push_back(RunningRecord(job, 1, 100));
    for (int r = 0; r < 100; ++r)
      records.back().exits.push_back({.local_rank = r,
                                      .kind = ExitKind::kExited,
                                      .code = 1,
                                      .pid = 100 + r,
                                      .at = Instant(20s),
                                      .error = std::string(2'000, 'e')});
  }
  Driver agent(ServiceConfig(), records);
  agent.Do(CoordinatorFound{"10.0.0.2", "10.0.0.1"});
  const Hello& hello = agent.Last<SendHello>()->hello;
  ASSERT_EQ(hello.groups.size(), 6u);
  std::size_t bytes = 0;
  for (const GroupReport& report : hello.groups)
    for (const RankExit& exit : report.exits) bytes += exit.error.size();
  EXPECT_EQ(bytes, 512u << 10);
  EXPECT_EQ(hello.groups.front().exits.front().error.size(), 2'000u);
  EXPECT_EQ(hello.groups.back().exits.size(), 100u);
  EXPECT_EQ(hello.groups.back().exits.front().error, "");
  EXPECT_EQ(hello.groups.back().exits.front().code, 1);
}

TEST(AgentCore, RunWithoutAPreparedGroupStartsNothing) {
  Driver agent(ServiceConfig());
  agent.Attach();
  EXPECT_TRUE(agent.Do(Ordered{RunOrder(1, 4)}).actions.empty());
}

TEST(AgentCore, RebootedMember) {
  RunRecord record = RunningRecord("a-1", 1);
  record.boot = BootId("an earlier one");
  Driver agent(ServiceConfig(), {record});
  EXPECT_NE(agent.Last<RemoveRunDirectory>(), nullptr);
  agent.Do(CoordinatorFound{"10.0.0.2", "10.0.0.1"});
  EXPECT_TRUE(agent.Last<SendHello>()->hello.groups.empty());
}

TEST(AgentCore, AgentOfRank0Restarts) {
  RunRecord record = RunningRecord("a-1", 1, 2);
  record.store.hosted = true;
  record.store.alive = true;
  record.store.address = Address{"10.0.0.2", 4000};
  record.witness = Address{"10.0.0.2", 5000};
  Driver agent(ServiceConfig(), {record});
  EXPECT_TRUE(agent.effects().actions.empty()) << "adopting touches nothing";
  agent.Do(CoordinatorFound{"10.0.0.2", "10.0.0.1"});
  const GroupReport& report = agent.Last<SendHello>()->hello.groups.at(0);
  EXPECT_EQ(report.phase, Phase::kRunning);
  EXPECT_EQ(report.store, (Address{"10.0.0.2", 4000}));
  EXPECT_FALSE(report.store_lost);
  EXPECT_EQ(report.started.at(1).pid, 101);
}

TEST(AgentCore, ADeadShimIsReportedLostAndItsGroupKilled) {
  RunRecord record = RunningRecord("a-1", 1);
  record.shim_alive = false;
  Driver agent(ServiceConfig(), {record});
  EXPECT_NE(agent.Last<KillGroup>(), nullptr);
  agent.Attach();
  agent.Do(GroupEmpty{Key("a-1", 1)});
  EXPECT_TRUE(agent.Last<SendReport>()->report.supervisor_lost);
  EXPECT_EQ(agent.Last<SendReport>()->report.phase, Phase::kFree);
}

TEST(AgentCore, AShimThatLetsAStopPassInSilenceIsKilled) {
  Driver agent(ServiceConfig(), {RunningRecord("a-1", 1)});
  agent.Attach();
  agent.Do(Ordered{StopOrder(1, 1, 2s)});
  EXPECT_NE(agent.Last<StopRanks>(), nullptr);
  agent.AdvanceTo(3900ms);
  EXPECT_EQ(agent.CountEver<KillShim>(), 0) << "it has 2 s after the deadline";
  agent.AdvanceTo(4100ms);
  EXPECT_EQ(agent.CountEver<KillShim>(), 1);
  agent.AdvanceTo(6100ms);
  EXPECT_EQ(agent.CountEver<KillShim>(), 2) << "the first may have met a shim still starting";
  agent.Do(ShimGone{Key("a-1", 1)});
  EXPECT_NE(agent.Last<KillGroup>(), nullptr);
  agent.AdvanceTo(20s);
  EXPECT_EQ(agent.CountEver<KillShim>(), 2);
  agent.Do(GroupEmpty{Key("a-1", 1)});
  EXPECT_EQ(agent.Last<SendReport>()->report.phase, Phase::kFree);
}

TEST(AgentCore, AnUnkillableGroupKeepsItsShim) {
  Driver agent(ServiceConfig(), {RunningRecord("a-1", 1)});
  agent.Attach();
  agent.Do(Ordered{StopOrder(1, 1, 2s)});
  agent.AdvanceTo(3s);
  agent.Do(GroupStuck{Key("a-1", 1)});
  agent.AdvanceTo(20s);
  EXPECT_EQ(agent.CountEver<KillShim>(), 0);
}

TEST(AgentCore, ADirectoryWhoseShimNeverRanIsRemoved) {
  RunRecord record = LiveRecord("a-1", 1);
  record.shim_alive = false;
  Driver agent(ServiceConfig(), {record});
  EXPECT_NE(agent.Last<RemoveRunDirectory>(), nullptr);
  EXPECT_TRUE(agent.core().groups().empty());
}

TEST(AgentCore, AnAgentThatDiedAfterTellingItsShimFindsTheRanksStarted) {
  Driver agent(ServiceConfig(), {LiveRecord("a-1", 1)});
  agent.Attach();
  EXPECT_EQ(agent.core().groups().at(Key("a-1", 1)).phase, Phase::kPrepared);
  agent.Do(RanksStarted{Key("a-1", 1), {{0, 77, agent.now()}}});
  EXPECT_EQ(agent.Last<SendReport>()->report.phase, Phase::kRunning);
  agent.Do(Ordered{RunOrder(1, 1)});
  EXPECT_EQ(agent.CountEver<StartRanks>(), 0);
}

TEST(AgentCore, WrongJournalStopsNothing) {
  Config config = ServiceConfig();
  config.cluster = ClusterId("mine");
  config.highest_epoch = Epoch(9);
  Driver agent(config, {RunningRecord("a-1", 1)});
  agent.Attach("other", 1);
  ASSERT_NE(agent.Last<RefuseCoordinator>(), nullptr);
  EXPECT_THAT(agent.Last<RefuseCoordinator>()->why,
              ::testing::AllOf(::testing::HasSubstr("mine"), ::testing::HasSubstr("other")));
  EXPECT_TRUE(agent.Do(Ordered{StopOrder(1, 9)}).actions.empty())
      << "an order of a refused coordinator";
  agent.Do(CoordinatorAway{});
  agent.Attach("mine", 8);
  ASSERT_NE(agent.Last<RefuseCoordinator>(), nullptr);
  EXPECT_THAT(agent.Last<RefuseCoordinator>()->why,
              ::testing::AllOf(::testing::HasSubstr("9"), ::testing::HasSubstr("8")));
  EXPECT_FALSE(agent.core().attached());
  agent.Do(CoordinatorAway{});
  agent.Attach("mine", 10);
  EXPECT_TRUE(agent.core().attached());
  EXPECT_EQ(agent.Last<RememberCoordinator>()->epoch, Epoch(10));
  EXPECT_EQ(agent.CountEver<StopRanks>(), 0);
}

TEST(AgentCore, ALaunchedAgentFollowsACoordinatorOnlyWhileItHasSomethingOfIt) {
  Driver agent(LaunchedConfig());
  agent.Attach("one", 5);
  agent.Do(CoordinatorAway{});
  agent.Attach("two", 1);
  EXPECT_TRUE(agent.core().attached());
  BringUp(agent, 1, 1);
  agent.Do(CoordinatorAway{});
  agent.Attach("three", 9);
  EXPECT_FALSE(agent.core().attached());
}

TEST(AgentCore, OtherProtocolsAreRefusedNamingBoth) {
  for (const auto& [major, minor, ok] : std::vector<std::tuple<int, int, bool>>{
           {1, 0, true}, {1, 1, true}, {1, 2, false}, {2, 0, false}}) {
    Driver agent(ServiceConfig());
    agent.Do(CoordinatorFound{"10.0.0.2", "10.0.0.1"});
    Welcome welcome = Driver::WelcomeOf();
    welcome.version.major = major;
    welcome.version.minor = minor;
    agent.Do(Welcomed{welcome});
    EXPECT_EQ(agent.core().attached(), ok) << major << "." << minor;
  }
}

TEST(AgentCore, OnlyTheStopOfAJobThatEndedWellMayLeaveProcesses) {
  struct Row {
    const char* name;
    int code;  // Of the second of two ranks; -1: it runs.
    StopReason reason;
    bool finished;
  };
  for (const Row& row : {Row{"both exited 0", 0, StopReason::kElective, true},
                         Row{"one failed", 3, StopReason::kElective, false},
                         Row{"one runs", -1, StopReason::kElective, false},
                         Row{"another node failed", 0, StopReason::kFailure, false},
                         Row{"cancelled", 0, StopReason::kCancelled, false},
                         Row{"a notice", 0, StopReason::kNotice, false}}) {
    Driver agent(ServiceConfig());
    agent.Attach();
    BringUp(agent, 1, 2);
    agent.Do(RankExited{Key("a-1", 1), {.local_rank = 0, .pid = 100, .at = agent.now()}});
    if (row.code >= 0)
      agent.Do(RankExited{Key("a-1", 1),
                          {.local_rank = 1, .code = row.code, .pid = 101, .at = agent.now()}});
    agent.Do(Ordered{StopOrder(3, 1, 10s, row.reason)});
    ASSERT_NE(agent.Last<StopRanks>(), nullptr) << row.name;
    EXPECT_EQ(agent.Last<StopRanks>()->finished, row.finished) << row.name;
  }
}

TEST(AgentCore, AStopDeadlineNeverMovesLater) {
  Driver agent(ServiceConfig());
  agent.Attach();
  BringUp(agent, 1, 1);
  agent.Do(Ordered{StopOrder(3, 1, 10s, StopReason::kElective)});
  ASSERT_NE(agent.Last<StopRanks>(), nullptr);
  EXPECT_EQ(agent.Last<StopRanks>()->deadline, At(10s));
  agent.AdvanceTo(1s);
  agent.Do(Ordered{StopOrder(4, 1, 30s, StopReason::kElective)});
  EXPECT_EQ(agent.Last<StopRanks>(), nullptr);
  agent.Do(Ordered{StopOrder(5, 1, 2s)});
  ASSERT_NE(agent.Last<StopRanks>(), nullptr);
  EXPECT_EQ(agent.Last<StopRanks>()->deadline, At(3s));
}

TEST(AgentCore, StopOfAHalfPreparedGroupLeavesNothing) {
  const GroupKey key = Key("a-1", 1);
  {
    Driver agent(ServiceConfig());
    agent.Attach();
    agent.Do(Ordered{PrepareOrder(1, 1)});
    agent.Do(Ordered{StopOrder(2, 1)});
    agent.Do(RunDirectoryWritten{key});
    EXPECT_EQ(agent.Last<SpawnShim>(), nullptr);
    EXPECT_EQ(agent.Last<SendReport>()->report.phase, Phase::kFree);
  }
  {
    Driver agent(ServiceConfig());
    agent.Attach();
    agent.Do(Ordered{PrepareOrder(1, 1, 1, true)});
    agent.Do(RunDirectoryWritten{key});
    agent.Do(Ordered{StopOrder(2, 1)});
    EXPECT_NE(agent.Last<CloseStore>(), nullptr);
    agent.Do(ShimReady{key, std::nullopt});
    EXPECT_NE(agent.Last<StopRanks>(), nullptr);
    agent.Do(GroupEmpty{key});
    EXPECT_EQ(agent.Last<SendReport>()->report.phase, Phase::kFree);
  }
}

TEST(AgentCore, LowerGenerationsAreNotObeyed) {
  Driver agent(ServiceConfig(4));
  agent.Attach();
  BringUp(agent, 5, 1);
  EXPECT_TRUE(agent.Do(Ordered{PrepareOrder(3, 4)}).actions.empty());
  Order both = PrepareOrder(4, 5);
  both.stop = Stop{Generation(5), 2s, StopReason::kFailure};
  agent.Do(Ordered{both});
  agent.Do(GroupEmpty{Key("a-1", 5)});
  EXPECT_EQ(agent.CountEver<WriteRunDirectory>(), 1) << "5 was stopped: it is not prepared again";
}

// An agent that was started again knows by what it found which generation is the newest here.
TEST(AgentCore, LowerGenerationsThanWhatWasFoundAreNotObeyed) {
  Driver agent(ServiceConfig(4), {RunningRecord("a-1", 3)});
  agent.Attach();
  agent.Do(Ordered{PrepareOrder(1, 2)});
  EXPECT_EQ(agent.CountEver<WriteRunDirectory>(), 0);
}

TEST(AgentCore, AnOrderThatANewerOneHasOvertakenIsNotObeyed) {
  Driver agent(ServiceConfig(4));
  agent.Attach();
  agent.Do(Ordered{StopOrder(5, 1)});
  agent.Do(Ordered{PrepareOrder(4, 2)});
  EXPECT_EQ(agent.CountEver<WriteRunDirectory>(), 0);
  agent.Do(Ordered{PrepareOrder(6, 2)});
  EXPECT_EQ(agent.CountEver<WriteRunDirectory>(), 1);
}

TEST(AgentCore, PrepareTouchesOnlyFreeSlots) {
  Driver agent(ServiceConfig(2));
  agent.Attach();
  BringUp(agent, 1, 2);
  // Another job: nothing frees, so it is refused with numbers.
  agent.Do(Ordered{PrepareOrder(3, 1, 1, false, "b-1")});
  ASSERT_NE(agent.Last<SendReport>(), nullptr);
  EXPECT_EQ(agent.Last<SendReport>()->report.phase, Phase::kFree);
  EXPECT_THAT(agent.Last<SendReport>()->report.refused, ::testing::HasSubstr("2 of 2 slots"));
  // The next generation of the job whose group is stopping waits for it.
  Order next = PrepareOrder(4, 2, 2);
  next.stop = Stop{Generation(1), 2s, StopReason::kFailure};
  agent.Do(Ordered{next});
  EXPECT_EQ(agent.Last<WriteRunDirectory>(), nullptr);
  agent.Do(GroupEmpty{Key("a-1", 1)});
  EXPECT_NE(agent.Last<WriteRunDirectory>(), nullptr);
  // Too large for the node at all.
  agent.Do(Ordered{PrepareOrder(5, 1, 3, false, "c-1")});
  EXPECT_THAT(agent.Last<SendReport>()->report.refused, ::testing::HasSubstr("this node has 2"));
}

TEST(AgentCore, AnUnkillableGroupKeepsItsSlots) {
  Driver agent(ServiceConfig(1));
  agent.Attach();
  BringUp(agent, 1, 1);
  agent.Do(Ordered{StopOrder(3, 1)});
  agent.Do(GroupStuck{Key("a-1", 1)});
  EXPECT_EQ(agent.Last<SendReport>()->report.phase, Phase::kUnkillable);
  agent.Do(Ordered{PrepareOrder(4, 2)});
  EXPECT_THAT(agent.Last<SendReport>()->report.refused, ::testing::HasSubstr("1 of 1 slots"));
  agent.Do(GroupEmpty{Key("a-1", 1)});
  EXPECT_EQ(agent.Last<SendReport>()->report.phase, Phase::kFree);
}

TEST(AgentCore, ReportsRepeatUntilAcknowledged) {
  Driver agent(ServiceConfig());
  agent.Attach();
  BringUp(agent, 1, 1);
  agent.AdvanceTo(5s);
  agent.Do(RankExited{Key("a-1", 1),
                      {.local_rank = 0, .kind = ExitKind::kSignaled, .code = 9, .at = At(4s)}});
  ASSERT_NE(agent.Last<SendReport>(), nullptr);
  const GroupReport first = agent.Last<SendReport>()->report;
  EXPECT_EQ(first.exits.at(0).age, 1s);
  agent.Do(CoordinatorAway{});
  agent.AdvanceTo(7s);
  agent.Attach();
  ASSERT_NE(agent.Last<SendReport>(), nullptr);
  EXPECT_EQ(agent.Last<SendReport>()->report.number, first.number);
  EXPECT_EQ(agent.Last<SendReport>()->report.exits.at(0).age, 3s);
  agent.Do(ReportAcked{first.number});
  agent.Do(CoordinatorAway{});
  agent.Attach();
  EXPECT_EQ(agent.Last<SendReport>(), nullptr);
}

TEST(AgentCore, AnExitAfterOurSignalIsNeverACause) {
  struct Row {
    const char* what;
    Duration exit_at;
    bool after_stop;
  };
  for (const Row& row : {Row{"before the stop", 900ms, false}, Row{"after it", 1100ms, true}}) {
    Driver agent(ServiceConfig());
    agent.Attach();
    BringUp(agent, 1, 1);
    agent.AdvanceTo(1s);
    agent.Do(Ordered{StopOrder(3, 1)});
    agent.AdvanceTo(2s);
    agent.Do(RankExited{
        Key("a-1", 1),
        {.local_rank = 0, .kind = ExitKind::kSignaled, .code = 15, .at = At(row.exit_at)}});
    EXPECT_EQ(agent.Last<SendReport>()->report.exits.at(0).after_stop, row.after_stop) << row.what;
  }
}

// Nobody is to be sent there any more.
TEST(AgentCore, AClosedStoreIsNotReported) {
  Driver agent(ServiceConfig());
  agent.Attach();
  agent.Do(Ordered{PrepareOrder(1, 1, 1, true)});
  agent.Do(RunDirectoryWritten{Key("a-1", 1)});
  agent.Do(StoreBound{Key("a-1", 1), Address{"10.0.0.2", 4000}});
  agent.Do(ShimReady{Key("a-1", 1), Address{"10.0.0.2", 5000}});
  ASSERT_TRUE(agent.Last<SendReport>()->report.store);
  agent.Do(Ordered{StopOrder(2, 1)});
  ASSERT_NE(agent.Last<SendReport>(), nullptr);
  EXPECT_FALSE(agent.Last<SendReport>()->report.store);
}

TEST(AgentCore, ALostStoreIsReportedUnlessItWasClosed) {
  Driver agent(ServiceConfig());
  agent.Attach();
  const GroupKey key = Key("a-1", 1);
  agent.Do(Ordered{PrepareOrder(1, 1, 1, true)});
  agent.Do(RunDirectoryWritten{key});
  agent.Do(ShimReady{key, std::nullopt});
  agent.Do(StoreBound{key, {"10.0.0.2", 4000}});
  agent.Do(StoreGone{key});
  EXPECT_TRUE(agent.Last<SendReport>()->report.store_lost);

  Driver other(ServiceConfig());
  other.Attach();
  other.Do(Ordered{PrepareOrder(1, 1, 1, true)});
  other.Do(RunDirectoryWritten{key});
  other.Do(StoreBound{key, {"10.0.0.2", 4000}});
  other.Do(ShimReady{key, std::nullopt});
  other.Do(Ordered{StopOrder(2, 1)});
  EXPECT_NE(other.Last<CloseStore>(), nullptr);
  other.Do(StoreGone{key});
  EXPECT_EQ(other.Last<SendReport>(), nullptr);
}

TEST(AgentCore, NoticesReachSpeakersAsLinesAndOthersAsOneSigterm) {
  Driver agent(ServiceConfig());
  agent.Attach();
  BringUp(agent, 1, 2);
  const GroupKey key = Key("a-1", 1);
  agent.Do(WorkerSaid{key, 0, 0, WorkerHello{.takes_notice = true}});
  Order order = OrderOf(3);
  order.notice = WorkerNotice{Generation(1), 20s};
  agent.Do(Ordered{order});
  ASSERT_NE(agent.Last<TellNotice>(), nullptr);
  EXPECT_EQ(agent.Last<TellNotice>()->left, 20s);
  ASSERT_NE(agent.Last<SignalRank>(), nullptr);
  EXPECT_EQ(agent.Last<SignalRank>()->local_rank, 1);
  EXPECT_EQ(agent.Last<SignalRank>()->signal, SIGTERM);
  // Repeated: nobody is told twice on one connection, nobody signalled twice ever.
  agent.AdvanceTo(5s);
  order.number = OrderNo(4);
  agent.Do(Ordered{order});
  EXPECT_EQ(agent.Last<TellNotice>(), nullptr);
  EXPECT_EQ(agent.Last<SignalRank>(), nullptr);
  agent.Do(WorkerHungUp{key, 0});
  agent.Do(WorkerSaid{key, 0, 0, WorkerHello{.takes_notice = true}});
  ASSERT_NE(agent.Last<TellNotice>(), nullptr);
  EXPECT_EQ(agent.Last<TellNotice>()->left, 15s);
  // Its death by that signal is not the job's fault.
  agent.Do(RankExited{
      key, {.local_rank = 1, .kind = ExitKind::kSignaled, .code = 15, .at = agent.now()}});
  EXPECT_TRUE(agent.Last<SendReport>()->report.exits.at(0).after_stop);
}

TEST(AgentCore, ANoticeSurvivesTheAgentWithoutASecondSigterm) {
  RunRecord record = RunningRecord("a-1", 1);
  record.signalled = {0, 1};
  Driver agent(ServiceConfig(), {record});
  agent.Attach();
  Order order = OrderOf(1);
  order.notice = WorkerNotice{Generation(1), 20s};
  agent.Do(Ordered{order});
  EXPECT_EQ(agent.Last<SignalRank>(), nullptr);
}

WorkerProgress ProgressOf(const GroupKey& key, std::int64_t step) {
  WorkerProgress progress;
  progress.job = key.job;
  progress.generation = key.generation;
  progress.step = step;
  return progress;
}

TEST(AgentCore, ProgressIsCoalescedAndFlushedBeforeAnExit) {
  Driver agent(ServiceConfig());
  agent.Attach();
  BringUp(agent, 1, 1);
  const GroupKey key = Key("a-1", 1);
  WorkerProgress progress = ProgressOf(key, 1);
  agent.Do(WorkerSaid{key, 0, 0, progress});
  EXPECT_NE(agent.Last<SendProgress>(), nullptr) << "the first one at once";
  progress.step = 2;
  agent.Do(WorkerSaid{key, 0, 0, progress});
  EXPECT_EQ(agent.Last<SendProgress>(), nullptr);
  agent.AdvanceTo(150ms);
  ASSERT_NE(agent.Last<SendProgress>(), nullptr);
  EXPECT_EQ(agent.Last<SendProgress>()->progress.step, 2);
  progress.step = 3;
  agent.Do(WorkerSaid{key, 0, 0, progress});
  const Effects& effects =
      agent.Do(RankExited{key, {.local_rank = 0, .code = 1, .at = agent.now()}});
  ASSERT_EQ(effects.actions.size(), 2u);
  EXPECT_EQ(std::get<SendProgress>(effects.actions[0]).progress.step, 3);
  EXPECT_TRUE(std::holds_alternative<SendReport>(effects.actions[1]));
}

TEST(AgentCore, ACommitIsAskedAgainUntilAnswered) {
  Driver agent(ServiceConfig());
  agent.Attach();
  BringUp(agent, 1, 1);
  const GroupKey key = Key("a-1", 1);
  agent.Do(WorkerSaid{key, 0, 0, Asked(key, 2)});
  EXPECT_NE(agent.Last<SendCommit>(), nullptr);
  agent.Do(CoordinatorAway{});
  agent.Attach("c", 2);
  EXPECT_NE(agent.Last<SendCommit>(), nullptr);
  agent.Do(CommitAnswered{Accepted(key, 1)});
  EXPECT_EQ(agent.Last<TellCommit>(), nullptr) << "of another attempt";
  agent.Do(CommitAnswered{Accepted(key, 2)});
  ASSERT_NE(agent.Last<TellCommit>(), nullptr);
  agent.Do(CoordinatorAway{});
  agent.Attach("c", 3);
  EXPECT_EQ(agent.Last<SendCommit>(), nullptr);
}

TEST(AgentCore, TheStepsBeforeACommitAreToldBeforeIt) {
  Driver agent(ServiceConfig());
  agent.Attach();
  BringUp(agent, 1, 1);
  const GroupKey key = Key("a-1", 1);
  for (int step : {1, 2}) agent.Do(WorkerSaid{key, 0, 0, ProgressOf(key, step)});
  const Effects& effects = agent.Do(WorkerSaid{key, 0, 0, Asked(key, 2)});
  ASSERT_EQ(effects.actions.size(), 2u);
  EXPECT_EQ(std::get<SendProgress>(effects.actions[0]).progress.step, 2);
  EXPECT_TRUE(std::holds_alternative<SendCommit>(effects.actions[1]));
}

// However often a worker asks, its node's session carries one question and one answer at a time.
TEST(AgentCore, OneCommitIsInFlightAndTheNewestWaits) {
  Driver agent(ServiceConfig());
  agent.Attach();
  BringUp(agent, 1, 1);
  const GroupKey key = Key("a-1", 1);
  for (std::uint64_t attempt = 1; attempt <= 10'000; ++attempt)
    agent.Do(WorkerSaid{key, 0, 0, Asked(key, attempt)});
  EXPECT_EQ(agent.CountEver<SendCommit>(), 1);
  EXPECT_EQ(agent.CountEver<TellCommit>(), 9'998) << "all but the one in flight and the newest";
  ASSERT_NE(agent.Last<TellCommit>(), nullptr);
  EXPECT_EQ(agent.Last<TellCommit>()->answer.attempt, 9'999u);
  EXPECT_FALSE(agent.Last<TellCommit>()->answer.accepted);
  EXPECT_EQ(agent.Last<TellCommit>()->answer.why_not.substr(0, 5), "busy:");

  agent.Do(CommitAnswered{Accepted(key, 1)});
  ASSERT_NE(agent.Last<TellCommit>(), nullptr);
  EXPECT_TRUE(agent.Last<TellCommit>()->answer.accepted);
  ASSERT_NE(agent.Last<SendCommit>(), nullptr);
  EXPECT_EQ(agent.Last<SendCommit>()->request.attempt, 10'000u);
  agent.Do(WorkerSaid{key, 0, 0, Asked(key, 10'000)});
  EXPECT_EQ(agent.Last<SendCommit>(), nullptr) << "asked again after a reconnect of the worker";
  agent.Do(CommitAnswered{Accepted(key, 10'000)});
  ASSERT_NE(agent.Last<TellCommit>(), nullptr);
  EXPECT_EQ(agent.Last<TellCommit>()->answer.attempt, 10'000u);
  agent.Do(WorkerSaid{key, 0, 0, Asked(key, 10'001)});
  EXPECT_NE(agent.Last<SendCommit>(), nullptr);
}

TEST(AgentCore, HeartbeatsEchoTheLastOrderObeyed) {
  Driver agent(ServiceConfig());
  agent.Attach();
  agent.Do(Ordered{StopOrder(7, 1)});
  agent.AdvanceTo(1s);
  ASSERT_NE(agent.Last<SendHeartbeat>(), nullptr);
  EXPECT_EQ(agent.Last<SendHeartbeat>()->obeyed, OrderNo(7));
  agent.Do(CoordinatorAway{});
  agent.AdvanceTo(10s);
  EXPECT_EQ(agent.CountEver<SendHeartbeat>(), 1);
}

// M5: TCP alone notices a host that is gone after up to 15 minutes.
TEST(AgentCore, ASilentCoordinatorIsLeftAfterALease) {
  Driver agent(ServiceConfig());
  AttachToOneThatAnswers(agent);
  agent.AdvanceTo(4s);
  agent.Do(CoordinatorSpoke{});
  agent.AdvanceTo(8999ms);
  EXPECT_TRUE(agent.core().attached());
  EXPECT_EQ(agent.CountEver<BreakSession>(), 0);
  agent.AdvanceTo(9s);
  EXPECT_FALSE(agent.core().attached());
  ASSERT_NE(agent.Last<BreakSession>(), nullptr);
  EXPECT_EQ(agent.Last<BreakSession>()->why, "nothing was heard from the coordinator for 5 s");
  agent.AdvanceTo(100s);
  EXPECT_EQ(agent.CountEver<BreakSession>(), 1);
}

TEST(AgentCore, ACoordinatorThatAnswersNoHeartbeatsMayBeSilent) {
  Driver agent(ServiceConfig());
  agent.Attach();
  agent.AdvanceTo(100s);
  EXPECT_TRUE(agent.core().attached());
}

TEST(AgentCore, WhatWasSaidWhileTheAgentStoodStillIsReadFirst) {
  Driver agent(ServiceConfig());
  AttachToOneThatAnswers(agent);
  agent.StandStill(60s);
  EXPECT_TRUE(agent.core().attached());
  agent.AdvanceTo(63999ms);
  EXPECT_TRUE(agent.core().attached());
  agent.AdvanceTo(64s);
  EXPECT_FALSE(agent.core().attached());
}

TEST(AgentCore, ASessionWithoutAWelcomeIsLeft) {
  Driver agent(ServiceConfig());
  agent.Do(CoordinatorFound{"10.0.0.2", "10.0.0.1"});
  agent.AdvanceTo(4999ms);
  EXPECT_EQ(agent.CountEver<BreakSession>(), 0);
  agent.AdvanceTo(5s);
  EXPECT_EQ(agent.CountEver<BreakSession>(), 1);
}

// H4: a refused witness means that its node died, so it stays until the end of its group is known.
TEST(AgentCore, AShimIsReleasedOnceTheCoordinatorKnowsItsEnd) {
  Driver agent(ServiceConfig());
  agent.Attach();
  BringUp(agent, 1, 1);
  const GroupKey key = Key("a-1", 1);
  agent.Do(ReportAcked{agent.core().groups().at(key).report.number});
  agent.Do(RankExited{key, {}});
  agent.Do(ReportAcked{agent.core().groups().at(key).report.number});
  EXPECT_EQ(agent.CountEver<ReleaseShim>(), 0) << "it is not free yet";
  const ReportNo before = agent.core().groups().at(key).report.number;
  agent.Do(GroupEmpty{key});
  agent.Do(ReportAcked{before});
  EXPECT_EQ(agent.CountEver<ReleaseShim>(), 0);
  agent.Do(ReportAcked{agent.core().groups().at(key).report.number});
  EXPECT_NE(agent.Last<ReleaseShim>(), nullptr);
}

TEST(AgentCore, AGroupOfUnknownSizeHoldsEverySlot) {
  RunRecord record;
  record.key = Key("a-1", 1);
  record.boot = BootId("boot");
  record.started = true;
  Driver agent(ServiceConfig(4), {record});
  EXPECT_EQ(agent.CountEver<KillGroup>(), 1);
  agent.Attach();
  agent.Do(Ordered{PrepareOrder(1, 1, 1, false, "b-2")});
  EXPECT_EQ(agent.Last<WriteRunDirectory>(), nullptr);
  agent.Do(GroupEmpty{record.key});
  EXPECT_NE(agent.Last<WriteRunDirectory>(), nullptr);
}

TEST(AgentCore, WithoutACoordinatorWorkersRunOn) {
  Driver agent(ServiceConfig());
  agent.Attach();
  BringUp(agent, 1, 1);
  agent.Do(CoordinatorAway{});
  agent.AdvanceTo(24h);
  EXPECT_EQ(agent.CountEver<StopRanks>(), 0);
  EXPECT_TRUE(agent.effects().actions.empty());
}

}  // namespace
}  // namespace regroup::agent
