#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/tensor/shape.h"

namespace regroup::worker {

using UnitId = int;   // Index into the model's units, in forward order.
using ParamId = int;  // Index into the layout's parameters, unit by unit.

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
};

// Elements [begin, begin + size) of the flat buffers.
struct Range {
  std::int64_t begin = 0, size = 0;
  std::int64_t end() const { return begin + size; }
  friend bool operator==(const Range&, const Range&) = default;
};

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
};

// What a unit's backward does to the gradients of its parameters, own ones first, then shared ones.
// Bit i: the gradient of the ith is added to; else it is written.
using AddMask = std::uint64_t;
inline constexpr int kMaxUnitParams = 64;

struct Piece {              // Where one element lives.
  int owner = 0;            // The lowest rank that holds it.
  std::int64_t offset = 0;  // In that rank's flat buffer.
};

// Where every element of every parameter lives. Weights, gradients and each moment of the optimizer
// are flat buffers of flat_elements() with this one layout: unit after unit, all tensors of a unit
// side by side. Padding elements are zero in every buffer and stay zero. Pure and immutable.
class ParamLayout {
 public:
  static constexpr std::int64_t kAlignElements = 64;  // 256 bytes of fp32.

  // Every rank holds every element. Invalid argument: no unit, a name twice, `shared` of a name
  // that no earlier unit has, a unit with more than kMaxUnitParams, world < 1.
  static absl::StatusOr<ParamLayout> Replicated(const std::vector<UnitSpec>& units, int world);

  int world() const { return world_; }
  std::int64_t flat_elements() const { return flat_elements_; }
  std::int64_t param_elements() const { return param_elements_; }  // Without padding.
  const std::vector<UnitPlace>& units() const { return units_; }
  const std::vector<ParamPlace>& params() const { return params_; }
  std::optional<ParamId> Find(std::string_view name) const;

  // REQUIRES: ids and rank in range; 0 <= element < the parameter's elements.
  Range Shard(UnitId unit, int rank) const;  // What `rank` owns of the unit's group: all of it.
  Piece Locate(ParamId param, std::int64_t element) const;

 private:
  ParamLayout() = default;

  int world_ = 1;
  std::int64_t flat_elements_ = 0, param_elements_ = 0;
  std::vector<UnitPlace> units_;
  std::vector<ParamPlace> params_;
};

}  // namespace regroup::worker
