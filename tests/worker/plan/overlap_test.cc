// What goes on beside what computes: where it begins, and where it must be over.

#include <gtest/gtest.h>

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/worker/plan/mistakes.h"

namespace regroup::worker {
namespace {

// Each unit is on its way while the one before it is computed with, in either direction.
TEST(Plan, GathersThatOverlapAreOneUnitAhead) {
  std::vector<UnitSpec> units;
  for (const char* name : {"a", "b", "c"})
    units.push_back({name, {{.name = name, .shape = {64}}}, {}});
  const auto order = [&](Strategy strategy) {
    const ParamLayout layout = *ParamLayout::Create(units, 2, strategy);
    std::vector<Plan> plans;
    for (int r = 0; r < 2; ++r) plans.push_back(*MakePlan(layout, {.rank = r, .overlap = true}));
    EXPECT_TRUE(CheckPlan(layout, plans).ok()) << CheckPlan(layout, plans);
    return OrderOf(plans[0]);
  };
  EXPECT_EQ(order(Strategy::kZero3),
            "G0 A0 G1 F0 -0 A1 G2 F1 -1 A2 F2 G1 B2 -2 A1 G0 B1 -1 A0 B0 -0 S0 S1 S2 ");
  EXPECT_EQ(order(Strategy::kZero1), "G0 A0 G1 F0 A1 G2 F1 A2 F2 B2 B1 B0 S0 S1 S2 ");
}

// All that is left to wait for is what backwards did not take long enough for.
TEST(Plan, ReductionsThatOverlapAreAwaitedAtTheEndOrWhenTheirMemoryIsNeeded) {
  const auto order = [](Strategy strategy, std::vector<int> micro_batches) {
    std::string text;
    const ParamLayout layout = Layout(2, true, strategy);
    const std::vector<Plan> plans = Plans(layout, std::move(micro_batches), {}, true);
    for (const Instruction& i : plans[0].instructions) {
      if (i.bucket >= 0 || i.op == Op::kSumSquares || (i.op == Op::kBackward && i.unit == 1))
        text += ToString(i) + "\n";
    }
    return text;
  };
  const std::string last =
      "ReduceGrad bucket 0\nBackward unit 1 micro-batch 0\nReduceGrad bucket 1\n"
      "AwaitGrad bucket 0\nAwaitGrad bucket 1\nSumSquares\n";
  for (const Strategy strategy : kStrategies) EXPECT_EQ(order(strategy, {1, 1}), last);
  const std::string two = "Backward unit 1 micro-batch 0\nReduceGrad bucket 0\n" +
                          std::string("Backward unit 1 micro-batch 1\n") +
                          last.substr(last.find("ReduceGrad bucket 1"));
  EXPECT_EQ(order(Strategy::kZero2, {2, 1}), two);
}

// Two blocks whose backwards have two parts.
ParamLayout LayoutOfParts(Strategy strategy) {
  const auto block = [](const std::string& name) {
    return UnitSpec{name,
                    {{.name = name + ".a", .shape = {64}}, {.name = name + ".b", .shape = {128}}},
                    {},
                    {1}};
  };
  return *ParamLayout::Create({{"embed", {{.name = "wte", .shape = {64}}}, {}},
                               block("b0"),
                               block("b1"),
                               {"head", {{.name = "ln", .shape = {64}}}, {"wte"}}},
                              2, strategy);
}

std::vector<Plan> PlansOfParts(const ParamLayout& layout, std::vector<int> micro_batches = {1, 1},
                               bool overlap = true) {
  std::vector<Plan> plans;
  for (int rank = 0; rank < 2; ++rank) {
    plans.push_back(
        *MakePlan(layout, {.rank = rank,
                           .micro_batches = micro_batches[static_cast<std::size_t>(rank)],
                           .rounds = micro_batches[0],
                           .bucket_bytes = 700,
                           .overlap = overlap}));
  }
  EXPECT_TRUE(CheckPlan(layout, plans).ok()) << CheckPlan(layout, plans);
  return plans;
}

// What is reduced whole goes as soon as a part of a backward has made it, in the last micro-batch.
TEST(Plan, ReductionsThatOverlapBeginBetweenThePartsOfAUnit) {
  const auto order = [](Strategy strategy, std::vector<int> micro_batches, bool overlap, int rank) {
    std::string text;
    const std::vector<Plan> plans =
        PlansOfParts(LayoutOfParts(strategy), std::move(micro_batches), overlap);
    for (const Instruction& i : plans[static_cast<std::size_t>(rank)].instructions) {
      const bool counts = i.op == Op::kZeroGrad || i.op == Op::kReduceGrad;
      if (counts) text += (i.op == Op::kZeroGrad ? "Z" : "R") + std::to_string(i.bucket) + " ";
      if (i.op == Op::kBackward)
        text += "B" + std::to_string(i.unit) +
                (i.part == kWholeUnit ? " " : "." + std::to_string(i.part) + " ");
    }
    return text;
  };
  EXPECT_EQ(order(Strategy::kReplicated, {1, 1}, true, 0), "B3 B2.1 R0 B2.0 B1.1 R1 B1.0 B0 R2 ");
  EXPECT_EQ(order(Strategy::kReplicated, {2, 1}, true, 0),
            "B3 B2 B1 B0 B3 B2.1 R0 B2.0 B1.1 R1 B1.0 B0 R2 ");
  EXPECT_EQ(order(Strategy::kReplicated, {1, 0}, true, 1), "Z0 R0 Z1 R1 Z2 R2 ");
  EXPECT_EQ(order(Strategy::kReplicated, {1, 1}, false, 0), "B3 B2 R0 B1 R1 B0 R2 ");
  EXPECT_EQ(order(Strategy::kZero1, {1, 1}, true, 0), "B3 B2 R0 B1 R1 B0 R2 ");
  EXPECT_EQ(ToString({.op = Op::kBackward, .unit = 2, .micro_batch = 0, .part = 1}),
            "Backward unit 2 part 1 micro-batch 0");
}

// What is full goes before anything is computed.
TEST(Plan, ReductionsThatOverlapBeginBeforeTheNextUnitIsRecomputed) {
  const ParamLayout layout = LayoutOfParts(Strategy::kReplicated);
  const Plan plan = *MakePlan(layout, {.bucket_bytes = 1, .recomputed = {1, 2}, .overlap = true});
  const std::size_t recompute = Find(plan, Op::kRecompute, 1);
  EXPECT_EQ(ToString(plan.instructions[recompute - 1]), "ReduceGrad bucket 2");
  EXPECT_EQ(ToString(plan.instructions[recompute - 2]), "Backward unit 2 part 0 micro-batch 0");
}

// A first unit that has nothing to reduce is of the last bucket.
TEST(Plan, UnitsWithoutParametersAreOfABucketToo) {
  const ParamLayout layout =
      *ParamLayout::Replicated({{"shift", {}, {}}, {"a", {{.name = "a", .shape = {64}}}, {}}}, 1);
  const Plan plan = *MakePlan(layout, {});
  EXPECT_TRUE(CheckPlan(layout, std::span(&plan, 1)).ok());
  EXPECT_GT(Find(plan, Op::kReduceGrad), Find(plan, Op::kBackward, 0));
}

std::size_t FindPart(const Plan& plan, UnitId unit, int part) {
  std::size_t at = Find(plan, Op::kBackward, unit);
  while (plan.instructions[at].part != part) ++at;
  return at;
}

const Mistake kMistakesOfParts[] = {
    {"a part left out", [](Plan& p) { Erase(p, FindPart(p, 2, 0)); },
     "part 0 of unit 2 of micro-batch 0 is the next to go backward"},
    {"the last part left out", [](Plan& p) { Erase(p, FindPart(p, 2, 1)); },
     "the gradients of part 1 of unit 2 are not complete"},
    {"parts in the other order",
     [](Plan& p) {
       std::swap(p.instructions[FindPart(p, 2, 0)].part, p.instructions[FindPart(p, 2, 1)].part);
     },
     "part 1 of unit 2 of micro-batch 0 is the next to go backward"},
    {"a part of a unit that has one",
     [](Plan& p) { p.instructions[Find(p, Op::kBackward)].part = 0; },
     "(Backward unit 3 part 0 micro-batch 0): unit 3 of micro-batch 0 is the next to go backward"},
    {"a part twice", [](Plan& p) { p.instructions[FindPart(p, 2, 0)].part = 1; },
     "part 0 of unit 2 of micro-batch 0 is the next to go backward"},
    {"all of a unit after a part", [](Plan& p) { p.instructions[FindPart(p, 1, 0)].part = -1; },
     "part 0 of unit 1 of micro-batch 0 is the next to go backward"},
    {"a part that does not exist", [](Plan& p) { p.instructions[FindPart(p, 1, 1)].part = 2; },
     "part 1 of unit 1 of micro-batch 0 is the next to go backward"},
    {"reduced before its part",
     [](Plan& p) { Move(p, Find(p, Op::kReduceGrad), FindPart(p, 2, 1)); },
     "the gradients of part 1 of unit 2 are not complete"},
    {"reduced before the other part",
     [](Plan& p) {
       p.buckets[0].flat = {p.buckets[0].flat.begin - 64, p.buckets[0].flat.size + 64};
     },
     "the gradients of part 0 of unit 2 are not complete"},
    {"a part reduced twice",
     [](Plan& p) {
       p.buckets[1].last_unit = 3;
       p.buckets[1].flat.size = p.buckets[0].flat.end() - p.buckets[1].flat.begin;
     },
     "part 1 of unit 2 is reduced twice"},
    {"a part never reduced",
     [](Plan& p) {
       p.buckets[1].last_unit = 1;
       p.buckets[1].flat.size -= 64;
     },
     "(SumSquares): part 0 of unit 2 is not reduced"},
    {"a bucket that ends within a part", [](Plan& p) { p.buckets[0].flat.begin += 64; },
     "its bucket is not the memory of its units"},
    {"a bucket of nothing",
     [](Plan& p) {
       p.buckets[0] = {.first_unit = 2, .last_unit = 2, .flat = {p.buckets[0].flat.begin, 0}};
     },
     "its bucket is not the memory of its units"},
    {"a part of a forward", [](Plan& p) { p.instructions[Find(p, Op::kForward)].part = 0; },
     "names more than it needs"},
};

TEST(CheckPlan, CatchesEveryMistakeOfParts) {
  const ParamLayout layout = LayoutOfParts(Strategy::kReplicated);
  for (const Mistake& mistake : kMistakesOfParts) {
    SCOPED_TRACE(mistake.what);
    std::vector<Plan> plans = PlansOfParts(layout);
    mistake.make(plans[1]);
    const absl::Status status = CheckPlan(layout, plans);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_NE(status.message().find(mistake.says), std::string::npos) << status;
  }
}

// What its ranks own of a unit is reduced in one call.
TEST(CheckPlan, BucketsOfWhatIsDividedAreOfWholeUnits) {
  for (const bool overlap : {false, true}) {
    for (const Strategy strategy : kStrategies) {
      if (overlap && strategy == Strategy::kReplicated) continue;
      const ParamLayout layout = LayoutOfParts(strategy);
      std::vector<Plan> plans = PlansOfParts(layout, {1, 1}, overlap);
      for (Plan& plan : plans) {
        plan.buckets[0].flat.begin += 64;
        plan.buckets[0].flat.size -= 64;
      }
      EXPECT_NE(CheckPlan(layout, plans).message().find("not the memory of its units"),
                std::string::npos)
          << NameOf(strategy) << " " << overlap;
    }
  }
}

const Mistake kMistakesOfOverlap[] = {
    {"another bucket of the same units awaited",
     [](Plan& p) {
       p.buckets.push_back(p.buckets[0]);
       p.instructions[Find(p, Op::kAwaitGrad)].bucket = 2;
     },
     "(AwaitGrad bucket 2): no such reduction of unit 2 is under way"},
    {"never awaited", [](Plan& p) { Erase(p, Find(p, Op::kAwaitGrad)); },
     "(SumSquares): the reduction of unit 2 is under way"},
    {"awaited too late",
     [](Plan& p) { Move(p, Find(p, Op::kAwaitGrad), Find(p, Op::kSumSquares)); },
     "(SumSquares): the reduction of unit 2 is under way"},
    {"awaited before it has begun",
     [](Plan& p) { Move(p, Find(p, Op::kAwaitGrad), Find(p, Op::kReduceGrad)); },
     "(AwaitGrad bucket 0): no such reduction of unit 2 is under way"},
    {"awaited twice",
     [](Plan& p) { Insert(p, Find(p, Op::kSumSquares), p.instructions[Find(p, Op::kAwaitGrad)]); },
     "(AwaitGrad bucket 0): no such reduction of unit 2 is under way"},
    {"a bucket that does not exist awaited",
     [](Plan& p) { p.instructions[Find(p, Op::kAwaitGrad)].bucket = 9; }, "there are 2 buckets"},
    {"more named than needed", [](Plan& p) { p.instructions[Find(p, Op::kAwaitGrad)].unit = 0; },
     "names more than it needs"},
    {"awaited in another order",
     [](Plan& p) { Move(p, Find(p, Op::kAwaitGrad), Find(p, Op::kSumSquares) - 1); },
     "the collectives of rank 1 are not those of rank 0"},
    {"one thing after the other on one rank", [](Plan& p) { p.overlaps = false; },
     "plan of rank 1, instruction "},
};

const Mistake kMistakesOfGathersAhead[] = {
    {"never awaited", [](Plan& p) { Erase(p, Find(p, Op::kAwaitGather, 1)); },
     "(Forward unit 1 micro-batch 0): the weights of unit 1 are not gathered"},
    {"awaited before it has begun",
     [](Plan& p) { Move(p, Find(p, Op::kAwaitGather, 1), Find(p, Op::kGather, 1)); },
     "(AwaitGather unit 1): the unit is not being gathered"},
    {"awaited twice",
     [](Plan& p) {
       Insert(p, Find(p, Op::kForward, 1), p.instructions[Find(p, Op::kAwaitGather, 1)]);
     },
     "(AwaitGather unit 1): the unit is not being gathered"},
    {"begun twice",
     [](Plan& p) { Insert(p, Find(p, Op::kForward), p.instructions[Find(p, Op::kGather, 1)]); },
     "(Gather unit 1): the unit is gathered already"},
    {"freed while it is under way",
     [](Plan& p) { Insert(p, Find(p, Op::kForward), {.op = Op::kFree, .unit = 1}); },
     "(Free unit 1): the unit is not gathered"},
    {"begun where another is in use", [](Plan& p) { p.weights.at[1] = p.weights.at[0]; },
     "overwrites unit 0, which is in use"},
    {"under way beside a collective of the computing thread",
     [](Plan& p) { Insert(p, Find(p, Op::kSumSquares), {.op = Op::kGather, .unit = 1}); },
     "(SumSquares): the gather of unit 1 is under way"},
    {"under way beside the vote",
     [](Plan& p) { Insert(p, Find(p, Op::kVote), {.op = Op::kGather, .unit = 1}); },
     "(Vote): the gather of unit 1 is under way"},
    {"no unit", [](Plan& p) { p.instructions[Find(p, Op::kAwaitGather, 1)].unit = 9; },
     "(AwaitGather unit 9): no such unit"},
};

// Each of them on one rank.
void ExpectCaught(Strategy strategy, std::span<const Mistake> mistakes) {
  const ParamLayout layout = Layout(2, true, strategy);
  for (const Mistake& mistake : mistakes) {
    SCOPED_TRACE(testing::Message() << NameOf(strategy) << ": " << mistake.what);
    std::vector<Plan> plans = Plans(layout, {1, 1}, {}, true);
    ASSERT_TRUE(CheckPlan(layout, plans).ok()) << CheckPlan(layout, plans);
    mistake.make(plans[1]);
    const absl::Status status = CheckPlan(layout, plans);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_NE(status.message().find(mistake.says), std::string::npos) << status;
  }
}

TEST(CheckPlan, CatchesEveryMistakeOfGathersAhead) {
  ExpectCaught(Strategy::kZero3, kMistakesOfGathersAhead);
}

TEST(CheckPlan, CatchesEveryMistakeOfOverlap) {
  for (const Strategy strategy : kStrategies) ExpectCaught(strategy, kMistakesOfOverlap);
}

// Memory that is being reduced is no one else's yet.
TEST(CheckPlan, NothingIsWrittenWhereAReductionIsUnderWay) {
  std::vector<UnitSpec> units;
  for (const char* name : {"a", "b", "c"})
    units.push_back({name, {{.name = name, .shape = {64}}}, {}});
  const ParamLayout layout = *ParamLayout::Create(units, 2, Strategy::kZero2);
  std::vector<Plan> plans;
  for (int r = 0; r < 2; ++r)
    plans.push_back(*MakePlan(layout, {.rank = r, .bucket_bytes = 1, .overlap = true}));
  ASSERT_TRUE(CheckPlan(layout, plans).ok());
  EXPECT_EQ(plans[0].gradients.at[2], plans[0].gradients.at[0]);
  for (Plan& plan : plans) plan.gradients.at[1] = plan.gradients.at[2];
  EXPECT_NE(CheckPlan(layout, plans).message().find("overwrites unit 2, which is in use"),
            std::string::npos)
      << CheckPlan(layout, plans);
}

}  // namespace
}  // namespace regroup::worker
