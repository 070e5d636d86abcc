#pragma once

#include <cstdint>

namespace regroup::worker {

// Linear warm-up from lr / warmup_steps, then half a cosine down to min_lr at total_steps, min_lr
// after it.
struct Schedule {
  double lr = 3e-4;
  double min_lr = 3e-5;
  std::int64_t warmup_steps = 0;
  std::int64_t total_steps = 1;
};

// `step` counts from 0: the learning rate of the (step + 1)th update.
double LearningRate(const Schedule& schedule, std::int64_t step);

// What gradients are multiplied by so that their global norm is at most max_norm (<= 0: no
// clipping, 1). Not a number if the norm is none.
double ClipScale(double sum_squares, double max_norm);

}  // namespace regroup::worker
