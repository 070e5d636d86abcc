#include "worker/plan/step_use.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace regroup::worker {
namespace {

constexpr std::int64_t kBlock = ParamLayout::kBlockElements;

// Units of 4, 2, 2 and 2 blocks; the last shares the first's.
ParamLayout Layout(Strategy strategy, bool rounded) {
  const auto unit = [](const char* name, std::int64_t blocks, std::vector<std::string> shared) {
    return UnitSpec{name, {{.name = name, .shape = {blocks * kBlock}}}, std::move(shared)};
  };
  return *ParamLayout::Create(
      {unit("embed", 4, {}), unit("b0", 2, {}), unit("b1", 2, {}), unit("head", 2, {"embed"})}, 2,
      strategy, /*group=*/0, rounded);
}

StepUses Uses(Strategy strategy, int micro_batches, bool rounded = false) {
  const ParamLayout layout = Layout(strategy, rounded);
  const Plan plan = *MakePlan(
      layout,
      {.micro_batches = micro_batches, .rounds = std::max(1, micro_batches), .bucket_bytes = 1});
  return UseOverStep(layout, plan, std::vector<std::int64_t>{1, 10, 100, 1000});
}

struct Row {
  const char* name;
  Strategy strategy;
  int micro_batches;
  bool rounded;
  std::int64_t copied[3], gradients[3], owned[3];  // In blocks, by part.
};

TEST(StepUse, IsWhatInstructionsHaveInUse) {
  const Row rows[] = {
      {"all is whole", Strategy::kReplicated, 1, false, {}, {0, 10, 10}, {}},
      {"whole, rounded", Strategy::kReplicated, 1, true, {10, 10, 10}, {0, 10, 10}, {}},
      {"gathers into whole weights", Strategy::kZero1, 1, false, {}, {0, 10, 10}, {}},
      {"gathers what is rounded", Strategy::kZero1, 1, true, {10, 10, 10}, {0, 10, 10}, {}},
      // The head's gradient goes at once, the embedding's stays until the last backward; while the
      // head is in use, b1 is not.
      {"gradients divided", Strategy::kZero2, 1, false, {}, {0, 6, 0}, {0, 5, 5}},
      // They are kept whole between micro-batches, and go in the last.
      {"two micro-batches", Strategy::kZero2, 2, false, {}, {0, 10, 0}, {0, 5, 5}},
      {"no sample", Strategy::kZero2, 0, false, {}, {0, 4, 0}, {0, 5, 5}},
      {"weights divided", Strategy::kZero3, 1, false, {6, 6, 0}, {0, 6, 0}, {0, 5, 5}},
      {"divided, rounded", Strategy::kZero3, 1, true, {6, 6, 0}, {0, 6, 0}, {0, 5, 5}},
  };
  for (const Row& row : rows) {
    const StepUses uses = Uses(row.strategy, row.micro_batches, row.rounded);
    for (const StepPart part : kStepParts) {
      const auto p = static_cast<std::size_t>(part);
      EXPECT_EQ(uses[p][0], row.copied[p] * kBlock) << row.name << NameOf(part);
      EXPECT_EQ(uses[p][1], row.gradients[p] * kBlock) << row.name << NameOf(part);
      EXPECT_EQ(uses[p][2], row.owned[p] * kBlock) << row.name << NameOf(part);
    }
  }
}

TEST(StepUse, ActivationsPileUpUntilTheBackward) {
  const StepUses uses = Uses(Strategy::kReplicated, 2);
  const auto activations = static_cast<std::size_t>(BufferKind::kActivations);
  EXPECT_EQ(uses[0][activations], 1111);
  EXPECT_EQ(uses[1][activations], 1111);  // Also of the second micro-batch's forward.
  EXPECT_EQ(uses[2][activations], 0);
}

// What is shown of a step: each buffer, its size, and the instructions between which it is in use.
std::string BuffersShown(const ParamLayout& layout, const Plan& plan) {
  std::string text;
  for (const StepBuffer& b : BuffersOf(layout, plan, std::vector<std::int64_t>{1, 10, 100, 1000})) {
    const std::int64_t size = b.kind == BufferKind::kActivations ? b.size : b.size / kBlock;
    text += std::string(NameOf(b.kind)) + " " + std::to_string(b.unit) + ": " +
            std::to_string(size) + " from " + ToString(plan.instructions[b.first_use]) + " to " +
            ToString(plan.instructions[b.last_use]) + "\n";
  }
  return text;
}

TEST(StepBuffers, AreInUseFromOneInstructionToAnother) {
  const ParamLayout layout = Layout(Strategy::kZero3, /*rounded=*/false);
  const Plan plan = *MakePlan(layout, {.bucket_bytes = 1, .overlap = true});
  EXPECT_EQ(
      BuffersShown(layout, plan),
      "weights 0: 4 from Gather unit 0 to Free unit 0\n"
      "weights 1: 2 from Gather unit 1 to Free unit 1\n"
      "activations 0: 1 from Forward unit 0 micro-batch 0 to Backward unit 0 micro-batch 0\n"
      "weights 2: 2 from Gather unit 2 to Free unit 2\n"
      "activations 1: 10 from Forward unit 1 micro-batch 0 to Backward unit 1 micro-batch 0\n"
      "weights 0: 4 from Gather unit 0 to Free unit 0\n"
      "weights 3: 2 from Gather unit 3 to Free unit 3\n"
      "activations 2: 100 from Forward unit 2 micro-batch 0 to Backward unit 2 micro-batch 0\n"
      "activations 3: 1000 from Forward unit 3 micro-batch 0 to Backward unit 3 micro-batch 0\n"
      "weights 2: 2 from Gather unit 2 to Free unit 2\n"
      "gradients 0: 4 from Backward unit 3 micro-batch 0 to AwaitGrad bucket 3\n"
      "gradients 3: 2 from Backward unit 3 micro-batch 0 to AwaitGrad bucket 0\n"
      "weights 1: 2 from Gather unit 1 to Free unit 1\n"
      "reduced 3: 1 from ReduceGrad bucket 0 to Step unit 3\n"
      "gradients 2: 2 from Backward unit 2 micro-batch 0 to AwaitGrad bucket 1\n"
      "weights 0: 4 from Gather unit 0 to Free unit 0\n"
      "reduced 2: 1 from ReduceGrad bucket 1 to Step unit 2\n"
      "gradients 1: 2 from Backward unit 1 micro-batch 0 to AwaitGrad bucket 2\n"
      "reduced 1: 1 from ReduceGrad bucket 2 to Step unit 1\n"
      "reduced 0: 2 from ReduceGrad bucket 3 to Step unit 0\n");
}

// A part of a backward is not the end of what the unit keeps for it.
TEST(StepBuffers, ActivationsAreInUseUntilTheLastPart) {
  const ParamLayout layout = *ParamLayout::Replicated(
      {{"a", {{.name = "a.x", .shape = {64}}, {.name = "a.y", .shape = {64}}}, {}, {1}}}, 2);
  const Plan plan = *MakePlan(layout, {.bucket_bytes = 1, .overlap = true});
  const std::vector<StepBuffer> buffers = BuffersOf(layout, plan, std::vector<std::int64_t>{5});
  ASSERT_EQ(buffers.size(), 2u);
  EXPECT_EQ(buffers[0].kind, BufferKind::kActivations);
  EXPECT_EQ(ToString(plan.instructions[buffers[0].last_use]),
            "Backward unit 0 part 0 micro-batch 0");
  EXPECT_EQ(ToString(plan.instructions[buffers[1].first_use]),
            "Backward unit 0 part 1 micro-batch 0");
  EXPECT_EQ(ToString(plan.instructions[buffers[1].last_use]), "Step unit 0");
}

}  // namespace
}  // namespace regroup::worker
