#pragma once

// What kernels have in common: numbers, warps and blocks. nvcc compiles it, and for the CPU whoever
// has given CUDA's words a meaning before (tests/worker/gpu_emulator).
#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "worker/cuda_kernels/launch.h"
#include "worker/tensor/dtype.h"

namespace regroup::worker::cuda {

// All computation is on floats, as on the CPU.
template <typename T>
__device__ float Widened(T x) {
#if defined(__CUDA_ARCH__)
  if constexpr (std::is_same_v<T, Half>) {
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x.bits));
    return wide;
  }
#endif
  return x;
}

// To the nearest, of two to the even one.
template <typename T>
__device__ T Narrowed(float x) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(T) == 2) {
    T narrow;
    if constexpr (std::is_same_v<T, Half>) {
      asm("cvt.rn.f16.f32 %0, %1;" : "=h"(narrow.bits) : "f"(x));
    } else {
      asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(narrow.bits) : "f"(x));
    }
    return narrow;
  }
#endif
  return T(x);
}

inline constexpr unsigned kWholeWarp = 0xFFFFFFFFu;

// The first of this thread's elements of all, and how far the next one is, in a grid of one
// dimension.
__device__ inline std::int64_t FirstElement() {
  return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ inline std::int64_t ElementStride() {
  return static_cast<std::int64_t>(gridDim.x) * blockDim.x;
}

// The sum over a warp, the same bits in each of its lanes: a tree, whose halves commute.
template <typename Number>
__device__ Number WarpSum(Number x) {
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) x += __shfl_xor_sync(kWholeWarp, x, lanes);
  return x;
}

// Of a block of so many threads in a row. `of_warps`: a number for each warp, which is free again
// after the next barrier.
template <int threads, typename Number>
__device__ Number BlockSum(Number x, Number* of_warps) {
  x = WarpSum(x);
  if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = x;
  __syncthreads();
  Number sum = of_warps[0];
  for (int warp = 1; warp < threads / kWarp; ++warp) sum += of_warps[warp];
  return sum;
}

// The largest; what is not a number is passed over.
template <int threads>
__device__ float BlockMax(float x, float* of_warps) {
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2)
    x = fmaxf(x, __shfl_xor_sync(kWholeWarp, x, lanes));
  if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = x;
  __syncthreads();
  float most = of_warps[0];
  for (int warp = 1; warp < threads / kWarp; ++warp) most = fmaxf(most, of_warps[warp]);
  return most;
}

}  // namespace regroup::worker::cuda
