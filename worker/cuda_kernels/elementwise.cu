// What each element is computed for by itself: one thread has every so-manieth one.
#include <algorithm>

#include "worker/cuda_kernels/block.cuh"
#include "worker/cuda_kernels/kernels.h"
#include "worker/cuda_kernels/lamb.cuh"
#include "worker/tensor/counter_rng.h"

namespace regroup::worker::cuda {
namespace {

constexpr float kGeluScale = 0.79788456080286535588f;  // sqrt(2 / pi)
constexpr float kGeluCubic = 0.044715f;
constexpr std::int64_t kBlocksAtOnce = 1024;  // About what a GPU has running at once.

template <typename Args>
void ForElements(const Launch& launch, void (*kernel)(Args), const Args& args) {
  const std::int64_t blocks = std::min(BlocksFor(args.elements, kThreads), kBlocksAtOnce);
  LaunchKernel(launch, kernel, {.blocks = blocks, .threads = kThreads}, args);
}

// (1 + tanh(u)) / 2 of GELU's u, as a logistic function: nothing cancels where it is near 0.
__device__ float GeluShare(float x) {
  return 1 / (1 + expf(-2 * kGeluScale * (x + kGeluCubic * x * x * x)));
}

template <typename T>
__global__ void GeluForwardKernel(GeluForwardArgs<T> args) {
  for (std::int64_t i = FirstElement(); i < args.elements; i += ElementStride()) {
    const float x = Widened(args.x[i]);
    args.y[i] = Narrowed<T>(x * GeluShare(x));
  }
}

template <typename T>
__global__ void GeluBackwardKernel(GeluBackwardArgs<T> args) {
  for (std::int64_t i = FirstElement(); i < args.elements; i += ElementStride()) {
    const float x = Widened(args.x[i]), share = GeluShare(x), slope = 2 * share * (1 - share);
    const float bend = x * slope * kGeluScale * (1 + 3 * kGeluCubic * x * x);
    args.dx[i] = Narrowed<T>(Widened(args.dy[i]) * (share + bend));
  }
}

template <typename T>
__global__ void NarrowKernel(NarrowArgs<T> args) {
  for (std::int64_t i = FirstElement(); i < args.elements; i += ElementStride())
    args.y[i] = Narrowed<T>(args.add ? Widened(args.y[i]) + args.x[i] : args.x[i]);
}

template <typename T>
__global__ void WidenKernel(WidenArgs<T> args) {
  for (std::int64_t i = FirstElement(); i < args.elements; i += ElementStride())
    args.x[i] = Widened(args.y[i]);
}

template <typename T>
__global__ void RoundWeightsKernel(RoundWeightsArgs<T> args) {
  for (std::int64_t i = FirstElement(); i < args.elements; i += ElementStride()) {
    const float weight = args.weights[i];
    if constexpr (std::is_same_v<T, BFloat16>) {
      if (isfinite(weight)) {
        const std::uint32_t noise =
            RoundingBits(args.key, static_cast<std::uint32_t>(args.first + i));
        args.rounded[i].bits =
            static_cast<std::uint16_t>((std::bit_cast<std::uint32_t>(weight) + noise) >> 16);
        continue;
      }
    }
    args.rounded[i] = Narrowed<T>(weight);
  }
}

// The step's numbers as an element needs them, once for all of them and in double.
struct AdamW {
  std::int64_t elements;
  float grad_scale, rate1, beta2, rate2, root2, epsilon, keep, lr;
  const float* gradient;
  float *weight, *first_moment, *second_moment;
};

__global__ void AdamWKernel(AdamW args) {
  for (std::int64_t i = FirstElement(); i < args.elements; i += ElementStride()) {
    const float g = args.gradient[i] * args.grad_scale;
    const float m = args.first_moment[i] + (g - args.first_moment[i]) * args.rate1;
    const float v = args.second_moment[i] * args.beta2 + g * g * args.rate2;
    args.weight[i] =
        args.weight[i] * args.keep - args.lr * m / (sqrtf(v) * args.root2 + args.epsilon);
    args.first_moment[i] = m;
    args.second_moment[i] = v;
  }
}

__global__ void SgdKernel(SgdArgs<float> args) {
  const SgdStep<float>& s = args.step;
  for (std::int64_t i = FirstElement(); i < args.elements; i += ElementStride()) {
    const float direction = args.gradient[i] * s.scale + s.decay * args.weight[i];
    const float buffer = s.momentum * args.buffer[i] + s.rate * direction;
    args.buffer[i] = buffer;
    args.weight[i] -= s.lr * buffer;
  }
}

__global__ void LambKernel(LambArgs<float> args) {
  for (std::int64_t i = FirstElement(); i < args.elements; i += ElementStride()) {
    const LambMoments at = LambAt(args.step, args.gradient[i], args.weight[i], args.first_moment[i],
                                  args.second_moment[i]);
    args.weight[i] -= args.step.lr * at.update;
    args.first_moment[i] = at.first;
    args.second_moment[i] = at.second;
  }
}

}  // namespace

template <typename T>
void GeluForward(const Launch& launch, const GeluForwardArgs<T>& args) {
  ForElements(launch, GeluForwardKernel<T>, args);
}
template <typename T>
void GeluBackward(const Launch& launch, const GeluBackwardArgs<T>& args) {
  ForElements(launch, GeluBackwardKernel<T>, args);
}
template <typename T>
void Narrow(const Launch& launch, const NarrowArgs<T>& args) {
  ForElements(launch, NarrowKernel<T>, args);
}
template <typename T>
void Widen(const Launch& launch, const WidenArgs<T>& args) {
  ForElements(launch, WidenKernel<T>, args);
}
template <typename T>
void RoundWeights(const Launch& launch, const RoundWeightsArgs<T>& args) {
  ForElements(launch, RoundWeightsKernel<T>, args);
}

void UpdateAdamW(const Launch& launch, const AdamWArgs<float>& args) {
  const AdamWStep& s = args.step;
  const AdamW numbers = {.elements = args.elements,
                         .grad_scale = static_cast<float>(s.grad_scale),
                         .rate1 = static_cast<float>(1 - s.beta1),
                         .beta2 = static_cast<float>(s.beta2),
                         .rate2 = static_cast<float>(1 - s.beta2),
                         .root2 = static_cast<float>(1 / std::sqrt(s.correction2)),
                         .epsilon = static_cast<float>(s.epsilon),
                         .keep = static_cast<float>(1 - s.lr * s.weight_decay),
                         .lr = static_cast<float>(s.lr / s.correction1),
                         .gradient = args.gradient,
                         .weight = args.weight,
                         .first_moment = args.first_moment,
                         .second_moment = args.second_moment};
  ForElements(launch, AdamWKernel, numbers);
}
void UpdateSgd(const Launch& launch, const SgdArgs<float>& args) {
  ForElements(launch, SgdKernel, args);
}
void UpdateLamb(const Launch& launch, const LambArgs<float>& args) {
  ForElements(launch, LambKernel, args);
}

#define REGROUP_INSTANTIATE(T)                                              \
  template void GeluForward<T>(const Launch&, const GeluForwardArgs<T>&);   \
  template void GeluBackward<T>(const Launch&, const GeluBackwardArgs<T>&); \
  template void Narrow<T>(const Launch&, const NarrowArgs<T>&);             \
  template void Widen<T>(const Launch&, const WidenArgs<T>&);               \
  template void RoundWeights<T>(const Launch&, const RoundWeightsArgs<T>&);
REGROUP_FOR_NUMBER_TYPES(REGROUP_INSTANTIATE)

}  // namespace regroup::worker::cuda
