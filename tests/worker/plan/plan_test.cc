#include "worker/plan/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/worker/plan/mistakes.h"

namespace regroup::worker {
namespace {

// As it is shown, without the columns of indices and streams.
std::string Listed(const Plan& plan, const ParamLayout& layout) {
  constexpr std::size_t kBefore = 2, kColumns = 15;
  std::string text;
  for (std::string line : std::vector<std::string>(absl::StrSplit(ToString(plan, layout), '\n'))) {
    if (line.starts_with("   ") && std::isdigit(line[kBefore + 3]) != 0)
      line.erase(kBefore, kColumns);
    text += text.empty() ? line : "\n" + line;
  }
  return text;
}

TEST(Plan, SaysWhereItsInstructionsAreDone) {
  const ParamLayout layout = Layout(2, true, Strategy::kZero3);
  const std::string beside = ToString(Plans(layout, {1, 1}, {}, /*overlap=*/true)[0], layout),
                    apart = ToString(Plans(layout, {1, 1})[0], layout);
  EXPECT_NE(apart.find("\n     0  compute  Gather unit 0 (embed)\n"
                       "     1  compute  Forward unit 0 micro-batch 0 (embed)\n"),
            std::string::npos)
      << apart;
  EXPECT_NE(beside.find("\n     0  move     Gather unit 0 (embed)\n"
                        "     1  compute  AwaitGather unit 0 (embed)\n"),
            std::string::npos)
      << beside;
  EXPECT_NE(beside.find("  move     ReduceGrad bucket 0"), std::string::npos) << beside;
  EXPECT_NE(beside.find("           Vote\n"), std::string::npos) << beside;
}

TEST(Plan, ReducesEachBucketRightAfterTheBackwardThatFillsIt) {
  const ParamLayout layout = Layout(1);
  EXPECT_EQ(Listed(Plans(layout, {2})[0], layout),
            "rank 0 of 1, 2 micro-batches\n"
            "  head writes the gradient of wte first, embed adds\n"
            "  Forward unit 0 micro-batch 0 (embed)\n"
            "  Forward unit 1 micro-batch 0 (b0)\n"
            "  Forward unit 2 micro-batch 0 (b1)\n"
            "  Forward unit 3 micro-batch 0 (head)\n"
            "  Backward unit 3 micro-batch 0 (head)\n"
            "  Backward unit 2 micro-batch 0 (b1)\n"
            "  Backward unit 1 micro-batch 0 (b0)\n"
            "  Backward unit 0 micro-batch 0 (embed)\n"
            "  Forward unit 0 micro-batch 1 (embed)\n"
            "  Forward unit 1 micro-batch 1 (b0)\n"
            "  Forward unit 2 micro-batch 1 (b1)\n"
            "  Forward unit 3 micro-batch 1 (head)\n"
            "  Backward unit 3 micro-batch 1 (head)\n"
            "  Backward unit 2 micro-batch 1 (b1)\n"
            "  ReduceGrad bucket 0 (head to b1, 768 bytes)\n"
            "  Backward unit 1 micro-batch 1 (b0)\n"
            "  Backward unit 0 micro-batch 1 (embed)\n"
            "  ReduceGrad bucket 1 (b0 to embed, 1536 bytes)\n"
            "  SumSquares\n"
            "  Vote\n"
            "  Step unit 0 (embed)\n"
            "  Step unit 1 (b0)\n"
            "  Step unit 2 (b1)\n"
            "  Step unit 3 (head)\n"
            "  Commit\n");
}

// Each unit is there while it is used and not longer; the head reads the embedding's weights.
TEST(Plan, DividedWeightsAreGatheredForEachUseAndFreed) {
  const ParamLayout layout = Layout(2, true, Strategy::kZero3);
  EXPECT_EQ(Listed(Plans(layout, {1, 0})[0], layout),
            "rank 0 of 2, 1 micro-batches\n"
            "  zero-3\n"
            "  weights in 1280 bytes, units at 0, 0, 0, 256\n"
            "  gradients in 1792 bytes, units at 0, 256, 256, 384\n"
            "  head writes the gradient of wte first, embed adds\n"
            "  Gather unit 0 (embed)\n"
            "  Forward unit 0 micro-batch 0 (embed)\n"
            "  Free unit 0 (embed)\n"
            "  Gather unit 1 (b0)\n"
            "  Forward unit 1 micro-batch 0 (b0)\n"
            "  Free unit 1 (b0)\n"
            "  Gather unit 2 (b1)\n"
            "  Forward unit 2 micro-batch 0 (b1)\n"
            "  Free unit 2 (b1)\n"
            "  Gather unit 0 (embed)\n"
            "  Gather unit 3 (head)\n"
            "  Forward unit 3 micro-batch 0 (head)\n"
            "  Backward unit 3 micro-batch 0 (head)\n"
            "  Free unit 0 (embed)\n"
            "  Free unit 3 (head)\n"
            "  Gather unit 2 (b1)\n"
            "  Backward unit 2 micro-batch 0 (b1)\n"
            "  ReduceGrad bucket 0 (head to b1, 768 bytes)\n"
            "  Free unit 2 (b1)\n"
            "  Gather unit 1 (b0)\n"
            "  Backward unit 1 micro-batch 0 (b0)\n"
            "  Free unit 1 (b0)\n"
            "  Gather unit 0 (embed)\n"
            "  Backward unit 0 micro-batch 0 (embed)\n"
            "  ReduceGrad bucket 1 (b0 to embed, 1536 bytes)\n"
            "  Free unit 0 (embed)\n"
            "  SumSquares\n"
            "  Vote\n"
            "  Step unit 0 (embed)\n"
            "  Step unit 1 (b0)\n"
            "  Step unit 2 (b1)\n"
            "  Step unit 3 (head)\n"
            "  Commit\n");
}

// Once in a step, before they are read or gathered: what ranks move is rounded.
TEST(Plan, WeightsAreRoundedBeforeTheyAreRead) {
  const ParamLayout whole = Layout(2, true, Strategy::kReplicated, /*rounded=*/true);
  std::string text = Listed(Plans(whole, {2, 0})[0], whole);
  EXPECT_NE(text.find("  Round unit 0 (embed)\n"
                      "  Forward unit 0 micro-batch 0 (embed)\n"
                      "  Round unit 1 (b0)\n"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("rounded weights in 1152 bytes"), std::string::npos) << text;
  EXPECT_EQ(text.find("Round unit 0", text.find("micro-batch 1")), std::string::npos) << text;
  EXPECT_EQ(Listed(Plans(whole, {2, 0})[1], whole).find("Round"), std::string::npos);
  const ParamLayout layout = Layout(2, true, Strategy::kZero3, /*rounded=*/true);
  text = Listed(Plans(layout, {1, 0})[0], layout);
  EXPECT_EQ(text.find("  zero-3\n"
                      "  rounded weights in 640 bytes, units at 0, 0, 0, 256\n"),
            text.find('\n') + 1)
      << text;
  EXPECT_NE(text.find("  Round unit 0 (embed)\n"
                      "  Gather unit 0 (embed)\n"
                      "  Forward unit 0 micro-batch 0 (embed)\n"
                      "  Free unit 0 (embed)\n"
                      "  Round unit 1 (b0)\n"
                      "  Gather unit 1 (b0)\n"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("  Gather unit 0 (embed)\n"
                      "  Round unit 3 (head)\n"
                      "  Gather unit 3 (head)\n"
                      "  Forward unit 3 micro-batch 0 (head)\n"),
            std::string::npos)
      << text;
}

// The last of them needs no other forward: nothing has been computed over it.
TEST(Plan, UnitsAreRecomputedRightBeforeTheirBackward) {
  const ParamLayout layout = Layout(2, true, Strategy::kZero3);
  const std::string text = Listed(Plans(layout, {2, 1}, {1, 2})[0], layout);
  EXPECT_NE(text.find("  recomputes units 1, 2\n"), std::string::npos) << text;
  for (const char* micro_batch : {"0", "1"}) {
    const std::string of = std::string(" micro-batch ") + micro_batch;
    EXPECT_NE(text.find("  Gather unit 2 (b1)\n"
                        "  Backward unit 2" +
                        of + " (b1)\n"),
              std::string::npos)
        << text;
    EXPECT_NE(text.find(absl::StrCat("  Gather unit 1 (b0)\n  Recompute unit 1", of,
                                     " (b0)\n  Backward unit 1", of, " (b0)\n")),
              std::string::npos)
        << text;
  }
}

// Each unit is gathered once in a micro-batch, and there until its own backward; the head's too.
TEST(Plan, WeightsThatAreNotReshardedStayUntilTheirBackward) {
  for (const bool rounded : {false, true}) {
    const ParamLayout layout = Layout(2, true, Strategy::kZero3, rounded);
    std::vector<Plan> plans;
    for (int r = 0; r < 2; ++r)
      plans.push_back(*MakePlan(layout, {.rank = r,
                                         .micro_batches = 2 - r,
                                         .rounds = 2,
                                         .bucket_bytes = 700,
                                         .reshard_after_forward = false}));
    EXPECT_TRUE(CheckPlan(layout, plans).ok()) << CheckPlan(layout, plans);
    std::string order;
    for (const Instruction& i : plans[0].instructions) {
      if (i.op == Op::kGather || i.op == Op::kFree || i.op == Op::kBackward)
        order += std::string(i.op == Op::kGather ? "G"
                             : i.op == Op::kFree ? "F"
                                                 : "B") +
                 std::to_string(i.unit) + " ";
    }
    const std::string round = "G0 G1 G2 G3 B3 F3 B2 F2 B1 F1 B0 ";
    EXPECT_EQ(order, round + round.substr(3) + "F0 ") << "the first unit is there already";
    EXPECT_EQ(plans[0].weights.elements, layout.flat_elements());
    EXPECT_LT(MakePlan(layout, {})->weights.elements, layout.flat_elements());
  }
}

// Ranks with fewer micro-batches gather in their first one, or without any.
TEST(Plan, WeightsThatAreNotFreedAreGatheredOnceInAStep) {
  for (const Strategy strategy : {Strategy::kZero1, Strategy::kZero2}) {
    for (const bool rounded : {false, true}) {
      const ParamLayout layout = Layout(3, true, strategy, rounded);
      const std::vector<Plan> plans = Plans(layout, {2, 1, 0});
      EXPECT_TRUE(CheckPlan(layout, plans).ok()) << CheckPlan(layout, plans);
      std::string order[3];
      for (const Plan& plan : plans) {
        for (const Instruction& i : plan.instructions) {
          const char* const op = i.op == Op::kGather    ? "G"
                                 : i.op == Op::kRound   ? "R"
                                 : i.op == Op::kForward ? "F"
                                                        : nullptr;
          if (op != nullptr) order[plan.rank] += op + std::to_string(i.unit) + " ";
        }
      }
      const std::string all = rounded ? "R0 R1 R2 R3 G0 G1 G2 G3 " : "G0 G1 G2 G3 ";
      EXPECT_EQ(order[2], all);
      EXPECT_EQ(order[1], all + "F0 F1 F2 F3 ");
      EXPECT_EQ(order[0], order[1] + "F0 F1 F2 F3 ");
      EXPECT_EQ(plans[0].weights.elements, layout.flat_elements());
    }
  }
}

// Twelve blocks of one size need no more room for weights than one, and for gradients than what one
// bucket holds.
TEST(Plan, UnitsThatAreNotUsedTogetherShareMemory) {
  std::vector<UnitSpec> units;
  for (int b = 0; b < 12; ++b) {
    const std::string name = "b" + std::to_string(b);
    units.push_back({name, {{.name = name, .shape = {6400}}}, {}});
  }
  const ParamLayout layout = *ParamLayout::Create(units, 3, Strategy::kZero3);
  const Plan plan = *MakePlan(layout, {.bucket_bytes = 2 * 6400 * 4});
  EXPECT_EQ(plan.weights.elements, 6400);
  EXPECT_EQ(plan.gradients.elements, 2 * 6400);
  const Plan overlapping = *MakePlan(layout, {.bucket_bytes = 2 * 6400 * 4, .overlap = true});
  EXPECT_EQ(overlapping.gradients.elements, 4 * 6400) << "of the bucket before as well";
  EXPECT_EQ(overlapping.weights.elements, 2 * 6400) << "of the unit that is next as well";
  const Plan accumulating = *MakePlan(layout, {.micro_batches = 2});
  EXPECT_EQ(accumulating.weights.elements, 6400);
  EXPECT_EQ(accumulating.gradients.elements, layout.flat_elements());
}

TEST(Plan, BucketsPartitionTheFlatBuffer) {
  const ParamLayout layout = Layout(1);
  for (const std::int64_t bytes : {1, 256, 257, 1024, 1 << 20}) {
    const Plan plan = *MakePlan(layout, {.bucket_bytes = bytes});
    std::int64_t end = layout.flat_elements();
    for (const Bucket& bucket : plan.buckets) {
      EXPECT_EQ(bucket.flat.end(), end);
      end = bucket.flat.begin;
      EXPECT_TRUE(end == 0 || bucket.flat.size * 4 >= bytes);
    }
    EXPECT_EQ(end, 0);
  }
}

TEST(Plan, AnyMixOfMicroBatchesPassesTheCheck) {
  for (const std::vector<int>& counts :
       {std::vector{1}, std::vector{4}, std::vector{1, 1}, std::vector{3, 2, 2},
        std::vector{1, 0, 0}, std::vector{0}}) {
    for (const Strategy strategy : kStrategies) {
      for (const bool tied : {true, false}) {
        for (const bool rounded : {false, true}) {
          const ParamLayout layout =
              Layout(static_cast<int>(counts.size()), tied, strategy, rounded);
          for (const std::vector<UnitId>& recomputed : {std::vector<UnitId>{}, {1, 2}, {0, 3}}) {
            for (const bool overlap : {false, true}) {
              const absl::Status status =
                  CheckPlan(layout, Plans(layout, counts, recomputed, overlap));
              EXPECT_TRUE(status.ok()) << NameOf(strategy) << ": " << status;
            }
          }
        }
      }
    }
  }
}

// Every gradient is written by exactly one backward of a step, and before any other adds to it.
TEST(Plan, TheFirstBackwardOfAStepWritesAndAllOthersAdd) {
  constexpr UnitId kEmbed = 0, kB0 = 1, kHead = 3;
  for (const bool tied : {true, false}) {
    const ParamLayout layout = Layout(1, tied);
    const Plan plan = Plans(layout, {2})[0];
    EXPECT_EQ(AddsOf(plan, layout, kHead, 0), 0u);  // Its own, and wte where it shares that.
    EXPECT_EQ(AddsOf(plan, layout, kEmbed, 0), tied ? 0b01u : 0b00u);  // wte, wpe.
    EXPECT_EQ(AddsOf(plan, layout, kB0, 0), 0u);
    EXPECT_EQ(AddsOf(plan, layout, kHead, 1), tied ? 0b11u : 0b1u);
    EXPECT_EQ(AddsOf(plan, layout, kEmbed, 1), 0b11u);
  }
}

// What one backward writes lies apart, and anything else in one place.
TEST(Plan, WhatOneBackwardWritesIsStagedApart) {
  constexpr std::int64_t kBlock = ParamLayout::kBlockElements;
  const auto unit = [](const char* name, std::int64_t blocks, std::vector<std::string> shared) {
    return UnitSpec{name, {{.name = name, .shape = {blocks * kBlock}}}, std::move(shared)};
  };
  const auto staging = [&](std::int64_t block, const std::vector<std::string>& of_head) {
    const std::vector<UnitSpec> units = {unit("embed", 4, {}), unit("b0", block, {}),
                                         unit("b1", block, {}), unit("head", 2, of_head)};
    return StagingOf(*ParamLayout::Create(units, 1, Strategy::kReplicated));
  };
  EXPECT_EQ(staging(2, {}), (Windows{{0, 0, 0, 0}, 4 * kBlock}));
  EXPECT_EQ(staging(2, {"embed"}), (Windows{{0, 0, 0, 4 * kBlock}, 6 * kBlock}));
  EXPECT_EQ(staging(7, {"embed"}), (Windows{{0, 0, 0, 4 * kBlock}, 7 * kBlock}));
  EXPECT_EQ(staging(3, {"embed", "b0"}), (Windows{{0, 4 * kBlock, 0, 7 * kBlock}, 9 * kBlock}));
  EXPECT_EQ(StagingOf(Layout(1)).elements, kBlock) << "for squares of whole blocks";
}

TEST(Plan, RefusesWhatCanNotBe) {
  const ParamLayout layout = Layout(2);
  for (const PlanOptions& options :
       {PlanOptions{.rank = 2}, PlanOptions{.rank = -1}, PlanOptions{.micro_batches = -1},
        PlanOptions{.micro_batches = 3, .rounds = 2}, PlanOptions{.bucket_bytes = 0}}) {
    EXPECT_EQ(MakePlan(layout, options).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

const Mistake kMistakes[] = {
    {"a forward left out", [](Plan& p) { Erase(p, Find(p, Op::kForward, 1)); }, "unit 1 of"},
    {"a backward left out", [](Plan& p) { Erase(p, Find(p, Op::kBackward, 1)); }, "unit 1 of"},
    {"a micro-batch more than it runs", [](Plan& p) { ++p.micro_batches; }, "are not complete"},
    {"a forward of no unit",
     [](Plan& p) {
       Insert(p, Find(p, Op::kBackward), {.op = Op::kForward, .unit = 4, .micro_batch = 0});
     },
     "the micro-batch's forwards are done"},
    {"backward before forward", [](Plan& p) { Move(p, Find(p, Op::kBackward), 1); },
     "forwards are not done"},
    {"a bucket reduced early",
     [](Plan& p) { Move(p, Find(p, Op::kReduceGrad), Find(p, Op::kBackward, 2)); },
     "gradients of unit 2 are not complete"},
    {"a tied gradient reduced early",
     [](Plan& p) {
       p.buckets[1] = {.first_unit = 0, .last_unit = 0, .flat = {0, 256}};
       const std::size_t last = Find(p, Op::kSumSquares) - 1;
       Move(p, last, Find(p, Op::kForward, 3));
     },
     "gradients of unit 0 are not complete"},
    {"a bucket left out", [](Plan& p) { Erase(p, Find(p, Op::kReduceGrad)); }, "is not reduced"},
    {"a bucket reduced twice",
     [](Plan& p) {
       const std::size_t at = Find(p, Op::kReduceGrad);
       p.instructions.insert(p.instructions.begin() + static_cast<std::ptrdiff_t>(at),
                             p.instructions[at]);
     },
     "reduced twice"},
    {"a bucket of other memory", [](Plan& p) { p.buckets[0].flat.size -= 64; },
     "not the memory of its units"},
    {"a bucket that does not exist",
     [](Plan& p) { p.instructions[Find(p, Op::kReduceGrad)].bucket = 9; }, "there are 2 buckets"},
    {"a step before the vote", [](Plan& p) { Move(p, Find(p, Op::kStep, 0), Find(p, Op::kVote)); },
     "before the Vote"},
    {"a vote without the norm", [](Plan& p) { Erase(p, Find(p, Op::kSumSquares)); },
     "SumSquares has not happened"},
    {"a norm after the vote",
     [](Plan& p) { Insert(p, Find(p, Op::kVote) + 1, {.op = Op::kSumSquares}); },
     "(SumSquares): is the second"},
    {"two votes", [](Plan& p) { p.instructions.insert(p.instructions.end() - 1, {Op::kVote}); },
     "is the second"},
    {"a unit without a step", [](Plan& p) { Erase(p, Find(p, Op::kStep, 2)); },
     "unit 2 has not stepped"},
    {"a unit stepped twice", [](Plan& p) { p.instructions[Find(p, Op::kStep, 2)].unit = 1; },
     "second of its unit"},
    {"no commit", [](Plan& p) { Erase(p, Find(p, Op::kCommit)); }, "ends without Commit"},
    {"life after the commit", [](Plan& p) { p.instructions.push_back({Op::kSumSquares}); },
     "comes after Commit"},
    {"another order of collectives",
     [](Plan& p) {
       const std::size_t first = Find(p, Op::kReduceGrad);
       Move(p, first, Find(p, Op::kSumSquares));
       Erase(p, first);
     },
     "rank 1"},
    {"another rank's plan", [](Plan& p) { p.rank = 0; }, "plan 1 is of rank 0"},
    {"one micro-batch too many",
     [](Plan& p) {
       p.instructions.insert(
           p.instructions.begin() + static_cast<std::ptrdiff_t>(Find(p, Op::kVote)),
           {.op = Op::kForward, .unit = 0, .micro_batch = 1});
     },
     "has 1 micro-batches"},
    {"the embedding writes what the head has written", [](Plan& p) { p.first_writers[0] = 0; },
     "Backward unit 3 micro-batch 0): adds to the gradient of wte, which nothing has written"},
    {"nothing writes a gradient", [](Plan& p) { p.first_writers[1] = 3; },
     "Backward unit 0 micro-batch 0): adds to the gradient of wpe, which nothing has written"},
    {"another unit writes a block's gradient", [](Plan& p) { p.first_writers[2] = 2; },
     "Backward unit 1 micro-batch 0): adds to the gradient of b0"},
    {"a gradient that nobody thought of", [](Plan& p) { p.first_writers.pop_back(); },
     "of 4 of 5 gradients who writes first"},
    {"a vote of one unit", [](Plan& p) { p.instructions[Find(p, Op::kVote)].unit = 1; },
     "(Vote): names more than it needs"},
    {"a step of one micro-batch",
     [](Plan& p) { p.instructions[Find(p, Op::kStep)].micro_batch = 0; },
     "names more than it needs"},
    {"a forward of a bucket", [](Plan& p) { p.instructions[Find(p, Op::kForward)].bucket = 0; },
     "names more than it needs"},
    {"gradients wiped",
     [](Plan& p) {
       const auto at = static_cast<std::ptrdiff_t>(Find(p, Op::kReduceGrad));
       p.instructions.insert(p.instructions.begin() + at, {.op = Op::kZeroGrad, .bucket = 0});
     },
     "would wipe the gradients of micro-batches"},
};

TEST(CheckPlan, CatchesEveryPlantedMistake) {
  const ParamLayout layout = Layout(2);
  for (const Mistake& mistake : kMistakes) {
    SCOPED_TRACE(mistake.what);
    std::vector<Plan> plans = Plans(layout, {1, 1});
    ASSERT_TRUE(CheckPlan(layout, plans).ok());
    mistake.make(plans[1]);
    const absl::Status status = CheckPlan(layout, plans);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_NE(status.message().find(mistake.says), std::string::npos) << status;
  }
}

const Mistake kMistakesOfSteppingInParts[] = {
    {"a forward without its weights", [](Plan& p) { Erase(p, Find(p, Op::kGather, 2)); },
     "(Forward unit 2 micro-batch 0): the weights of unit 2 are not gathered"},
    {"gathered once they may have been stepped",
     [](Plan& p) { Insert(p, Find(p, Op::kStep, 1), {.op = Op::kGather, .unit = 1}); },
     "(Gather unit 1): comes after the Vote, when weights change"},
    {"gathered twice", [](Plan& p) { p.instructions[Find(p, Op::kGather, 1)].unit = 0; },
     "(Gather unit 0): the unit is gathered already"},
    {"gathered in another order",
     [](Plan& p) { Move(p, Find(p, Op::kGather, 1), Find(p, Op::kGather, 0)); },
     "the collectives of rank 1 are not those of rank 0"},
    {"gathered a unit that does not exist",
     [](Plan& p) { p.instructions[Find(p, Op::kGather, 3)].unit = 4; }, "no such unit"},
    {"whole weights freed",
     [](Plan& p) { Insert(p, Find(p, Op::kForward, 1), {.op = Op::kFree, .unit = 0}); },
     "(Free unit 0): no other unit has its place"},
    {"a step before the vote", [](Plan& p) { Move(p, Find(p, Op::kStep, 0), Find(p, Op::kVote)); },
     "before the Vote"},
    {"no norm", [](Plan& p) { Erase(p, Find(p, Op::kSumSquares)); }, "SumSquares has not happened"},
    {"a norm too many",
     [](Plan& p) { Insert(p, Find(p, Op::kSumSquares), {.op = Op::kSumSquares}); },
     "(SumSquares): is the second"},
    {"weights moved", [](Plan& p) { p.weights.at[1] += 64; },
     "plan of rank 1: the windows of weights move unit 1"},
    {"less room for weights", [](Plan& p) { p.weights.elements -= 64; },
     "the windows of weights have 512 elements of 576"},
};

const Mistake kMistakesOfDividedGradients[] = {
    {"two units in one place", [](Plan& p) { p.gradients.at[3] = p.gradients.at[2]; },
     "Backward unit 2 micro-batch 0): overwrites unit 3, which is in use"},
    {"a unit in the place of the embedding, which the head has written",
     [](Plan& p) { p.gradients.at[1] = p.gradients.at[0]; },
     "Backward unit 1 micro-batch 0): overwrites unit 0, which is in use"},
    {"a bucket reduced late",
     [](Plan& p) { Move(p, Find(p, Op::kReduceGrad), Find(p, Op::kBackward, 1)); },
     "Backward unit 1 micro-batch 0): overwrites unit "},
    {"no room", [](Plan& p) { p.gradients.elements -= 64; },
     "the windows of gradients leave no room for unit "},
    {"a place before the first", [](Plan& p) { p.gradients.at[3] = -64; },
     "the windows of gradients leave no room for unit 3"},
    {"a place off the border", [](Plan& p) { p.gradients.at[3] += 1; },
     "the windows of gradients leave no room for unit 3"},
    {"a unit without a place", [](Plan& p) { p.gradients.at.pop_back(); },
     "the windows of gradients are 3 for 4 units"},
    {"places of its own", [](Plan& p) { p.gradients.elements += 64; },
     "the windows of gradients of rank 1 are not those of rank 0"},
};

const Mistake kMistakesOfDividedWeights[] = {
    {"a forward without its weights", [](Plan& p) { Erase(p, Find(p, Op::kGather, 1)); },
     "(Forward unit 1 micro-batch 0): the weights of unit 1 are not gathered"},
    {"freed too early", [](Plan& p) { Move(p, Find(p, Op::kFree, 1), Find(p, Op::kForward, 1)); },
     "(Forward unit 1 micro-batch 0): the weights of unit 1 are not gathered"},
    {"a head without the embedding's weights",
     [](Plan& p) {
       const std::size_t at = Find(p, Op::kForward, 3);
       Erase(p, at - 2);
     },
     "(Forward unit 3 micro-batch 0): the weights of unit 0 are not gathered"},
    {"a backward without its weights", [](Plan& p) { Erase(p, Find(p, Op::kBackward, 1) - 1); },
     "(Backward unit 1 micro-batch 0): the weights of unit 1 are not gathered"},
    {"a head's backward without the embedding",
     [](Plan& p) { Insert(p, Find(p, Op::kBackward, 3), {.op = Op::kFree, .unit = 0}); },
     "(Backward unit 3 micro-batch 0): the weights of unit 0 are not gathered"},
    {"gathered over a unit in use",
     [](Plan& p) { Move(p, Find(p, Op::kGather, 2), Find(p, Op::kFree, 1)); },
     "(Gather unit 2): overwrites unit 1, which is in use"},
    {"gathered twice",
     [](Plan& p) { Insert(p, Find(p, Op::kForward, 1), {.op = Op::kGather, .unit = 1}); },
     "(Gather unit 1): the unit is gathered already"},
    {"freed twice", [](Plan& p) { Insert(p, Find(p, Op::kFree, 1), {.op = Op::kFree, .unit = 1}); },
     "(Free unit 1): the unit is not gathered"},
    {"freed what does not exist",
     [](Plan& p) { Insert(p, Find(p, Op::kFree, 1), {.op = Op::kFree, .unit = -1}); },
     "no such unit"},
    {"an old copy kept over the step",
     [](Plan& p) {
       std::size_t at = Find(p, Op::kSumSquares) - 1;
       ASSERT_EQ(p.instructions[at].op, Op::kFree);
       Move(p, at, Find(p, Op::kCommit) - 1);
     },
     "(Step unit 0): a gathered copy of its weights would stay old"},
    {"gathered after the step",
     [](Plan& p) { Insert(p, Find(p, Op::kCommit), {.op = Op::kGather, .unit = 3}); },
     "(Gather unit 3): comes after the Vote, when weights change"},
    {"places of its own", [](Plan& p) { p.weights.elements += 64; },
     "the windows of weights of rank 1 are not those of rank 0"},
    {"one gather less than the others",
     [](Plan& p) {
       Erase(p, Find(p, Op::kFree, 0));
       // The embedding's weights stay, and where they lie nothing else does.
       std::size_t at = Find(p, Op::kForward, 3) - 2;
       ASSERT_EQ(p.instructions[at], (Instruction{.op = Op::kGather, .unit = 0}));
       Erase(p, at);
       p.weights = {.at = {0, 256, 384, 512}, .elements = 576};
     },
     "the collectives of rank 1 are not those of rank 0"},
};

const Mistake kMistakesOfRounding[] = {
    {"rounded twice",
     [](Plan& p) { Insert(p, Find(p, Op::kForward, 1), {.op = Op::kRound, .unit = 1}); },
     "(Round unit 1): the unit is rounded already"},
    {"rounded what does not exist", [](Plan& p) { p.instructions[Find(p, Op::kRound)].unit = 4; },
     "(Round unit 4): no such unit"},
    {"rounded for the next step, whose rounding is another",
     [](Plan& p) { Insert(p, Find(p, Op::kCommit), {.op = Op::kRound, .unit = 1}); },
     "(Round unit 1): comes after the Vote, when weights change"},
};

const Mistake kMistakesOfRoundingWhatIsWhole[] = {
    {"a forward of weights that are not rounded", [](Plan& p) { Erase(p, Find(p, Op::kRound, 1)); },
     "(Forward unit 1 micro-batch 0): the weights of unit 1 are not rounded"},
    {"rounded too late", [](Plan& p) { Move(p, Find(p, Op::kRound, 1), Find(p, Op::kForward, 1)); },
     "(Forward unit 1 micro-batch 0): the weights of unit 1 are not rounded"},
};

const Mistake kMistakesOfRoundingWhatIsGathered[] = {
    {"gathered though it is not rounded", [](Plan& p) { Erase(p, Find(p, Op::kRound, 1)); },
     "(Gather unit 1): what its ranks own is not rounded"},
    {"rounded once it is gathered",
     [](Plan& p) { Move(p, Find(p, Op::kRound, 1), Find(p, Op::kGather, 1)); },
     "(Gather unit 1): what its ranks own is not rounded"},
    {"rounded and not gathered", [](Plan& p) { Erase(p, Find(p, Op::kGather, 1)); },
     "(Forward unit 1 micro-batch 0): the weights of unit 1 are not gathered"},
};

TEST(CheckPlan, CatchesEveryMistakeOfRounding) {
  for (const Strategy strategy : kStrategies) {
    const ParamLayout layout = Layout(2, true, strategy, /*rounded=*/true);
    std::vector<Mistake> mistakes(std::begin(kMistakesOfRounding), std::end(kMistakesOfRounding));
    const std::span<const Mistake> more =
        strategy == Strategy::kReplicated ? std::span<const Mistake>(kMistakesOfRoundingWhatIsWhole)
                                          : kMistakesOfRoundingWhatIsGathered;
    mistakes.insert(mistakes.end(), more.begin(), more.end());
    for (const Mistake& mistake : mistakes) {
      SCOPED_TRACE(testing::Message() << NameOf(strategy) << ": " << mistake.what);
      std::vector<Plan> plans = Plans(layout, {1, 1});
      ASSERT_TRUE(CheckPlan(layout, plans).ok());
      mistake.make(plans[1]);
      const absl::Status status = CheckPlan(layout, plans);
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
      EXPECT_NE(status.message().find(mistake.says), std::string::npos) << status;
    }
  }
  const ParamLayout layout = Layout(1);
  std::vector<Plan> plans = Plans(layout, {1});
  Insert(plans[0], 0, {.op = Op::kRound, .unit = 0});
  EXPECT_NE(CheckPlan(layout, plans).message().find("weights are computed with as they are"),
            std::string::npos);
}

const Mistake kMistakesOfRecomputation[] = {
    {"a backward whose activations are gone", [](Plan& p) { Erase(p, Find(p, Op::kRecompute, 1)); },
     "(Backward unit 1 micro-batch 0): unit 2 has written over its activations"},
    {"recomputed after its backward",
     [](Plan& p) { Move(p, Find(p, Op::kRecompute, 1), Find(p, Op::kBackward, 1)); },
     "(Backward unit 1 micro-batch 0): unit 2 has written over its activations"},
    {"recomputed before another's backward",
     [](Plan& p) { Move(p, Find(p, Op::kRecompute, 1), Find(p, Op::kBackward, 2)); },
     "(Recompute unit 1 micro-batch 0): unit 2 of micro-batch 0 is the next to go backward"},
    {"recomputed before the forwards are done",
     [](Plan& p) { Move(p, Find(p, Op::kRecompute, 1), Find(p, Op::kForward, 2)); },
     "(Recompute unit 1 micro-batch 0): the micro-batch's forwards are not done"},
    {"recomputed twice",
     [](Plan& p) {
       Insert(p, Find(p, Op::kBackward, 1), p.instructions[Find(p, Op::kRecompute, 1)]);
     },
     "(Recompute unit 1 micro-batch 0): its activations are there"},
    {"recomputed though nothing is computed over it",
     [](Plan& p) {
       Insert(p, Find(p, Op::kBackward, 2), {.op = Op::kRecompute, .unit = 2, .micro_batch = 0});
     },
     "(Recompute unit 2 micro-batch 0): its activations are there"},
    {"recomputed what is kept", [](Plan& p) { p.recomputed = {2}; },
     "(Recompute unit 1 micro-batch 0): its activations are kept"},
    {"of another micro-batch",
     [](Plan& p) { p.instructions[Find(p, Op::kRecompute, 1)].micro_batch = 1; },
     "unit 1 of micro-batch 0 is the next to go backward"},
    {"one unit more that shares the memory",
     [](Plan& p) {
       p.recomputed = {1, 2, 3};
     },
     "(Backward unit 2 micro-batch 0): unit 3 has written over its activations"},
    {"a unit that does not exist", [](Plan& p) { p.recomputed.push_back(4); },
     "plan of rank 1 recomputes unit 4 of 4"},
};

TEST(CheckPlan, CatchesEveryMistakeOfRecomputation) {
  for (const Strategy strategy : kStrategies) {
    const ParamLayout layout = Layout(2, true, strategy);
    for (const Mistake& mistake : kMistakesOfRecomputation) {
      SCOPED_TRACE(testing::Message() << NameOf(strategy) << ": " << mistake.what);
      std::vector<Plan> plans = Plans(layout, {1, 1}, {1, 2});
      ASSERT_TRUE(CheckPlan(layout, plans).ok());
      mistake.make(plans[1]);
      const absl::Status status = CheckPlan(layout, plans);
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
      EXPECT_NE(status.message().find(mistake.says), std::string::npos) << status;
    }
  }
}

TEST(CheckPlan, CatchesEveryMistakeOfDivision) {
  const struct {
    Strategy strategy;
    std::span<const Mistake> mistakes;
  } kRows[] = {{Strategy::kZero1, kMistakesOfSteppingInParts},
               {Strategy::kZero2, kMistakesOfSteppingInParts},
               {Strategy::kZero2, kMistakesOfDividedGradients},
               {Strategy::kZero3, kMistakesOfDividedGradients},
               {Strategy::kZero3, kMistakesOfDividedWeights}};
  for (const auto& row : kRows) {
    const ParamLayout layout = Layout(2, true, row.strategy);
    for (const Mistake& mistake : row.mistakes) {
      SCOPED_TRACE(testing::Message() << NameOf(row.strategy) << ": " << mistake.what);
      std::vector<Plan> plans = Plans(layout, {1, 1});
      ASSERT_TRUE(CheckPlan(layout, plans).ok());
      mistake.make(plans[1]);
      const absl::Status status = CheckPlan(layout, plans);
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
      EXPECT_NE(status.message().find("rank 1"), std::string::npos) << status;
      EXPECT_NE(status.message().find(mistake.says), std::string::npos) << status;
    }
  }
}

TEST(CheckPlan, ReplicasGatherNothing) {
  const ParamLayout layout = Layout(1);
  std::vector<Plan> plans = Plans(layout, {1});
  Insert(plans[0], Find(plans[0], Op::kCommit), {.op = Op::kGather, .unit = 0});
  EXPECT_NE(CheckPlan(layout, plans).message().find("every rank has these weights"),
            std::string::npos);
}

const Mistake kMistakesWithoutSamples[] = {
    {"a bucket not zeroed", [](Plan& p) { Erase(p, Find(p, Op::kZeroGrad)); },
     "gradients of unit 2 are not complete"},
    {"a bucket zeroed after its reduction",
     [](Plan& p) { Move(p, Find(p, Op::kZeroGrad), Find(p, Op::kReduceGrad)); },
     "gradients of unit 2 are not complete"},
    {"a sum wiped",
     [](Plan& p) {
       const auto at = static_cast<std::ptrdiff_t>(Find(p, Op::kSumSquares));
       p.instructions.insert(p.instructions.begin() + at, {.op = Op::kZeroGrad, .bucket = 0});
     },
     "would wipe the reduced gradients of unit 2"},
    {"a bucket that does not exist zeroed",
     [](Plan& p) { p.instructions[Find(p, Op::kZeroGrad)].bucket = 9; }, "there are 2 buckets"},
    {"a forward without a sample",
     [](Plan& p) {
       p.instructions.insert(p.instructions.begin(),
                             {.op = Op::kForward, .unit = 0, .micro_batch = 0});
     },
     "has 0 micro-batches"},
};

TEST(CheckPlan, CatchesEveryMistakeOfARankWithoutSamples) {
  const ParamLayout layout = Layout(2);
  for (const Mistake& mistake : kMistakesWithoutSamples) {
    SCOPED_TRACE(mistake.what);
    std::vector<Plan> plans = Plans(layout, {1, 0});
    ASSERT_TRUE(CheckPlan(layout, plans).ok());
    mistake.make(plans[1]);
    const absl::Status status = CheckPlan(layout, plans);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_NE(status.message().find(mistake.says), std::string::npos) << status;
  }
}

TEST(CheckPlan, BucketsMustBeTheSameOnEveryRank) {
  const ParamLayout layout = Layout(2);
  std::vector<Plan> plans = Plans(layout, {1, 1});
  plans[1] = *MakePlan(layout, {.rank = 1, .bucket_bytes = 1});
  EXPECT_EQ(CheckPlan(layout, plans).message(),
            "the collectives of rank 1 are not those of rank 0");
}

TEST(CheckPlan, APlanIsThatOfTheRanksBehindItToo) {
  const ParamLayout layout = Layout(3);
  std::vector<Plan> plans = Plans(layout, {2, 1, 1});
  plans.pop_back();
  EXPECT_TRUE(CheckPlan(layout, plans).ok()) << CheckPlan(layout, plans);
  plans[1].rank = 3;
  EXPECT_EQ(CheckPlan(layout, plans).message(), "plan 1 is of rank 3 of world 3");
  plans[1].rank = 2;
  plans.erase(plans.begin());
  EXPECT_EQ(CheckPlan(layout, plans).message(), "plan 0 is of rank 2 of world 3");
  EXPECT_EQ(CheckPlan(layout, {}).message(), "no plan");
}

TEST(MakePlans, RanksThatDoTheSameShareOne) {
  for (const Strategy strategy : {Strategy::kReplicated, Strategy::kZero1, Strategy::kZero3}) {
    const ParamLayout layout = Layout(6, /*tied=*/true, strategy);
    const std::vector<int> counts = {3, 3, 2, 2, 2, 0};
    const std::vector<Plan> plans = *MakePlans(layout, {.rounds = 3, .overlap = true}, counts);
    ASSERT_EQ(plans.size(), 3u);
    EXPECT_TRUE(CheckPlan(layout, plans).ok()) << CheckPlan(layout, plans);
    for (int r = 0; r < 6; ++r) {
      const Plan alone = *MakePlan(layout, {.rank = r,
                                            .micro_batches = counts[static_cast<std::size_t>(r)],
                                            .rounds = 3,
                                            .overlap = true});
      EXPECT_EQ(ToString(PlanOf(plans, r), layout), ToString(alone, layout)) << r;
    }
  }
}

}  // namespace
}  // namespace regroup::worker
