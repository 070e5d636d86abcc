#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/comm/communicator.h"
#include "worker/data/batch_reader.h"
#include "worker/data/dataset.h"
#include "worker/data/sampler.h"
#include "worker/device/device.h"
#include "worker/model/runner.h"
#include "worker/optim/optimizer.h"
#include "worker/optim/schedule.h"
#include "worker/plan/plan.h"
#include "worker/tensor/arena.h"
#include "worker/train/loss_scaler.h"
#include "worker/train/train_state.h"

namespace regroup::worker {

// Of the plan of one rank, whose part of a batch it takes in micro-batches.
PlanOptions PlanOptionsOf(int batch, int micro_batch, int rank, int world,
                          std::vector<UnitId> recomputed);

struct StepRunnerOptions {
  int batch = 1;        // Global. Ranks beyond it have no sample and add zeros.
  int micro_batch = 1;  // At most that many at once.
  OptimizerConfig optimizer;
  Schedule schedule;
  double clip = 0;
  double gradient_factor = 1;  // 1, but for a planted defect.
  std::uint64_t seed = 0;      // Of random rounding.
  Recompute recompute = Recompute::kNone;
  DType reduce_type = DType::kF32;  // Or bf16: what ranks exchange of gradients.
  // Or bf16, which reduce_type then is too: what gradients are kept and added up as.
  DType accumulate_type = DType::kF32;
  bool reshard_after_forward = true;  // See PlanOptions.
  WrapPolicy wrap{};
  std::int64_t bucket_bytes = PlanOptions{}.bucket_bytes;  // Others: for tests. See PlanOptions.
};

// What a rank works by: its messages to other ranks, what moves tensors between them, and what
// computes. All of them outlive the runner.
struct Backend {
  Group& group;
  Collectives& tensors;
  Device& device;
  KernelTables kernels = KernelTablesOf(BestIsa());  // Of the device.
};

// What a rank brings to the vote of one step.
struct Ballot {
  bool notice = false;  // Its agent told of a preemption.
  bool busy = false;    // It could not begin a save without waiting.
};

struct StepResult {
  double loss = 0;  // Mean over the global batch, before the update; equal on all ranks.
  double gradient_norm = 0;
  Ballot any;          // Of any rank; equal on all ranks.
  bool done = false;   // False: loss or norm is not finite, and nothing was changed.
  bool retry = false;  // Not done, but the same batch may be with the loss scale that is now set.
};

// Carries out one step's plan: the execution layer. Weights and moments change only after a vote of
// all ranks, on which all of them go by the same loss, norm and count of samples: either every rank
// makes the step or none does, and a step that fails before leaves them as they were. After it no
// rank waits for another: where ranks divide their state, weights are gathered by the step that
// computes with them. Losses, norms and weights have equal bits under every strategy. A model of
// 16-bit numbers computes with weights that are rounded anew in each step, from those in full
// precision that the optimizer steps. Execution thread only.
//
// Instructions are begun on two streams of the device, in the plan's order: what computes, and what
// moves tensors where the plan overlaps. The host awaits them where ranks exchange numbers, and at
// the end of each step.
class StepRunner {
 public:
  // Collective. Everything that is passed by reference outlives the runner. Checks the plans of all
  // ranks first. Failed precondition on every rank: they are not the ones that rank 0 has checked.
  template <typename T>  // float, BFloat16, Half.
  static absl::StatusOr<std::unique_ptr<StepRunner>> Create(
      const Backend& backend, const Model<T>& model, const ParamLayout& layout,
      const Dataset& dataset, TrainState& state, const StepRunnerOptions& options);

  // `ids`: the global batch, options.batch of them. `step`: updates made before this one. Failures
  // of the communicator come back as they are, and so do those of the data, whatever their codes.
  // `next` is what the next Run will ask for, if that is known: it is read meanwhile.
  absl::StatusOr<StepResult> Run(std::int64_t step, std::span<const std::int64_t> ids,
                                 const Ballot& ballot, std::span<const std::int64_t> next = {});

  // Mean loss of so many batches of other data, spread evenly over it and the same each time; equal
  // on all ranks. Collective. Forwards only: changes nothing of what Run starts from. REQUIRES: the
  // vocabulary and context of the training, and that many batches in the data.
  absl::StatusOr<double> Evaluate(const Dataset& dataset, std::int64_t batches);

  const Slice& slice() const { return slice_; }  // This rank's part of every batch.
  LossScaler& scaler() { return scaler_; }
  // Of gradients and of gathered and rounded weights, all of it allocated by Create.
  std::int64_t memory_bytes() const { return memory_bytes_; }

 private:
  class Placed;
  StepRunner(const Backend& backend, const ParamLayout& layout, const Dataset& dataset,
             const StepRunnerOptions& options, DType type);
  absl::Status AllocateGradients();
  // Gradients are kept as sent_ has them, and in full precision only one backward's at a time.
  bool KeepsShort() const { return options_.accumulate_type != DType::kF32; }
  absl::Status Allocate(TrainState& state);
  Optimizer<float>::Buffers OptimizerBuffers(const TrainState& state);
  template <typename T>
  typename UnitRunner<T>::Places Places();
  void Connect(const TrainState& state);
  Stream& StreamFor(Op op) {
    return StreamOf(plan_, op) == StepStream::kMove ? *moves_ : *compute_;
  }
  absl::Status Await();
  absl::Status PlanForwards();
  absl::Status RunForwards(BatchReader& reader, std::int64_t batches,
                           const std::function<std::vector<std::int64_t>(std::int64_t)>& ids_of);
  std::span<const std::int64_t> SliceOf(std::span<const std::int64_t> ids) const;
  absl::Status ReadSamples(BatchReader& reader, std::span<const std::int64_t> ids,
                           std::span<const std::int64_t> next);
  MicroBatch MicroBatchOf(int index) const;
  absl::Status RunAll(std::int64_t step, const Ballot& ballot, StepResult& result);
  absl::Status Carry(const Instruction& instruction, std::int64_t step, const Ballot& ballot,
                     StepResult& result);
  std::vector<Runner::Weights> RoundingsOf(UnitId unit, const TrainState& state) const;
  void Round(UnitId unit, std::int64_t step);
  void Gather(UnitId unit);
  void Backward(const Instruction& instruction);
  void Accumulate(const Instruction& backward, AddMask adds);
  std::vector<Range> PiecesOf(const Bucket& bucket) const;
  const Bucket& BucketOf(const Instruction& instruction) const;
  void ZeroGradients(const Instruction& instruction);
  void ReduceGradients(const Instruction& instruction);
  void NarrowGradients(const Bucket& bucket);
  void WidenReduced(int bucket);
  const float* Widened(std::int64_t offset, std::int64_t elements);
  absl::Status SumSquares(std::int64_t step);
  StepInfo InfoOf(std::int64_t step, double sum_squares) const;
  absl::Status Vote(const Ballot& ballot, StepResult& result);

  const Backend backend_;
  const ParamLayout& layout_;
  const Dataset& dataset_;
  const StepRunnerOptions options_;
  const Slice slice_;
  const int micro_batches_;
  const DType type_;
  LossScaler scaler_;
  Plan plan_;
  std::span<float> gradients_;  // Where backwards write, by plan_.gradients; none if KeepsShort().
  Tensor sent_;                 // These, or what they are rounded to: the ranks share it.
  // Only if KeepsShort(): what one backward has written, and what the optimizer reads next.
  Windows staging_;
  std::span<float> staged_;
  Tensor weights_;  // Where forwards and backwards read, by plan_.weights.
  Tensor source_;   // What they are gathered from, if they are; the ranks share it.
  // This rank's buffer of reduced gradients; or gradients_; none if KeepsShort().
  std::span<float> reduced_;
  Tensor received_;            // As it comes from other ranks: reduced_, or to be widened to it.
  std::span<double> squares_;  // By block; only where not every rank has all, or KeepsShort().
  double* sum_ = nullptr;      // Else: of squares, of all gradients.
  Arena own_, gradient_memory_, results_;  // What of the above is this rank's alone.
  std::int64_t memory_bytes_ = 0;
  std::vector<std::vector<Stretch>> reductions_;  // By bucket; only where moments are divided.
  std::vector<std::vector<Stretch>> gathers_;     // By unit; likewise.
  std::vector<std::vector<Runner::Weights>> roundings_;  // By unit; only if they are rounded.
  std::unique_ptr<Runner> runner_;
  std::unique_ptr<Optimizer<float>> optimizer_;
  std::unique_ptr<BatchReader> reader_;
  std::span<const std::int32_t> tokens_, targets_;  // (slice_.size, T), of a reader.
  std::vector<Instruction> forwards_;  // Of one micro-batch: the first half of a checked plan.
  double sum_squares_ = 0;             // After the vote, what all ranks go by.
  std::vector<Event> reduced_at_;      // By bucket: its reduction is over.
  std::vector<Event> gathered_at_;     // By unit: its weights are gathered.
  // Last, since what they do uses the above. The second where the plan overlaps.
  std::unique_ptr<Stream> compute_, moves_;
};

}  // namespace regroup::worker
