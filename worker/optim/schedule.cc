#include "worker/optim/schedule.h"

#include <cmath>
#include <numbers>

namespace regroup::worker {

double LearningRate(const Schedule& schedule, std::int64_t step) {
  if (step < schedule.warmup_steps) {
    return schedule.lr * static_cast<double>(step + 1) / static_cast<double>(schedule.warmup_steps);
  }
  if (step >= schedule.total_steps) return schedule.min_lr;
  const double progress = static_cast<double>(step - schedule.warmup_steps) /
                          static_cast<double>(schedule.total_steps - schedule.warmup_steps);
  const double share = 0.5 * (1 + std::cos(std::numbers::pi * progress));
  return schedule.min_lr + share * (schedule.lr - schedule.min_lr);
}

double ClipScale(double sum_squares, double max_norm) {
  const double norm = std::sqrt(sum_squares);
  // torch.nn.utils.clip_grad_norm_ adds the same 1e-6.
  const bool within = max_norm <= 0 || norm + 1e-6 <= max_norm;  // Not if it is not a number.
  return within ? 1.0 : max_norm / (norm + 1e-6);
}

}  // namespace regroup::worker
