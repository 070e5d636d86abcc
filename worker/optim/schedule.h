#pragma once

#include <cstdint>

namespace regroup::worker {

// How a learning rate goes from step to step.
enum class ScheduleKind : std::uint8_t {
  // From lr / warmup_steps up to lr in equal steps, then half a cosine, or a line, down to min_lr
  // at
  // total_steps, and min_lr after it; or lr for ever.
  kCosine,
  kLinear,
  kConstant,
  // DeepSpeed's WarmupLR and WarmupDecayLR: from 0 up to lr as the logarithm of the step grows, in
  // at least 2 steps; then lr for ever, or a line down to 0 at total_steps.
  kWarmup,
  kWarmupDecay,
};
inline constexpr ScheduleKind kSchedules[] = {ScheduleKind::kCosine, ScheduleKind::kLinear,
                                              ScheduleKind::kConstant, ScheduleKind::kWarmup,
                                              ScheduleKind::kWarmupDecay};
// "cosine", "linear", "constant", "warmup", "warmup-decay".
const char* NameOf(ScheduleKind kind);

struct Schedule {
  double lr = 3e-4;
  double min_lr = 3e-5;
  std::int64_t warmup_steps = 0;
  std::int64_t total_steps = 1;
  ScheduleKind kind = ScheduleKind::kCosine;
};

// `step` counts from 0: the learning rate of the (step + 1)th update.
double LearningRate(const Schedule& schedule, std::int64_t step);

// What a learning rate for batches of `base_batch` is multiplied by for batches of `batch`, so that
// a sample moves weights as far as before (linear), or gradients' noise does (square root).
enum class ScalingRule : std::uint8_t { kNone, kLinear, kSquareRoot };
inline constexpr ScalingRule kScalingRules[] = {ScalingRule::kNone, ScalingRule::kLinear,
                                                ScalingRule::kSquareRoot};
const char* NameOf(ScalingRule rule);  // "none", "linear", "sqrt".
double ScaleOf(ScalingRule rule, int batch, int base_batch);

// What gradients are multiplied by so that their global norm is at most max_norm (<= 0: no
// clipping, 1). Not a number if the norm is none.
double ClipScale(double sum_squares, double max_norm);

}  // namespace regroup::worker
