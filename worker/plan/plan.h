#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/layout/layout.h"

namespace regroup::worker {

enum class Op : std::uint8_t {
  kForward,     // Unit, micro-batch.
  kBackward,    // Unit, micro-batch: each gradient is written or added to, see first_writers.
  kZeroGrad,    // Bucket: zeros, on a rank that has no sample in any batch.
  kReduceGrad,  // Bucket: sum of its gradients over all ranks. Collective.
  kSumSquares,  // Of all reduced gradients; local in a replicated layout.
  kVote,    // Collective: loss, sample count and norm of every rank. All go by the same result: the
            // step is void unless the batch is whole, and loss and norm are finite on all.
  kStep,    // Unit: the optimizer. Only now does a weight change.
  kCommit,  // The step happened.
};

struct Instruction {
  Op op = Op::kForward;
  UnitId unit = -1;      // kForward, kBackward, kStep.
  int micro_batch = -1;  // kForward, kBackward.
  int bucket = -1;       // kZeroGrad, kReduceGrad: index into Plan::buckets.
  friend bool operator==(const Instruction&, const Instruction&) = default;
};

// Consecutive units whose gradients are reduced in one call, being neighbours in the flat buffer.
struct Bucket {
  UnitId first_unit = 0, last_unit = 0;
  Range flat;
  friend bool operator==(const Bucket&, const Bucket&) = default;
};

// One training step of one rank.
struct Plan {
  int rank = 0;
  int micro_batches = 1;        // 0: the rank only adds zeros to the others' gradients.
  std::vector<Bucket> buckets;  // In the order of their reduction.
  // By parameter: the unit whose backward of micro-batch 0 writes its gradient. Every other
  // backward that touches it adds, so that nothing of the step before is left in it.
  std::vector<UnitId> first_writers;
  std::vector<Instruction> instructions;
};

struct PlanOptions {
  int rank = 0;
  int micro_batches = 1;                        // May differ between ranks; 0: no sample.
  std::int64_t bucket_bytes = 4 * 1024 * 1024;  // A bucket closes once it holds that much.
};

// Data parallel: every micro-batch forward and backward; each bucket is reduced right after the
// last backward that fills it, on the last micro-batch; then SumSquares, Vote, Step of each unit,
// Commit. A rank without a micro-batch zeroes each bucket and reduces it. Pure: equal layouts and
// bucket sizes give equal collectives on every rank. Invalid argument: rank not in the layout's
// world, micro_batches < 0, bucket_bytes < 1.
absl::StatusOr<Plan> MakePlan(const ParamLayout& layout, const PlanOptions& options);

// Which gradients Backward(unit, micro_batch) adds to.
AddMask AddsOf(const Plan& plan, const ParamLayout& layout, UnitId unit, int micro_batch);

// Checks the plans of all ranks (plans[r] is rank r's) against each other without running them:
// equal collectives in equal order, each micro-batch's forwards in order and its backwards in
// reverse order, no gradient added to before one backward of the step has written it, every unit
// reduced exactly once and only after its last backward (or, on a rank
// without a micro-batch, after its ZeroGrad), SumSquares after all reductions, Vote before the
// first Step, every unit stepped exactly once, Commit last. Failed precondition names rank,
// instruction and rule.
absl::Status CheckPlan(const ParamLayout& layout, std::span<const Plan> plans);

std::string ToString(const Instruction& instruction);  // "Backward unit 3 micro-batch 0"
std::string ToString(const Plan& plan,
                     const ParamLayout& layout);  // One instruction per line, with unit names.

}  // namespace regroup::worker
