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

// A job that wants whole nodes of GPUs finds those that nobody uses, whatever their size.
TEST(Placement, WholeNodesOfGpus) {
  Placement placement;
  const auto add = [&](const char* node, int slots, bool gpus) {
    placement.SetSize(NodeId(node), node, slots, gpus);
    placement.SetFree(NodeId(node), slots);
  };
  add("a", 4, true);
  add("b", 8, true);
  add("c", 16, false);
  EXPECT_EQ(placement.CountFree(kWorkerPerGpu), 2);
  EXPECT_THAT(placement.FirstFree(kWorkerPerGpu, 9), ElementsAre(NodeId("b"), NodeId("a")));
  placement.SetFree(NodeId("b"), 7);
  EXPECT_THAT(placement.FirstFree(kWorkerPerGpu, 9), ElementsAre(NodeId("a")));
  EXPECT_EQ(placement.CountFree(7), 2) << "for others it has seven";
  placement.SetFree(NodeId("b"), 8);
  EXPECT_EQ(placement.CountFree(kWorkerPerGpu), 2);

  placement.Set({JobOf(1), 1, Stage::kQueued, 3, 3, 1, kWorkerPerGpu, 0});
  ASSERT_TRUE(Waits<CannotFit>(placement, 1));
  const CannotFit fit = std::get<CannotFit>(*placement.WhyNot(1));
  EXPECT_EQ(fit.known, 2);
  EXPECT_EQ(fit.largest, 8);
  EXPECT_EQ(fit.node, "b");
  EXPECT_THAT(placement.TakeNews(), IsEmpty());
  placement.SetSize(NodeId("c"), "c", 16, true);  // Its agent counts GPUs now.
  EXPECT_THAT(placement.TakeNews(), ElementsAre(1));
  EXPECT_FALSE(placement.WhyNot(1));
  EXPECT_EQ(placement.CountFree(kWorkerPerGpu), 3);
  placement.SetSize(NodeId("a"), "a", 2, true);  // Smaller, and still one of GPUs.
  EXPECT_THAT(placement.TakeNews(), IsEmpty());
  placement.SetSize(NodeId("c"), "c", 16, false);
  EXPECT_THAT(placement.TakeNews(), ElementsAre(1));
  EXPECT_TRUE(Waits<CannotFit>(placement, 1));
  for (const char* node : {"a", "b", "c"}) placement.SetSize(NodeId(node), "", 0);
  placement.Remove(1);
  EXPECT_TRUE(placement.SaysTheSame(Placement()));
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

// ---- the policy at one look

struct Case {
  const char* name;
  std::vector<Asking> askings;
  std::vector<Supply> supplies;
  std::string granted;  // For each job its nodes, or why it has none.
};

Asking Ask(std::uint64_t sequence, Stage stage, int min, int max, int slots = 1) {
  Asking asking{DemandOf(sequence, stage, min, max)};
  asking.demand.slots = slots;
  return asking;
}

Asking Grows(std::uint64_t sequence, int has, int max, int unit = 1) {
  Asking asking = Ask(sequence, Stage::kGrowing, 1, max);
  asking.demand.has = has;
  asking.demand.unit = unit;
  return asking;
}

Asking NotReady(Asking asking) {
  asking.ready = false;
  return asking;
}

Asking With(Asking asking, const char* node, int own) {
  asking.own[NodeId(node)] = own;
  return asking;
}

// Node `a` with 4 slots of which 2 are free: {"a", 4, 2}.
Supply Of(const char* node, int slots, int free) { return {NodeId(node), node, slots, free}; }

std::string TextOf(const Grant& grant) {
  std::string text = grant.job.value().substr(4) + ":";
  for (const NodeId& node : grant.nodes) text += node.value();
  if (!grant.why_not) return text;
  if (const auto* below = std::get_if<BelowMinimum>(&*grant.why_not))
    return text + "below " + std::to_string(below->have) + "/" + std::to_string(below->need);
  if (const auto* behind = std::get_if<BehindJob>(&*grant.why_not))
    return text + "behind " + behind->job.value().substr(4);
  return text + "unfit";
}

std::vector<Case> Cases() {
  constexpr Stage kQueued = Stage::kQueued, kBetween = Stage::kBetween;
  const std::vector<Supply> three = {Of("a", 1, 1), Of("b", 1, 1), Of("c", 1, 1)};
  const std::vector<Supply> busy = {Of("a", 1, 0), Of("b", 1, 0), Of("c", 1, 1)};
  return {
      {"as many as it may have", {Ask(1, kQueued, 1, 2)}, three, "1:ab"},
      {"who is served leaves the line",
       {Ask(1, kQueued, 1, 2), Ask(2, kQueued, 1, 2)},
       three,
       "1:ab 2:c"},
      {"the head is not overtaken",
       {Ask(1, kQueued, 2, 2), Ask(2, kQueued, 1, 1)},
       busy,
       "1:below 1/2 2:behind 1"},
      {"who cannot run is passed over",
       {Ask(1, kQueued, 4, 4), Ask(2, kQueued, 1, 1)},
       busy,
       "1:unfit 2:c"},
      {"a last call keeps the turn",
       {NotReady(Ask(1, kQueued, 1, 2)), Ask(2, kQueued, 1, 1)},
       three,
       "1: 2:behind 1"},
      {"between generations no line counts",
       {Ask(1, kQueued, 2, 2), Ask(2, kBetween, 1, 2)},
       busy,
       "1:below 1/2 2:c"},
      {"what it holds is its own", {With(Ask(1, kBetween, 2, 2), "b", 1)}, busy, "1:bc"},
      {"what it may not take is not", {With(Ask(1, kBetween, 1, 2), "c", 0)}, busy, "1:below 0/1"},
      {"the emptiest first",
       {Ask(1, kQueued, 1, 2)},
       {Of("a", 2, 1), Of("n10", 2, 2), Of("n9", 2, 2)},
       "1:n9n10"},
      {"one node may serve two",
       {Ask(1, kQueued, 1, 1, 2), Ask(2, kQueued, 1, 1)},
       {Of("a", 3, 3)},
       "1:a 2:a"},
      {"whoever grows is last", {Grows(1, 1, 3), Ask(2, kQueued, 2, 2)}, three, "2:ab 1:c"},
      {"none grows while the head waits",
       {Grows(1, 1, 3), Ask(2, kQueued, 2, 2)},
       busy,
       "2:below 1/2 1:behind 2"},
      {"growth by units", {Grows(1, 2, 6, 2)}, three, "1:ab"},
      {"too little to grow is no reason to wait", {Grows(1, 2, 6, 2)}, busy, "1:"},
  };
}

TEST(Placement, IsFirstInFirstOut) {
  for (const Case& row : Cases()) {
    std::string granted;
    for (const Grant& grant : Place(row.askings, row.supplies))
      granted += (granted.empty() ? "" : " ") + TextOf(grant);
    EXPECT_EQ(granted, row.granted) << row.name;
  }
}

}  // namespace
}  // namespace regroup::coordinator
