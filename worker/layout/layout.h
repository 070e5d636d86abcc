#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/tensor/shape.h"

namespace regroup::worker {

using UnitId = int;                    // Index into the model's units, in forward order.
using ParamId = int;                   // Index into the layout's parameters, unit by unit.
inline constexpr int kWholeUnit = -1;  // In place of an index into UnitPlace::parts: all of them.

// What a model says of one parameter.
struct ParamSpec {
  std::string name;    // Unique in the model; the name in checkpoints, as in Hugging Face's GPT-2.
  Shape shape;         // Global: independent of ranks.
  bool decay = false;  // Weight decay applies.
  double init_mean = 0, init_std = 0;  // Initial value: mean + std · UnitBell.
};

// A unit: what is gathered, reduced, recomputed or sent as a whole.
struct UnitSpec {
  std::string name;
  std::vector<ParamSpec> params;
  // Names of earlier units' parameters that this one reads too, and whose gradients its backward
  // contributes to (the tied head).
  std::vector<std::string> shared;
  // Its backward may be run in parts, of which each makes the gradients of consecutive parameters.
  // Indices into `params` of the first of each, ascending, without the 0. None where it shares.
  std::vector<int> part_begins{};
};

// Elements [begin, begin + size) of the flat buffers.
struct Range {
  std::int64_t begin = 0, size = 0;
  std::int64_t end() const { return begin + size; }
  bool Has(const Range& other) const { return begin <= other.begin && other.end() <= end(); }
  friend bool operator==(const Range&, const Range&) = default;
};
Range Common(const Range& a, const Range& b);  // Its size is 0 where there is none.

struct ParamPlace {
  ParamSpec spec;
  UnitId unit = 0;
  Range flat;  // Of exactly spec.shape.elements(); starts on an alignment border.
};

struct UnitPlace {
  std::string name;
  std::vector<ParamId> params;
  std::vector<ParamId> shared;  // Of other units; see UnitSpec::shared.
  Range flat;                   // All params of the unit with the padding between and after them.
  // What the parts of its backward make, ascending, of `flat`: at least one. The backward runs from
  // the last of them to parts[0].
  std::vector<Range> parts;
};

// What a unit's backward does to the gradients of its parameters, own ones first, then shared ones.
// Bit i: the gradient of the ith is added to; else it is written.
using AddMask = std::uint64_t;
inline constexpr int kMaxUnitParams = 64;

// What of a training's state the ranks divide among them; the rest each of them holds whole.
enum class Strategy : std::uint8_t {
  kReplicated,  // Nothing: distributed data parallel.
  kZero1,       // What the optimizer steps: weights and moments. A step gathers all weights.
  kZero2,       // And the reduced gradients.
  kZero3,       // And what it gathers: each unit's weights are there while they are used.
};
const char* NameOf(Strategy strategy);  // "ddp", "zero-1", "zero-2", "zero-3".

// Weights as the optimizer steps them and checkpoints have them.
enum class StateKind : std::uint8_t { kWeights, kGradients, kMoments };

// Elements of one parameter that a rank owns: of each group the one at this place.
struct Share {
  int owner = 0;
  Range flat;
  friend bool operator==(const Share&, const Share&) = default;
};

// Where every element of every parameter lives. The flat order is unit after unit, all tensors of a
// unit side by side. For each kind of state a rank holds boxes of it, one after the other in a
// buffer (but see GathersInPlace): one box of everything, or, where ranks divide that kind, what
// the rank owns. It steps what it owns, and saves its part of it. Padding elements are zero in
// every such buffer and stay zero. Pure and immutable.
class ParamLayout {
 public:
  static constexpr std::int64_t kAlignElements = 64;  // 256 bytes of fp32.
  // What ranks own is cut at multiples of this in the flat order, and each unit's blocks are
  // divided evenly: nothing has to divide. A unit owns the blocks that begin in it. One block is
  // summed as a whole (kSumBlock), so that norms have the same bits under every strategy.
  static constexpr std::int64_t kBlockElements = 1024;

  // `group` ranks divide the state among them, consecutive ones, and each such group is a copy of
  // the others (HYBRID_SHARD, where weights are divided); 0: all ranks. A group of one has nothing
  // to divide: it is kReplicated. Invalid argument: no unit, a name twice, `shared` of a name that
  // no earlier unit has, a unit with more than kMaxUnitParams, parts that begin nowhere in their
  // unit, world < 1 or no multiple of the group. `rounded`: what a step computes with is a copy, of
  // fewer bits.
  static absl::StatusOr<ParamLayout> Create(const std::vector<UnitSpec>& units, int world,
                                            Strategy strategy, int group = 0, bool rounded = false);
  // Every rank holds every element.
  static absl::StatusOr<ParamLayout> Replicated(const std::vector<UnitSpec>& units, int world) {
    return Create(units, world, Strategy::kReplicated);
  }

  int world() const { return world_; }
  Strategy strategy() const { return strategy_; }
  // Ranks of one group; the world where nothing is divided.
  int group() const { return group_; }
  int groups() const { return world_ / group_; }
  // Its place in its group: ranks at one place own the same.
  int PlaceOf(int rank) const { return rank % group_; }
  std::int64_t flat_elements() const { return flat_elements_; }
  std::int64_t param_elements() const { return param_elements_; }  // Without padding.
  const std::vector<UnitPlace>& units() const { return units_; }
  const std::vector<ParamPlace>& params() const { return params_; }
  std::optional<ParamId> Find(std::string_view name) const;

  // REQUIRES for all below: ids and ranks in range.
  bool Divides(StateKind kind) const;
  bool rounded() const { return rounded_; }
  // Gathered weights of a unit make room for those of others. Else, where weights are divided at
  // all, they are gathered once in a step.
  bool FreesWeights() const { return strategy_ == Strategy::kZero3; }
  // A rank's buffer of weights has room for all of them in flat order, and those that it owns at
  // their place; the rest is gathered there.
  bool GathersInPlace() const {
    return Divides(StateKind::kWeights) && !FreesWeights() && !rounded_;
  }
  // What `rank` holds of this kind, in flat order.
  const std::vector<Range>& Boxes(StateKind kind, int rank) const;
  std::int64_t Elements(StateKind kind, int rank) const;  // Of its buffer.
  // Where its buffer has an element of the flat order. REQUIRES: one of its boxes has it.
  std::int64_t Offset(StateKind kind, int rank, std::int64_t element) const;
  // What `rank` owns, whatever it holds; nothing of its own where nothing is divided.
  const std::vector<Range>& Owned(int rank) const {
    return owned_[static_cast<std::size_t>(PlaceOf(rank))];
  }
  // Who owns which part of a parameter, in flat order; none where nothing is divided.
  const std::vector<Share>& Shares(ParamId param) const {
    return shares_[static_cast<std::size_t>(param)];
  }

 private:
  ParamLayout() = default;
  void Divide();

  int world_ = 1, group_ = 1;
  Strategy strategy_ = Strategy::kReplicated;
  bool rounded_ = false;
  std::int64_t flat_elements_ = 0, param_elements_ = 0;
  std::vector<UnitPlace> units_;
  std::vector<ParamPlace> params_;
  std::vector<Range> whole_;                // The one box of everything.
  std::vector<std::vector<Range>> owned_;   // By place in the group.
  std::vector<std::vector<Share>> shares_;  // By parameter.
};

}  // namespace regroup::worker
