// The fast kernels, written once and compiled once per instruction set by the isa_*.cc files.
// vectors.h says why nothing here may have external linkage.
#pragma once

#include "worker/kernels/fixed_chunks.h"
#include "worker/kernels/kernels.h"
#include "worker/kernels/parallel_for.h"
#include "worker/kernels/vector_math.h"

namespace regroup::worker {
namespace {

REGROUP_INLINE std::int64_t Smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

// body(begin, end, thread) over [0, elements) in pieces of `piece`.
template <typename Body>
REGROUP_INLINE void ParallelPieces(std::int64_t elements, std::int64_t piece, const Body& body) {
  ParallelFor((elements + piece - 1) / piece, [&](std::int64_t task, int thread) {
    body(task * piece, Smaller(elements, (task + 1) * piece), thread);
  });
}

// y[i] = function(x[i]) for whole vectors and the rest.
template <typename X, typename Y, typename Function>
REGROUP_INLINE void Map(std::int64_t begin, std::int64_t end, const X* x, Y* y,
                        const Function& function) {
  std::int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) Store(y + i, function(Load(x + i)));
  if (i < end) StoreFirst(y + i, function(LoadFirst(x + i, end - i)), end - i);
}

template <typename X, typename Y, typename Z, typename Function>
REGROUP_INLINE void Map(std::int64_t begin, std::int64_t end, const X* x, const Y* y, Z* z,
                        const Function& function) {
  std::int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) Store(z + i, function(Load(x + i), Load(y + i)));
  if (i < end) {
    const std::int64_t n = end - i;
    StoreFirst(z + i, function(LoadFirst(x + i, n), LoadFirst(y + i, n)), n);
  }
}

// total[c] (+)= the sum over chunks of partial[chunk][c], in order of chunks.
void ReduceChunks(std::int64_t chunks, std::int64_t width, const float* partial,
                  std::int64_t partial_stride, float* total, bool add) {
  ParallelPieces(width, 512, [&](std::int64_t begin, std::int64_t end, int) {
    if (!add) __builtin_memset(total + begin, 0, static_cast<std::size_t>(end - begin) * 4);
    for (std::int64_t k = 0; k < chunks; ++k) {
      Map(begin, end, total, partial + k * partial_stride, total,
          [](Vec a, Vec b) { return a + b; });
    }
  });
}

template <typename E>
void BiasGrad(const BiasGradArgs<E>& args, void* workspace) {
  const std::int64_t out = args.out;
  auto* scratch = static_cast<float*>(workspace);
  const std::int64_t chunk = ChunkRows(args.rows);
  ParallelPieces(args.rows, chunk, [&](std::int64_t begin, std::int64_t end, int) {
    float* sum = scratch + begin / chunk * out;
    __builtin_memset(sum, 0, static_cast<std::size_t>(out) * 4);
    std::int64_t r = begin;
    for (; r + 4 <= end; r += 4) {
      const E* a = args.dy + r * out;
      std::int64_t c = 0;
      for (; c + kLanes <= out; c += kLanes) {
        const Vec four =
            (Load(a + c) + Load(a + out + c)) + (Load(a + 2 * out + c) + Load(a + 3 * out + c));
        Store(sum + c, Load(sum + c) + four);
      }
      for (; c < out; ++c) {
        sum[c] += (Get(a + c) + Get(a + out + c)) + (Get(a + 2 * out + c) + Get(a + 3 * out + c));
      }
    }
    for (; r < end; ++r) {
      Map(0, out, sum, args.dy + r * out, sum, [](Vec a, Vec b) { return a + b; });
    }
  });
  ReduceChunks((args.rows + chunk - 1) / chunk, out, scratch, out, args.db, args.add);
}

// The sum of function(x) over a row; function(0) must be 0 in lanes past the end, hence the mask.
template <typename Function>
REGROUP_INLINE float SumRow(std::int64_t width, const Function& function) {
  Vec sum{};
  std::int64_t c = 0;
  for (; c + kLanes <= width; c += kLanes) sum += function(c, kLanes);
  float total = SumLanes(sum);
  if (c < width) {
    const Vec rest = function(c, width - c);
    float lane[kLanes];
    __builtin_memcpy(lane, &rest, sizeof(rest));
    for (std::int64_t i = 0; i < width - c; ++i) total += lane[i];
  }
  return total;
}

template <typename E>
REGROUP_INLINE Vec LoadUpTo(const E* p, std::int64_t n) {
  return n == kLanes ? Load(p) : LoadFirst(p, n);
}
template <typename E>
REGROUP_INLINE void StoreUpTo(E* p, Vec v, std::int64_t n) {
  if (n == kLanes) {
    Store(p, v);
  } else {
    StoreFirst(p, v, n);
  }
}

template <typename E>
void LayerNormRow(std::int64_t width, const E* row, const E* gain, const E* bias, E* y,
                  float* mean_out, float* rstd_out) {
  const float scale = 1.0f / static_cast<float>(width);
  const float mean =
      SumRow(width, [&](std::int64_t c, std::int64_t n) { return LoadUpTo(row + c, n); }) * scale;
  const float variance = SumRow(width,
                                [&](std::int64_t c, std::int64_t n) {
                                  const Vec d = LoadUpTo(row + c, n) - mean;
                                  return d * d;
                                }) *
                         scale;
  const float rstd = 1.0f / __builtin_sqrtf(variance + 1e-5f);
  std::int64_t c = 0;
  for (; c + kLanes <= width; c += kLanes) {
    Store(y + c, (Load(row + c) - mean) * rstd * Load(gain + c) + Load(bias + c));
  }
  for (; c < width; ++c) {
    Put(y + c, (Get(row + c) - mean) * rstd * Get(gain + c) + Get(bias + c));
  }
  *mean_out = mean;
  *rstd_out = rstd;
}

template <typename E>
void LayerNormForward(const LayerNormForwardArgs<E>& args, void* /*workspace*/) {
  const std::int64_t width = args.width;
  ParallelPieces(args.rows, 16, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t r = begin; r < end; ++r) {
      const E* row = args.x + r * width;
      if (args.residual != nullptr) {
        Map(0, width, row, args.residual + r * width, args.sum + r * width,
            [](Vec a, Vec b) { return a + b; });
        row = args.sum + r * width;
      }
      LayerNormRow(width, row, args.gain, args.bias, args.y + r * width, args.mean + r,
                   args.rstd + r);
    }
  });
}

template <typename E>
struct NormRow {  // One row of the backward pass.
  const E *dy, *x, *gain;
  float mean, rstd;
  E* dx;
  float *gain_sum, *bias_sum;  // Of this chunk of rows.
};

template <bool kAddDx, typename E>
void LayerNormRowBackward(std::int64_t width, const NormRow<E>& row) {
  const float scale = 1.0f / static_cast<float>(width);
  const auto normed = [&](std::int64_t c, std::int64_t n) {
    return (LoadUpTo(row.x + c, n) - row.mean) * row.rstd;
  };
  const auto scaled = [&](std::int64_t c, std::int64_t n) {
    return LoadUpTo(row.dy + c, n) * LoadUpTo(row.gain + c, n);
  };
  const float mean_d = SumRow(width, scaled) * scale;
  const float mean_dn =
      SumRow(width, [&](std::int64_t c, std::int64_t n) { return scaled(c, n) * normed(c, n); }) *
      scale;
  const auto finish = [&](std::int64_t c, std::int64_t n) {
    const Vec hat = normed(c, n), dy = LoadUpTo(row.dy + c, n);
    Vec dx = (scaled(c, n) - mean_d - hat * mean_dn) * row.rstd;
    if (kAddDx) dx += LoadUpTo(row.dx + c, n);
    StoreUpTo(row.dx + c, dx, n);
    StoreUpTo(row.gain_sum + c, LoadUpTo(row.gain_sum + c, n) + dy * hat, n);
    StoreUpTo(row.bias_sum + c, LoadUpTo(row.bias_sum + c, n) + dy, n);
  };
  std::int64_t c = 0;
  for (; c + kLanes <= width; c += kLanes) finish(c, kLanes);
  if (c < width) finish(c, width - c);
}

template <typename E>
void LayerNormBackward(const LayerNormBackwardArgs<E>& args, void* workspace) {
  const std::int64_t width = args.width;
  auto* scratch = static_cast<float*>(workspace);
  const std::int64_t chunk = ChunkRows(args.rows);
  ParallelPieces(args.rows, chunk, [&](std::int64_t begin, std::int64_t end, int) {
    float* sums = scratch + begin / chunk * 2 * width;
    __builtin_memset(sums, 0, static_cast<std::size_t>(2 * width) * 4);
    for (std::int64_t r = begin; r < end; ++r) {
      const NormRow<E> row = {args.dy + r * width, args.x + r * width,  args.gain, args.mean[r],
                              args.rstd[r],        args.dx + r * width, sums,      sums + width};
      if (args.add_dx) {
        LayerNormRowBackward<true>(width, row);
      } else {
        LayerNormRowBackward<false>(width, row);
      }
    }
  });
  const std::int64_t chunks = (args.rows + chunk - 1) / chunk;
  ReduceChunks(chunks, width, scratch, 2 * width, args.dgain, args.add);
  ReduceChunks(chunks, width, scratch + width, 2 * width, args.dbias, args.add);
}

constexpr float kGeluScale = 0.79788456080286535588f;  // sqrt(2 / pi)
constexpr float kGeluCubic = 0.044715f;
constexpr std::int64_t kPiece = 16384;  // Elements of one task of an elementwise kernel.

// (1 + tanh(u)) / 2 = 1 / (1 + exp(-2u)), without the cancellation of the left side.
REGROUP_INLINE Vec GeluGate(Vec x) {
  const Vec twice_u = x * (x * x * (2 * kGeluScale * kGeluCubic) + 2 * kGeluScale);
  return 1.0f / (Exp(-twice_u) + 1.0f);
}

template <typename E>
void GeluForward(const GeluForwardArgs<E>& args, void* /*workspace*/) {
  ParallelPieces(args.elements, kPiece, [&](std::int64_t begin, std::int64_t end, int) {
    Map(begin, end, args.x, args.y, [](Vec v) { return v * GeluGate(v); });
  });
}

template <typename E>
void GeluBackward(const GeluBackwardArgs<E>& args, void* /*workspace*/) {
  ParallelPieces(args.elements, kPiece, [&](std::int64_t begin, std::int64_t end, int) {
    Map(begin, end, args.x, args.dy, args.dx, [](Vec v, Vec d) {
      const Vec gate = GeluGate(v);
      const Vec slope = v * v * (6 * kGeluScale * kGeluCubic) + 2 * kGeluScale;
      return d * (gate + v * gate * (1.0f - gate) * slope);
    });
  });
}

template <typename E>
void EmbeddingForward(const EmbeddingForwardArgs<E>& args, void* /*workspace*/) {
  const std::int64_t width = args.width;
  ParallelPieces(args.batch * args.time, 32, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t r = begin; r < end; ++r) {
      Map(0, width, args.token_weights + args.tokens[r] * width,
          args.position_weights + r % args.time * width, args.out + r * width,
          [](Vec a, Vec b) { return a + b; });
    }
  });
}

// Tasks are blocks of columns, so that rows with the same token are added in order by one thread.
template <typename E>
void EmbeddingBackward(const EmbeddingBackwardArgs<E>& args, void* /*workspace*/) {
  const EmbeddingShape& shape = args.shape;
  const std::int64_t width = shape.width;
  const auto plus = [](Vec a, Vec b) { return a + b; };
  ParallelPieces(width, 64, [&](std::int64_t begin, std::int64_t end, int) {
    const auto clear = [&](float* table, std::int64_t rows) {
      for (std::int64_t r = 0; r < rows; ++r) {
        __builtin_memset(table + r * width + begin, 0, static_cast<std::size_t>(end - begin) * 4);
      }
    };
    if (!args.add_token) clear(args.dtoken, shape.vocabulary);
    if (!args.add_position) clear(args.dposition, shape.positions);
    for (std::int64_t r = 0; r < shape.batch * shape.time; ++r) {
      const E* row = args.dout + r * width;
      float* token_row = args.dtoken + args.tokens[r] * width;
      float* position_row = args.dposition + r % shape.time * width;
      Map(begin, end, token_row, row, token_row, plus);
      Map(begin, end, position_row, row, position_row, plus);
    }
  });
}

template <typename E>
REGROUP_INLINE float RowMax(std::int64_t n, const E* row) {
  float top = Get(row);
  std::int64_t i = 0;
  if (n >= kLanes) {
    Vec tops = Load(row);
    for (i = kLanes; i + kLanes <= n; i += kLanes) tops = Max(tops, Load(row + i));
    top = MaxLanes(tops);
  }
  for (; i < n; ++i) top = top < Get(row + i) ? Get(row + i) : top;
  return top;
}

// Floats serve as their own exponentials between the two passes; shorter numbers would round them.
template <typename E>
void CrossEntropyRow(std::int64_t vocabulary, E* row, std::int32_t target, float loss_scale,
                     float* loss) {
  constexpr bool kKeeps = sizeof(E) == 4;
  const float top = RowMax(vocabulary, row);
  const float at_target = Get(row + target) - top;
  const float total = SumRow(vocabulary, [&](std::int64_t c, std::int64_t n) {
    const Vec e = Exp(LoadUpTo(row + c, n) - top);
    if constexpr (kKeeps) StoreUpTo(row + c, e, n);
    return e;
  });
  *loss = __builtin_logf(total) - at_target;
  const float scale = loss_scale / total;
  if constexpr (kKeeps) {
    Map(0, vocabulary, row, row, [&](Vec e) { return e * scale; });
    row[target] -= loss_scale;
  } else {
    Map(0, vocabulary, row, row, [&](Vec x) { return Exp(x - top) * scale; });
    Put(row + target, Exp(Splat(at_target))[0] * scale - loss_scale);
  }
}

template <typename E>
void CrossEntropy(const CrossEntropyArgs<E>& args, void* /*workspace*/) {
  ParallelPieces(args.rows, 16, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t r = begin; r < end; ++r) {
      CrossEntropyRow(args.vocabulary, args.logits + r * args.vocabulary, args.targets[r],
                      static_cast<float>(args.loss_scale), args.losses + r);
    }
  });
}

// As RoundingBits, for the elements from `first`.
REGROUP_INLINE BitsVec RandomBits(std::uint32_t key, std::uint32_t first) {
  BitsVec z;
  for (int i = 0; i < kLanes; ++i) z[i] = static_cast<std::uint32_t>(i);
  z = (z + first) ^ key;
  z = (z ^ (z >> 16)) * 0x7FEB352Du;
  z = (z ^ (z >> 15)) * 0x846CA68Bu;
  return (z ^ (z >> 16)) & 0xFFFFu;
}

template <typename E>
REGROUP_INLINE Vec RoundAtRandom(E, Vec weight, std::uint32_t, std::uint32_t) {
  return weight;
}
REGROUP_INLINE Vec RoundAtRandom(BFloat16, Vec weight, std::uint32_t key, std::uint32_t element) {
  const BitsVec bits = BitsOf(weight);
  const BitsVec rounded = (bits + RandomBits(key, element)) & 0xFFFF0000u;
  return FloatOf((bits & 0x7F800000u) == 0x7F800000u ? bits : rounded);
}

template <typename E>
void RoundWeights(const RoundWeightsArgs<E>& args, void* /*workspace*/) {
  ParallelPieces(args.elements, kPiece, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t i = begin; i < end; i += kLanes) {
      const std::int64_t n = Smaller(kLanes, end - i);
      StoreUpTo(args.rounded + i,
                RoundAtRandom(E{}, LoadUpTo(args.weights + i, n), args.key,
                              static_cast<std::uint32_t>(args.first + i)),
                n);
    }
  });
}

template <typename E>
void Narrow(const NarrowArgs<E>& args, void* /*workspace*/) {
  ParallelPieces(args.elements, kPiece, [&](std::int64_t begin, std::int64_t end, int) {
    if (args.add) {
      Map(begin, end, args.x, args.y, args.y, [](Vec a, Vec b) { return a + b; });
    } else {
      Map(begin, end, args.x, args.y, [](Vec v) { return v; });
    }
  });
}

template <typename E>
void Widen(const WidenArgs<E>& args, void* /*workspace*/) {
  ParallelPieces(args.elements, kPiece, [&](std::int64_t begin, std::int64_t end, int) {
    Map(begin, end, args.y, args.x, [](Vec v) { return v; });
  });
}

// A plain loop: compilers vectorise it, and there is no portable square root of a vector.
void AdamWPiece(std::int64_t n, const AdamWStep& step, const float* __restrict gradient,
                float* __restrict weight, float* __restrict first, float* __restrict second) {
  const auto scale = static_cast<float>(step.grad_scale);
  const auto beta2 = static_cast<float>(step.beta2);
  const auto rate1 = static_cast<float>(1 - step.beta1), rate2 = static_cast<float>(1 - step.beta2);
  const auto root = static_cast<float>(1 / __builtin_sqrt(step.correction2));
  const auto epsilon = static_cast<float>(step.epsilon);
  const auto keep = static_cast<float>(1 - step.lr * step.weight_decay);
  const auto lr = static_cast<float>(step.lr / step.correction1);
  for (std::int64_t i = 0; i < n; ++i) {
    const float g = gradient[i] * scale;
    const float m = first[i] + (g - first[i]) * rate1;
    const float v = second[i] * beta2 + g * g * rate2;
    weight[i] = weight[i] * keep - lr * m / (__builtin_sqrtf(v) * root + epsilon);
    first[i] = m;
    second[i] = v;
  }
}

void AdamWUpdate(const AdamWArgs<float>& args, void* /*workspace*/) {
  ParallelPieces(args.elements, kPiece, [&](std::int64_t begin, std::int64_t end, int) {
    AdamWPiece(end - begin, args.step, args.gradient + begin, args.weight + begin,
               args.first_moment + begin, args.second_moment + begin);
  });
}

// Fixed chunks, in each short float sums that are added up in double.
template <typename Function>
REGROUP_INLINE void SumOf(const SumArgs<float>& args, const Function& function) {
  double partial[kSumChunks];
  const std::int64_t chunk = SumChunkElements(args.elements);
  ParallelFor(kSumChunks, [&](std::int64_t task, int) {
    const std::int64_t end = Smaller(args.elements, (task + 1) * chunk);
    double sum = 0;
    for (std::int64_t block = task * chunk; block < end; block += kSumBlock) {
      sum += SumRow(Smaller(kSumBlock, end - block), [&](std::int64_t c, std::int64_t n) {
        return function(LoadUpTo(args.x + block + c, n));
      });
    }
    partial[task] = sum;
  });
  double total = 0;
  for (double sum : partial) total += sum;
  *args.sum = args.add ? *args.sum + total : total;
}

void SumSquares(const SumArgs<float>& args, void* /*workspace*/) {
  SumOf(args, [](Vec v) { return v * v; });
}

void SquareBlocks(const SquareBlocksArgs<float>& args, void* /*workspace*/) {
  ParallelPieces(args.elements, kPiece, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t block = begin; block < end; block += kSumBlock) {
      args.sums[block / kSumBlock] =
          SumRow(Smaller(kSumBlock, end - block), [&](std::int64_t c, std::int64_t n) {
            const Vec v = LoadUpTo(args.x + block + c, n);
            return v * v;
          });
    }
  });
}

void Sum(const SumArgs<float>& args, void* /*workspace*/) {
  SumOf(args, [](Vec v) { return v; });
}

}  // namespace
}  // namespace regroup::worker
