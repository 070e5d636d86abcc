// Sums over rows and over flat buffers. Each is cut by its size alone (fixed_chunks.h) and added up
// in an order that never changes.
#include <algorithm>

#include "worker/cuda_kernels/block.cuh"
#include "worker/cuda_kernels/block_memory.cuh"
#include "worker/cuda_kernels/column_sums.cuh"
#include "worker/cuda_kernels/kernels.h"
#include "worker/cuda_kernels/lamb.cuh"
#include "worker/kernels/fixed_chunks.h"

namespace regroup::worker::cuda {
namespace {

template <typename T>
struct DyColumns {
  static constexpr int kSums = 1;
  const T* dy;  // (rows, width)
  __device__ void Add(std::int64_t /*row*/, std::int64_t at, float* sums) const {
    sums[0] += Widened(dy[at]);
  }
};

// The sum of value(i), i from 0 to n - 1, in double, by one warp; 0 of none.
template <typename Value>
__device__ double WarpSumOf(std::int64_t n, const Value& value) {
  double sum = 0;
  for (std::int64_t i = threadIdx.x % kWarp; i < n; i += kWarp) sum += value(i);
  return WarpSum(sum);
}
__device__ double Square(double x) { return x * x; }

// One chunk's sum, for thread 0: each warp has a kSumBlock of it at a time, and they are added in
// their order, which is that of AddBlocks. All threads of a block call it. of_warps (kWarps).
template <bool squares>
__device__ double ChunkSum(const SumArgs<float>& args, std::int64_t chunk, double* of_warps) {
  const std::int64_t of_chunk = SumChunkElements(args.elements);
  const std::int64_t end = min(args.elements, (chunk + 1) * of_chunk);
  double sum = 0;
  for (std::int64_t first = chunk * of_chunk; first < end; first += kWarps * kSumBlock) {
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
    const std::int64_t begin = first + warp * kSumBlock;
    const float* x = args.x + begin;
    const double own = WarpSumOf(min(kSumBlock, end - begin), [&](std::int64_t i) {
      const double value = x[i];
      return squares ? Square(value) : value;
    });
    if (threadIdx.x % kWarp == 0) of_warps[warp] = own;
    __syncthreads();
    for (int w = 0; threadIdx.x == 0 && w < kWarps && first + w * kSumBlock < end; ++w)
      sum += of_warps[w];
    __syncthreads();
  }
  return sum;
}

struct ChunkSums {
  SumArgs<float> args;
  double* of_chunks;  // (kSumChunks)
};

template <bool squares>
__global__ void __launch_bounds__(kThreads) SumOfChunkKernel(ChunkSums sums) {
  const double sum = ChunkSum<squares>(sums.args, blockIdx.x, BlockMemory<double>());
  if (threadIdx.x == 0) sums.of_chunks[blockIdx.x] = sum;
}

__global__ void AddSumsKernel(ChunkSums sums) {
  double total = 0;
  for (std::int64_t chunk = 0; chunk < kSumChunks; ++chunk) total += sums.of_chunks[chunk];
  *sums.args.sum = total + (sums.args.add ? *sums.args.sum : 0);
}

// One block, for which one chunk comes after the other.
template <bool squares>
__global__ void __launch_bounds__(kThreads) SumKernel(SumArgs<float> args) {
  double total = 0;
  for (std::int64_t chunk = 0; chunk < kSumChunks; ++chunk)
    total += ChunkSum<squares>(args, chunk, BlockMemory<double>());
  if (threadIdx.x == 0) *args.sum = total + (args.add ? *args.sum : 0);
}

template <bool squares>
void SumAll(const Launch& launch, const SumArgs<float>& args) {
  const Geometry one{.blocks = 1, .threads = kThreads, .block_bytes = kWarps * sizeof(double)};
  if (launch.workspace == nullptr) return LaunchKernel(launch, SumKernel<squares>, one, args);
  const ChunkSums sums{args, static_cast<double*>(launch.workspace)};
  Geometry each = one;
  each.blocks = kSumChunks;
  LaunchKernel(launch, SumOfChunkKernel<squares>, each, sums);
  LaunchKernel(launch, AddSumsKernel, {.blocks = 1, .threads = 1}, sums);
}

__device__ std::int64_t WarpOfGrid() {
  return static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
}

__global__ void SquareBlocksKernel(SquareBlocksArgs<float> args) {
  const std::int64_t block = WarpOfGrid(), begin = block * kSumBlock;
  if (begin >= args.elements) return;
  const float* x = args.x + begin;
  const double sum = WarpSumOf(min(kSumBlock, args.elements - begin),
                               [&](std::int64_t i) { return Square(x[i]); });
  if (threadIdx.x % kWarp == 0) args.sums[block] = sum;
}

__global__ void SquareForTrustKernel(TrustSquaresArgs<float> args) {
  const std::int64_t first = args.first / kSumBlock, last = args.first + args.elements;
  const std::int64_t block = WarpOfGrid();
  if ((first + block) * kSumBlock >= last) return;
  const std::int64_t begin = max(args.first, (first + block) * kSumBlock) - args.first,
                     end = min(last, (first + block + 1) * kSumBlock) - args.first;
  const float *g = args.gradient + begin, *w = args.weight + begin;
  const double weights = WarpSumOf(end - begin, [&](std::int64_t i) { return Square(w[i]); });
  double others = 0;
  if (args.first_moment == nullptr) {
    others = WarpSumOf(end - begin, [&](std::int64_t i) { return Square(g[i] * args.step.scale); });
  } else {
    const float *m = args.first_moment + begin, *v = args.second_moment + begin;
    others = WarpSumOf(end - begin, [&](std::int64_t i) {
      return Square(LambAt(args.step, g[i], w[i], m[i], v[i]).update);
    });
  }
  if (threadIdx.x % kWarp != 0) return;
  args.of_weights[block] = weights;
  args.of_others[block] = others;
}

}  // namespace

template <typename T>
void BiasGrad(const Launch& launch, const BiasGradArgs<T>& args) {
  SumColumns(launch, ColumnSums<DyColumns<T>>{args.rows, args.out, {args.dy}, {args.db}, args.add});
}

void Sum(const Launch& launch, const SumArgs<float>& args) { SumAll<false>(launch, args); }
void SumSquares(const Launch& launch, const SumArgs<float>& args) { SumAll<true>(launch, args); }

void SquareBlocks(const Launch& launch, const SquareBlocksArgs<float>& args) {
  LaunchKernel(launch, SquareBlocksKernel,
               {.blocks = BlocksFor(args.elements, kWarps * kSumBlock), .threads = kThreads}, args);
}

void SquareForTrust(const Launch& launch, const TrustSquaresArgs<float>& args) {
  if (args.elements == 0) return;
  const std::int64_t blocks =
      BlocksFor(args.first + args.elements, kSumBlock) - args.first / kSumBlock;
  LaunchKernel(launch, SquareForTrustKernel,
               {.blocks = BlocksFor(blocks, kWarps), .threads = kThreads}, args);
}

#define REGROUP_INSTANTIATE(T) template void BiasGrad<T>(const Launch&, const BiasGradArgs<T>&);
REGROUP_FOR_NUMBER_TYPES(REGROUP_INSTANTIATE)

}  // namespace regroup::worker::cuda
