// What an agent sees of a group is absolute: it may come twice, late, or much of it at once.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/agent/core/driver.h"

namespace regroup::agent {
namespace {

using namespace regroup::agent::testing;

const GroupKey kKey = Key("a-1", 1);

Driver Prepared(bool host_store = false) {
  Driver agent(ServiceConfig());
  agent.Attach();
  agent.Do(Ordered{PrepareOrder(1, 1, 2, host_store)});
  agent.Do(RunDirectoryWritten{kKey});
  return agent;
}
RunRecord Failed(Instant at) {
  RunRecord record = RunningRecord("a-1", 1, 2);
  record.exits.push_back({.local_rank = 1, .code = 3, .pid = 101, .at = at});
  return record;
}

TEST(Seen, WhatCameBeforeIsTakenOnce) {
  Driver agent = Prepared();
  agent.Do(GroupSeen{LiveRecord("a-1", 1, 2)});
  agent.Do(Ordered{RunOrder(2, 1, 2)});
  const RunRecord failed = Failed(agent.now());
  agent.Do(GroupSeen{failed});
  ASSERT_NE(agent.Last<SendReport>(), nullptr);
  EXPECT_EQ(agent.Last<SendReport>()->report.exits.size(), 1u);
  EXPECT_TRUE(agent.Do(GroupSeen{failed}).actions.empty());
  // Late: an older one takes nothing back.
  EXPECT_TRUE(agent.Do(GroupSeen{LiveRecord("a-1", 1, 2)}).actions.empty());
  EXPECT_EQ(agent.core().groups().at(kKey).ranks.exits.size(), 1u);
}

TEST(Seen, MuchAtOnceIsOneReportThatLacksNothing) {
  Driver agent = Prepared();
  agent.Do(GroupSeen{LiveRecord("a-1", 1, 2)});
  agent.Do(Ordered{RunOrder(2, 1, 2)});
  RunRecord over = Failed(agent.now());
  over.exits.push_back({.local_rank = 0, .pid = 100, .at = agent.now()});
  over.empty = true;
  over.shim_alive = false;
  agent.Do(GroupSeen{over});
  ASSERT_NE(agent.Last<SendReport>(), nullptr);
  const GroupReport& report = agent.Last<SendReport>()->report;
  EXPECT_EQ(report.phase, Phase::kFree);
  EXPECT_EQ(report.started.size(), 2u);
  ASSERT_EQ(report.exits.size(), 2u);
  EXPECT_EQ(report.exits[1].code, 3);
  EXPECT_FALSE(report.supervisor_lost);
  EXPECT_EQ(agent.Last<KillGroup>(), nullptr);
}

// Its shim may go before the words that its ranks left are read: that is no loss.
TEST(Seen, AShimThatGoesAfterItsGroupLeavesNothingToKill) {
  Driver agent = Prepared();
  agent.Do(GroupSeen{LiveRecord("a-1", 1, 2)});
  agent.Do(Ordered{RunOrder(2, 1, 2)});
  RunRecord over = Failed(agent.now());
  over.empty = over.awaits_words = true;
  agent.Do(GroupSeen{over});
  over.shim_alive = false;
  agent.Do(GroupSeen{over});
  EXPECT_EQ(agent.CountEver<KillGroup>(), 0);
  EXPECT_NE(agent.core().groups().at(kKey).phase, Phase::kFree);
  over.awaits_words = false;
  agent.Do(GroupSeen{over});
  ASSERT_NE(agent.Last<SendReport>(), nullptr);
  EXPECT_EQ(agent.Last<SendReport>()->report.phase, Phase::kFree);
  EXPECT_FALSE(agent.Last<SendReport>()->report.supervisor_lost);
}

TEST(Seen, OfAShimThatHasNotAnsweredNothingIsMade) {
  Driver agent = Prepared(/*host_store=*/true);
  RunRecord record = LiveRecord("a-1", 1, 2);
  record.shim_alive = false;
  record.unheard = true;
  record.store = {
      .hosted = true, .alive = true, .closed = false, .address = Address{"10.0.0.2", 9}};
  agent.Do(GroupSeen{record});
  EXPECT_EQ(agent.core().groups().at(kKey).phase, Phase::kPreparing);
  EXPECT_EQ(agent.CountEver<KillGroup>(), 0);
  record.unheard = false;
  record.shim_alive = true;
  agent.Do(GroupSeen{record});
  EXPECT_EQ(agent.core().groups().at(kKey).phase, Phase::kPrepared);
}

// It had nobody to supervise.
TEST(Seen, TheShimOfAVoidedProposalIsNoLoss) {
  for (const bool voided : {false, true}) {
    Driver agent = Prepared();
    RunRecord record = LiveRecord("a-1", 1, 2);
    agent.Do(GroupSeen{record});
    if (voided) agent.Do(Ordered{StopOrder(2, 1)});
    record.shim_alive = false;
    agent.Do(GroupSeen{record});
    ASSERT_NE(agent.Last<SendReport>(), nullptr);
    EXPECT_EQ(agent.Last<SendReport>()->report.supervisor_lost, !voided);
  }
}

// It is started anew with its generation, or ends with it unheard: it has not failed.
TEST(Seen, AKeptRankThatEndedBeforeItsGenerationBeganIsNoExit) {
  RunRecord record = LiveRecord("a-1", 2, 2);
  record.starts = {{0, 100, Instant(10s)}, {1, 101, Instant(10s)}};
  record.kept = {0, 1};
  Driver agent(ServiceConfig(), {record});
  agent.Attach();
  record.exits.push_back({.local_rank = 0, .code = 1, .pid = 100, .at = agent.now()});
  agent.Do(GroupSeen{record});
  agent.Do(Ordered{StopOrder(1, 2)});
  record.stop_deadline = agent.now() + 2s;
  agent.Do(GroupSeen{record});
  EXPECT_TRUE(agent.core().groups().at(record.key).ranks.exits.empty());
}

// Nobody here has ordered it: its shim stops by itself once it is alone.
TEST(Seen, AStopEndsACheckThatHasNotPassed) {
  Driver agent = Prepared();
  RunRecord record = LiveRecord("a-1", 1, 2);
  record.checking = true;
  agent.Do(GroupSeen{record});
  record.checking = false;
  record.stop_deadline = agent.now();
  agent.Do(GroupSeen{record});
  EXPECT_EQ(agent.core().groups().at(kKey).phase, Phase::kPreparing);
}

TEST(Seen, ACheckThatFailedBeforeAnybodyLookedIsARefusal) {
  Driver agent = Prepared();
  RunRecord record = LiveRecord("a-1", 1, 2);
  record.check_failed = "bad memory";
  agent.Do(GroupSeen{record});
  ASSERT_NE(agent.Last<SendReport>(), nullptr);
  EXPECT_EQ(agent.Last<SendReport>()->report.phase, Phase::kStopping);
  EXPECT_EQ(agent.Last<SendReport>()->report.refused, "bad memory");
}

TEST(Seen, ACheckThatFailsIsARefusalOnce) {
  Driver agent = Prepared();
  RunRecord record = LiveRecord("a-1", 1, 2);
  record.checking = true;
  agent.Do(GroupSeen{record});
  record.checking = false;
  record.check_failed = "bad memory";
  agent.Do(GroupSeen{record});
  ASSERT_NE(agent.Last<SendReport>(), nullptr);
  EXPECT_EQ(agent.Last<SendReport>()->report.refused, "bad memory");
  EXPECT_TRUE(agent.Do(GroupSeen{record}).actions.empty());
}

// The others go on in place, whoever of this node had to be signalled.
TEST(Seen, OnlyRanksThatTheMarkNamesAreToldToEnd) {
  RunRecord record = RunningRecord("a-1", 1, 2);
  record.signalled = {1};
  Driver agent(ServiceConfig(), {record});
  agent.Attach();
  agent.Do(WorkerSaid{kKey, 0, 0, WorkerHello{true, true}});
  agent.Do(WorkerSaid{kKey, 1, 1, WorkerHello{true, true}});
  agent.Do(Ordered{RetireOrder(1, 1, 4s)});
  ASSERT_NE(agent.Last<TellRetire>(), nullptr);
  EXPECT_EQ(agent.Last<TellRetire>()->local_rank, 0);
  EXPECT_EQ(agent.CountEver<TellRetire>(), 1);
  EXPECT_EQ(agent.CountEver<SignalRank>(), 0);  // A second one means "now" to many programs.
  EXPECT_EQ(agent.CountEver<StopRanks>(), 0);
}

// An earlier life let its deadline pass.
TEST(Seen, AShimThatKeepsSilentThroughAStopIsKilledByTheNextAgent) {
  RunRecord record = RunningRecord("a-1", 1, 2);
  record.stop_deadline = At(0s) - 10s;
  Driver agent(ServiceConfig(), {record});
  agent.AdvanceTo(1900ms);
  EXPECT_EQ(agent.CountEver<KillShim>(), 0);
  agent.AdvanceTo(2s);
  EXPECT_EQ(agent.CountEver<KillShim>(), 1);
}

// A command whose second signal shortens the stop: its shim's silence counts from then.
TEST(Seen, AShorterStopShortensTheSilenceOfItsShim) {
  Config config = LaunchedConfig();
  config.grace = 30s;
  Driver agent(std::move(config), {RunningRecord("a-1", 1, 2)});
  agent.Do(SignalCaught{2});
  agent.AdvanceTo(1s);
  agent.Do(SignalCaught{2});
  agent.AdvanceTo(2900ms);
  EXPECT_EQ(agent.CountEver<KillShim>(), 0);
  agent.AdvanceTo(3s);
  EXPECT_EQ(agent.CountEver<KillShim>(), 1);
}

TEST(Seen, APrepareThatWaitsForWordsNeedsNoOtherEvent) {
  Driver agent(ServiceConfig(2), {RunningRecord("a-1", 1, 2)});
  agent.Attach();
  agent.Do(Ordered{StopOrder(1, 1)});
  agent.Do(GroupEmpty{kKey, true});
  agent.Do(Ordered{PrepareOrder(2, 1, 2, false, "b-1")});
  EXPECT_EQ(agent.CountEver<WriteRunDirectory>(), 0);
  agent.AdvanceTo(200ms);  // Of words nobody has read.
  EXPECT_EQ(agent.CountEver<WriteRunDirectory>(), 1);
}

// The signal went to a process that had died before: the one in its place has had none.
TEST(Seen, AReplacedRankWasNotSignalled) {
  RunRecord record = RunningRecord("a-1", 1);
  record.started = false;
  Driver agent(ServiceConfig(), {record});
  agent.Attach();
  Order run = RunOrder(1, 1);
  run.notice = WorkerNotice{Generation(1), 20s};
  agent.Do(Ordered{run});
  agent.Do(Ordered{run});  // Its one rank is kept, and running by now.
  ASSERT_EQ(agent.CountEver<SignalRank>(), 1);
  record.started = true;
  record.starts = {{0, 200, agent.now()}};
  agent.Do(GroupSeen{record});
  record.exits = {{.local_rank = 0, .code = 3, .pid = 200, .at = agent.now()}};
  agent.Do(GroupSeen{record});
  ASSERT_NE(agent.Last<SendReport>(), nullptr);
  EXPECT_FALSE(agent.Last<SendReport>()->report.exits.at(0).after_stop);
}

TEST(Seen, AKeptRankThatHasDiedWasKept) {
  RunRecord record = RunningRecord("a-1", 1);
  record.kept = {0};
  record.exits = {{.local_rank = 0, .code = 3, .pid = 100, .at = At(0s)}};
  Driver agent(ServiceConfig(), {record});
  agent.Do(CoordinatorFound{"10.0.0.2", "10.0.0.1"});
  ASSERT_NE(agent.Last<SendHello>(), nullptr);
  EXPECT_TRUE(agent.Last<SendHello>()->hello.groups.at(0).started.at(0).kept);
}

}  // namespace
}  // namespace regroup::agent
