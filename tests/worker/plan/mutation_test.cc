// The check is sound: plans with one edit that it accepts are carried out here, for all ranks, on
// numbers that show whatever is read, written, summed or moved wrongly, and give the numbers of the
// plans that were not edited, whatever goes on beside what.

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

// A head that shares the embedding's weights, a unit smaller than a block, blocks of two units;
// backwards in parts.
ParamLayout Layout(int world, Strategy strategy, int group = 0, bool rounded = false) {
  const auto param = [](const char* name, std::int64_t cells) {
    return ParamSpec{.name = name, .shape = {cells * kCell}};
  };
  return *ParamLayout::Create({{"embed", {param("wte", 21), param("wpe", 7)}, {}},
                               {"b0", {param("b0.a", 2), param("b0.b", 36)}, {}, {1}},
                               {"b1", {param("b1.a", 2), param("b1.b", 36)}, {}, {1}},
                               {"head", {param("ln", 3)}, {"wte"}}},
                              world, strategy, group, rounded);
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
  Cells window, gradients;          // By the plan; the first only for a copy of weights.
  Cells source;                     // Of gathers: what it owns, rounded, where they are freed.
  Cells activations;                // By unit.
  Cells stash;                      // By unit, what its backward needs; recomputed ones share [0].
  Number backward = 0, norm = 0;
  std::size_t at = 0;  // The next instruction.
  // Of the step's calls, in order: begun, those to which it has given its part, those of which it
  // has the result.
  std::size_t begun = 0, given = 0, taken = 0;
  std::size_t needed = 0;                        // Of those last, before the next instruction.
  std::vector<std::size_t> gathering, reducing;  // By unit, by bucket: calls begun with the last.
  int haste = 0;  // Out of ten times that it could do either, it goes on with its calls.
};

// What ranks do together: in part of one, in part beside what each of them computes.
struct Call {
  Op op;
  int which;                 // Unit or bucket; -1.
  std::vector<Cells> parts;  // By rank.
};

// Carries out the plans of all ranks, each with what it computes and a stream of its calls, which
// go on at any time from where they begin to where they are awaited. `schedule` decides which: in
// the first, as soon as they can, in the second as late as they may, in others by chance.
class World {
 public:
  World(const ParamLayout& layout, const std::vector<Plan>& plans, std::uint64_t schedule = 0)
      : layout_(layout),
        plans_(plans),
        divided_(layout.Divides(StateKind::kMoments)),
        rng_(schedule) {
    for (int r = 0; r < layout.world(); ++r) {
      machines_.emplace_back(layout, r);
      machines_.back().haste = schedule == 0   ? 10
                               : schedule == 1 ? 0
                                               : static_cast<int>(rng_.Below(11));
    }
  }

  void Step(int step) {
    step_ = step;
    calls_.clear();
    for (Machine& m : machines_) {
      m.at = m.begun = m.given = m.taken = m.needed = 0;
      m.gathering.assign(layout_.units().size(), 0);
      m.reducing.assign(PlanOf(m).buckets.size(), 0);
      m.window.assign(Machine::Size(PlanOf(m).weights.elements), 99);
      m.source.assign(m.moments.size(), 96);
      if (layout_.GathersInPlace()) LoseOthers(m);
      m.gradients.resize(Machine::Size(PlanOf(m).gradients.elements), 98);
      m.activations.assign(layout_.units().size(), 97);
      m.stash.assign(layout_.units().size() + 1, 95);
    }
    for (std::size_t idle = 0; idle < machines_.size();) {
      const std::size_t first = rng_.Below(machines_.size());
      for (idle = 0; idle < machines_.size(); ++idle) {
        if (Advance(machines_[(first + idle) % machines_.size()])) break;
      }
    }
    for (const Machine& m : machines_) CHECK(IsOver(m));  // None waits for ever.
  }

  // All that every rank has, but for padding and for what a step leaves behind.
  std::vector<Number> Result() const {
    std::vector<Number> result;
    for (const Machine& m : machines_) {
      for (const Range& box : layout_.Boxes(StateKind::kWeights, m.rank)) {
        for (std::int64_t at = box.begin; at < box.end(); at += kCell)
          result.push_back(Own(m.rank, at));
      }
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
  // What a step gathers holds for that step only.
  void LoseOthers(Machine& m) const {
    Cells own(m.weights.size(), 93);
    for (const Range& box : layout_.Boxes(StateKind::kWeights, m.rank)) {
      for (std::int64_t at = box.begin; at < box.end(); at += kCell)
        own[In(StateKind::kWeights, m.rank, at)] = Own(m.rank, at);
    }
    m.weights = own;
  }
  // Where forwards and backwards find a weight and leave a gradient.
  Number& WeightOf(Machine& m, ParamId p, std::int64_t at) {
    const auto unit = static_cast<std::size_t>(ParamAt(p).unit);
    const std::size_t place =
        Machine::Size(PlanOf(m).weights.at[unit] + at - layout_.units()[unit].flat.begin);
    return layout_.FreesWeights() || layout_.rounded() ? m.window.at(place) : m.weights.at(place);
  }
  // Where a rank rounds a weight that it owns, and others gather it from.
  Number& SourceOf(Machine& m, ParamId p, std::int64_t at) {
    if (!layout_.FreesWeights()) return WeightOf(m, p, at);
    Cells& source = layout_.rounded() ? m.source : m.weights;
    return source.at(In(StateKind::kWeights, m.rank, at));
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

  bool IsOver(const Machine& m) const {
    return m.at == PlanOf(m).instructions.size() && m.taken == m.begun;
  }

  // One thing of one rank, if there is one that it can do.
  bool Advance(Machine& m) {
    return static_cast<int>(rng_.Below(10)) < m.haste ? GoOnCalling(m) || GoOnComputing(m)
                                                      : GoOnComputing(m) || GoOnCalling(m);
  }

  // One call after the other.
  bool GoOnCalling(Machine& m) {
    if (m.taken == m.begun) return false;
    Call& call = calls_[m.taken];
    if (m.given == m.taken) {
      call.parts[static_cast<std::size_t>(m.rank)] = PartOf(m, call);
      ++m.given;
      return true;
    }
    if (std::any_of(machines_.begin(), machines_.end(),
                    [&](const Machine& other) { return other.given <= m.taken; }))
      return false;
    Take(m, call);
    ++m.taken;
    return true;
  }

  bool GoOnComputing(Machine& m) {
    const std::vector<Instruction>& list = PlanOf(m).instructions;
    if (m.at == list.size() || m.taken < m.needed) return false;
    const Instruction& i = list[m.at++];
    switch (i.op) {
      case Op::kAwaitGather: m.needed = m.gathering.at(static_cast<std::size_t>(i.unit)); break;
      case Op::kAwaitGrad: m.needed = m.reducing.at(static_cast<std::size_t>(i.bucket)); break;
      default: IsCall(i.op) ? Begin(m, i) : Alone(m, i);
    }
    return true;
  }

  bool IsCall(Op op) const {
    return op == Op::kGather || op == Op::kReduceGrad || op == Op::kVote ||
           (op == Op::kSumSquares && divided_);
  }

  void Begin(Machine& m, const Instruction& i) {
    const int which = i.op == Op::kGather ? i.unit : i.bucket;
    if (m.begun == calls_.size())
      calls_.push_back({i.op, which, std::vector<Cells>(machines_.size())});
    const Call& call = calls_[m.begun++];
    CHECK(call.op == i.op && call.which == which);
    if (i.op == Op::kSumSquares) SumSquares(m);
    if (i.op == Op::kGather) m.gathering.at(static_cast<std::size_t>(which)) = m.begun;
    if (i.op == Op::kReduceGrad) m.reducing.at(static_cast<std::size_t>(which)) = m.begun;
    const bool of_stream = i.op == Op::kGather || i.op == Op::kReduceGrad;
    // Two calls at once, of two threads.
    if (!of_stream && m.taken + 1 < m.begun) m.norm = 93;
    if (!of_stream || !PlanOf(m).overlaps) m.needed = m.begun;
  }

  void Alone(Machine& m, const Instruction& i) {
    switch (i.op) {
      case Op::kFree: return Free(m, i);
      case Op::kRound: return Round(m, i);
      case Op::kForward:
      case Op::kRecompute: return Forward(m, i);
      case Op::kBackward: return Backward(m, i);
      case Op::kZeroGrad: return ZeroGrad(m, i);
      case Op::kSumSquares: return SumSquares(m);
      case Op::kStep: return Update(m, i);
      default: return;
    }
  }

  // Whoever reads it nevertheless would find what another unit left there.
  void Free(Machine& m, const Instruction& i) {
    for (ParamId p : UnitAt(i.unit).params) {
      EachCell(p, [&](std::int64_t at, int) { WeightOf(m, p, at) = 94; });
    }
  }

  void Round(Machine& m, const Instruction& i) {
    for (ParamId p : UnitAt(i.unit).params) {
      EachCell(p, [&](std::int64_t at, int owner) {
        if (divided_ && owner != layout_.PlaceOf(m.rank)) return;
        SourceOf(m, p, at) = Mix(Own(m.rank, at), Number(step_));
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
      EachCell(p, [&](std::int64_t at, int) { out = Mix(out, WeightOf(m, p, at)); });
    StashOf(m, i.unit) = Mix(out, 1);
  }

  void Backward(Machine& m, const Instruction& i) {
    const Number in = Mix(m.activations.at(static_cast<std::size_t>(i.unit)), StashOf(m, i.unit));
    if (i.unit + 1 == static_cast<UnitId>(layout_.units().size())) m.backward = in;
    const std::vector<Range>& parts = UnitAt(i.unit).parts;
    const Range all{0, layout_.flat_elements()};  // With what it shares.
    for (std::size_t part = parts.size(); part-- > 0;) {
      if (i.part == kWholeUnit || i.part == static_cast<int>(part))
        BackwardOf(m, i, in, i.part == kWholeUnit && parts.size() == 1 ? all : parts[part]);
    }
  }

  // Of what it touches in `part`.
  void BackwardOf(Machine& m, const Instruction& i, Number in, const Range& part) {
    AddMask adds = AddsOf(PlanOf(m), layout_, i.unit, i.micro_batch);
    Number out = Mix(m.backward, in);
    for (ParamId p : TouchedBy(i.unit)) {
      EachCell(p, [&](std::int64_t at, int) {
        if (!part.Has({at, kCell})) return;
        const Number gradient = Mix(Mix(m.backward, in), Mix(Number(at), WeightOf(m, p, at)));
        Number& cell = GradientOf(m, p, at);
        cell = (adds & 1) != 0 ? cell + gradient : gradient;
        out = Mix(out, WeightOf(m, p, at));
      });
      adds >>= 1;
    }
    m.backward = out;
  }

  void ZeroGrad(Machine& m, const Instruction& i) {
    const Bucket& bucket = PlanOf(m).buckets.at(static_cast<std::size_t>(i.bucket));
    for (UnitId u = bucket.first_unit; u <= bucket.last_unit; ++u) {
      for (ParamId p : UnitAt(u).params) {
        EachCell(p, [&](std::int64_t at, int) {
          if (bucket.flat.Has({at, kCell})) GradientOf(m, p, at) = 0;
        });
      }
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

  // body(parameter, element, its owner's place), of what a gather or a reduction moves.
  template <typename Body>
  void EachMoved(const Call& call, const Body& body) const {
    Bucket units{
        .first_unit = call.which, .last_unit = call.which, .flat = {0, layout_.flat_elements()}};
    if (call.op == Op::kReduceGrad)
      units = plans_[0].buckets.at(static_cast<std::size_t>(call.which));
    for (UnitId u = units.first_unit; u <= units.last_unit; ++u) {
      for (ParamId p : UnitAt(u).params) {
        EachCell(p, [&](std::int64_t at, int owner) {
          if (units.flat.Has({at, kCell})) body(p, at, owner);
        });
      }
    }
  }

  Cells PartOf(Machine& m, const Call& call) {
    Cells part;
    if (call.op == Op::kSumSquares || call.op == Op::kVote) return {m.norm};
    EachMoved(call, [&](ParamId p, std::int64_t at, int owner) {
      part.push_back(call.op == Op::kReduceGrad         ? GradientOf(m, p, at)
                     : owner == layout_.PlaceOf(m.rank) ? SourceOf(m, p, at)
                                                        : 0);
    });
    return part;
  }

  void Take(Machine& m, const Call& call) {
    if (call.op == Op::kVote || call.op == Op::kSumSquares) {
      m.norm = 0;
      for (std::size_t r = 0; r < call.parts.size(); ++r) {
        const Number norm = call.parts[r][0];
        // Any rank's shows; all have the same by right.
        if (call.op == Op::kVote) m.norm = Mix(m.norm, norm);
        if (call.op == Op::kSumSquares && static_cast<int>(r) < layout_.group()) m.norm += norm;
      }
      return;
    }
    const int place = layout_.PlaceOf(m.rank);
    std::size_t cell = 0;
    EachMoved(call, [&](ParamId p, std::int64_t at, int owner) {
      if (call.op == Op::kGather) {
        const int from = m.rank - place + owner;
        WeightOf(m, p, at) = call.parts[static_cast<std::size_t>(from)][cell];
      } else if (!divided_ || owner == place) {
        Number& reduced = ReducedOf(m, p, at);
        reduced = 0;
        for (const Cells& part : call.parts) reduced += part[cell];
      }
      ++cell;
    });
  }

  const ParamLayout& layout_;
  const std::vector<Plan>& plans_;
  const bool divided_;
  Rng rng_;
  int step_ = 0;
  std::vector<Machine> machines_;
  std::vector<Call> calls_;  // Of the step.
};

// Two steps, since what one leaves behind may show in the next only.
std::vector<Number> ResultOf(const ParamLayout& layout, const std::vector<Plan>& plans,
                             std::uint64_t schedule = 0) {
  World world(layout, plans, schedule);
  for (int step = 0; step < 2; ++step) world.Step(step);
  return world.Result();
}

std::vector<Plan> Plans(const ParamLayout& layout, const std::vector<int>& micro_batches,
                        const std::vector<UnitId>& recomputed = {}, bool overlap = false,
                        bool reshard_after_forward = true, const WrapPolicy& wrap = {}) {
  std::vector<Plan> plans;
  for (int r = 0; r < layout.world(); ++r) {
    plans.push_back(
        *MakePlan(layout, {.rank = r,
                           .micro_batches = micro_batches[static_cast<std::size_t>(r)],
                           .rounds = *std::max_element(micro_batches.begin(), micro_batches.end()),
                           .bucket_bytes = 39 * kCell * 4,
                           .recomputed = recomputed,
                           .overlap = overlap,
                           .reshard_after_forward = reshard_after_forward,
                           .wrap = wrap}));
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
  bool overlap = false;
  std::uint64_t schedule = 0;
  bool reshard_after_forward = true;
  WrapPolicy wrap{};
};
// The first is replicated and does one thing after the other.
std::vector<Course> Courses() {
  std::vector<Course> courses;
  for (const auto& sharding : kShardings) {
    courses.insert(courses.end(),
                   {{sharding, false}, {sharding, true}, {sharding, true, 1}, {sharding, true, 2}});
  }
  courses.push_back({{Strategy::kZero3, 0}, true, 1, /*reshard_after_forward=*/false});
  // The blocks together, and all but the embedding.
  const WrapPolicy blocks{.kind = WrapPolicy::Kind::kList, .begins = {"b0", "head"}},
      rest{.kind = WrapPolicy::Kind::kList, .begins = {"b0"}};
  courses.push_back({{Strategy::kZero3, 0}, false, 0, true, blocks});
  courses.push_back({{Strategy::kZero3, 2}, true, 1, true, rest});
  courses.push_back({{Strategy::kZero3, 0}, true, 1, false, blocks});
  return courses;
}

TEST(Mutations, PlansOfAllStrategiesGiveTheSameNumbers) {
  for (const std::vector<int>& micro_batches : kWorlds) {
    for (const bool round_weights : {false, true}) {
      std::vector<Number> expected;
      for (const auto& [sharding, overlap, schedule, reshard_after_forward, wrap] : Courses()) {
        const auto [strategy, group] = sharding;
        if (!Fits(micro_batches, group)) continue;
        const ParamLayout layout =
            Layout(static_cast<int>(micro_batches.size()), strategy, group, round_weights);
        std::vector<UnitId> recomputed;  // The result is the same without, but for zero-2.
        if (strategy != Strategy::kZero2) recomputed = {1, 2};
        const std::vector<Plan> plans =
            Plans(layout, micro_batches, recomputed, overlap, reshard_after_forward, wrap);
        ASSERT_TRUE(CheckPlan(layout, plans).ok()) << CheckPlan(layout, plans);
        World world(layout, plans, schedule);
        for (int step = 0; step < 3; ++step) world.Step(step);
        if (expected.empty()) expected = world.Weights();
        EXPECT_EQ(world.Weights(), expected)
            << NameOf(strategy) << " " << round_weights << overlap << schedule;
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
  switch (rng.Below(9)) {
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
    case 7: here->part = static_cast<int>(rng.Below(4)) - 1; return;
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
  if (bucket.first_unit < 0 || bucket.last_unit < bucket.first_unit || bucket.last_unit >= units ||
      rng.Below(4) == 0)
    return;
  const auto border = [&](UnitId unit) {
    const std::vector<Range>& parts = layout.units()[static_cast<std::size_t>(unit)].parts;
    return parts[Any(rng, parts.size())];
  };
  const std::int64_t begin = border(bucket.first_unit).begin;
  bucket.flat = {begin, border(bucket.last_unit).end() - begin};
}

void Edit(Rng rng, const ParamLayout& layout, Plan& plan) {
  switch (rng.Below(12)) {
    case 0: return EditWindow(rng, plan.weights);
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
    const ParamLayout layout =
        Layout(static_cast<int>(micro_batches.size()), strategy, group, rng.Below(2) == 0);
    const std::vector<Plan> right =
        Plans(layout, micro_batches,
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
    for (std::uint64_t schedule = 0; schedule < 10; ++schedule) {
      ASSERT_EQ(ResultOf(layout, plans, schedule), expected)
          << "mutation " << i << ", schedule " << schedule << ": " << text;
    }
  }
  RecordProperty("accepted", accepted);
  EXPECT_GT(accepted, edits / 50);
  EXPECT_LT(accepted, edits / 2);
}

// Waits with nothing between them that would use what they wait for: the last of them waits for
// what the others do. Those at the end of a step are none, since nothing of it goes on after it.
std::vector<std::vector<std::size_t>> WaitsOf(const Plan& plan) {
  std::vector<std::vector<std::size_t>> all(1);
  for (std::size_t at = 0; at < plan.instructions.size(); ++at) {
    const Op op = plan.instructions[at].op;
    if (op == Op::kAwaitGather || op == Op::kAwaitGrad) {
      all.back().push_back(at);
    } else if (op == Op::kCommit) {
      all.back().clear();
    } else if (op != Op::kFree && !all.back().empty()) {
      all.emplace_back();
    }
  }
  all.pop_back();
  return all;
}

// Each of them matters: one rank without it has other numbers on some schedule, and the check finds
// that without any.
TEST(Mutations, AMissingWaitShows) {
  int planted = 0;
  for (const std::vector<int>& micro_batches : {std::vector{1, 1}, {2, 1}, {3, 3}}) {
    for (const auto& [sharding, overlap, schedule, reshard_after_forward, wrap] : Courses()) {
      const auto [strategy, group] = sharding;
      if (!overlap || schedule != 1) continue;
      const ParamLayout layout = Layout(2, strategy, group);
      const std::vector<Plan> right =
          Plans(layout, micro_batches, {}, /*overlap=*/true, reshard_after_forward, wrap);
      const std::vector<Number> expected = ResultOf(layout, right);
      for (const std::vector<std::size_t>& waits : WaitsOf(right[0])) {
        ++planted;
        std::vector<Plan> plans = right;
        std::string text = std::string(NameOf(strategy)) + " without";
        for (auto at = waits.rbegin(); at != waits.rend(); ++at) {
          const auto wait = plans[0].instructions.begin() + static_cast<std::ptrdiff_t>(*at);
          text += "\n  " + ToString(*wait);
          plans[0].instructions.erase(wait);
        }
        text += "\n" + ToString(plans[0], layout);
        EXPECT_FALSE(CheckPlan(layout, plans).ok()) << text;
        std::uint64_t tried = 0;
        while (tried < 1000 && ResultOf(layout, plans, tried) == expected) ++tried;
        EXPECT_LT(tried, 1000u) << text;
      }
    }
  }
  EXPECT_GE(planted, 100);
}

}  // namespace
}  // namespace regroup::worker
