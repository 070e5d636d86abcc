#pragma once

// Products of a warp on tensor cores, and how its lanes hold the matrices: mma.m16n8k16 and
// ldmatrix of the PTX ISA (sm_80 and later), section "Warp Level Matrix Instructions". All lanes
// call each of these together.
//
// A lane holds of each 8 × 8 block two neighbours of row lane / 4, columns lane % 4 · 2 and the
// next; of a 16 × 16 matrix four blocks, column by column: rows 0 to 7 and 8 to 15 of columns 0 to
// 7, then of columns 8 to 15.
#include "worker/cuda_kernels/block.cuh"

namespace regroup::worker::cuda {

using Pair = std::uint32_t;  // Two numbers of 16 bits, the first one below.

#if defined(__CUDACC__)
// Four 8 × 8 blocks from the memory of the block. Lanes 8i to 8i + 7 have the addresses of the rows
// of block i, each of 16 bytes and at a multiple of that.
__device__ inline void LoadBlocks(Pair (&blocks)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(blocks[0]), "=r"(blocks[1]), "=r"(blocks[2]), "=r"(blocks[3])
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(row)))
               : "memory");
}
// The same, each block transposed.
__device__ inline void LoadTransposedBlocks(Pair (&blocks)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(blocks[0]), "=r"(blocks[1]), "=r"(blocks[2]), "=r"(blocks[3])
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(row)))
               : "memory");
}

// c (16 × 8) += a (16 × 16) · b (16 × 8), in float. A lane holds of b two blocks as if transposed,
// and of c rows lane / 4 and that + 8, of each columns lane % 4 · 2 and the next.
template <typename T>
__device__ void MultiplyAdd(float (&c)[4], const Pair (&a)[4], Pair b0, Pair b1) {
  if constexpr (std::is_same_v<T, Half>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}
#endif

// Both rounded to the nearest.
template <typename T>
__device__ Pair PairOf(float first, float second) {
#if defined(__CUDA_ARCH__)
  Pair pair;
  if constexpr (std::is_same_v<T, Half>) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  } else {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  }
  return pair;
#else
  return Narrowed<T>(first).bits | static_cast<Pair>(Narrowed<T>(second).bits) << 16;
#endif
}

// Where this lane's row of LoadBlocks lies if the four are those of a 16 × 16 matrix of rows that
// are `pitch` apart.
template <typename T>
__device__ const T* RowOfLane(const T* corner, int pitch) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  return corner + lane % 16 * pitch + lane / 16 * 8;
}

}  // namespace regroup::worker::cuda
