#pragma once

#include <cmath>
#include <cstdint>

namespace regroup::worker {

// Updates of a run of elements, and sums of squares that they need. Plain loops, which are their
// own twins: a float is computed with as a double is, and results depend on nothing but the
// arguments.

template <typename T>
struct SgdStep {  // `rate` is 1 where the learning rate is part of `lr` (SGD), else lr is 1.
  T scale, decay, momentum, rate, lr;
};

// buffer = momentum · buffer + rate · (gradient + decay · weight); weight -= lr · buffer.
template <typename T>
void UpdateSgd(std::int64_t n, const SgdStep<T>& s, const T* __restrict gradient,
               T* __restrict weight, T* __restrict buffer) {
  for (std::int64_t i = 0; i < n; ++i) {
    const T direction = gradient[i] * s.scale + s.decay * weight[i];
    buffer[i] = s.momentum * buffer[i] + s.rate * direction;
    weight[i] -= s.lr * buffer[i];
  }
}

template <typename T>
struct LambStep {
  T scale, rate1, beta2, rate2;  // rate = 1 - beta.
  T correction1, root2;          // 1 / (1 - beta1^t), 1 / sqrt(1 - beta2^t).
  T epsilon, decay, lr;          // lr: times trust.
};

template <typename T>
struct LambMoments {
  T first, second, update;
};

template <typename T>
inline LambMoments<T> LambAt(const LambStep<T>& s, T gradient, T weight, T first, T second) {
  const T g = gradient * s.scale;
  const T m = first + (g - first) * s.rate1;
  const T v = second * s.beta2 + g * g * s.rate2;
  const T update = m * s.correction1 / (std::sqrt(v) * s.root2 + s.epsilon) + s.decay * weight;
  return {m, v, update};
}

template <typename T>
void UpdateLamb(std::int64_t n, const LambStep<T>& s, const T* __restrict gradient,
                T* __restrict weight, T* __restrict first, T* __restrict second) {
  for (std::int64_t i = 0; i < n; ++i) {
    const LambMoments<T> at = LambAt(s, gradient[i], weight[i], first[i], second[i]);
    weight[i] -= s.lr * at.update;
    first[i] = at.first;
    second[i] = at.second;
  }
}

// Sum of the squares of value(i), i from 0 to n - 1, in an order of its own that never changes.
template <typename Value>
double SquareAll(std::int64_t n, const Value& value) {
  constexpr std::int64_t kLanes = 8;
  double lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      const auto x = static_cast<double>(value(i + lane));
      lanes[lane] += x * x;
    }
  }
  double sum = 0;
  for (; i < n; ++i) {
    const auto x = static_cast<double>(value(i));
    sum += x * x;
  }
  for (const double lane : lanes) sum += lane;
  return sum;
}

}  // namespace regroup::worker
