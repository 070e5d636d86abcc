// The check is sound: plans with one edit that it accepts are carried out here, for all ranks, on
// numbers that show whatever is read, written, summed or moved wrongly, and give the numbers of the
// plans that were not edited.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/rng.h"
#include "worker/plan/plan.h"
#include "worker/tensor/counter_rng.h"

namespace regroup::worker {
namespace {

constexpr std::int64_t kCell = ParamLayout::kAlignElements;  // One number stands for as many.
using Number = std::uint64_t;
using Cells = std::vector<Number>;

Number Mix(Number a, Number b) { return RngKey{a}.Fold(b).value; }

// A head that shares the embedding's weights, a unit smaller than a block, blocks of two units.
ParamLayout Layout(int world, Strategy strategy, int group = 0) {
  const auto param = [](const char* name, std::int64_t cells) {
    return ParamSpec{.name = name, .shape = {cells * kCell}};
  };
  return *ParamLayout::Create({{"embed", {param("wte", 21), param("wpe", 7)}, {}},
                               {"b0", {param("b0.w", 33), param("b0.b", 5)}, {}},
                               {"b1", {param("b1.w", 33), param("b1.b", 5)}, {}},
                               {"head", {param("ln", 3)}, {"wte"}}},
                              world, strategy, group);
}

// What one rank has, in cells.
struct Machine {
  Machine(const ParamLayout& layout, int number) : rank(number) {
    weights.resize(Size(layout.Elements(StateKind::kWeights, rank)));
    moments.resize(Size(layout.Elements(StateKind::kMoments, rank)));
    reduced.resize(Size(layout.Elements(StateKind::kGradients, rank)));
    for (const Range& box : layout.Boxes(StateKind::kWeights, rank)) {
      for (std::int64_t at = box.begin; at < box.end(); at += kCell)
        weights[Size(layout.Offset(StateKind::kWeights, rank, at))] = Mix(1, Number(at));
    }
  }
  static std::size_t Size(std::int64_t elements) {
    return static_cast<std::size_t>(elements / kCell);
  }

  int rank;
  Cells weights, moments, reduced;  // Their buffers; the last only where gradients are divided.
  Cells window, gradients;          // By the plan; the first only where weights are divided.
  Cells rounded;                    // By the plan; only where it rounds.
  Cells activations;                // By unit.
  Cells stash;                      // By unit, what its backward needs; recomputed ones share [0].
  Number backward = 0, norm = 0;
  std::size_t at = 0;  // The next instruction.
};

// Carries out the plans of all ranks: each until its next collective, then that on all.
class World {
 public:
  // What goes on beside what follows happens as soon as it can, or as late as it may.
  World(const ParamLayout& layout, const std::vector<Plan>& plans, bool late = false)
      : layout_(layout),
        plans_(plans),
        divided_(layout.Divides(StateKind::kMoments)),
        reduces_at_(late && plans[0].overlaps ? Op::kAwaitGrad : Op::kReduceGrad),
        gathers_at_(late && plans[0].overlaps ? Op::kAwaitGather : Op::kGather) {
    for (int r = 0; r < layout.world(); ++r) machines_.emplace_back(layout, r);
  }

  void Step(int step) {
    step_ = step;
    for (Machine& m : machines_) {
      m.at = 0;
      m.window.assign(Machine::Size(PlanOf(m).weights.elements), 99);
      m.rounded.assign(Machine::Size(PlanOf(m).rounded.elements), 96);
      m.gradients.resize(Machine::Size(PlanOf(m).gradients.elements), 98);
      m.activations.assign(layout_.units().size(), 97);
      m.stash.assign(layout_.units().size() + 1, 95);
    }
    for (;;) {
      for (Machine& m : machines_) RunAlone(m);
      const std::vector<Instruction>& first = plans_[0].instructions;
      if (machines_[0].at == first.size()) return;
      const Instruction& instruction = first[machines_[0].at];
      for (Machine& m : machines_) {
        CHECK(m.at < PlanOf(m).instructions.size());
        CHECK(PlanOf(m).instructions[m.at++].op == instruction.op);
      }
      Together(instruction);
    }
  }

  // All that every rank has, but for padding and for what a step leaves behind.
  std::vector<Number> Result() const {
    std::vector<Number> result;
    for (const Machine& m : machines_) {
      result.insert(result.end(), m.weights.begin(), m.weights.end());
      result.insert(result.end(), m.moments.begin(), m.moments.end());
      result.push_back(m.norm);
    }
    return result;
  }
  // The weights as their owners have them, in flat order.
  std::vector<Number> Weights() const {
    std::vector<Number> weights;
    for (std::size_t p = 0; p < layout_.params().size(); ++p) {
      EachCell(static_cast<ParamId>(p),
               [&](std::int64_t at, int owner) { weights.push_back(Own(owner, at)); });
    }
    return weights;
  }

 private:
  const Plan& PlanOf(const Machine& m) const { return plans_[static_cast<std::size_t>(m.rank)]; }
  const UnitPlace& UnitAt(UnitId u) const { return layout_.units()[static_cast<std::size_t>(u)]; }
  const ParamPlace& ParamAt(ParamId p) const {
    return layout_.params()[static_cast<std::size_t>(p)];
  }
  bool IsAlone(const Instruction& i) const {
    return i.op != gathers_at_ && i.op != reduces_at_ && i.op != Op::kVote &&
           (i.op != Op::kSumSquares || !divided_);
  }

  // body(element of the flat order, its owner's place); where nothing is divided, that is 0.
  template <typename Body>
  void EachCell(ParamId p, const Body& body) const {
    const Range& flat = ParamAt(p).flat;
    for (std::int64_t at = flat.begin; at < flat.end(); at += kCell) {
      int owner = 0;
      for (const Share& share : layout_.Shares(p)) {
        if (at >= share.flat.begin && at < share.flat.end()) owner = share.owner;
      }
      body(at, owner);
    }
  }
  std::size_t In(StateKind kind, int rank, std::int64_t at) const {
    return Machine::Size(layout_.Offset(kind, rank, at));
  }
  Number Own(int rank, std::int64_t at) const {
    return machines_[static_cast<std::size_t>(rank)].weights.at(In(StateKind::kWeights, rank, at));
  }
  // Where forwards and backwards find a weight and leave a gradient.
  Number& WeightOf(Machine& m, ParamId p, std::int64_t at) {
    const auto unit = static_cast<std::size_t>(ParamAt(p).unit);
    const std::size_t place =
        Machine::Size(PlanOf(m).weights.at[unit] + at - layout_.units()[unit].flat.begin);
    return layout_.Divides(StateKind::kWeights) ? m.window.at(place) : m.weights.at(place);
  }
  Number& RoundedOf(Machine& m, ParamId p, std::int64_t at) {
    const auto unit = static_cast<std::size_t>(ParamAt(p).unit);
    return m.rounded.at(
        Machine::Size(PlanOf(m).rounded.at[unit] + at - layout_.units()[unit].flat.begin));
  }
  // What a forward or backward reads of a weight.
  Number Read(Machine& m, ParamId p, std::int64_t at) {
    return PlanOf(m).rounds ? RoundedOf(m, p, at) : WeightOf(m, p, at);
  }
  Number& GradientOf(Machine& m, ParamId p, std::int64_t at) {
    const auto unit = static_cast<std::size_t>(ParamAt(p).unit);
    return m.gradients.at(
        Machine::Size(PlanOf(m).gradients.at[unit] + at - layout_.units()[unit].flat.begin));
  }
  Number& ReducedOf(Machine& m, ParamId p, std::int64_t at) {
    if (!layout_.Divides(StateKind::kGradients)) return GradientOf(m, p, at);
    return m.reduced.at(In(StateKind::kGradients, m.rank, at));
  }
  std::vector<ParamId> TouchedBy(UnitId u) const {
    std::vector<ParamId> touched = UnitAt(u).params;
    touched.insert(touched.end(), UnitAt(u).shared.begin(), UnitAt(u).shared.end());
    return touched;
  }

  void RunAlone(Machine& m) {
    const std::vector<Instruction>& list = PlanOf(m).instructions;
    for (; m.at < list.size() && IsAlone(list[m.at]); ++m.at) Alone(m, list[m.at]);
  }

  void Alone(Machine& m, const Instruction& i) {
    switch (i.op) {
      case Op::kRound: return Round(m, i);
      case Op::kForward: return Forward(m, i);
      case Op::kRecompute: return Forward(m, i);
      case Op::kBackward: return Backward(m, i);
      case Op::kZeroGrad: return ZeroGrad(m, i);
      case Op::kSumSquares: return SumSquares(m);
      case Op::kStep: return Update(m, i);
      default: return;
    }
  }

  void Round(Machine& m, const Instruction& i) {
    for (ParamId p : UnitAt(i.unit).params) {
      EachCell(p, [&](std::int64_t at, int) {
        RoundedOf(m, p, at) = Mix(WeightOf(m, p, at), Number(step_));
      });
    }
  }

  Number& StashOf(Machine& m, UnitId u) {
    const std::vector<UnitId>& shared = PlanOf(m).recomputed;
    const bool shares = std::find(shared.begin(), shared.end(), u) != shared.end();
    return m.stash.at(shares ? 0 : static_cast<std::size_t>(u) + 1);
  }

  void Forward(Machine& m, const Instruction& i) {
    Number& out = m.activations.at(static_cast<std::size_t>(i.unit));
    out = i.unit == 0 ? Mix(Mix(Number(step_), Number(m.rank)), Number(i.micro_batch))
                      : m.activations.at(static_cast<std::size_t>(i.unit) - 1);
    for (ParamId p : TouchedBy(i.unit))
      EachCell(p, [&](std::int64_t at, int) { out = Mix(out, Read(m, p, at)); });
    StashOf(m, i.unit) = Mix(out, 1);
  }

  void Backward(Machine& m, const Instruction& i) {
    const Number in = Mix(m.activations.at(static_cast<std::size_t>(i.unit)), StashOf(m, i.unit));
    if (i.unit + 1 == static_cast<UnitId>(layout_.units().size())) m.backward = in;
    AddMask adds = AddsOf(PlanOf(m), layout_, i.unit, i.micro_batch);
    Number out = Mix(m.backward, in);
    for (ParamId p : TouchedBy(i.unit)) {
      EachCell(p, [&](std::int64_t at, int) {
        const Number gradient = Mix(Mix(m.backward, in), Mix(Number(at), Read(m, p, at)));
        Number& cell = GradientOf(m, p, at);
        cell = (adds & 1) != 0 ? cell + gradient : gradient;
        out = Mix(out, Read(m, p, at));
      });
      adds >>= 1;
    }
    m.backward = out;
  }

  void ZeroGrad(Machine& m, const Instruction& i) {
    const Bucket& bucket = PlanOf(m).buckets.at(static_cast<std::size_t>(i.bucket));
    for (UnitId u = bucket.first_unit; u <= bucket.last_unit; ++u) {
      for (ParamId p : UnitAt(u).params)
        EachCell(p, [&](std::int64_t at, int) { GradientOf(m, p, at) = 0; });
    }
  }

  void SumSquares(Machine& m) {
    m.norm = 0;
    for (std::size_t p = 0; p < layout_.params().size(); ++p) {
      EachCell(static_cast<ParamId>(p), [&](std::int64_t at, int owner) {
        if (!divided_ || owner == layout_.PlaceOf(m.rank))
          m.norm += Mix(Number(at), ReducedOf(m, static_cast<ParamId>(p), at));
      });
    }
  }

  void Update(Machine& m, const Instruction& i) {
    for (ParamId p : UnitAt(i.unit).params) {
      EachCell(p, [&](std::int64_t at, int owner) {
        if (divided_ && owner != layout_.PlaceOf(m.rank)) return;
        Number& moment = m.moments.at(In(StateKind::kMoments, m.rank, at));
        moment = Mix(moment, ReducedOf(m, p, at));
        Number& weight = m.weights.at(In(StateKind::kWeights, m.rank, at));
        weight = Mix(weight, Mix(moment, m.norm));
      });
    }
  }

  void Together(const Instruction& i) {
    switch (i.op) {
      case Op::kGather:
      case Op::kAwaitGather: return Gather(i.unit);
      case Op::kReduceGrad:
      case Op::kAwaitGrad: return Reduce(plans_[0].buckets.at(static_cast<std::size_t>(i.bucket)));
      case Op::kSumSquares: return SumTogether();
      default: return Vote();
    }
  }

  void Gather(UnitId u) {
    for (ParamId p : UnitAt(u).params) {
      EachCell(p, [&](std::int64_t at, int owner) {
        for (Machine& m : machines_)
          WeightOf(m, p, at) = Own(m.rank - layout_.PlaceOf(m.rank) + owner, at);
      });
    }
  }

  void Reduce(const Bucket& bucket) {
    for (UnitId u = bucket.first_unit; u <= bucket.last_unit; ++u) {
      for (ParamId p : UnitAt(u).params) {
        EachCell(p, [&](std::int64_t at, int owner) {
          Number sum = 0;
          for (Machine& m : machines_) sum += GradientOf(m, p, at);
          for (Machine& m : machines_) {
            if (!divided_ || owner == layout_.PlaceOf(m.rank)) ReducedOf(m, p, at) = sum;
          }
        });
      }
    }
  }

  void SumTogether() {
    Number sum = 0;
    for (Machine& m : machines_) {
      SumSquares(m);
      if (m.rank < layout_.group()) sum += m.norm;
    }
    for (Machine& m : machines_) m.norm = sum;
  }

  void Vote() {
    Number most = 0;
    for (const Machine& m : machines_) most = std::max(most, m.norm);
    for (Machine& m : machines_) m.norm = most;
  }

  const ParamLayout& layout_;
  const std::vector<Plan>& plans_;
  const bool divided_;
  const Op reduces_at_, gathers_at_;
  int step_ = 0;
  std::vector<Machine> machines_;
};

// Two steps, since what one leaves behind may show in the next only.
std::vector<Number> ResultOf(const ParamLayout& layout, const std::vector<Plan>& plans,
                             bool late = false) {
  World world(layout, plans, late);
  for (int step = 0; step < 2; ++step) world.Step(step);
  return world.Result();
}

std::vector<Plan> Plans(const ParamLayout& layout, const std::vector<int>& micro_batches,
                        bool round_weights, const std::vector<UnitId>& recomputed = {},
                        bool overlap = false, bool reshard_after_forward = true) {
  std::vector<Plan> plans;
  for (int r = 0; r < layout.world(); ++r) {
    plans.push_back(
        *MakePlan(layout, {.rank = r,
                           .micro_batches = micro_batches[static_cast<std::size_t>(r)],
                           .rounds = *std::max_element(micro_batches.begin(), micro_batches.end()),
                           .bucket_bytes = 40 * kCell * 4,
                           .round_weights = round_weights,
                           .recomputed = recomputed,
                           .overlap = overlap,
                           .reshard_after_forward = reshard_after_forward}));
  }
  return plans;
}

const std::vector<std::vector<int>> kWorlds = {{1},    {1, 1},    {2, 1},
                                               {1, 0}, {2, 1, 0}, {2, 1, 1, 0}};
constexpr std::pair<Strategy, int> kShardings[] = {
    {Strategy::kReplicated, 0}, {Strategy::kZero1, 0}, {Strategy::kZero1, 2}, {Strategy::kZero2, 0},
    {Strategy::kZero2, 2},      {Strategy::kZero3, 0}, {Strategy::kZero3, 2}};
bool Fits(const std::vector<int>& world, int group) {
  return group == 0 || world.size() % static_cast<std::size_t>(group) == 0;
}

struct Course {
  std::pair<Strategy, int> sharding;
  bool overlap = false, late = false;
  bool reshard_after_forward = true;
};
// The first is replicated and does one thing after the other.
std::vector<Course> Courses() {
  std::vector<Course> courses;
  for (const auto& sharding : kShardings) {
    courses.insert(courses.end(),
                   {{sharding, false, false}, {sharding, true, false}, {sharding, true, true}});
  }
  courses.push_back({{Strategy::kZero3, 0}, true, true, /*reshard_after_forward=*/false});
  return courses;
}

TEST(Mutations, PlansOfAllStrategiesGiveTheSameNumbers) {
  for (const std::vector<int>& micro_batches : kWorlds) {
    for (const bool round_weights : {false, true}) {
      std::vector<Number> expected;
      for (const auto& [sharding, overlap, late, reshard_after_forward] : Courses()) {
        const auto [strategy, group] = sharding;
        if (!Fits(micro_batches, group)) continue;
        const ParamLayout layout = Layout(static_cast<int>(micro_batches.size()), strategy, group);
        std::vector<UnitId> recomputed;  // The result is the same without, but for zero-2.
        if (strategy != Strategy::kZero2) recomputed = {1, 2};
        const std::vector<Plan> plans =
            Plans(layout, micro_batches, round_weights, recomputed, overlap, reshard_after_forward);
        ASSERT_TRUE(CheckPlan(layout, plans).ok()) << CheckPlan(layout, plans);
        World world(layout, plans, late);
        for (int step = 0; step < 3; ++step) world.Step(step);
        if (expected.empty()) expected = world.Weights();
        EXPECT_EQ(world.Weights(), expected)
            << NameOf(strategy) << " " << round_weights << overlap << late;
      }
    }
  }
}

std::size_t Any(Rng& rng, std::size_t size) { return static_cast<std::size_t>(rng.Below(size)); }

void EditInstruction(Rng& rng, const ParamLayout& layout, Plan& plan) {
  std::vector<Instruction>& list = plan.instructions;
  const std::size_t at = Any(rng, list.size());
  const auto here = list.begin() + static_cast<std::ptrdiff_t>(at);
  const Instruction copy = *here;
  switch (rng.Below(8)) {
    case 0: list.erase(here); return;
    case 1:
      list.insert(list.begin() + static_cast<std::ptrdiff_t>(Any(rng, list.size() + 1)), copy);
      return;
    case 2: std::swap(list[at], list[std::min(at + 1, list.size() - 1)]); return;
    case 3:
      list.erase(here);
      list.insert(list.begin() + static_cast<std::ptrdiff_t>(Any(rng, list.size() + 1)), copy);
      return;
    case 4: here->unit = static_cast<UnitId>(Any(rng, layout.units().size() + 2)) - 1; return;
    case 5: here->micro_batch = static_cast<int>(rng.Below(4)) - 1; return;
    case 6: here->bucket = static_cast<int>(Any(rng, plan.buckets.size() + 2)) - 1; return;
    default: here->op = static_cast<Op>(rng.Below(static_cast<std::uint64_t>(Op::kCommit) + 1));
  }
}

void EditWindow(Rng& rng, Windows& windows) {
  if (rng.Below(4) == 0) {
    windows.elements += (static_cast<std::int64_t>(rng.Below(9)) - 4) * kCell;
  } else {
    windows.at[Any(rng, windows.at.size())] =
        static_cast<std::int64_t>(Any(rng, Machine::Size(windows.elements) + 2)) * kCell;
  }
}

void EditBucket(Rng& rng, const ParamLayout& layout, Plan& plan) {
  Bucket& bucket = plan.buckets[Any(rng, plan.buckets.size())];
  const int by = rng.Below(2) == 0 ? 1 : -1;
  (rng.Below(2) == 0 ? bucket.first_unit : bucket.last_unit) += by;
  const auto units = static_cast<UnitId>(layout.units().size());
  if (bucket.first_unit < 0 || bucket.last_unit >= units || rng.Below(4) == 0) return;
  const std::int64_t begin = layout.units()[static_cast<std::size_t>(bucket.first_unit)].flat.begin;
  bucket.flat = {begin,
                 layout.units()[static_cast<std::size_t>(bucket.last_unit)].flat.end() - begin};
}

void Edit(Rng rng, const ParamLayout& layout, Plan& plan) {
  switch (rng.Below(12)) {
    case 0: return EditWindow(rng, plan.rounds && rng.Below(2) == 0 ? plan.rounded : plan.weights);
    case 1:
    case 2: return EditWindow(rng, plan.gradients);
    case 3: return EditBucket(rng, layout, plan);
    case 4:
      plan.first_writers[Any(rng, plan.first_writers.size())] =
          static_cast<UnitId>(Any(rng, layout.units().size()));
      return;
    default: return EditInstruction(rng, layout, plan);
  }
}

// REGROUP_PLAN_EDITS=N: so many, and others than those of each run.
TEST(Mutations, WhatTheCheckAcceptsRunsRight) {
  const char* const told = std::getenv("REGROUP_PLAN_EDITS");
  const int edits = told != nullptr ? std::atoi(told) : 4000;
  int accepted = 0;
  Rng rng(static_cast<std::uint64_t>(told != nullptr ? edits : 0));
  for (int i = 0; i < edits; ++i) {
    const std::vector<int>& micro_batches = kWorlds[Any(rng, kWorlds.size())];
    const auto [strategy, group] = kShardings[Any(rng, std::size(kShardings))];
    if (!Fits(micro_batches, group)) continue;
    const ParamLayout layout = Layout(static_cast<int>(micro_batches.size()), strategy, group);
    const std::vector<Plan> right =
        Plans(layout, micro_batches, rng.Below(2) == 0,
              rng.Below(2) == 0 ? std::vector<UnitId>{1, 2} : std::vector<UnitId>{},
              rng.Below(2) == 0, rng.Below(2) == 0);
    std::vector<Plan> plans = right;
    const Rng edit(rng.Next());
    const bool all = rng.Below(2) == 0;
    const std::size_t only = Any(rng, plans.size());
    for (std::size_t r = 0; r < plans.size(); ++r) {
      if (all || r == only) Edit(edit, layout, plans[r]);
    }
    if (!CheckPlan(layout, plans).ok()) continue;
    ++accepted;
    std::string text = NameOf(strategy);
    for (const Plan& plan : plans) text += "\n" + ToString(plan, layout);
    const std::vector<Number> expected = ResultOf(layout, right);
    for (const bool late : {false, true})
      ASSERT_EQ(ResultOf(layout, plans, late), expected) << "mutation " << i << ": " << text;
  }
  RecordProperty("accepted", accepted);
  EXPECT_GT(accepted, edits / 50);
  EXPECT_LT(accepted, edits / 2);
}

}  // namespace
}  // namespace regroup::worker
