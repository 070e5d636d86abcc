#include "worker/plan/plan.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace regroup::worker {
namespace {

constexpr std::int64_t kGradientBytes = 4;

const UnitPlace& UnitOf(const ParamLayout& layout, UnitId unit) {
  CHECK(unit >= 0 && unit < static_cast<UnitId>(layout.units().size()));
  return layout.units()[static_cast<std::size_t>(unit)];
}

// In backward order. A unit's gradients are complete after its own backward, since those that share
// its parameters come later in the model, so earlier in the backward pass: a bucket is full after
// the backward of its first unit.
std::vector<Bucket> MakeBuckets(const ParamLayout& layout, std::int64_t bucket_bytes) {
  std::vector<Bucket> buckets;
  bool open = false;
  for (UnitId u = static_cast<UnitId>(layout.units().size()) - 1; u >= 0; --u) {
    const Range& flat = UnitOf(layout, u).flat;
    if (open) {
      Bucket& bucket = buckets.back();
      bucket.first_unit = u;
      bucket.flat = {flat.begin, bucket.flat.end() - flat.begin};
    } else {
      buckets.push_back({.first_unit = u, .last_unit = u, .flat = flat});
    }
    open = buckets.back().flat.size * kGradientBytes < bucket_bytes;
  }
  return buckets;
}

// Whoever comes first in the backward pass: of a tied embedding that is the head.
std::vector<UnitId> FirstWriters(const ParamLayout& layout) {
  std::vector<UnitId> first(layout.params().size());
  for (UnitId u = 0; u < static_cast<UnitId>(layout.units().size()); ++u) {
    const UnitPlace& unit = UnitOf(layout, u);
    for (const auto& touched : {unit.params, unit.shared}) {
      for (ParamId p : touched) first[static_cast<std::size_t>(p)] = u;
    }
  }
  return first;
}

}  // namespace

AddMask AddsOf(const Plan& plan, const ParamLayout& layout, UnitId unit, int micro_batch) {
  const UnitPlace& place = UnitOf(layout, unit);
  AddMask adds = 0, bit = 1;
  for (const std::vector<ParamId>* touched : {&place.params, &place.shared}) {
    for (ParamId p : *touched) {
      if (micro_batch > 0 || plan.first_writers[static_cast<std::size_t>(p)] != unit) adds |= bit;
      bit <<= 1;
    }
  }
  return adds;
}

absl::StatusOr<Plan> MakePlan(const ParamLayout& layout, const PlanOptions& options) {
  if (options.rank < 0 || options.rank >= layout.world()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a plan for rank ", options.rank, " of world ", layout.world()));
  }
  if (options.micro_batches < 0 || options.bucket_bytes < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("a plan for rank ", options.rank, " with ", options.micro_batches,
                     " micro-batches and buckets of ", options.bucket_bytes, " bytes"));
  }
  Plan plan{.rank = options.rank,
            .micro_batches = options.micro_batches,
            .buckets = MakeBuckets(layout, options.bucket_bytes),
            .first_writers = FirstWriters(layout),
            .instructions = {}};
  const UnitId units = static_cast<UnitId>(layout.units().size());
  std::vector<Instruction>& list = plan.instructions;
  for (int b = 0; options.micro_batches == 0 && b < static_cast<int>(plan.buckets.size()); ++b) {
    list.push_back({.op = Op::kZeroGrad, .bucket = b});
    list.push_back({.op = Op::kReduceGrad, .bucket = b});
  }
  for (int m = 0; m < options.micro_batches; ++m) {
    for (UnitId u = 0; u < units; ++u) {
      list.push_back({.op = Op::kForward, .unit = u, .micro_batch = m});
    }
    std::size_t next_bucket = 0;
    for (UnitId u = units - 1; u >= 0; --u) {
      list.push_back({.op = Op::kBackward, .unit = u, .micro_batch = m});
      const bool full = plan.buckets[next_bucket].first_unit == u;
      if (full && m + 1 == options.micro_batches) {
        list.push_back({.op = Op::kReduceGrad, .bucket = static_cast<int>(next_bucket)});
      }
      if (full) ++next_bucket;
    }
  }
  list.push_back({.op = Op::kSumSquares});
  list.push_back({.op = Op::kVote});
  for (UnitId u = 0; u < units; ++u) list.push_back({.op = Op::kStep, .unit = u});
  list.push_back({.op = Op::kCommit});
  return plan;
}

std::string ToString(const Instruction& instruction) {
  switch (instruction.op) {
    case Op::kForward:
      return absl::StrCat("Forward unit ", instruction.unit, " micro-batch ",
                          instruction.micro_batch);
    case Op::kBackward:
      return absl::StrCat("Backward unit ", instruction.unit, " micro-batch ",
                          instruction.micro_batch);
    case Op::kZeroGrad: return absl::StrCat("ZeroGrad bucket ", instruction.bucket);
    case Op::kReduceGrad: return absl::StrCat("ReduceGrad bucket ", instruction.bucket);
    case Op::kSumSquares: return "SumSquares";
    case Op::kVote: return "Vote";
    case Op::kStep: return absl::StrCat("Step unit ", instruction.unit);
    case Op::kCommit: return "Commit";
  }
  CHECK(false);
}

std::string ToString(const Plan& plan, const ParamLayout& layout) {
  std::string text = absl::StrCat("rank ", plan.rank, " of ", layout.world(), ", ",
                                  plan.micro_batches, " micro-batches\n");
  for (std::size_t p = 0; p < plan.first_writers.size(); ++p) {
    const ParamPlace& param = layout.params()[p];
    if (plan.first_writers[p] == param.unit) continue;
    absl::StrAppend(&text, "  ", UnitOf(layout, plan.first_writers[p]).name,
                    " writes the gradient of ", param.spec.name, " first, ",
                    UnitOf(layout, param.unit).name, " adds\n");
  }
  for (const Instruction& instruction : plan.instructions) {
    absl::StrAppend(&text, "  ", ToString(instruction));
    if (instruction.unit >= 0) {
      absl::StrAppend(&text, " (", UnitOf(layout, instruction.unit).name, ")");
    } else if (instruction.bucket >= 0) {
      const Bucket& bucket = plan.buckets[static_cast<std::size_t>(instruction.bucket)];
      absl::StrAppend(&text, " (", UnitOf(layout, bucket.last_unit).name, " to ",
                      UnitOf(layout, bucket.first_unit).name, ", ",
                      bucket.flat.size * kGradientBytes, " bytes)");
    }
    text += '\n';
  }
  return text;
}

}  // namespace regroup::worker
