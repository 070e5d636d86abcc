// Causal attention on tensor cores (FlashAttention-2, Dao 2023): tiles of 64 positions, of which
// each warp has 16 and goes through those of the other side 16 at a time. As without tensor cores
// (attention.cu) the backward pass computes the scores twice, so that nothing is added by two
// blocks.
#include <initializer_list>

#include "worker/cuda_kernels/attention.cuh"
#include "worker/cuda_kernels/block_memory.cuh"
#include "worker/cuda_kernels/tensor_cores.cuh"

namespace regroup::worker::cuda {
namespace {

constexpr int kRows = 64, kStrip = 16;  // Positions of a tile, and of a warp.
constexpr int kTileThreads = kRows / kStrip * kWarp;
// Of a multiprocessor at once, so that some multiply while others read.
template <int width>
[[maybe_unused]] constexpr int kBlocks = width <= 64 ? 3 : 2;
constexpr float kLog2E = 1.44269504f;

// Rows of a tile in the memory of the block have `width` numbers, zeros where a head has less, and
// eight that nobody reads: eight rows below each other then lie in different banks.
template <int width>
constexpr int kPitch = width + 8;
template <int width>
constexpr int kTileNumbers = kRows* kPitch<width>;

// 16 rows of a head as the left side of products; 16 × 16 numbers of a product's result; and 16
// rows of sums.
template <int width>
using Strip = Pair[width / 16][4];
using Square = float[2][4];
template <int width>
using Sums = float[width / 8][4];

struct alignas(16) Eight {
  Pair pairs[4];
};

// The first row of the tile that this warp has.
__device__ inline int FirstOfWarp() { return static_cast<int>(threadIdx.x) / kWarp * kStrip; }

// Zeros behind the end of the sequence.
template <int width, typename T>
__device__ void ReadTile(const HeadTile& at, const T* first, std::int64_t stride,
                         std::int64_t which, T* tile) {
  constexpr int kOfRow = width / 8;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kOfRow; i += kTileThreads) {
    const int r = i / kOfRow, d = i % kOfRow * 8;
    const std::int64_t t = which * kRows + r;
    Eight numbers = {};
    if (t < at.time && d < at.width)
      numbers = *reinterpret_cast<const Eight*>(first + t * stride + d);
    *reinterpret_cast<Eight*>(tile + r * kPitch<width> + d) = numbers;
  }
}

template <int width, typename T>
__device__ void ReadStrip(const T* rows, Strip<width>& strip) {
#pragma unroll
  for (int d = 0; d < width / 16; ++d)
    LoadBlocks(strip[d], RowOfLane(rows + 16 * d, kPitch<width>));
}

// The warp's strips of two arrays, in the tile that is the block's, by way of two tiles of its
// memory, which are free after the next barrier.
template <int width, typename T>
__device__ void ReadOwn(const HeadTile& at, const T* first, std::int64_t first_stride,
                        const T* second, std::int64_t second_stride, T* tiles,
                        Strip<width>& of_first, Strip<width>& of_second) {
  ReadTile<width>(at, first, first_stride, at.tile, tiles);
  ReadTile<width>(at, second, second_stride, at.tile, tiles + kTileNumbers<width>);
  __syncthreads();
  const T* rows = tiles + FirstOfWarp() * kPitch<width>;
  ReadStrip<width>(rows, of_first);
  ReadStrip<width>(rows + kTileNumbers<width>, of_second);
}

// The dot products of the strip's rows, down, with 16 of a tile, across.
template <int width, typename T>
__device__ void Dots(const Strip<width>& strip, const T* rows, Square& dots) {
#pragma unroll
  for (int i = 0; i < 4; ++i) dots[0][i] = dots[1][i] = 0;
#pragma unroll
  for (int d = 0; d < width / 16; ++d) {
    Pair other[4];
    LoadBlocks(other, RowOfLane(rows + 16 * d, kPitch<width>));
    MultiplyAdd<T>(dots[0], strip[d], other[0], other[2]);
    MultiplyAdd<T>(dots[1], strip[d], other[1], other[3]);
  }
}

// sums += weights, rounded, times 16 rows of a tile.
template <int width, typename T>
__device__ void AddProduct(const Square& weights, const T* rows, Sums<width>& sums) {
  const Pair left[4] = {
      PairOf<T>(weights[0][0], weights[0][1]), PairOf<T>(weights[0][2], weights[0][3]),
      PairOf<T>(weights[1][0], weights[1][1]), PairOf<T>(weights[1][2], weights[1][3])};
#pragma unroll
  for (int d = 0; d < width / 16; ++d) {
    Pair right[4];
    LoadTransposedBlocks(right, RowOfLane(rows + 16 * d, kPitch<width>));
    MultiplyAdd<T>(sums[2 * d], left, right[0], right[1]);
    MultiplyAdd<T>(sums[2 * d + 1], left, right[2], right[3]);
  }
}

// Where the numbers of a square lie that this lane holds: number i of its blocks is in row RowOf(i)
// and column ColumnOf(i) of the block.
__device__ inline int Lane() { return static_cast<int>(threadIdx.x) % kWarp; }
__device__ inline int RowOf(int i) { return Lane() / 4 + i / 2 * 8; }
__device__ inline int ColumnOf(int i) { return Lane() % 4 * 2 + i % 2; }

// Of the four lanes that hold a row.
__device__ inline float RowMax(float x) {
  x = fmaxf(x, __shfl_xor_sync(kWholeWarp, x, 1));
  return fmaxf(x, __shfl_xor_sync(kWholeWarp, x, 2));
}
__device__ inline float RowSum(float x) {
  x += __shfl_xor_sync(kWholeWarp, x, 1);
  return x + __shfl_xor_sync(kWholeWarp, x, 2);
}

// The warp's rows of a tile to those of an array that are `stride` apart, each sum times the factor
// of its row: of the lane's first, and of the one 8 below.
template <int width, typename T>
__device__ void WriteStrip(const HeadTile& at, const Sums<width>& sums, const float (&factors)[2],
                           std::int64_t stride, T* to) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const std::int64_t t = at.tile * kRows + FirstOfWarp() + RowOf(2 * half);
    if (t >= at.time) continue;
#pragma unroll
    for (int n = 0; n < width / 8; ++n) {
      const int d = 8 * n + ColumnOf(0);
      if (d >= at.width) continue;
      *reinterpret_cast<Pair*>(to + t * stride + d) =
          PairOf<T>(sums[n][2 * half] * factors[half], sums[n][2 * half + 1] * factors[half]);
    }
  }
}

// A block has a tile of queries, and goes through the keys that they see.
template <int width, typename T>
__global__ void __launch_bounds__(kTileThreads, kBlocks<width>)
    TensorForwardKernel(AttentionForwardArgs<T> args) {
  const auto at = TileOfBlock<kRows>(args.shape);
  auto* k = BlockMemory<T>();
  T* v = k + kTileNumbers<width>;
  const T* qkv = args.qkv + at.in_qkv;
  const float scale = 1 / sqrtf(static_cast<float>(at.width)), scale2 = scale * kLog2E;
  Strip<width> queries;
  ReadTile<width>(at, qkv, 3 * at.stride, at.tile, k);
  __syncthreads();
  ReadStrip<width>(k + FirstOfWarp() * kPitch<width>, queries);
  __syncthreads();
  float top[2] = {-INFINITY, -INFINITY},
        total[2] = {};  // Of the lane's two rows; its part of them.
  Sums<width> sums = {};
  for (std::int64_t tile = 0; tile <= at.tile; ++tile) {
    ReadTile<width>(at, qkv + at.stride, 3 * at.stride, tile, k);
    ReadTile<width>(at, qkv + 2 * at.stride, 3 * at.stride, tile, v);
    __syncthreads();
    Square scores[kRows / 16];
#pragma unroll
    for (int n = 0; n < kRows / 16; ++n) {
      Dots<width>(queries, k + 16 * n * kPitch<width>, scores[n]);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int key = 16 * n + i / 4 * 8 + ColumnOf(i % 4);
        if (tile == at.tile && key > FirstOfWarp() + RowOf(i % 4))
          scores[n][i / 4][i % 4] = -INFINITY;
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float tile_top = -INFINITY;
#pragma unroll
      for (int i = 0; i < kRows / 4; ++i)
        tile_top = fmaxf(tile_top, scores[i / 4][i / 2 % 2][2 * half + i % 2]);
      const float new_top = fmaxf(top[half], RowMax(tile_top));
      const float shrink = exp2f((top[half] - new_top) * scale2);
      top[half] = new_top, total[half] *= shrink;
#pragma unroll
      for (int i = 0; i < kRows / 4; ++i) {
        float& score = scores[i / 4][i / 2 % 2][2 * half + i % 2];
        total[half] += score = exp2f((score - new_top) * scale2);
      }
#pragma unroll
      for (int n = 0; n < width / 8; ++n)
        sums[n][2 * half] *= shrink, sums[n][2 * half + 1] *= shrink;
    }
#pragma unroll
    for (int n = 0; n < kRows / 16; ++n)
      AddProduct<width>(scores[n], v + 16 * n * kPitch<width>, sums);
    __syncthreads();
  }
  total[0] = RowSum(total[0]), total[1] = RowSum(total[1]);
  WriteStrip<width>(at, sums, {1 / total[0], 1 / total[1]}, at.stride, args.out + at.in_out);
  for (int half = 0; half < 2; ++half) {
    const std::int64_t t = at.tile * kRows + FirstOfWarp() + RowOf(2 * half);
    if (Lane() % 4 == 0 && t < at.time)
      args.log_sum_exp[at.head * at.time + t] = top[half] * scale + logf(total[half]);
  }
}

// What the backward pass knows of a query, by its position. Zeros behind the end of the sequence,
// as are its rows.
struct OfQuery {
  float log2_sum_exp, delta;
};
template <typename T>
__device__ OfQuery OfQueryAt(const AttentionGrads<T>& b, const HeadTile& at, std::int64_t t) {
  if (t >= at.time) return {0, 0};
  const std::int64_t i = at.head * at.time + t;
  return {b.args.log_sum_exp[i] * kLog2E, b.delta[i]};
}

// A block has a tile of keys, and goes through the queries that see them.
template <int width, typename T>
__global__ void __launch_bounds__(kTileThreads, kBlocks<width>)
    TensorKeyGradKernel(AttentionGrads<T> b) {
  const auto at = TileOfBlock<kRows>(b.args.shape);
  auto* q = BlockMemory<T>();
  T* dout = q + kTileNumbers<width>;
  auto* of_query = reinterpret_cast<OfQuery*>(dout + kTileNumbers<width>);
  const T* qkv = b.args.qkv + at.in_qkv;
  const float scale = 1 / sqrtf(static_cast<float>(at.width)), scale2 = scale * kLog2E;
  Strip<width> keys, values;
  ReadOwn<width>(at, qkv + at.stride, 3 * at.stride, qkv + 2 * at.stride, 3 * at.stride, q, keys,
                 values);
  Sums<width> dk = {}, dv = {};
  for (std::int64_t tile = at.tile; tile * kRows < at.time; ++tile) {
    __syncthreads();
    ReadTile<width>(at, qkv, 3 * at.stride, tile, q);
    ReadTile<width>(at, b.args.dout + at.in_out, at.stride, tile, dout);
    if (threadIdx.x < kRows)
      of_query[threadIdx.x] = OfQueryAt(b, at, tile * kRows + static_cast<int>(threadIdx.x));
    __syncthreads();
#pragma unroll 1
    for (int n = 0; n < kRows / 16; ++n) {
      Square weights, gradients;
      Dots<width>(keys, q + 16 * n * kPitch<width>, weights);
      Dots<width>(values, dout + 16 * n * kPitch<width>, gradients);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int query = 16 * n + i / 4 * 8 + ColumnOf(i % 4);
        const bool seen = tile > at.tile || query >= FirstOfWarp() + RowOf(i % 4);
        const OfQuery& of = of_query[query];
        float &p = weights[i / 4][i % 4], &dp = gradients[i / 4][i % 4];
        p = seen ? exp2f(p * scale2 - of.log2_sum_exp) : 0;
        dp = p * (dp - of.delta) * scale;
      }
      AddProduct<width>(weights, dout + 16 * n * kPitch<width>, dv);
      AddProduct<width>(gradients, q + 16 * n * kPitch<width>, dk);
    }
  }
  T* dqkv = b.args.dqkv + at.in_qkv;
  WriteStrip<width>(at, dk, {1, 1}, 3 * at.stride, dqkv + at.stride);
  WriteStrip<width>(at, dv, {1, 1}, 3 * at.stride, dqkv + 2 * at.stride);
}

// A block has a tile of queries, and goes through the keys that they see.
template <int width, typename T>
__global__ void __launch_bounds__(kTileThreads, kBlocks<width>)
    TensorQueryGradKernel(AttentionGrads<T> b) {
  const auto at = TileOfBlock<kRows>(b.args.shape);
  auto* k = BlockMemory<T>();
  T* v = k + kTileNumbers<width>;
  const T* qkv = b.args.qkv + at.in_qkv;
  const float scale = 1 / sqrtf(static_cast<float>(at.width)), scale2 = scale * kLog2E;
  Strip<width> queries, douts;
  ReadOwn<width>(at, qkv, 3 * at.stride, b.args.dout + at.in_out, at.stride, k, queries, douts);
  const std::int64_t first = at.tile * kRows + FirstOfWarp();
  const OfQuery of_rows[2] = {OfQueryAt(b, at, first + RowOf(0)),
                              OfQueryAt(b, at, first + RowOf(2))};
  Sums<width> dq = {};
  for (std::int64_t tile = 0; tile <= at.tile; ++tile) {
    __syncthreads();
    ReadTile<width>(at, qkv + at.stride, 3 * at.stride, tile, k);
    ReadTile<width>(at, qkv + 2 * at.stride, 3 * at.stride, tile, v);
    __syncthreads();
#pragma unroll 1
    for (int n = 0; n < kRows / 16; ++n) {
      Square weights, gradients;
      Dots<width>(queries, k + 16 * n * kPitch<width>, weights);
      Dots<width>(douts, v + 16 * n * kPitch<width>, gradients);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int key = 16 * n + i / 4 * 8 + ColumnOf(i % 4);
        const bool seen = tile < at.tile || key <= FirstOfWarp() + RowOf(i % 4);
        const OfQuery& of = of_rows[i / 2 % 2];
        float& dp = gradients[i / 4][i % 4];
        const float p = seen ? exp2f(weights[i / 4][i % 4] * scale2 - of.log2_sum_exp) : 0;
        dp = p * (dp - of.delta) * scale;
      }
      AddProduct<width>(gradients, k + 16 * n * kPitch<width>, dq);
    }
  }
  WriteStrip<width>(at, dq, {1, 1}, 3 * at.stride, b.args.dqkv + at.in_qkv);
}

template <int width, typename T>
Geometry TensorGeometry(const AttentionShape& s, std::size_t more_bytes) {
  return {.blocks = s.batch * s.heads * BlocksFor(s.time, kRows),
          .threads = kTileThreads,
          .block_bytes = 2 * kTileNumbers<width> * sizeof(T) + more_bytes};
}

// use(the width that a head's numbers are filled up to).
template <typename Use>
void WithWidth(const AttentionShape& s, const Use& use) {
  if (s.head_width <= 64) {
    use(std::integral_constant<int, 64>());
  } else {
    use(std::integral_constant<int, 128>());
  }
}

bool Fits(const AttentionShape& s, std::initializer_list<const void*> arrays) {
  for (const void* array : arrays) {
    if (reinterpret_cast<std::uintptr_t>(array) % sizeof(Eight) != 0) return false;
  }
  return s.head_width <= 128 && s.head_width % 8 == 0;
}

}  // namespace

template <typename T>
bool FitsTensorCores(const AttentionForwardArgs<T>& args) {
  return Fits(args.shape, {args.qkv, args.out});
}
template <typename T>
bool FitsTensorCores(const AttentionBackwardArgs<T>& args) {
  return Fits(args.shape, {args.qkv, args.dout, args.dqkv});
}

template <typename T>
void TensorAttentionForward(const Launch& launch, const AttentionForwardArgs<T>& args) {
  WithWidth(args.shape, [&]<int width>(std::integral_constant<int, width>) {
    LaunchKernel(launch, TensorForwardKernel<width, T>, TensorGeometry<width, T>(args.shape, 0),
                 args);
  });
}

template <typename T>
void TensorAttentionBackward(const Launch& launch, const AttentionGrads<T>& grads) {
  const AttentionShape& s = grads.args.shape;
  WithWidth(s, [&]<int width>(std::integral_constant<int, width>) {
    LaunchKernel(launch, TensorKeyGradKernel<width, T>,
                 TensorGeometry<width, T>(s, kRows * sizeof(OfQuery)), grads);
    LaunchKernel(launch, TensorQueryGradKernel<width, T>, TensorGeometry<width, T>(s, 0), grads);
  });
}

#define REGROUP_INSTANTIATE(T)                                                            \
  template bool FitsTensorCores<T>(const AttentionForwardArgs<T>&);                       \
  template bool FitsTensorCores<T>(const AttentionBackwardArgs<T>&);                      \
  template void TensorAttentionForward<T>(const Launch&, const AttentionForwardArgs<T>&); \
  template void TensorAttentionBackward<T>(const Launch&, const AttentionGrads<T>&);
REGROUP_INSTANTIATE(BFloat16)
REGROUP_INSTANTIATE(Half)

}  // namespace regroup::worker::cuda
