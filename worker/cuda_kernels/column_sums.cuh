#pragma once

#include <cstdint>

#include "worker/cuda_kernels/block.cuh"
#include "worker/cuda_kernels/block_memory.cuh"
#include "worker/kernels/fixed_chunks.h"

namespace regroup::worker::cuda {

// Sums over the rows of a matrix, several of each column: first of each chunk of rows
// (fixed_chunks.h), then of the chunks. Terms say what is added:
//   static constexpr int kSums;
//   void Add(row, at = row · width + column, float* sums) const;
// Workspace: (chunks, kSums, width) floats.
template <typename Terms>
struct ColumnSums {
  std::int64_t rows = 0, width = 0;
  Terms terms;
  float* sums[Terms::kSums];  // (width) each.
  bool add = false;           // To what is there.
  float* of_chunks = nullptr;
};

inline constexpr int kColumns = 32, kRowLanes = 8;  // Of a block.

template <typename Terms>
__global__ void ChunkSumsKernel(ColumnSums<Terms> args) {
  constexpr int kSums = Terms::kSums;
  auto* lanes = BlockMemory<float>();  // (kRowLanes, kSums, kColumns)
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kColumns + threadIdx.x;
  const std::int64_t begin = blockIdx.y * ChunkRows(args.rows),
                     end = min(args.rows, begin + ChunkRows(args.rows));
  float sums[kSums] = {};
  if (column < args.width) {
    for (std::int64_t row = begin + threadIdx.y; row < end; row += kRowLanes)
      args.terms.Add(row, row * args.width + column, sums);
  }
  for (int s = 0; s < kSums; ++s)
    lanes[(threadIdx.y * kSums + s) * kColumns + threadIdx.x] = sums[s];
  __syncthreads();
  if (threadIdx.y != 0 || column >= args.width) return;
  for (int s = 0; s < kSums; ++s) {
    float sum = 0;
    for (int lane = 0; lane < kRowLanes; ++lane)
      sum += lanes[(lane * kSums + s) * kColumns + threadIdx.x];
    args.of_chunks[(blockIdx.y * kSums + s) * args.width + column] = sum;
  }
}

template <typename Terms>
__global__ void AddChunksKernel(ColumnSums<Terms> args) {
  const std::int64_t column = FirstElement();
  if (column >= args.width) return;
  const std::int64_t chunks = (args.rows + ChunkRows(args.rows) - 1) / ChunkRows(args.rows);
  for (int s = 0; s < Terms::kSums; ++s) {
    float sum = 0;
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk)
      sum += args.of_chunks[(chunk * Terms::kSums + s) * args.width + column];
    float& target = args.sums[s][column];
    target = args.add ? target + sum : sum;
  }
}

template <typename Terms>
void SumColumns(const Launch& launch, ColumnSums<Terms> args) {
  args.of_chunks = static_cast<float*>(launch.workspace);
  LaunchKernel(launch, ChunkSumsKernel<Terms>,
               {.blocks = BlocksFor(args.width, kColumns),
                .blocks_y = BlocksFor(args.rows, ChunkRows(args.rows)),
                .threads = kColumns,
                .threads_y = kRowLanes,
                .block_bytes = kRowLanes * Terms::kSums * kColumns * sizeof(float)},
               args);
  LaunchKernel(launch, AddChunksKernel<Terms>,
               {.blocks = BlocksFor(args.width, kThreads), .threads = kThreads}, args);
}

}  // namespace regroup::worker::cuda
