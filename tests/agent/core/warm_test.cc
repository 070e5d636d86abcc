// Warm ranks: how long their imports are awaited, and how long what they are forked from is kept.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/agent/core/driver.h"

namespace regroup::agent {
namespace {

using namespace regroup::agent::testing;

Order WarmOrder(std::uint64_t number, std::uint64_t generation) {
  Order order = PrepareOrder(number, generation, 2, /*host_store=*/true);
  order.prepare->spec.job.warm.emplace();
  return order;
}

// Each second from `from` to `to` passes, and the coordinator is heard.
void Pass(Driver& agent, int from, int to) {
  for (int s = from; s <= to; ++s) {
    agent.AdvanceTo(std::chrono::seconds(s));
    agent.Do(CoordinatorSpoke{});
  }
}

TEST(AgentCore, WarmRanksWaitForTheirImports) {
  const GroupKey key = Key("a-1", 1);
  Driver agent(ServiceConfig());
  agent.Attach();
  agent.Do(Ordered{WarmOrder(1, 1)});
  agent.Do(RunDirectoryWritten{key});
  EXPECT_NE(agent.Last<WarmUp>(), nullptr);
  EXPECT_EQ(agent.CountEver<SpawnShim>() + agent.CountEver<SpawnStore>(), 0);
  agent.Do(WarmedUp{key});
  EXPECT_NE(agent.Last<SpawnShim>(), nullptr);
  EXPECT_NE(agent.Last<SpawnStore>(), nullptr);
  agent.Do(WarmedUp{key});
  agent.AdvanceTo(130s);
  EXPECT_EQ(agent.CountEver<SpawnShim>(), 1);
}

TEST(AgentCore, ImportsThatTakeTooLongAreNotAwaited) {
  const GroupKey key = Key("a-1", 1);
  Driver agent(ServiceConfig());
  agent.Attach();
  agent.Do(Ordered{WarmOrder(1, 1)});
  agent.Do(RunDirectoryWritten{key});
  Pass(agent, 1, 119);
  EXPECT_EQ(agent.CountEver<SpawnShim>(), 0);
  agent.AdvanceTo(120s);
  EXPECT_EQ(agent.CountEver<SpawnShim>(), 1);
  EXPECT_EQ(agent.CountEver<SpawnStore>(), 1);
}

TEST(AgentCore, AStopDoesNotWaitForImports) {
  const GroupKey key = Key("a-1", 1);
  Driver agent(ServiceConfig());
  agent.Attach();
  agent.Do(Ordered{WarmOrder(1, 1)});
  agent.Do(RunDirectoryWritten{key});
  agent.Do(Ordered{StopOrder(2, 1)});
  ASSERT_NE(agent.Last<SendReport>(), nullptr);
  EXPECT_EQ(agent.Last<SendReport>()->report.phase, Phase::kFree);
  agent.Do(WarmedUp{key});
  agent.AdvanceTo(130s);
  EXPECT_EQ(agent.CountEver<SpawnShim>() + agent.CountEver<SpawnStore>(), 0);
}

// A job that is seen again is not imported again: what its ranks are forked from outlives its last
// group here by a minute, counted from the newest.
TEST(AgentCore, ANurseryOutlivesTheLastGroupOfItsJobForAMinute) {
  Driver agent(ServiceConfig());
  agent.Attach();
  const auto forget = [&agent](std::uint64_t number, std::uint64_t generation) {
    agent.Do(RunDirectoryWritten{Key("a-1", generation)});
    agent.Do(Ordered{StopOrder(number, generation)});
    agent.Do(Ordered{ForgetOrder(number + 1, generation)});
    ASSERT_NE(agent.Last<RemoveRunDirectory>(), nullptr);
  };
  agent.Do(Ordered{WarmOrder(1, 1)});
  forget(2, 1);
  Pass(agent, 1, 59);
  agent.Do(Ordered{WarmOrder(4, 2)});
  Pass(agent, 60, 70);
  EXPECT_EQ(agent.CountEver<EndNursery>(), 0) << "a group of it is here";
  forget(5, 2);
  Pass(agent, 71, 129);
  EXPECT_EQ(agent.CountEver<EndNursery>(), 0);
  agent.AdvanceTo(130s);
  EXPECT_EQ(agent.CountEver<EndNursery>(), 1);
  EXPECT_EQ(agent.Last<EndNursery>()->job, JobId("a-1"));
}

TEST(AgentCore, ANurseryIsKeptWhileAnotherGroupOfItsJobIsHere) {
  Driver agent(ServiceConfig());
  agent.Attach();
  agent.Do(Ordered{WarmOrder(1, 1)});
  agent.Do(RunDirectoryWritten{Key("a-1", 1)});
  agent.Do(Ordered{StopOrder(2, 1)});
  agent.Do(Ordered{WarmOrder(3, 2)});
  agent.Do(Ordered{ForgetOrder(4, 1)});
  ASSERT_NE(agent.Last<RemoveRunDirectory>(), nullptr);
  ASSERT_TRUE(agent.core().groups().contains(Key("a-1", 2)));
  Pass(agent, 1, 70);
  EXPECT_EQ(agent.CountEver<EndNursery>(), 0);
}

TEST(AgentCore, ANodeCheckComesAfterTheImports) {
  Driver agent(ServiceConfig());
  agent.Attach();
  Order order = WarmOrder(1, 1);
  order.prepare->spec.job.node_check.command = "true";
  agent.Do(Ordered{order});
  agent.Do(RunDirectoryWritten{Key("a-1", 1)});
  EXPECT_EQ(agent.Last<SpawnShim>(), nullptr);
  agent.Do(WarmedUp{Key("a-1", 1)});
  EXPECT_NE(agent.Last<SpawnShim>(), nullptr);
}

}  // namespace
}  // namespace regroup::agent
