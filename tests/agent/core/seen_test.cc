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

}  // namespace
}  // namespace regroup::agent
