#pragma once

#include <cmath>

#include "worker/kernels/arguments.h"

namespace regroup::worker::cuda {

// One element of LAMB: its moments after this step, and the direction that its weight goes.
struct LambMoments {
  float first, second, update;
};

__device__ inline LambMoments LambAt(const LambStep<float>& s, float gradient, float weight,
                                     float first, float second) {
  const float g = gradient * s.scale;
  const float m = first + (g - first) * s.rate1;
  const float v = second * s.beta2 + g * g * s.rate2;
  return {m, v, m * s.correction1 / (sqrtf(v) * s.root2 + s.epsilon) + s.decay * weight};
}

}  // namespace regroup::worker::cuda
