#include "worker/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "common/base/check.h"

namespace regroup::worker {
namespace {

// From 1 at the end of the warm-up to 0 at the end of the training.
double Left(const Schedule& schedule, std::int64_t warmup, std::int64_t step) {
  const auto left = static_cast<double>(schedule.total_steps - step);
  return std::max(0.0, left) /
         static_cast<double>(std::max<std::int64_t>(1, schedule.total_steps - warmup));
}

double DeepSpeedRate(const Schedule& schedule, std::int64_t step) {
  const std::int64_t warmup = std::max<std::int64_t>(2, schedule.warmup_steps);
  if (step < warmup) {
    return schedule.lr * std::log(static_cast<double>(step + 1)) /
           std::log(static_cast<double>(warmup));
  }
  return schedule.kind == ScheduleKind::kWarmup ? schedule.lr
                                                : schedule.lr * Left(schedule, warmup, step);
}

}  // namespace

const char* NameOf(ScheduleKind kind) {
  switch (kind) {
    case ScheduleKind::kCosine: return "cosine";
    case ScheduleKind::kLinear: return "linear";
    case ScheduleKind::kConstant: return "constant";
    case ScheduleKind::kWarmup: return "warmup";
    case ScheduleKind::kWarmupDecay: return "warmup-decay";
  }
  CHECK(false);
}

double LearningRate(const Schedule& schedule, std::int64_t step) {
  if (schedule.kind == ScheduleKind::kWarmup || schedule.kind == ScheduleKind::kWarmupDecay)
    return DeepSpeedRate(schedule, step);
  if (step < schedule.warmup_steps) {
    return schedule.lr * static_cast<double>(step + 1) / static_cast<double>(schedule.warmup_steps);
  }
  if (schedule.kind == ScheduleKind::kConstant) return schedule.lr;
  if (step >= schedule.total_steps) return schedule.min_lr;
  const double progress = static_cast<double>(step - schedule.warmup_steps) /
                          static_cast<double>(schedule.total_steps - schedule.warmup_steps);
  const double share = schedule.kind == ScheduleKind::kLinear
                           ? 1 - progress
                           : 0.5 * (1 + std::cos(std::numbers::pi * progress));
  return schedule.min_lr + share * (schedule.lr - schedule.min_lr);
}

const char* NameOf(ScalingRule rule) {
  switch (rule) {
    case ScalingRule::kNone: return "none";
    case ScalingRule::kLinear: return "linear";
    case ScalingRule::kSquareRoot: return "sqrt";
  }
  CHECK(false);
}

double ScaleOf(ScalingRule rule, int batch, int base_batch) {
  const double times = static_cast<double>(batch) / base_batch;
  return rule == ScalingRule::kNone ? 1 : rule == ScalingRule::kLinear ? times : std::sqrt(times);
}

double ClipScale(double sum_squares, double max_norm) {
  const double norm = std::sqrt(sum_squares);
  // torch.nn.utils.clip_grad_norm_ adds the same 1e-6.
  const bool within = max_norm <= 0 || norm + 1e-6 <= max_norm;  // Not if it is not a number.
  return within ? 1.0 : max_norm / (norm + 1e-6);
}

}  // namespace regroup::worker
