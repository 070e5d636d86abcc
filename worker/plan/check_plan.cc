#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/plan/plan.h"

namespace regroup::worker {
namespace {

// What the ranks must do in the same order: an operation on elements of the flat order.
struct Collective {
  Op op = Op::kVote;
  Range flat;
  friend bool operator==(const Collective&, const Collective&) = default;
};

// One of UnitPlace::parts: what one backward makes, and what may be reduced by itself.
struct Part {
  UnitId unit = 0;
  int number = 0;  // Its index there.
  Range flat;
};

// The weights of one unit, on one rank, as forwards and backwards read them.
enum class Weights : std::uint8_t { kAbsent, kUnderWay, kReady };

// Walks through one rank's instructions and keeps what has happened so far.
class Walk {
 public:
  Walk(const ParamLayout& layout, const Plan& plan)
      : layout_(layout),
        plan_(plan),
        units_(static_cast<UnitId>(layout.units().size())),
        divided_(layout.Divides(StateKind::kWeights)),
        weights_(layout.units().size(),
                 divided_ || layout.rounded() ? Weights::kAbsent : Weights::kReady),
        rounded_(layout.units().size(), false),
        recomputed_(layout.units().size(), false),
        written_(layout.params().size(), false),
        stepped_(layout.units().size(), false) {
    for (UnitId u = 0; u < units_; ++u) {
      const std::vector<Range>& parts = layout.units()[static_cast<std::size_t>(u)].parts;
      for (std::size_t number = 0; number < parts.size(); ++number)
        parts_.push_back({u, static_cast<int>(number), parts[number]});
    }
    std::size_t part = 0;
    for (const ParamPlace& param : layout.params()) {
      while (!parts_[part].flat.Has(param.flat)) ++part;
      part_of_.push_back(part);
    }
    for (std::vector<bool>* by_part : {&filled_, &zeroed_, &reduced_})
      by_part->assign(parts_.size(), false);
    under_way_.assign(parts_.size(), -1);
  }

  absl::Status Run() {
    if (plan_.first_writers.size() != layout_.params().size()) {
      return absl::FailedPreconditionError(
          absl::StrCat("plan of rank ", plan_.rank, " says of ", plan_.first_writers.size(), " of ",
                       layout_.params().size(), " gradients who writes first"));
    }
    RETURN_IF_ERROR(CheckWindows("weights", plan_.weights, layout_.FreesWeights()));
    RETURN_IF_ERROR(
        CheckWindows("gradients", plan_.gradients, layout_.Divides(StateKind::kGradients)));
    for (const UnitId unit : plan_.recomputed) {
      if (!IsUnit(unit))
        return absl::FailedPreconditionError(
            absl::StrCat("plan of rank ", plan_.rank, " recomputes unit ", unit, " of ", units_));
      recomputed_[static_cast<std::size_t>(unit)] = true;
    }
    for (at_ = 0; at_ < plan_.instructions.size(); ++at_) {
      const Instruction& instruction = plan_.instructions[at_];
      if (committed_) return Broken("comes after Commit");
      RETURN_IF_ERROR(Follow(instruction));
    }
    if (!committed_) return Ended("without Commit");
    return absl::OkStatus();
  }
  // What other ranks must do in the same order.
  const std::vector<Collective>& collectives() const { return collectives_; }

 private:
  absl::Status Broken(const std::string& rule) const {
    return absl::FailedPreconditionError(absl::StrCat("plan of rank ", plan_.rank, ", instruction ",
                                                      at_, " (", ToString(plan_.instructions[at_]),
                                                      "): ", rule));
  }
  absl::Status Ended(const std::string& how) const {
    return absl::FailedPreconditionError(absl::StrCat("plan of rank ", plan_.rank, " ends ", how));
  }
  bool Beside(Op op) const { return StreamOf(plan_, op) == StepStream::kMove; }
  bool AllBackwardsDone() const { return micro_batch_ == plan_.micro_batches; }

  // What an operation does not need it does not name either: then plans that do the same are equal.
  static bool NamesTooMuch(const Instruction& i) {
    const bool runs = i.op == Op::kForward || i.op == Op::kRecompute || i.op == Op::kBackward,
               of_unit = runs || i.op == Op::kGather || i.op == Op::kAwaitGather ||
                         i.op == Op::kFree || i.op == Op::kRound || i.op == Op::kStep,
               of_bucket =
                   i.op == Op::kZeroGrad || i.op == Op::kReduceGrad || i.op == Op::kAwaitGrad;
    return (!runs && i.micro_batch != -1) || (!of_unit && i.unit != -1) ||
           (!of_bucket && i.bucket != -1) || (i.op != Op::kBackward && i.part != kWholeUnit);
  }

  absl::Status Follow(const Instruction& instruction) {
    if (NamesTooMuch(instruction)) return Broken("names more than it needs");
    switch (instruction.op) {
      case Op::kGather: return Gather(instruction);
      case Op::kAwaitGather: return AwaitGather(instruction);
      case Op::kFree: return Free(instruction);
      case Op::kRound: return Round(instruction);
      case Op::kForward: return Forward(instruction);
      case Op::kRecompute: return Recompute(instruction);
      case Op::kBackward: return Backward(instruction);
      case Op::kZeroGrad: return ZeroGrad(instruction);
      case Op::kReduceGrad: return ReduceGrad(instruction);
      case Op::kAwaitGrad: return AwaitGrad(instruction);
      case Op::kSumSquares: return SumSquares();
      case Op::kVote: return Vote();
      case Op::kStep: return Step(instruction);
      case Op::kCommit: return Commit();
    }
    return Broken("is unknown");
  }

  // That every unit has a window of its size, and that of what is kept whole nothing is moved.
  absl::Status CheckWindows(const char* what, const Windows& windows, bool moves) const {
    const auto wrong = [&](const std::string& how) {
      return absl::FailedPreconditionError(
          absl::StrCat("plan of rank ", plan_.rank, ": the windows of ", what, " ", how));
    };
    if (windows.at.size() != layout_.units().size()) {
      return wrong(absl::StrCat("are ", windows.at.size(), " for ", units_, " units"));
    }
    if (!moves && windows.elements != layout_.flat_elements())
      return wrong(
          absl::StrCat("have ", windows.elements, " elements of ", layout_.flat_elements()));
    for (std::size_t u = 0; u < windows.at.size(); ++u) {
      const Range& flat = layout_.units()[u].flat;
      if (windows.at[u] < 0 || windows.at[u] + flat.size > windows.elements ||
          windows.at[u] % ParamLayout::kAlignElements != 0) {
        return wrong(absl::StrCat("leave no room for unit ", u));
      }
      if (!moves && windows.at[u] != flat.begin) return wrong(absl::StrCat("move unit ", u));
    }
    return absl::OkStatus();
  }

  // Where the windows have a part of its unit.
  Range PlaceOf(const Windows& windows, const Part& part) const {
    const auto u = static_cast<std::size_t>(part.unit);
    return {windows.at[u] + part.flat.begin - layout_.units()[u].flat.begin, part.flat.size};
  }

  // That no other unit in use lies where this part of one does.
  absl::Status CheckRoom(const Windows& windows, const Part& mine,
                         const std::vector<bool>& in_use) const {
    for (std::size_t p = 0; p < in_use.size(); ++p) {
      const Part& other = parts_[p];
      if (!in_use[p] || other.unit == mine.unit ||
          Common(PlaceOf(windows, other), PlaceOf(windows, mine)).size == 0)
        continue;
      return Broken(absl::StrCat("overwrites unit ", other.unit, ", which is in use"));
    }
    return absl::OkStatus();
  }

  bool IsUnit(UnitId unit) const { return unit >= 0 && unit < units_; }

  absl::Status Gather(const Instruction& instruction) {
    if (!IsUnit(instruction.unit)) return Broken("no such unit");
    const auto unit = static_cast<std::size_t>(instruction.unit);
    if (!divided_) return Broken("every rank has these weights");
    if (voted_) return Broken("comes after the Vote, when weights change");
    if (layout_.rounded() && !rounded_[unit]) return Broken("what its ranks own is not rounded");
    if (weights_[unit] != Weights::kAbsent) return Broken("the unit is gathered already");
    std::vector<bool> in_use;
    for (const Part& part : parts_)
      in_use.push_back(weights_[static_cast<std::size_t>(part.unit)] != Weights::kAbsent);
    const Part whole{instruction.unit, 0, layout_.units()[unit].flat};
    RETURN_IF_ERROR(CheckRoom(plan_.weights, whole, in_use));
    weights_[unit] = Beside(Op::kGather) ? Weights::kUnderWay : Weights::kReady;
    collectives_.push_back({Op::kGather, layout_.units()[unit].flat});
    return absl::OkStatus();
  }

  absl::Status AwaitGather(const Instruction& instruction) {
    if (!IsUnit(instruction.unit)) return Broken("no such unit");
    const auto unit = static_cast<std::size_t>(instruction.unit);
    if (weights_[unit] != Weights::kUnderWay) return Broken("the unit is not being gathered");
    weights_[unit] = Weights::kReady;
    collectives_.push_back({Op::kAwaitGather, layout_.units()[unit].flat});
    return absl::OkStatus();
  }

  absl::Status Free(const Instruction& instruction) {
    if (!IsUnit(instruction.unit)) return Broken("no such unit");
    const auto unit = static_cast<std::size_t>(instruction.unit);
    if (!layout_.FreesWeights()) return Broken("no other unit has its place");
    if (weights_[unit] != Weights::kReady) return Broken("the unit is not gathered");
    weights_[unit] = Weights::kAbsent;
    return absl::OkStatus();
  }

  absl::Status Round(const Instruction& instruction) {
    if (!IsUnit(instruction.unit)) return Broken("no such unit");
    const auto unit = static_cast<std::size_t>(instruction.unit);
    if (!layout_.rounded()) return Broken("weights are computed with as they are");
    if (voted_) return Broken("comes after the Vote, when weights change");
    if (rounded_[unit]) return Broken("the unit is rounded already");
    rounded_[unit] = true;
    if (!divided_) weights_[unit] = Weights::kReady;
    return absl::OkStatus();
  }

  // That the weights which a unit's Forward and Backward read are there.
  absl::Status Read(UnitId unit) const {
    for (UnitId u : UnitsReadBy(layout_, unit)) {
      if (weights_[static_cast<std::size_t>(u)] == Weights::kReady) continue;
      return Broken(absl::StrCat("the weights of unit ", u,
                                 divided_ ? " are not gathered" : " are not rounded"));
    }
    return absl::OkStatus();
  }

  absl::Status Forward(const Instruction& instruction) {
    if (AllBackwardsDone()) {
      return Broken(absl::StrCat("the plan has ", plan_.micro_batches, " micro-batches"));
    }
    if (next_forward_ == units_) return Broken("the micro-batch's forwards are done");
    if (instruction.micro_batch != micro_batch_ || instruction.unit != next_forward_) {
      return Broken(absl::StrCat("unit ", next_forward_, " of micro-batch ", micro_batch_,
                                 " is the next to go forward"));
    }
    RETURN_IF_ERROR(Read(instruction.unit));
    if (recomputed_[static_cast<std::size_t>(instruction.unit)]) holder_ = instruction.unit;
    ++next_forward_;
    next_backward_ = next_forward_ == units_ ? static_cast<int>(parts_.size()) - 1 : -1;
    return absl::OkStatus();
  }

  std::size_t PartsOf(UnitId unit) const {
    return layout_.units()[static_cast<std::size_t>(unit)].parts.size();
  }
  std::string NameOf(const Part& part) const {
    const std::string unit = absl::StrCat("unit ", part.unit);
    return PartsOf(part.unit) == 1 ? unit : absl::StrCat("part ", part.number, " of ", unit);
  }

  // That the unit, or this part of it, is what goes backward next.
  absl::Status CheckTurn(const Instruction& instruction) const {
    if (next_backward_ < 0) return Broken("the micro-batch's forwards are not done");
    const Part& next = parts_[static_cast<std::size_t>(next_backward_)];
    const bool all_due = next.number + 1 == static_cast<int>(PartsOf(next.unit));
    if (instruction.micro_batch == micro_batch_ && instruction.unit == next.unit &&
        (instruction.part == kWholeUnit
             ? all_due
             : PartsOf(next.unit) > 1 && instruction.part == next.number))
      return absl::OkStatus();
    return Broken(absl::StrCat(NameOf(next), " of micro-batch ", micro_batch_,
                               " is the next to go backward"));
  }

  absl::Status Recompute(const Instruction& instruction) {
    RETURN_IF_ERROR(CheckTurn(instruction));
    if (!recomputed_[static_cast<std::size_t>(instruction.unit)])
      return Broken("its activations are kept");
    if (holder_ == instruction.unit) return Broken("its activations are there");
    RETURN_IF_ERROR(Read(instruction.unit));
    holder_ = instruction.unit;
    return absl::OkStatus();
  }

  absl::Status Backward(const Instruction& instruction) {
    RETURN_IF_ERROR(CheckTurn(instruction));
    if (recomputed_[static_cast<std::size_t>(instruction.unit)] && holder_ != instruction.unit)
      return Broken(absl::StrCat("unit ", holder_, " has written over its activations"));
    RETURN_IF_ERROR(Read(instruction.unit));
    const UnitPlace& unit = layout_.units()[static_cast<std::size_t>(instruction.unit)];
    const bool whole = instruction.part == kWholeUnit;
    const Part& part = parts_[static_cast<std::size_t>(next_backward_)];
    AddMask adds = AddsOf(plan_, layout_, instruction.unit, instruction.micro_batch);
    for (const std::vector<ParamId>* touched : {&unit.params, &unit.shared}) {
      for (ParamId p : *touched) {
        const auto param = static_cast<std::size_t>(p);
        if (whole || part.flat.Has(layout_.params()[param].flat))
          RETURN_IF_ERROR(Touch(param, (adds & 1) != 0));
        adds >>= 1;
      }
    }
    next_backward_ -= whole ? static_cast<int>(unit.parts.size()) : 1;
    if (next_backward_ < 0) {
      ++micro_batch_;
      next_forward_ = 0;
    }
    return absl::OkStatus();
  }

  // A backward changes the gradient of this parameter.
  absl::Status Touch(std::size_t param, bool adds) {
    const ParamPlace& place = layout_.params()[param];
    const std::size_t part = part_of_[param];
    if (reduced_[part]) {
      return Broken(absl::StrCat("adds to the gradients of ", NameOf(parts_[part]),
                                 ", which are reduced already"));
    }
    if (adds && !written_[param]) {
      return Broken(absl::StrCat("adds to the gradient of ", place.spec.name,
                                 ", which nothing has written in this step"));
    }
    written_[param] = true;
    return Fill(part);
  }

  // From here until it is reduced this part of its unit's window holds gradients.
  absl::Status Fill(std::size_t part) {
    RETURN_IF_ERROR(CheckRoom(plan_.gradients, parts_[part], filled_));
    filled_[part] = true;
    return absl::OkStatus();
  }

  // True once the last micro-batch's backward of the part and of all that share it has happened.
  bool GradientsComplete(std::size_t part) const {
    if (plan_.micro_batches == 0) return zeroed_[part];
    return AllBackwardsDone() ||
           (micro_batch_ == plan_.micro_batches - 1 && next_forward_ == units_ &&
            next_backward_ < static_cast<int>(part));
  }

  // That the instruction's bucket is one of the plan and lies where its units do.
  absl::Status CheckBucket(const Instruction& instruction) const {
    if (instruction.bucket < 0 ||
        static_cast<std::size_t>(instruction.bucket) >= plan_.buckets.size()) {
      return Broken(absl::StrCat("there are ", plan_.buckets.size(), " buckets"));
    }
    const Bucket& bucket = plan_.buckets[static_cast<std::size_t>(instruction.bucket)];
    if (bucket.first_unit < 0 || bucket.last_unit < bucket.first_unit ||
        bucket.last_unit >= units_) {
      return Broken("its bucket names units that do not exist");
    }
    const UnitPlace& first = layout_.units()[static_cast<std::size_t>(bucket.first_unit)];
    const UnitPlace& last = layout_.units()[static_cast<std::size_t>(bucket.last_unit)];
    bool begins = bucket.flat.begin == first.flat.begin,
         ends = bucket.flat.end() == last.flat.end();
    if (plan_.overlaps && !layout_.Divides(StateKind::kMoments)) {
      for (const Range& part : first.parts) begins = begins || bucket.flat.begin == part.begin;
      for (const Range& part : last.parts) ends = ends || bucket.flat.end() == part.end();
    }
    if (!begins || !ends || PartsIn(bucket).empty())
      return Broken("its bucket is not the memory of its units");
    return absl::OkStatus();
  }

  std::vector<std::size_t> PartsIn(const Bucket& bucket) const {
    std::vector<std::size_t> in;
    for (std::size_t p = 0; p < parts_.size(); ++p) {
      const Part& part = parts_[p];
      if (bucket.first_unit <= part.unit && part.unit <= bucket.last_unit &&
          bucket.flat.Has(part.flat))
        in.push_back(p);
    }
    return in;
  }

  absl::Status ZeroGrad(const Instruction& instruction) {
    if (plan_.micro_batches != 0) return Broken("would wipe the gradients of micro-batches");
    RETURN_IF_ERROR(CheckBucket(instruction));
    const Bucket& bucket = plan_.buckets[static_cast<std::size_t>(instruction.bucket)];
    for (const std::size_t p : PartsIn(bucket)) {
      if (reduced_[p])
        return Broken(absl::StrCat("would wipe the reduced gradients of ", NameOf(parts_[p])));
      zeroed_[p] = true;
      RETURN_IF_ERROR(Fill(p));
    }
    return absl::OkStatus();
  }

  absl::Status ReduceGrad(const Instruction& instruction) {
    RETURN_IF_ERROR(CheckBucket(instruction));
    const Bucket& bucket = plan_.buckets[static_cast<std::size_t>(instruction.bucket)];
    for (const std::size_t p : PartsIn(bucket)) {
      if (reduced_[p]) return Broken(absl::StrCat(NameOf(parts_[p]), " is reduced twice"));
      if (!GradientsComplete(p))
        return Broken(absl::StrCat("the gradients of ", NameOf(parts_[p]), " are not complete"));
      reduced_[p] = true;
      filled_[p] = Beside(Op::kReduceGrad);
      if (Beside(Op::kReduceGrad)) under_way_[p] = instruction.bucket;
    }
    collectives_.push_back({Op::kReduceGrad, bucket.flat});
    return absl::OkStatus();
  }

  absl::Status AwaitGrad(const Instruction& instruction) {
    RETURN_IF_ERROR(CheckBucket(instruction));
    const Bucket& bucket = plan_.buckets[static_cast<std::size_t>(instruction.bucket)];
    for (const std::size_t p : PartsIn(bucket)) {
      if (under_way_[p] != instruction.bucket)
        return Broken(absl::StrCat("no such reduction of ", NameOf(parts_[p]), " is under way"));
      under_way_[p] = -1;
      filled_[p] = false;
    }
    collectives_.push_back({Op::kAwaitGrad, bucket.flat});
    return absl::OkStatus();
  }

  absl::Status SumSquares() {
    if (!AllBackwardsDone()) return Broken("gradients are not complete");
    if (summed_) return Broken("is the second");
    for (std::size_t p = 0; p < parts_.size(); ++p) {
      if (!reduced_[p]) return Broken(absl::StrCat(NameOf(parts_[p]), " is not reduced"));
      if (under_way_[p] >= 0)
        return Broken(absl::StrCat("the reduction of ", NameOf(parts_[p]), " is under way"));
    }
    summed_ = true;
    if (!layout_.Divides(StateKind::kMoments)) return absl::OkStatus();
    return CallAlone(Op::kSumSquares);
  }

  absl::Status Vote() {
    if (!summed_) return Broken("SumSquares has not happened");
    if (voted_) return Broken("is the second");
    voted_ = true;
    return CallAlone(Op::kVote);
  }

  // A call of the computing thread: the ranks make one at a time.
  absl::Status CallAlone(Op op) {
    for (UnitId u = 0; u < units_; ++u) {
      if (weights_[static_cast<std::size_t>(u)] == Weights::kUnderWay)
        return Broken(absl::StrCat("the gather of unit ", u, " is under way"));
    }
    collectives_.push_back({op, {}});
    return absl::OkStatus();
  }

  absl::Status Step(const Instruction& instruction) {
    if (!voted_) return Broken("changes weights before the Vote");
    if (!IsUnit(instruction.unit)) return Broken("no such unit");
    const auto unit = static_cast<std::size_t>(instruction.unit);
    if (stepped_[unit]) return Broken("is the second of its unit");
    if (layout_.FreesWeights() && weights_[unit] != Weights::kAbsent)
      return Broken("a gathered copy of its weights would stay old");
    stepped_[unit] = true;
    return absl::OkStatus();
  }

  absl::Status Commit() {
    for (UnitId u = 0; u < units_; ++u) {
      if (!stepped_[static_cast<std::size_t>(u)]) {
        return Broken(absl::StrCat("unit ", u, " has not stepped"));
      }
    }
    committed_ = true;
    return absl::OkStatus();
  }

  const ParamLayout& layout_;
  const Plan& plan_;
  const UnitId units_;
  std::size_t at_ = 0;
  int micro_batch_ = 0;  // The one in flight, or the next.
  UnitId next_forward_ = 0;
  std::vector<Part> parts_;             // Of all units, in flat order.
  std::vector<std::size_t> part_of_;    // By parameter: index into them.
  int next_backward_ = -1;              // Index into them; -1: no backward is due.
  const bool divided_;                  // Weights are.
  std::vector<Weights> weights_;        // By unit.
  std::vector<bool> rounded_;           // By unit: what the rank has of its weights.
  std::vector<bool> recomputed_;        // By unit: it shares the memory of activations.
  UnitId holder_ = -1;                  // Which unit's activations are in it.
  std::vector<bool> filled_;            // By part: its window has gradients to reduce.
  std::vector<bool> written_;           // By parameter: its gradient, in this step.
  std::vector<bool> zeroed_, reduced_;  // By part.
  std::vector<bool> stepped_;           // By unit.
  std::vector<int> under_way_;          // By part: in which bucket; -1: not.
  bool summed_ = false, voted_ = false, committed_ = false;
  std::vector<Collective> collectives_;
};

// Whatever their ranks.
bool DoTheSame(const Plan& a, const Plan& b) {
  return a.micro_batches == b.micro_batches && a.buckets == b.buckets &&
         a.first_writers == b.first_writers && a.weights == b.weights &&
         a.gradients == b.gradients && a.recomputed == b.recomputed && a.overlaps == b.overlaps &&
         a.instructions == b.instructions;
}

}  // namespace

absl::Status CheckPlan(const ParamLayout& layout, std::span<const Plan> plans) {
  if (plans.empty()) return absl::FailedPreconditionError("no plan");
  std::vector<Collective> expected;
  std::vector<std::size_t> walked;  // One of each kind.
  for (std::size_t r = 0; r < plans.size(); ++r) {
    const int rank = plans[r].rank, before = r == 0 ? -1 : plans[r - 1].rank;
    if (rank <= before || rank >= layout.world() || (r == 0 && rank != 0)) {
      return absl::FailedPreconditionError(
          absl::StrCat("plan ", r, " is of rank ", rank, " of world ", layout.world()));
    }
    if (std::ranges::any_of(walked, [&](std::size_t w) { return DoTheSame(plans[w], plans[r]); }))
      continue;
    walked.push_back(r);
    Walk walk(layout, plans[r]);
    RETURN_IF_ERROR(walk.Run());
    if (r == 0) expected = walk.collectives();
    if (walk.collectives() != expected) {
      return absl::FailedPreconditionError(
          absl::StrCat("the collectives of rank ", rank, " are not those of rank 0"));
    }
    if (plans[r].overlaps != plans[0].overlaps) {
      return absl::FailedPreconditionError(absl::StrCat(
          "rank ", rank, " goes on while gradients are reduced, or rank 0 alone does"));
    }
    const bool gradients = plans[r].gradients != plans[0].gradients;
    if (gradients || plans[r].weights != plans[0].weights) {
      return absl::FailedPreconditionError(
          absl::StrCat("the windows of ", gradients ? "gradients" : "weights", " of rank ", rank,
                       " are not those of rank 0"));
    }
  }
  return absl::OkStatus();
}

}  // namespace regroup::worker
