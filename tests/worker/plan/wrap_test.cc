// Which units are gathered together, and that the plan does so.

#include "worker/plan/wrap.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/worker/plan/mistakes.h"
#include "worker/plan/plan.h"

namespace regroup::worker {
namespace {

WrapPolicy BySize(std::int64_t parameters) {
  return {.kind = WrapPolicy::Kind::kSize, .parameters = parameters, .begins = {}};
}
WrapPolicy ByList(std::vector<std::string> begins) {
  return {.kind = WrapPolicy::Kind::kList, .parameters = 0, .begins = std::move(begins)};
}

TEST(Wrap, APolicySaysWhoIsGatheredTogether) {
  const ParamLayout layout = Layout(2, true, Strategy::kZero3);
  const auto wrapped = [&](const WrapPolicy& policy) { return *WrapUnits(layout, policy); };
  EXPECT_EQ(wrapped({}), (std::vector<UnitId>{0, 1, 2, 3}));
  EXPECT_EQ(wrapped(BySize(1)), (std::vector<UnitId>{0, 1, 2, 3}));
  EXPECT_EQ(wrapped(BySize(1'000'000)), (std::vector<UnitId>{0, 0, 0, 0}));
  EXPECT_EQ(wrapped(BySize(256)), (std::vector<UnitId>{0, 1, 1, 3})) << "256, 128, 128, 64";
  EXPECT_EQ(wrapped(ByList({"head", "b0"})), (std::vector<UnitId>{0, 1, 1, 3}));
  EXPECT_EQ(wrapped(ByList({"embed"})), (std::vector<UnitId>{0, 0, 0, 0}));
  std::int64_t first = 0;
  for (const ParamId p : layout.units()[0].params)
    first += layout.params()[static_cast<std::size_t>(p)].flat.size;
  EXPECT_EQ(wrapped(BySize(first))[1], 1) << "it is full";
  EXPECT_EQ(wrapped(BySize(first + 1))[1], 0) << "one is missing";
}

TEST(Wrap, WhatFitsNoLayoutIsRefused) {
  const ParamLayout layout = Layout(2, true, Strategy::kZero3);
  EXPECT_EQ(WrapUnits(layout, ByList({"b0", "b7"})).status().message(), "no unit is called \"b7\"");
  EXPECT_EQ(WrapUnits(layout, ByList({})).status().message(), "a list of no unit");
  EXPECT_EQ(WrapUnits(layout, BySize(0)).status().message(), "groups of 0 parameters");
  EXPECT_EQ(MakePlan(layout, {.wrap = BySize(0)}).status().message(), "groups of 0 parameters");
}

TEST(Wrap, IsSaidAsItIsGiven) {
  EXPECT_EQ(ToString(WrapPolicy()), "block");
  EXPECT_EQ(ToString(BySize(100'000'000)), "size:100000000");
  EXPECT_EQ(ToString(ByList({"block.0", "head"})), "list:block.0,head");
}

// Before the first of them is used, and freed after the last. The head reads the embedding's.
TEST(Wrap, AGroupComesAndGoesTogether) {
  const ParamLayout layout = Layout(2, true, Strategy::kZero3);
  std::vector<Plan> plans;
  for (int r = 0; r < 2; ++r)
    plans.push_back(*MakePlan(layout, {.rank = r, .wrap = ByList({"b0", "head"})}));
  EXPECT_TRUE(CheckPlan(layout, plans).ok()) << CheckPlan(layout, plans);
  EXPECT_EQ(OrderOf(plans[0]),
            "G0 F0 -0 G1 G2 F1 F2 -1 -2 G0 G3 F3 B3 -0 -3 G1 G2 B2 B1 -1 -2 G0 B0 -0 S0 S1 S2 S3 ");
  EXPECT_GT(MakePlan(layout, {.wrap = ByList({"b1"})})->weights.elements,
            MakePlan(layout, {})->weights.elements);
  EXPECT_EQ(MakePlan(layout, {.wrap = BySize(1'000'000)})->weights.elements,
            layout.flat_elements());
}

// The embedding's stay for the head, which comes next.
TEST(Wrap, TheNextGroupIsOnItsWayWhileOneIsUsed) {
  const ParamLayout layout = Layout(2, true, Strategy::kZero3);
  std::vector<Plan> plans;
  for (int r = 0; r < 2; ++r)
    plans.push_back(
        *MakePlan(layout, {.rank = r, .overlap = true, .wrap = ByList({"b0", "head"})}));
  EXPECT_TRUE(CheckPlan(layout, plans).ok()) << CheckPlan(layout, plans);
  EXPECT_EQ(
      OrderOf(plans[0]),
      "G0 A0 G1 G2 F0 A1 A2 G3 F1 F2 -1 -2 A3 F3 G1 G2 B3 -3 A1 A2 B2 B1 -1 -2 B0 -0 S0 S1 S2 S3 ");
}

}  // namespace
}  // namespace regroup::worker
