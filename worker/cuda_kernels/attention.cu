// Causal attention that never holds T × T (Dao et al. 2022, 2023), without tensor cores: tiles of
// queries against tiles of keys, some threads to a row. The backward pass computes the scores
// again, once for the keys' and values' gradients and once for the queries', so that nothing is
// added by two blocks.
#include "worker/cuda_kernels/attention.cuh"
#include "worker/cuda_kernels/block.cuh"
#include "worker/cuda_kernels/block_memory.cuh"

namespace regroup::worker::cuda {
namespace {

// `tile` rows of queries or keys, each of `of_row` threads, which have at most `columns` numbers of
// it each: every so-manieth one.
template <int tile, int columns, int of_row>
struct Tiling {
  static constexpr int kTile = tile, kColumns = columns, kOfRow = of_row;
  static constexpr int kThreads = tile * of_row, kScoresOfThread = tile / of_row;

  __device__ static int Row() { return static_cast<int>(threadIdx.x) / of_row; }
  __device__ static int Part() { return static_cast<int>(threadIdx.x) % of_row; }
};

// A tile's rows of width + 1 floats in the memory of the block, so that a column of them lies in
// different banks; zeros behind the end of the sequence.
template <typename Tiling, typename T>
__device__ void ReadRows(const HeadTile& at, const T* first, std::int64_t stride,
                         std::int64_t which, float* rows) {
  const std::int64_t begin = which * Tiling::kTile;
  for (int i = static_cast<int>(threadIdx.x); i < Tiling::kTile * at.width; i += Tiling::kThreads) {
    const int r = i / at.width, d = i % at.width;
    rows[r * (at.width + 1) + d] =
        begin + r < at.time ? Widened(first[(begin + r) * stride + d]) : 0;
  }
}

__device__ inline float Dot(const float* a, const float* b, int width) {
  float sum = 0;
#pragma unroll 4
  for (int d = 0; d < width; ++d) sum += a[d] * b[d];
  return sum;
}

// sums[j] += the sum over a tile's rows of weights[row] · rows[row], of this thread's columns.
template <typename Tiling>
__device__ void AddWeighted(const float* weights, const float* rows, int width, float* sums) {
#pragma unroll 2
  for (int r = 0; r < Tiling::kTile; ++r) {
    const float weight = weights[r];
    const float* row = rows + r * (width + 1);
#pragma unroll
    for (int j = 0; j < Tiling::kColumns; ++j) {
      const int d = Tiling::Part() + j * Tiling::kOfRow;
      if (d < width) sums[j] += weight * row[d];
    }
  }
}

template <typename Tiling, typename T>
__device__ void WriteRow(const float* sums, int width, T* row) {
#pragma unroll
  for (int j = 0; j < Tiling::kColumns; ++j) {
    const int d = Tiling::Part() + j * Tiling::kOfRow;
    if (d < width) row[d] = Narrowed<T>(sums[j]);
  }
}

// Of the threads of a row, which are neighbours in a warp.
template <typename Tiling>
__device__ float RowMax(float x) {
  for (int lanes = Tiling::kOfRow / 2; lanes > 0; lanes /= 2)
    x = fmaxf(x, __shfl_xor_sync(kWholeWarp, x, lanes));
  return x;
}
template <typename Tiling>
__device__ float RowSum(float x) {
  for (int lanes = Tiling::kOfRow / 2; lanes > 0; lanes /= 2)
    x += __shfl_xor_sync(kWholeWarp, x, lanes);
  return x;
}

template <typename Tiling, typename T>
__global__ void __launch_bounds__(Tiling::kThreads, 2) ForwardKernel(AttentionForwardArgs<T> args) {
  constexpr int kTile = Tiling::kTile;
  const auto at = TileOfBlock<kTile>(args.shape);
  auto* q = BlockMemory<float>();               // (kTile, width + 1)
  float* kv = q + kTile * (at.width + 1);       // The same; keys, then values.
  float* scores = kv + kTile * (at.width + 1);  // (kTile, kTile + 1)
  const T* qkv = args.qkv + at.in_qkv;
  const std::int64_t t = at.tile * kTile + Tiling::Row();
  const float scale = 1 / sqrtf(static_cast<float>(at.width));
  float* own_scores = scores + Tiling::Row() * (kTile + 1);
  float top = -INFINITY, total = 0, sums[Tiling::kColumns] = {};
  ReadRows<Tiling>(at, qkv, 3 * at.stride, at.tile, q);
  for (std::int64_t tile = 0; tile <= at.tile; ++tile) {
    ReadRows<Tiling>(at, qkv + at.stride, 3 * at.stride, tile, kv);
    __syncthreads();
    float score[Tiling::kScoresOfThread], tile_top = -INFINITY;
#pragma unroll
    for (int i = 0; i < Tiling::kScoresOfThread; ++i) {
      const int key = Tiling::Part() + i * Tiling::kOfRow;
      const std::int64_t u = tile * kTile + key;
      const float dot =
          Dot(q + Tiling::Row() * (at.width + 1), kv + key * (at.width + 1), at.width) * scale;
      score[i] = u <= t ? dot : -INFINITY;
      tile_top = fmaxf(tile_top, score[i]);
    }
    const float new_top = fmaxf(top, RowMax<Tiling>(tile_top)), shrink = expf(top - new_top);
    float tile_total = 0;
#pragma unroll
    for (int i = 0; i < Tiling::kScoresOfThread; ++i) {
      const float p = expf(score[i] - new_top);
      own_scores[Tiling::Part() + i * Tiling::kOfRow] = p;
      tile_total += p;
    }
    total = total * shrink + RowSum<Tiling>(tile_total);
    top = new_top;
#pragma unroll
    for (int j = 0; j < Tiling::kColumns; ++j) sums[j] *= shrink;
    __syncthreads();
    ReadRows<Tiling>(at, qkv + 2 * at.stride, 3 * at.stride, tile, kv);
    __syncthreads();
    AddWeighted<Tiling>(own_scores, kv, at.width, sums);
    __syncthreads();
  }
  if (t >= at.time) return;
#pragma unroll
  for (int j = 0; j < Tiling::kColumns; ++j) sums[j] /= total;
  WriteRow<Tiling>(sums, at.width, args.out + at.in_out + t * at.stride);
  if (Tiling::Part() == 0) args.log_sum_exp[at.head * at.time + t] = top + logf(total);
}

// One warp has a position of a head.
template <typename T>
__global__ void DeltaKernel(AttentionGrads<T> b) {
  const AttentionShape& s = b.args.shape;
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (i >= s.batch * s.heads * s.time) return;
  const std::int64_t t = i % s.time, head = i / s.time % s.heads, batch = i / s.time / s.heads;
  const std::int64_t at = ((batch * s.time + t) * s.heads + head) * s.head_width;
  float sum = 0;
  for (std::int64_t d = threadIdx.x % kWarp; d < s.head_width; d += kWarp)
    sum += Widened(b.args.out[at + d]) * Widened(b.args.dout[at + d]);
  sum = WarpSum(sum);
  if (threadIdx.x % kWarp == 0) b.delta[i] = sum;
}

// The four tiles that a block of the backward pass has in its memory, and the rows of scores.
template <typename Tiling>
struct BackwardTiles {
  float *q, *k, *v, *dout;     // (kTile, width + 1)
  float *weights, *gradients;  // (kTile, kTile + 1): of the probabilities and of the scores.
  __device__ explicit BackwardTiles(int width) {
    const int rows = Tiling::kTile * (width + 1);
    q = BlockMemory<float>(), k = q + rows, v = k + rows, dout = v + rows, weights = dout + rows;
    gradients = weights + Tiling::kTile * (Tiling::kTile + 1);
  }
};

struct ScoreGrad {
  float weight, gradient;
};

// Of the query at row q of its tile, position t, and the key at row k of its, position u.
template <typename Tiling, typename T>
__device__ ScoreGrad ScoreGradAt(const AttentionGrads<T>& b, const HeadTile& at,
                                 const BackwardTiles<Tiling>& tiles, int q, std::int64_t t, int k,
                                 std::int64_t u) {
  if (u > t || t >= at.time) return {0, 0};
  const int row = at.width + 1;
  const float scale = 1 / sqrtf(static_cast<float>(at.width));
  const float dot = Dot(tiles.q + q * row, tiles.k + k * row, at.width) * scale;
  const float p = expf(dot - b.args.log_sum_exp[at.head * at.time + t]);
  const float dp = Dot(tiles.dout + q * row, tiles.v + k * row, at.width);
  return {p, p * (dp - b.delta[at.head * at.time + t]) * scale};
}

// A block has a tile of keys, and goes through the queries that see them.
template <typename Tiling, typename T>
__global__ void __launch_bounds__(Tiling::kThreads, 2) KeyGradKernel(AttentionGrads<T> b) {
  constexpr int kTile = Tiling::kTile;
  const auto at = TileOfBlock<kTile>(b.args.shape);
  const BackwardTiles<Tiling> tiles(at.width);
  const T* qkv = b.args.qkv + at.in_qkv;
  const std::int64_t u = at.tile * kTile + Tiling::Row();
  float *weights = tiles.weights + Tiling::Row() * (kTile + 1),
        *gradients = tiles.gradients + Tiling::Row() * (kTile + 1);
  float dk[Tiling::kColumns] = {}, dv[Tiling::kColumns] = {};
  ReadRows<Tiling>(at, qkv + at.stride, 3 * at.stride, at.tile, tiles.k);
  ReadRows<Tiling>(at, qkv + 2 * at.stride, 3 * at.stride, at.tile, tiles.v);
  for (std::int64_t tile = at.tile; tile * kTile < at.time; ++tile) {
    ReadRows<Tiling>(at, qkv, 3 * at.stride, tile, tiles.q);
    ReadRows<Tiling>(at, b.args.dout + at.in_out, at.stride, tile, tiles.dout);
    __syncthreads();
#pragma unroll 1
    for (int i = 0; i < Tiling::kScoresOfThread; ++i) {
      const int query = Tiling::Part() + i * Tiling::kOfRow;
      const ScoreGrad score =
          ScoreGradAt(b, at, tiles, query, tile * kTile + query, Tiling::Row(), u);
      weights[query] = score.weight, gradients[query] = score.gradient;
    }
    __syncthreads();
    AddWeighted<Tiling>(weights, tiles.dout, at.width, dv);
    AddWeighted<Tiling>(gradients, tiles.q, at.width, dk);
    __syncthreads();
  }
  if (u >= at.time) return;
  T* dqkv = b.args.dqkv + at.in_qkv + u * 3 * at.stride;
  WriteRow<Tiling>(dk, at.width, dqkv + at.stride);
  WriteRow<Tiling>(dv, at.width, dqkv + 2 * at.stride);
}

// A block has a tile of queries, and goes through the keys that they see.
template <typename Tiling, typename T>
__global__ void __launch_bounds__(Tiling::kThreads, 2) QueryGradKernel(AttentionGrads<T> b) {
  constexpr int kTile = Tiling::kTile;
  const auto at = TileOfBlock<kTile>(b.args.shape);
  const BackwardTiles<Tiling> tiles(at.width);
  const T* qkv = b.args.qkv + at.in_qkv;
  const std::int64_t t = at.tile * kTile + Tiling::Row();
  float* gradients = tiles.gradients + Tiling::Row() * (kTile + 1);
  float dq[Tiling::kColumns] = {};
  ReadRows<Tiling>(at, qkv, 3 * at.stride, at.tile, tiles.q);
  ReadRows<Tiling>(at, b.args.dout + at.in_out, at.stride, at.tile, tiles.dout);
  for (std::int64_t tile = 0; tile <= at.tile; ++tile) {
    ReadRows<Tiling>(at, qkv + at.stride, 3 * at.stride, tile, tiles.k);
    ReadRows<Tiling>(at, qkv + 2 * at.stride, 3 * at.stride, tile, tiles.v);
    __syncthreads();
#pragma unroll 1
    for (int i = 0; i < Tiling::kScoresOfThread; ++i) {
      const int key = Tiling::Part() + i * Tiling::kOfRow;
      gradients[key] =
          ScoreGradAt(b, at, tiles, Tiling::Row(), t, key, tile * kTile + key).gradient;
    }
    __syncthreads();
    AddWeighted<Tiling>(gradients, tiles.k, at.width, dq);
    __syncthreads();
  }
  if (t < at.time) WriteRow<Tiling>(dq, at.width, b.args.dqkv + at.in_qkv + t * 3 * at.stride);
}

// What a block needs for so many tiles of rows and of scores.
template <typename Tiling>
Geometry TileGeometry(const AttentionShape& s, int of_rows, int of_scores) {
  const std::int64_t floats = of_rows * Tiling::kTile * (s.head_width + 1) +
                              of_scores * Tiling::kTile * (Tiling::kTile + 1);
  return {.blocks = s.batch * s.heads * BlocksFor(s.time, Tiling::kTile),
          .threads = Tiling::kThreads,
          .block_bytes = static_cast<std::size_t>(floats) * sizeof(float)};
}

// use(a Tiling) for heads of this width: the block's memory stays below 99 KiB, which every GPU
// since sm_80 has.
template <typename Use>
void WithTiling(const Launch& launch, const AttentionShape& shape, const Use& use) {
  if (shape.head_width <= 64) {
    use(Tiling<32, 16, 4>());
  } else if (shape.head_width <= 128) {
    use(Tiling<32, 32, 4>());
  } else if (shape.head_width <= kMostHeadWidth) {
    use(Tiling<16, 32, 8>());
  } else {
    Refuse(launch.stream, "attention on a GPU: a head has more than 256 numbers");
  }
}

}  // namespace

template <typename T>
void AttentionForward(const Launch& launch, const AttentionForwardArgs<T>& args) {
  if constexpr (sizeof(T) == 2) {
    if (FitsTensorCores(args)) return TensorAttentionForward(launch, args);
  }
  WithTiling(launch, args.shape, [&]<typename Tiling>(Tiling) {
    LaunchKernel(launch, ForwardKernel<Tiling, T>, TileGeometry<Tiling>(args.shape, 2, 1), args);
  });
}

template <typename T>
void AttentionBackward(const Launch& launch, const AttentionBackwardArgs<T>& args) {
  const AttentionShape& s = args.shape;
  const AttentionGrads<T> backward{args, static_cast<float*>(launch.workspace)};
  const auto find_deltas = [&] {
    LaunchKernel(launch, DeltaKernel<T>,
                 {.blocks = BlocksFor(s.batch * s.heads * s.time, kWarps), .threads = kThreads},
                 backward);
  };
  if constexpr (sizeof(T) == 2) {
    if (FitsTensorCores(args)) {
      find_deltas();
      return TensorAttentionBackward(launch, backward);
    }
  }
  WithTiling(launch, s, [&]<typename Tiling>(Tiling) {
    find_deltas();
    LaunchKernel(launch, KeyGradKernel<Tiling, T>, TileGeometry<Tiling>(s, 4, 2), backward);
    LaunchKernel(launch, QueryGradKernel<Tiling, T>, TileGeometry<Tiling>(s, 4, 2), backward);
  });
}

#define REGROUP_INSTANTIATE(T)                                                      \
  template void AttentionForward<T>(const Launch&, const AttentionForwardArgs<T>&); \
  template void AttentionBackward<T>(const Launch&, const AttentionBackwardArgs<T>&);
REGROUP_FOR_NUMBER_TYPES(REGROUP_INSTANTIATE)

}  // namespace regroup::worker::cuda
