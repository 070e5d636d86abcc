#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "agent/core/core.h"
#include "tests/agent/core/driver.h"

namespace regroup::agent {
namespace {

using namespace regroup::agent::testing;

std::vector<int> SlotsOf(Driver& agent, const std::string& job, std::uint64_t generation = 1) {
  return agent.core().groups().at(Key(job, generation)).slots;
}

TEST(Slots, AGroupHasTheSmallestNumbersThatAreFree) {
  Driver agent(ServiceConfig(4));
  agent.Attach();
  BringUp(agent, 1, 2, 1, "a-1");
  agent.Do(Ordered{PrepareOrder(3, 1, 1, false, "b-1")});
  EXPECT_THAT(agent.Last<WriteRunDirectory>()->slots, ::testing::ElementsAre(2));
  agent.Do(GroupEmpty{Key("a-1", 1)});
  agent.Do(Ordered{PrepareOrder(4, 1, 1, false, "c-1")});
  agent.Do(Ordered{PrepareOrder(5, 1, 2, false, "d-1")});
  EXPECT_THAT(SlotsOf(agent, "c-1"), ::testing::ElementsAre(0));
  EXPECT_THAT(SlotsOf(agent, "d-1"), ::testing::ElementsAre(1, 3));
}

// Its processes were told which devices they have.
TEST(Slots, AGroupThatWasFoundKeepsItsSlots) {
  RunRecord record = RunningRecord("a-1", 3, 2);
  record.slots = {1, 2};
  Driver agent(ServiceConfig(4), {record});
  agent.Attach();
  agent.Do(Ordered{PrepareOrder(1, 1, 2, false, "b-1")});
  EXPECT_THAT(SlotsOf(agent, "a-1", 3), ::testing::ElementsAre(1, 2));
  EXPECT_THAT(SlotsOf(agent, "b-1"), ::testing::ElementsAre(0, 3));
}

TEST(Slots, AGroupOfAnOlderAgentIsTakenToHaveWhatOthersHaveNot) {
  RunRecord record = RunningRecord("b-1", 1, 1);
  record.slots = {0};
  Driver agent(ServiceConfig(4), {RunningRecord("a-1", 3, 2), record});
  EXPECT_THAT(SlotsOf(agent, "a-1", 3), ::testing::ElementsAre(1, 2));
  EXPECT_THAT(SlotsOf(agent, "b-1"), ::testing::ElementsAre(0));
}

TEST(Slots, InPlaceItHasTheSlotsThatItsRanksWereStartedOn) {
  const GroupKey one = Key("a-1", 1);
  Driver agent(ServiceConfig(4));
  agent.Attach();
  BringUp(agent, 1, 2, 1, "b-1");
  BringUp(agent, 1, 2, 3);
  for (int rank : {0, 1}) agent.Do(WorkerSaid{one, rank, rank, WorkerHello{true, true}});
  agent.Do(GroupEmpty{Key("b-1", 1)});
  agent.Do(Ordered{RetireOrder(5, 1)});
  for (int rank : {0, 1}) agent.Do(WorkerSaid{one, rank, rank, WorkerRetired{}});
  agent.Do(Ordered{PrepareOrder(6, 2, 2)});
  EXPECT_THAT(agent.Last<WriteRunDirectory>()->slots, ::testing::ElementsAre(2, 3))
      << "others are free, and its ranks do not see their devices";
}

}  // namespace
}  // namespace regroup::agent
