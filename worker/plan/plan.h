#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/layout/layout.h"
#include "worker/plan/wrap.h"

namespace regroup::worker {

enum class Op : std::uint8_t {
  kGather,  // Unit: its weights, from the ranks that own them, to all. Collective. Where the plan
            // overlaps, it begins here and goes on beside what follows.
  kAwaitGather,  // Unit: its weights are gathered. Only where the plan overlaps.
  kFree,         // Unit: its gathered weights are not needed; others take their place in memory.
  kRound,      // Unit: what the rank has of its weights, or owns where they are divided, rounded to
               // the numbers that Forward and Backward compute with. These are what is gathered.
  kForward,    // Unit, micro-batch.
  kRecompute,  // Unit, micro-batch: what its Forward left for its Backward, again.
  kBackward,   // Unit, micro-batch: each gradient is written or added to, see first_writers. Of one
               // part of the unit, if it has several and the step reduces parts.
  kZeroGrad,   // Bucket: zeros, on a rank that has no sample in any batch.
  kReduceGrad,  // Bucket: sum of its gradients over all ranks, to all ranks, or of each element to
                // its owner where moments are divided. Collective. Where the plan overlaps, it
                // begins here and goes on beside what follows.
  kAwaitGrad,   // Bucket: its reduction is over. Only where the plan overlaps.
  kSumSquares,  // Of all reduced gradients. Collective unless every rank has all of them.
  kVote,    // Collective: loss, sample count and norm of every rank. All go by the same result: the
            // step is void unless the batch is whole, and loss and norm are finite on all.
  kStep,    // Unit: the optimizer, on what the rank owns. Only now does a weight change.
  kCommit,  // The step happened.
};

struct Instruction {
  Op op = Op::kForward;
  UnitId unit = -1;       // kGather to kBackward, kStep.
  int micro_batch = -1;   // kForward, kRecompute, kBackward.
  int part = kWholeUnit;  // kBackward: index into UnitPlace::parts.
  int bucket = -1;        // kZeroGrad, kReduceGrad, kAwaitGrad: index into Plan::buckets.
  friend bool operator==(const Instruction&, const Instruction&) = default;
};

// Consecutive units whose gradients are reduced in one call, being neighbours in the flat order.
// Where the plan overlaps and gradients are reduced as a whole, it may begin and end with a part of
// a unit: the sooner it is there, the more goes on beside it.
struct Bucket {
  UnitId first_unit = 0, last_unit = 0;
  Range flat;  // Of whole units, or parts.
  friend bool operator==(const Bucket&, const Bucket&) = default;
};

// Where units lie in one piece of memory. Units that are never in use at the same time may share a
// place.
struct Windows {
  std::vector<std::int64_t> at;  // By unit.
  std::int64_t elements = 0;     // Of the memory.
  friend bool operator==(const Windows&, const Windows&) = default;
};

// One training step of one rank.
struct Plan {
  int rank = 0;
  int micro_batches = 1;        // 0: the rank only adds zeros to the others' gradients.
  std::vector<Bucket> buckets;  // In the order of their reduction.
  // By parameter: the unit whose backward of micro-batch 0 writes its gradient. Every other
  // backward that touches it adds, so that nothing of the step before is left in it.
  std::vector<UnitId> first_writers;
  // What Forward and Backward read, and what Backward writes. In flat order and with room for all
  // units where they are kept whole, so that a unit's window is its place in the flat order.
  Windows weights, gradients;
  // Units whose Forward leaves what Backward needs in one place that they all share, in order.
  std::vector<UnitId> recomputed;
  bool overlaps = false;  // What computes goes on while weights are gathered and gradients reduced.
  std::vector<Instruction> instructions;
};

// Where an instruction's work is done.
enum class StepStream : std::uint8_t {
  kNone,     // It begins none: it says what may be relied on, or the ranks' group talks.
  kCompute,  // One after the other. What is awaited is so here.
  kMove,     // One after the other, beside the former, but for what that had begun before.
};
StepStream StreamOf(const Plan& plan, Op op);
const char* NameOf(StepStream stream);  // "", "compute", "move".

struct PlanOptions {
  int rank = 0;
  int micro_batches = 1;                        // May differ between ranks; 0: no sample.
  int rounds = 0;                               // The most of any rank; 0: this one's.
  std::int64_t bucket_bytes = 2 * 1024 * 1024;  // A bucket closes once it holds that much.
  std::vector<UnitId> recomputed{};             // See Plan::recomputed.
  bool overlap = false;                         // See Plan::overlaps.
  // Units whose weights are freed are so after their forward, and gathered again for their
  // backward. Else once in a micro-batch: all of them are in memory between the two.
  bool reshard_after_forward = true;
  WrapPolicy wrap{};  // Where weights are freed.
};

// Every micro-batch forward and backward, that of the last micro-batch in the parts of units where
// reductions overlap and go to all ranks; each bucket is reduced right after the last backward that
// fills it, on the last micro-batch; then SumSquares, Vote, Step of each unit, Commit. A rank
// without a micro-batch zeroes each bucket and reduces it.
//
// Where weights are divided, each unit is gathered before it is first used, or where they are not
// freed and nothing overlaps, all before the first forward. Where they are freed, the units of a
// group are so before the next group is used, or where they are not resharded, once no backward
// needs them any more; ranks with fewer micro-batches than others gather with them. Gradients that
// are divided are kept whole between several micro-batches, since sums in another order have other
// bits; with one micro-batch, units share memory. Reductions that overlap are awaited before
// SumSquares, or where units share memory, each once the next one has begun. Gathers that overlap
// begin while the group before is computed with. Weights are rounded once in a step, before they
// are gathered. A unit is recomputed before its backward unless it was the last to go forward of
// those that are.
//
// Pure: equal layouts, rounds and bucket sizes give equal collectives and windows on every rank.
// Invalid argument: rank not in the layout's world, micro_batches < 0, more than `rounds`,
// bucket_bytes < 1, a wrap policy that does not fit the layout.
absl::StatusOr<Plan> MakePlan(const ParamLayout& layout, const PlanOptions& options);

// Those of all ranks, of which rank r has micro_batches[r]: one for each run of ranks that do the
// same, as the first of them. `options`: what they have in common; its rank and micro_batches are
// not looked at. Errors as of MakePlan. REQUIRES: micro_batches.size() == layout.world().
absl::StatusOr<std::vector<Plan>> MakePlans(const ParamLayout& layout, PlanOptions options,
                                            std::span<const int> micro_batches);
// The one of them that `rank` follows. REQUIRES: a plan of rank 0 is the first.
Plan PlanOf(std::span<const Plan> plans, int rank);

// Where gradients are kept in fewer bits than they are computed in: where a unit's Backward leaves
// those in full precision, to be rounded and written or added to what is kept. Units share one
// place, but for what one Backward writes together. At least a block has room.
Windows StagingOf(const ParamLayout& layout);

// Which gradients Backward(unit, micro_batch) adds to.
AddMask AddsOf(const Plan& plan, const ParamLayout& layout, UnitId unit, int micro_batch);

// The units whose weights Forward and Backward of `unit` read, in order: its own, and those that
// have what it shares.
std::vector<UnitId> UnitsReadBy(const ParamLayout& layout, UnitId unit);

// Checks the plans of all ranks against each other without running them. Each is that of its rank
// and of those behind it, up to the rank of the next one; the first is that of rank 0. They have
// equal collectives in equal order, and equal windows; each micro-batch's forwards in order and its
// backwards in reverse order, whole or part by part, each with the weights it reads in place, what
// is gathered rounded where the plan says so, and none of it freed or gathered over while in use;
// no backward of a unit over whose activations another was computed; no gradient added to before
// one backward of the step has written it, and none overwritten before it is reduced, to the end of
// that; every part of a unit reduced exactly once and only after its last backward (or, on a rank
// without a micro-batch, after its ZeroGrad), SumSquares once, after all reductions, neither it nor
// Vote beside a gather, Vote before the first Step and after the last Gather and Round, every unit
// stepped exactly once and, where weights are freed, with no copy of old ones left; Commit last; no
// instruction names more than it needs. Failed precondition names rank, instruction and rule.
absl::Status CheckPlan(const ParamLayout& layout, std::span<const Plan> plans);

// One line per instruction, with its index and stream, for people and for comparing.
std::string ToString(const Instruction& instruction);
std::string ToString(const Plan& plan, const ParamLayout& layout);

}  // namespace regroup::worker
