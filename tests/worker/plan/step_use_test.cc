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
      EXPECT_EQ(uses[p].copied_elements, row.copied[p] * kBlock) << row.name << NameOf(part);
      EXPECT_EQ(uses[p].gradient_elements, row.gradients[p] * kBlock) << row.name << NameOf(part);
      EXPECT_EQ(uses[p].owned_elements, row.owned[p] * kBlock) << row.name << NameOf(part);
    }
  }
}

TEST(StepUse, ActivationsPileUpUntilTheBackward) {
  const StepUses uses = Uses(Strategy::kReplicated, 2);
  EXPECT_EQ(uses[0].activation_bytes, 1111);
  EXPECT_EQ(uses[1].activation_bytes, 1111);  // Also of the second micro-batch's forward.
  EXPECT_EQ(uses[2].activation_bytes, 0);
}

}  // namespace
}  // namespace regroup::worker
