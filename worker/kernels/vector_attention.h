// Causal attention, one (sequence, head) per task, block of queries by block of queries: scores
// never exist for more than one block, and backward computes them again from the kept log-sum-exp.
// Same linkage rules as vector_kernels.h.
#pragma once

#include "worker/kernels/vector_kernels.h"

namespace regroup::worker {
namespace {

struct Strided {  // Element (row, column) of a matrix that is read one number at a time.
  const float* data;
  std::int64_t row_step, column_step;
};

// c (R rows, V vectors) (+)= a (R, k) · b (k, V vectors), sums held in registers.
template <int R, int V, bool kAdd>
REGROUP_INLINE void Tile(std::int64_t k, const Strided& a, const float* b, std::int64_t b_stride,
                         float* c, std::int64_t c_stride) {
  Vec sum[R][V];
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) sum[r][v] = kAdd ? Load(c + r * c_stride + v * kLanes) : Vec{};
  }
  for (std::int64_t p = 0; p < k; ++p) {
    Vec row[V];
    for (int v = 0; v < V; ++v) row[v] = Load(b + p * b_stride + v * kLanes);
    for (int r = 0; r < R; ++r) {
      const float factor = a.data[r * a.row_step + p * a.column_step];
      for (int v = 0; v < V; ++v) sum[r][v] += factor * row[v];
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) Store(c + r * c_stride + v * kLanes, sum[r][v]);
  }
}

template <int V, bool kAdd>
void TileRows(std::int64_t m, std::int64_t k, const Strided& a, const float* b,
              std::int64_t b_stride, float* c, std::int64_t c_stride) {
  std::int64_t r = 0;
  const auto at = [&](std::int64_t row) {
    return Strided{a.data + row * a.row_step, a.row_step, a.column_step};
  };
  for (; r + 4 <= m; r += 4) Tile<4, V, kAdd>(k, at(r), b, b_stride, c + r * c_stride, c_stride);
  for (; r < m; ++r) Tile<1, V, kAdd>(k, at(r), b, b_stride, c + r * c_stride, c_stride);
}

// c (m, n) (+)= a (m, k) · b (k, n). REQUIRES: n a multiple of kPadFloats.
template <bool kAdd>
void SmallGemm(std::int64_t m, std::int64_t n, std::int64_t k, const Strided& a, const float* b,
               std::int64_t b_stride, float* c, std::int64_t c_stride) {
  constexpr int kWide = kVectorBytes == 64 ? 4 : 2;  // 16 sums of 32 registers, 8 of 16.
  std::int64_t j = 0;
  for (; j + kWide * kLanes <= n; j += kWide * kLanes) {
    TileRows<kWide, kAdd>(m, k, a, b + j, b_stride, c + j, c_stride);
  }
  for (; j < n; j += kLanes) TileRows<1, kAdd>(m, k, a, b + j, b_stride, c + j, c_stride);
}

// Copies (rows, width) into rows padded with zeros.
template <typename E>
void PackRows(std::int64_t rows, std::int64_t width, const E* from, std::int64_t stride,
              float* to) {
  const std::int64_t padded = PadFloats(width);
  for (std::int64_t r = 0; r < rows; ++r) {
    Map(0, width, from + r * stride, to + r * padded, [](Vec v) { return v; });
    for (std::int64_t d = width; d < padded; ++d) to[r * padded + d] = 0;
  }
}

// Copies (rows, width) to (width, padded rows).
template <typename E>
void PackColumns(std::int64_t rows, std::int64_t width, const E* from, std::int64_t stride,
                 float* to) {
  const std::int64_t padded = PadFloats(rows);
  for (std::int64_t first = 0; first < padded; first += kPadFloats) {
    const std::int64_t n = Smaller(kPadFloats, rows - first);
    for (std::int64_t d = 0; d < width; ++d) {
      float column[kPadFloats] = {};
      for (std::int64_t i = 0; i < n; ++i) column[i] = Get(from + (first + i) * stride + d);
      __builtin_memcpy(to + d * padded + first, column, sizeof(column));
    }
  }
}

// What one task works on: one head of one sequence.
struct AttentionTask {
  std::int64_t time, width, padded, length;  // Head width, padded; padded time.
  std::int64_t qkv_stride, out_stride;
  std::int64_t qkv_at, out_at, lse_at;  // Offsets of position 0.
  std::int64_t key_offset;              // Of keys from queries, and of values from keys.
  float scale;
};

REGROUP_INLINE AttentionTask TaskOf(const AttentionShape& s, std::int64_t task) {
  const std::int64_t b = task / s.heads, h = task % s.heads, width = s.width();
  return {.time = s.time,
          .width = s.head_width,
          .padded = PadFloats(s.head_width),
          .length = PadFloats(s.time),
          .qkv_stride = 3 * width,
          .out_stride = width,
          .qkv_at = b * s.time * 3 * width + h * s.head_width,
          .out_at = b * s.time * width + h * s.head_width,
          .lse_at = task * s.time,
          .key_offset = width,
          .scale = 1.0f / __builtin_sqrtf(static_cast<float>(s.head_width))};
}

// Scores of queries [first, last) against keys [0, last), and nothing beyond a query's own
// position.
void MaskedScores(const AttentionTask& t, std::int64_t first, std::int64_t last,
                  const Strided& queries, const float* keys_by_column, float* scores) {
  const std::int64_t columns = PadFloats(last);
  SmallGemm<false>(last - first, columns, t.width, queries, keys_by_column, t.length, scores,
                   t.length);
  for (std::int64_t r = first; r < last; ++r) {
    float* row = scores + (r - first) * t.length;
    for (std::int64_t j = r + 1; j < columns; ++j) row[j] = -1e30f;
  }
}

// Queries [first, last) as floats: where they are, or packed.
template <typename E>
Strided QueriesOf(const AttentionTask& t, std::int64_t first, std::int64_t last, const E* q,
                  float* packed) {
  if constexpr (sizeof(E) == 4) {
    return {q + first * t.qkv_stride, t.qkv_stride, 1};
  } else {
    PackRows(last - first, t.width, q + first * t.qkv_stride, t.qkv_stride, packed);
    return {packed, t.padded, 1};
  }
}

template <typename E>
void ForwardTask(const AttentionTask& t, const E* qkv, E* out, float* log_sum_exp, float* scratch) {
  const E* q = qkv + t.qkv_at;
  float* keys = scratch;
  float* values = keys + t.padded * t.length;
  float* scores = values + t.padded * t.length;
  float* block = scores + kQueryBlock * t.length;
  float* queries = block + kQueryBlock * t.padded;
  PackColumns(t.time, t.width, q + t.key_offset, t.qkv_stride, keys);
  PackRows(t.time, t.width, q + 2 * t.key_offset, t.qkv_stride, values);
  for (std::int64_t first = 0; first < t.time; first += kQueryBlock) {
    const std::int64_t last = Smaller(t.time, first + kQueryBlock);
    MaskedScores(t, first, last, QueriesOf(t, first, last, q, queries), keys, scores);
    float inverse[kQueryBlock];
    for (std::int64_t r = first; r < last; ++r) {
      float* row = scores + (r - first) * t.length;
      const float top = RowMax(r + 1, row) * t.scale;
      const float total = SumRow(PadFloats(last), [&](std::int64_t c, std::int64_t) {
        const Vec p = Exp(Load(row + c) * t.scale - top);
        Store(row + c, p);
        return p;
      });
      inverse[r - first] = 1.0f / total;
      log_sum_exp[t.lse_at + r] = top + __builtin_logf(total);
    }
    SmallGemm<false>(last - first, t.padded, last, {scores, t.length, 1}, values, t.padded, block,
                     t.padded);
    for (std::int64_t r = first; r < last; ++r) {
      Map(0, t.width, block + (r - first) * t.padded, out + t.out_at + r * t.out_stride,
          [&](Vec sum) { return sum * inverse[r - first]; });
    }
  }
}

template <typename E>
void AttentionForward(const AttentionForwardArgs<E>& args, void* workspace) {
  auto* scratch = static_cast<float*>(workspace);
  const std::int64_t of_thread = AttentionScratchOfThread(args.shape.time, args.shape.head_width);
  ParallelFor(args.shape.batch * args.shape.heads, [&](std::int64_t task, int thread) {
    ForwardTask(TaskOf(args.shape, task), args.qkv, args.out, args.log_sum_exp,
                scratch + thread * of_thread);
  });
}

struct BackwardScratch {
  float *keys_by_column, *values_by_column, *keys;  // (D, T), (D, T), (T, D)
  float *dkeys, *dvalues;                           // (T, D)
  float *weights, *dscores;                         // (block, T)
  float *queries, *dout, *dqueries;                 // (block, D)
};

BackwardScratch CutScratch(const AttentionTask& t, float* scratch) {
  const std::int64_t side = t.padded * t.length;
  float* scores = scratch + 5 * side;
  float* blocks = scores + 2 * kQueryBlock * t.length;
  const std::int64_t block = kQueryBlock * t.padded;
  return {scratch,
          scratch + side,
          scratch + 2 * side,
          scratch + 3 * side,
          scratch + 4 * side,
          scores,
          scores + kQueryBlock * t.length,
          blocks,
          blocks + block,
          blocks + 2 * block};
}

// weights become softmax(scores); dscores, which hold dout · values^T, become the scores' gradient.
template <typename E>
void SoftmaxBackward(const AttentionTask& t, std::int64_t first, std::int64_t last, const E* out,
                     const E* dout, const float* log_sum_exp, const BackwardScratch& s) {
  for (std::int64_t r = first; r < last; ++r) {
    const E* o = out + t.out_at + r * t.out_stride;
    const E* d = dout + t.out_at + r * t.out_stride;
    const float delta = SumRow(t.width, [&](std::int64_t c, std::int64_t n) {
      return LoadUpTo(o + c, n) * LoadUpTo(d + c, n);
    });
    float* weights = s.weights + (r - first) * t.length;
    float* dscores = s.dscores + (r - first) * t.length;
    const float lse = log_sum_exp[t.lse_at + r];
    for (std::int64_t c = 0; c < PadFloats(last); c += kLanes) {
      const Vec p = Exp(Load(weights + c) * t.scale - lse);
      Store(weights + c, p);
      Store(dscores + c, p * (Load(dscores + c) - delta) * t.scale);
    }
  }
}

// Rows of keys that this block of queries is the first to reach are written, the earlier ones added
// to.
void AddToKeys(std::int64_t first, std::int64_t last, const AttentionTask& t, const float* factors,
               const float* rows, float* sums) {
  const std::int64_t queries = last - first;
  SmallGemm<true>(first, t.padded, queries, {factors, 1, t.length}, rows, t.padded, sums, t.padded);
  SmallGemm<false>(queries, t.padded, queries, {factors + first, 1, t.length}, rows, t.padded,
                   sums + first * t.padded, t.padded);
}

template <typename E>
void UnpackRows(std::int64_t rows, const AttentionTask& t, const float* from, E* to) {
  for (std::int64_t r = 0; r < rows; ++r) {
    Map(0, t.width, from + r * t.padded, to + r * t.qkv_stride, [](Vec v) { return v; });
  }
}

template <typename E>
void BackwardTask(const AttentionTask& t, const E* qkv, const E* out, const float* log_sum_exp,
                  const E* dout, E* dqkv, float* scratch) {
  const BackwardScratch s = CutScratch(t, scratch);
  const E* q = qkv + t.qkv_at;
  E* dq = dqkv + t.qkv_at;
  PackColumns(t.time, t.width, q + t.key_offset, t.qkv_stride, s.keys_by_column);
  PackColumns(t.time, t.width, q + 2 * t.key_offset, t.qkv_stride, s.values_by_column);
  PackRows(t.time, t.width, q + t.key_offset, t.qkv_stride, s.keys);
  for (std::int64_t first = 0; first < t.time; first += kQueryBlock) {
    const std::int64_t last = Smaller(t.time, first + kQueryBlock), queries = last - first;
    PackRows(queries, t.width, q + first * t.qkv_stride, t.qkv_stride, s.queries);
    PackRows(queries, t.width, dout + t.out_at + first * t.out_stride, t.out_stride, s.dout);
    MaskedScores(t, first, last, {s.queries, t.padded, 1}, s.keys_by_column, s.weights);
    SmallGemm<false>(queries, PadFloats(last), t.width, {s.dout, t.padded, 1}, s.values_by_column,
                     t.length, s.dscores, t.length);
    SoftmaxBackward(t, first, last, out, dout, log_sum_exp, s);
    AddToKeys(first, last, t, s.weights, s.dout, s.dvalues);
    AddToKeys(first, last, t, s.dscores, s.queries, s.dkeys);
    SmallGemm<false>(queries, t.padded, last, {s.dscores, t.length, 1}, s.keys, t.padded,
                     s.dqueries, t.padded);
    UnpackRows(queries, t, s.dqueries, dq + first * t.qkv_stride);
  }
  UnpackRows(t.time, t, s.dkeys, dq + t.key_offset);
  UnpackRows(t.time, t, s.dvalues, dq + 2 * t.key_offset);
}

template <typename E>
void AttentionBackward(const AttentionBackwardArgs<E>& args, void* workspace) {
  auto* scratch = static_cast<float*>(workspace);
  const std::int64_t of_thread = AttentionScratchOfThread(args.shape.time, args.shape.head_width);
  ParallelFor(args.shape.batch * args.shape.heads, [&](std::int64_t task, int thread) {
    BackwardTask(TaskOf(args.shape, task), args.qkv, args.out, args.log_sum_exp, args.dout,
                 args.dqkv, scratch + thread * of_thread);
  });
}

// Puts these kernels into the table; the others stay as they are.
template <typename E>
void FillWithVectorKernels(KernelTable<E>& table) {
  table.bias_grad = BiasGrad<E>;
  table.layer_norm_forward = LayerNormForward<E>;
  table.layer_norm_backward = LayerNormBackward<E>;
  table.gelu_forward = GeluForward<E>;
  table.gelu_backward = GeluBackward<E>;
  table.attention_forward = AttentionForward<E>;
  table.attention_backward = AttentionBackward<E>;
  table.embedding_forward = EmbeddingForward<E>;
  table.embedding_backward = EmbeddingBackward<E>;
  table.cross_entropy = CrossEntropy<E>;
  table.round_weights = RoundWeights<E>;
  table.narrow = Narrow<E>;
  table.widen = Widen<E>;
  table.adamw = AdamWUpdate;
  table.sum_squares = SumSquares;
  table.sum = Sum;
  table.square_blocks = SquareBlocks;
}

}  // namespace
}  // namespace regroup::worker
