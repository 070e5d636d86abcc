#include "launcher/coordinator/core/free_slots.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace regroup::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(FreeSlots, TheEmptiestComeFirstThenNamesAsPeopleCount) {
  FreeSlots free;
  free.Set(NodeId("a"), "node10", 2);
  free.Set(NodeId("b"), "node9", 2);
  free.Set(NodeId("c"), "node1", 1);
  free.Set(NodeId("d"), "node2", 8);
  free.Set(NodeId("e"), "node0", 0);
  EXPECT_EQ(free.CountWith(1), 4);
  EXPECT_EQ(free.CountWith(2), 3);
  EXPECT_EQ(free.CountWith(9), 0);
  EXPECT_THAT(free.First(1, 10), ElementsAre(NodeId("d"), NodeId("b"), NodeId("a"), NodeId("c")));
  EXPECT_THAT(free.First(2, 2), ElementsAre(NodeId("d"), NodeId("b")));
  EXPECT_THAT(free.First(9, 10), IsEmpty());
}

TEST(FreeSlots, TellsWhetherThereIsMoreAndForgetsWhatWas) {
  FreeSlots free;
  EXPECT_FALSE(free.Set(NodeId("a"), "x", 0));
  EXPECT_TRUE(free.Set(NodeId("a"), "x", 1));
  EXPECT_FALSE(free.Set(NodeId("a"), "x", 1));
  EXPECT_TRUE(free.Set(NodeId("a"), "x", 3));
  EXPECT_FALSE(free.Set(NodeId("a"), "x", 2));
  EXPECT_FALSE(free.Set(NodeId("a"), "y", 2));
  EXPECT_EQ(free.CountWith(1), 1);
  EXPECT_FALSE(free.Set(NodeId("a"), "y", -1));
  EXPECT_EQ(free.CountWith(1), 0);
  free.Set(NodeId("a"), "y", 2);
  free.Remove(NodeId("a"));
  free.Remove(NodeId("a"));
  EXPECT_EQ(free, FreeSlots());
}

}  // namespace
}  // namespace regroup::coordinator
