// Plans of a small layout, and what may be wrong with one of them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "worker/plan/plan.h"

namespace regroup::worker {

// Units of 4, 2, 2 and 1 blocks of 64 elements (256 bytes); the last shares a part of the first.
inline ParamLayout Layout(int world, bool tied = true, Strategy strategy = Strategy::kReplicated,
                          bool rounded = false) {
  const auto unit = [](const char* name, std::int64_t blocks, std::vector<std::string> shared) {
    return UnitSpec{name, {{.name = name, .shape = {64 * blocks}}}, std::move(shared)};
  };
  UnitSpec embed{"embed", {{.name = "wte", .shape = {192}}, {.name = "wpe", .shape = {64}}}, {}};
  UnitSpec head = unit("head", 1, {});
  if (tied) head.shared = {"wte"};
  return *ParamLayout::Create({embed, unit("b0", 2, {}), unit("b1", 2, {}), head}, world, strategy,
                              /*group=*/0, rounded);
}

inline constexpr Strategy kStrategies[] = {Strategy::kReplicated, Strategy::kZero1,
                                           Strategy::kZero2, Strategy::kZero3};

inline std::vector<Plan> Plans(const ParamLayout& layout, std::vector<int> micro_batches,
                               const std::vector<UnitId>& recomputed = {}, bool overlap = false) {
  std::vector<Plan> plans;
  const int rounds = *std::max_element(micro_batches.begin(), micro_batches.end());
  for (int rank = 0; rank < layout.world(); ++rank) {
    plans.push_back(
        *MakePlan(layout, {.rank = rank,
                           .micro_batches = micro_batches[static_cast<std::size_t>(rank)],
                           .rounds = rounds,
                           .bucket_bytes = 700,
                           .recomputed = recomputed,
                           .overlap = overlap}));
  }
  return plans;
}

// Each planted bug is one that a schedule could have; the check must name the rule.
struct Mistake {
  const char* what;
  std::function<void(Plan&)> make;
  const char* says;
};

inline std::size_t Find(const Plan& plan, Op op, int unit = -1) {
  for (std::size_t i = 0; i < plan.instructions.size(); ++i) {
    const Instruction& instruction = plan.instructions[i];
    if (instruction.op == op && (unit < 0 || instruction.unit == unit)) return i;
  }
  ADD_FAILURE() << "no such instruction";
  return 0;
}

inline void Erase(Plan& plan, std::size_t at) {
  plan.instructions.erase(plan.instructions.begin() + static_cast<std::ptrdiff_t>(at));
}

inline void Move(Plan& plan, std::size_t from, std::size_t to) {
  const Instruction instruction = plan.instructions[from];
  Erase(plan, from);
  plan.instructions.insert(plan.instructions.begin() + static_cast<std::ptrdiff_t>(to),
                           instruction);
}

inline void Insert(Plan& plan, std::size_t at, const Instruction& instruction) {
  plan.instructions.insert(plan.instructions.begin() + static_cast<std::ptrdiff_t>(at),
                           instruction);
}

// What touches units, in short: gathered, awaited, freed (-), forward, backward, stepped.
inline std::string OrderOf(const Plan& plan) {
  std::string order;
  for (const Instruction& i : plan.instructions) {
    const char* const op = i.op == Op::kGather        ? "G"
                           : i.op == Op::kAwaitGather ? "A"
                           : i.op == Op::kFree        ? "-"
                           : i.op == Op::kForward     ? "F"
                           : i.op == Op::kBackward    ? "B"
                           : i.op == Op::kStep        ? "S"
                                                      : nullptr;
    if (op != nullptr) order += op + std::to_string(i.unit) + " ";
  }
  return order;
}

}  // namespace regroup::worker
