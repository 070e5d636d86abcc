#include "launcher/coordinator/core/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace regroup::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

JobId JobOf(std::uint64_t sequence) { return JobId("job-" + std::to_string(sequence)); }

Demand DemandOf(std::uint64_t sequence, Stage stage, int min = 1, int max = 1) {
  return {JobOf(sequence), sequence, stage, min, max, 1, 1, 0};
}

// Nodes a, b, … with one slot, which is free.
void Add(Placement& placement, const std::string& names) {
  for (const char name : names) {
    placement.SetSize(NodeId(std::string(1, name)), std::string(1, name), 1);
    placement.SetFree(NodeId(std::string(1, name)), 1);
  }
}

template <class Reason>
bool Waits(const Placement& placement, std::uint64_t sequence) {
  const std::optional<WaitReason> why = placement.WhyNot(sequence);
  return why && std::holds_alternative<Reason>(*why);
}

TEST(Placement, TheEmptiestComeFirstThenNamesAsPeopleCount) {
  Placement placement;
  const auto add = [&](const char* node, const char* name, int free) {
    placement.SetSize(NodeId(node), name, 8);
    placement.SetFree(NodeId(node), free);
  };
  add("a", "node10", 2);
  add("b", "node9", 2);
  add("c", "node1", 1);
  add("d", "node2", 8);
  add("e", "node0", 0);
  EXPECT_EQ(placement.CountFree(1), 4);
  EXPECT_EQ(placement.CountFree(2), 3);
  EXPECT_EQ(placement.CountFree(9), 0);
  EXPECT_THAT(placement.FirstFree(1, 10),
              ElementsAre(NodeId("d"), NodeId("b"), NodeId("a"), NodeId("c")));
  EXPECT_THAT(placement.FirstFree(2, 2), ElementsAre(NodeId("d"), NodeId("b")));
  EXPECT_THAT(placement.FirstFree(9, 10), IsEmpty());
  placement.SetSize(NodeId("b"), "node11", 8);  // Under another name.
  EXPECT_THAT(placement.FirstFree(2, 3), ElementsAre(NodeId("d"), NodeId("a"), NodeId("b")));
}

TEST(Placement, OffersWhatIsMoreAndForgetsWhatWas) {
  Placement placement;
  placement.Set(DemandOf(1, Stage::kGrowing));
  const NodeId a("a");
  const auto offered = [&](int free) {
    placement.SetFree(a, free);
    return !placement.TakeOffers().empty();
  };
  EXPECT_FALSE(offered(1));  // Not a node yet.
  placement.SetSize(a, "x", 4);
  EXPECT_FALSE(offered(0));
  EXPECT_TRUE(offered(1));
  EXPECT_FALSE(offered(1));
  EXPECT_TRUE(offered(3));
  EXPECT_FALSE(offered(2));
  placement.SetSize(a, "y", 4);
  EXPECT_FALSE(offered(2));
  EXPECT_EQ(placement.CountFree(1), 1);
  EXPECT_FALSE(offered(-1));
  EXPECT_EQ(placement.CountFree(1), 0);
  EXPECT_TRUE(offered(0));  // Less is taken twice: a job that holds a slot here finds it free.
  EXPECT_TRUE(offered(2));
  placement.SetSize(a, "", 0);
  placement.SetSize(a, "", 0);
  EXPECT_EQ(placement.CountFree(1), 0);
  placement.Remove(1);
  placement.Remove(1);
  EXPECT_TRUE(placement.SaysTheSame(Placement()));
}

// The oldest that fits; one that cannot run is passed over, and is the head once it can.
TEST(Placement, TheHeadIsTheOldestThatFits) {
  Placement placement;
  Add(placement, "ab");
  for (const std::uint64_t job : {1, 2, 3})
    placement.Set(DemandOf(job, Stage::kQueued, job == 1 ? 3 : 1));
  EXPECT_EQ(placement.queued(), 3u);
  EXPECT_TRUE(Waits<CannotFit>(placement, 1));
  EXPECT_FALSE(placement.WhyNot(2));
  ASSERT_TRUE(Waits<BehindJob>(placement, 3));
  EXPECT_EQ(std::get<BehindJob>(*placement.WhyNot(3)).job, JobOf(2));
  EXPECT_THAT(placement.TakeNews(), ElementsAre(2));
  Add(placement, "c");
  EXPECT_THAT(placement.TakeNews(), ElementsAre(1, 2));  // 2 has another reason to wait.
  EXPECT_FALSE(placement.WhyNot(1));
  EXPECT_TRUE(Waits<BehindJob>(placement, 2));
  placement.Set(DemandOf(1, Stage::kBetween, 3));
  EXPECT_THAT(placement.TakeNews(), ElementsAre(2));
  placement.SetSize(NodeId("c"), "", 0);  // It holds its turn, though it no longer fits.
  EXPECT_FALSE(placement.WhyNot(1));
  EXPECT_THAT(placement.TakeNews(), IsEmpty());
  placement.Remove(2);
  EXPECT_THAT(placement.TakeNews(), ElementsAre(3));
  EXPECT_EQ(placement.queued(), 1u);
}

// A node decides only for jobs that need just so many of at least its size.
TEST(Placement, OneNodeMoreIsNewsForWhomItDecides) {
  Placement placement;
  const auto demand = [&](std::uint64_t sequence, int min, int slots, int unit = 1) {
    placement.Set({JobOf(sequence), sequence, Stage::kQueued, min, 8, unit, slots, 0});
  };
  demand(1, 2, 1);
  demand(2, 1, 4);
  demand(3, 2, 4);
  demand(4, 1, 1, 2);  // Two, as its unit says.
  demand(5, 3, 1);
  const auto size = [&](const char* node, int slots) {
    placement.SetSize(NodeId(node), node, slots);
    return placement.TakeNews();
  };
  EXPECT_THAT(size("a", 1), IsEmpty());
  EXPECT_THAT(size("b", 2), ElementsAre(1, 4));
  EXPECT_THAT(size("b", 4), ElementsAre(2));
  EXPECT_THAT(size("a", 4), ElementsAre(3));
  EXPECT_THAT(size("c", 1), ElementsAre(5));
  EXPECT_THAT(size("b", 3), ElementsAre(3));
  EXPECT_THAT(size("b", 0), ElementsAre(5));
  EXPECT_THAT(size("a", 0), ElementsAre(1, 2, 4));
  EXPECT_TRUE(Waits<CannotFit>(placement, 1));
  EXPECT_EQ(std::get<CannotFit>(*placement.WhyNot(3)).largest, 1);
}

// Who runs with fewer nodes than it may have takes none from a job that waits, however old it is.
TEST(Placement, NobodyGrowsWhileAnotherWaits) {
  Placement placement;
  Add(placement, "ab");
  placement.Set(DemandOf(1, Stage::kGrowing, 1, 4));
  EXPECT_TRUE(placement.MayGrow(1));
  placement.Set(DemandOf(2, Stage::kQueued, 2, 2));
  EXPECT_FALSE(placement.MayGrow(1));
  EXPECT_THAT(placement.Takers(), ElementsAre(1, 2));
  EXPECT_THAT(placement.TakeNews(), ElementsAre(2));
  placement.SetSize(NodeId("b"), "", 0);  // The head does not fit any more: it is none.
  EXPECT_THAT(placement.TakeNews(), ElementsAre(1, 2));
  EXPECT_TRUE(placement.MayGrow(1));
  EXPECT_THAT(placement.Takers(), ElementsAre(1));
}

}  // namespace
}  // namespace regroup::coordinator
