// What is left of a group whose shim says that it is empty, or is gone itself.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/agent/core/driver.h"

namespace regroup::agent {
namespace {

using namespace regroup::agent::testing;

const GroupKey kKey = Key("a-1", 1);

Phase PhaseOf(Driver& agent) { return agent.core().groups().at(kKey).phase; }

Driver WithLostShim() {
  RunRecord record = RunningRecord("a-1", 1);
  record.shim_alive = false;
  Driver agent(ServiceConfig(1), {record});
  agent.Attach();
  return agent;
}

TEST(Leftovers, TwoRoundsInARowThatFindNothingEndIt) {
  Driver agent = WithLostShim();
  EXPECT_EQ(agent.CountEver<KillGroup>(), 1);
  agent.Do(LeftoversKilled{kKey, /*none=*/true});
  EXPECT_EQ(PhaseOf(agent), Phase::kStopping);
  agent.Do(LeftoversKilled{kKey, /*none=*/true});
  EXPECT_EQ(PhaseOf(agent), Phase::kStopping) << "told twice, it is one round";
  agent.AdvanceTo(4ms);
  EXPECT_EQ(agent.CountEver<KillGroup>(), 1);
  agent.AdvanceTo(5ms);
  EXPECT_EQ(agent.CountEver<KillGroup>(), 2);
  agent.Do(LeftoversKilled{kKey, /*none=*/false});  // Started meanwhile.
  agent.AdvanceTo(15ms);
  agent.Do(LeftoversKilled{kKey, /*none=*/true});
  EXPECT_EQ(PhaseOf(agent), Phase::kStopping);
  agent.AdvanceTo(20ms);
  agent.Do(LeftoversKilled{kKey, /*none=*/true});
  EXPECT_EQ(PhaseOf(agent), Phase::kFree);
  // The mark is carried out before anybody is told.
  ASSERT_EQ(agent.effects().actions.size(), 2u);
  EXPECT_TRUE(std::holds_alternative<MarkKilled>(agent.effects().actions[0]));
  EXPECT_TRUE(agent.Last<SendReport>()->report.supervisor_lost);
  agent.AdvanceTo(60s);
  EXPECT_EQ(agent.CountEver<KillGroup>(), 4);
}

TEST(Leftovers, WhatDoesNotGoKeepsItsSlotsAndIsKilledOnAndOn) {
  Driver agent = WithLostShim();
  agent.Do(LeftoversKilled{kKey, false});
  const auto rounds_until = [&](Duration end) {
    int rounds = 0;
    while (agent.core().NextDeadline() && *agent.core().NextDeadline() <= At(end)) {
      agent.AdvanceTo(*agent.core().NextDeadline() - At(0s));
      if (agent.Last<KillGroup>() == nullptr) continue;
      ++rounds;
      agent.Do(LeftoversKilled{kKey, false});
    }
    return rounds;
  };
  EXPECT_EQ(rounds_until(1275ms), 8) << "after 5, 10, 20, … 640 ms";
  EXPECT_EQ(rounds_until(9900ms), 8) << "once a second from then on";
  EXPECT_EQ(PhaseOf(agent), Phase::kStopping);
  EXPECT_EQ(rounds_until(10300ms), 1);
  EXPECT_EQ(PhaseOf(agent), Phase::kUnkillable);
  EXPECT_EQ(rounds_until(20s), 9);
  agent.AdvanceTo(20300ms);
  agent.Do(LeftoversKilled{kKey, true});
  agent.AdvanceTo(20305ms);
  agent.Do(LeftoversKilled{kKey, true});
  EXPECT_EQ(PhaseOf(agent), Phase::kFree);
}

TEST(Leftovers, AGroupIsFreeOnceItsWordsAreRead) {
  Driver agent(ServiceConfig());
  agent.Attach();
  BringUp(agent, 1, 1);
  agent.Do(RankExited{kKey, {.local_rank = 0, .code = 1, .pid = 100, .at = agent.now()}});
  agent.Do(GroupEmpty{kKey, /*awaits_words=*/true});
  EXPECT_EQ(PhaseOf(agent), Phase::kRunning);
  agent.AdvanceTo(100ms);
  agent.Do(GroupEmpty{kKey, /*awaits_words=*/true});
  agent.AdvanceTo(199ms);
  EXPECT_EQ(PhaseOf(agent), Phase::kRunning);
  agent.AdvanceTo(200ms);
  EXPECT_EQ(PhaseOf(agent), Phase::kFree) << "0.2 s from when it was first said";
  EXPECT_EQ(agent.CountEver<ShowLateOutput>(), 0) << "nobody watches a service";

  Driver prompt(ServiceConfig());
  prompt.Attach();
  BringUp(prompt, 1, 1);
  prompt.Do(GroupEmpty{kKey, true});
  prompt.Do(GroupEmpty{kKey});
  EXPECT_EQ(PhaseOf(prompt), Phase::kFree);
}

// Its shim used to be killed 2 s after the deadline of a stop, with the output that it had yet to
// write.
TEST(Leftovers, WhereOneWatchesAllOutputIsAwaitedAlsoAfterAStop) {
  Driver agent(LaunchedConfig());
  agent.Attach();
  BringUp(agent, 1, 1);
  agent.Do(Ordered{StopOrder(3, 1, 1s)});
  agent.AdvanceTo(500ms);
  agent.Do(GroupEmpty{kKey, /*awaits_words=*/true});
  agent.AdvanceTo(5499ms);
  EXPECT_EQ(agent.CountEver<KillShim>(), 0);
  EXPECT_EQ(PhaseOf(agent), Phase::kStopping);
  agent.AdvanceTo(5500ms);
  EXPECT_EQ(agent.CountEver<ShowLateOutput>(), 1);
  EXPECT_EQ(PhaseOf(agent), Phase::kFree);
}

}  // namespace
}  // namespace regroup::agent
