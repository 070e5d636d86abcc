#pragma once

// Gives the words that .cu files are written in a meaning on the CPU; included before each.
#include <math.h>  // Not <cmath>: CUDA has its functions without std.

#include <algorithm>

#include "tests/worker/gpu_emulator/gpu_emulator.h"
#include "worker/device/device.h"
#include "worker/tensor/dtype.h"

// NOLINTBEGIN(bugprone-reserved-identifier)
#define __global__
#define __device__
#define __launch_bounds__(...)
#define threadIdx (::regroup::worker::gpu_emulator::ThreadIndex())
#define blockIdx (::regroup::worker::gpu_emulator::BlockIndex())
#define blockDim (::regroup::worker::gpu_emulator::BlockSize())
#define gridDim (::regroup::worker::gpu_emulator::GridSize())
#define __syncthreads() (::regroup::worker::gpu_emulator::Barrier({__FILE__, __LINE__}))
#define __shfl_xor_sync(mask, number, lanes) \
  (::regroup::worker::gpu_emulator::Exchange(mask, number, lanes, {__FILE__, __LINE__}))
#define __ballot_sync(mask, vote) \
  (::regroup::worker::gpu_emulator::Ballot(mask, vote, {__FILE__, __LINE__}))
#define __ffs(bits) __builtin_ffs(static_cast<int>(bits))
// NOLINTEND(bugprone-reserved-identifier)

namespace regroup::worker::cuda {

using std::max;
using std::min;

template <typename Number>
Number* BlockMemory() {
  return static_cast<Number*>(gpu_emulator::MemoryOfBlock());
}

// The line is the caller's.
inline void LoadBlocks(std::uint32_t (&blocks)[4], const void* row, int line = __builtin_LINE()) {
  gpu_emulator::LoadBlocks(blocks, row, false, {__FILE__, line});
}
inline void LoadTransposedBlocks(std::uint32_t (&blocks)[4], const void* row,
                                 int line = __builtin_LINE()) {
  gpu_emulator::LoadBlocks(blocks, row, true, {__FILE__, line});
}
template <typename T>
void MultiplyAdd(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1,
                 int line = __builtin_LINE()) {
  constexpr auto kWiden = [](std::uint16_t bits) -> float {
    T number;
    number.bits = bits;
    return number;
  };
  gpu_emulator::MultiplyAdd(c, a, b0, b1, kWiden, {__FILE__, line});
}

template <typename Args>
void LaunchKernel(const Launch& launch, void (*kernel)(Args), const Geometry& geometry, Args args) {
#if __has_builtin(__builtin_clear_padding)
  __builtin_clear_padding(&args);
#endif
  static constexpr gpu_emulator::KernelType kType = {
      sizeof(Args), [](const void* code, const Geometry& grid, const void* argument) {
        const auto run = reinterpret_cast<void (*)(Args)>(const_cast<void*>(code));
        return gpu_emulator::RunGrid(grid, [&] { run(*static_cast<const Args*>(argument)); });
      }};
  gpu_emulator::PutOnStream(launch.stream, reinterpret_cast<const void*>(kernel), kType, geometry,
                            &args);
}

}  // namespace regroup::worker::cuda
