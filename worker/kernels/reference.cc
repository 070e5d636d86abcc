// The plain C++ twins: every kernel as its formula reads, of every number type. They state what the
// fast ones compute.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "worker/kernels/fixed_chunks.h"
#include "worker/kernels/kernels.h"
#include "worker/kernels/updates.h"
#include "worker/tensor/counter_rng.h"

namespace regroup::worker {
namespace {

constexpr double kLayerNormEpsilon = 1e-5;
constexpr double kGeluScale = 0.79788456080286535588;  // sqrt(2 / pi)
constexpr double kGeluCubic = 0.044715;

// What a twin computes in: of 16 bits wider than the fast kernels, so that its own sums add nothing
// to the rounding that both of them do when they store.
template <typename T>
using Sum = std::conditional_t<sizeof(T) == 2, double, T>;

// Rounded as it is stored.
template <typename T>
T As(Sum<T> value) {
  if constexpr (sizeof(T) == 2) {
    return T(static_cast<float>(value));
  } else {
    return value;
  }
}

template <typename T>
Sum<T> Weight(const LinearShape& shape, WeightOrder order, const T* w, std::int64_t i,
              std::int64_t o) {
  return order == WeightOrder::kInOut ? w[i * shape.out + o] : w[o * shape.in + i];
}

template <typename T>
absl::Status LinearForward(const LinearForwardArgs<T>& args, void* /*workspace*/) {
  for (std::int64_t r = 0; r < args.shape.rows; ++r) {
    for (std::int64_t o = 0; o < args.shape.out; ++o) {
      Sum<T> sum = args.bias == nullptr ? Sum<T>(0) : Sum<T>(args.bias[o]);
      for (std::int64_t i = 0; i < args.shape.in; ++i) {
        sum += Sum<T>(args.x[r * args.shape.in + i]) * Weight(args.shape, args.order, args.w, i, o);
      }
      T& target = args.y[r * args.shape.out + o];
      target = As<T>(args.add ? target + sum : sum);
    }
  }
  return absl::OkStatus();
}

template <typename T>
absl::Status LinearInputGrad(const LinearInputGradArgs<T>& args, void* /*workspace*/) {
  for (std::int64_t r = 0; r < args.shape.rows; ++r) {
    for (std::int64_t i = 0; i < args.shape.in; ++i) {
      Sum<T> sum = 0;
      for (std::int64_t o = 0; o < args.shape.out; ++o) {
        sum +=
            Sum<T>(args.dy[r * args.shape.out + o]) * Weight(args.shape, args.order, args.w, i, o);
      }
      args.dx[r * args.shape.in + i] = As<T>(sum);
    }
  }
  return absl::OkStatus();
}

template <typename T>
absl::Status LinearWeightGrad(const LinearWeightGradArgs<T>& args, void* /*workspace*/) {
  for (std::int64_t i = 0; i < args.shape.in; ++i) {
    for (std::int64_t o = 0; o < args.shape.out; ++o) {
      Sum<T> sum = 0;
      for (std::int64_t r = 0; r < args.shape.rows; ++r) {
        sum += Sum<T>(args.x[r * args.shape.in + i]) * args.dy[r * args.shape.out + o];
      }
      Wide<T>& target = args.order == WeightOrder::kInOut ? args.dw[i * args.shape.out + o]
                                                          : args.dw[o * args.shape.in + i];
      target = static_cast<Wide<T>>(args.add ? target + sum : sum);
    }
  }
  return absl::OkStatus();
}

template <typename T>
void BiasGrad(const BiasGradArgs<T>& args, void* /*workspace*/) {
  for (std::int64_t o = 0; o < args.out; ++o) {
    Sum<T> sum = 0;
    for (std::int64_t r = 0; r < args.rows; ++r) sum += args.dy[r * args.out + o];
    args.db[o] = static_cast<Wide<T>>(args.add ? args.db[o] + sum : sum);
  }
}

template <typename T>
void LayerNormForward(const LayerNormForwardArgs<T>& args, void* /*workspace*/) {
  for (std::int64_t r = 0; r < args.rows; ++r) {
    const T* row = args.x + r * args.width;
    if (args.residual != nullptr) {
      for (std::int64_t c = 0; c < args.width; ++c)
        args.sum[r * args.width + c] = As<T>(Sum<T>(row[c]) + args.residual[r * args.width + c]);
      row = args.sum + r * args.width;
    }
    Sum<T> total = 0, squares = 0;
    for (std::int64_t c = 0; c < args.width; ++c) total += row[c];
    const Sum<T> center = total / static_cast<Sum<T>>(args.width);
    for (std::int64_t c = 0; c < args.width; ++c) squares += (row[c] - center) * (row[c] - center);
    const Sum<T> scale = 1 / std::sqrt(squares / static_cast<Sum<T>>(args.width) +
                                       static_cast<Sum<T>>(kLayerNormEpsilon));
    for (std::int64_t c = 0; c < args.width; ++c) {
      args.y[r * args.width + c] = As<T>((row[c] - center) * scale * args.gain[c] + args.bias[c]);
    }
    args.mean[r] = static_cast<Wide<T>>(center);
    args.rstd[r] = static_cast<Wide<T>>(scale);
  }
}

template <typename T>
void LayerNormBackward(const LayerNormBackwardArgs<T>& args, void* /*workspace*/) {
  const auto normed = [&](std::int64_t r, std::int64_t c) {
    return (Sum<T>(args.x[r * args.width + c]) - args.mean[r]) * args.rstd[r];
  };
  for (std::int64_t c = 0; c < args.width; ++c) {
    Sum<T> gain_sum = 0, bias_sum = 0;
    for (std::int64_t r = 0; r < args.rows; ++r) {
      gain_sum += args.dy[r * args.width + c] * normed(r, c);
      bias_sum += args.dy[r * args.width + c];
    }
    args.dgain[c] = static_cast<Wide<T>>(args.add ? args.dgain[c] + gain_sum : gain_sum);
    args.dbias[c] = static_cast<Wide<T>>(args.add ? args.dbias[c] + bias_sum : bias_sum);
  }
  for (std::int64_t r = 0; r < args.rows; ++r) {
    Sum<T> mean_d = 0, mean_dn = 0;
    for (std::int64_t c = 0; c < args.width; ++c) {
      mean_d += Sum<T>(args.dy[r * args.width + c]) * args.gain[c];
      mean_dn += Sum<T>(args.dy[r * args.width + c]) * args.gain[c] * normed(r, c);
    }
    mean_d /= static_cast<Sum<T>>(args.width);
    mean_dn /= static_cast<Sum<T>>(args.width);
    for (std::int64_t c = 0; c < args.width; ++c) {
      const Sum<T> d = args.rstd[r] * (Sum<T>(args.dy[r * args.width + c]) * args.gain[c] - mean_d -
                                       normed(r, c) * mean_dn);
      args.dx[r * args.width + c] = As<T>(args.add_dx ? args.dx[r * args.width + c] + d : d);
    }
  }
}

template <typename T>
T GeluTanh(T x) {
  return std::tanh(static_cast<T>(kGeluScale) * (x + static_cast<T>(kGeluCubic) * x * x * x));
}

template <typename T>
void GeluForward(const GeluForwardArgs<T>& args, void* /*workspace*/) {
  for (std::int64_t i = 0; i < args.elements; ++i) {
    const Sum<T> value = args.x[i];
    args.y[i] = As<T>(value / 2 * (1 + GeluTanh(value)));
  }
}

template <typename T>
void GeluBackward(const GeluBackwardArgs<T>& args, void* /*workspace*/) {
  for (std::int64_t i = 0; i < args.elements; ++i) {
    const Sum<T> value = args.x[i], t = GeluTanh(value);
    const Sum<T> slope =
        static_cast<Sum<T>>(kGeluScale) * (1 + 3 * static_cast<Sum<T>>(kGeluCubic) * value * value);
    args.dx[i] = As<T>(args.dy[i] * ((1 + t) / 2 + value / 2 * (1 - t * t) * slope));
  }
}

// The dot product of two head vectors.
template <typename T>
Sum<T> Dot(const T* a, const T* b, std::int64_t width) {
  Sum<T> sum = 0;
  for (std::int64_t d = 0; d < width; ++d) sum += Sum<T>(a[d]) * b[d];
  return sum;
}

// One head of one sequence: where its vectors lie.
template <typename T>
struct Head {
  std::int64_t time, width, stride;  // Stride between positions of qkv; a third of it in out.
  const T *q, *k, *v;                // At position 0.
  Sum<T> scale() const { return 1 / std::sqrt(static_cast<Sum<T>>(width)); }
};

template <typename T>
Head<T> HeadOf(const AttentionShape& s, const T* qkv, std::int64_t b, std::int64_t h) {
  const T* q = qkv + b * s.time * 3 * s.width() + h * s.head_width;
  return {s.time, s.head_width, 3 * s.width(), q, q + s.width(), q + 2 * s.width()};
}

template <typename T>
void AttentionForward(const AttentionForwardArgs<T>& args, void* /*workspace*/) {
  const AttentionShape& s = args.shape;
  for (std::int64_t b = 0; b < s.batch; ++b) {
    for (std::int64_t h = 0; h < s.heads; ++h) {
      const Head<T> head = HeadOf(s, args.qkv, b, h);
      for (std::int64_t t = 0; t < s.time; ++t) {
        const T* q = head.q + t * head.stride;
        Sum<T> top = -INFINITY, total = 0;
        std::vector<Sum<T>> sums(static_cast<std::size_t>(head.width));
        for (std::int64_t u = 0; u <= t; ++u) {
          top = std::max(top, Dot(q, head.k + u * head.stride, head.width) * head.scale());
        }
        T* o = args.out + (b * s.time + t) * s.width() + h * s.head_width;
        for (std::int64_t u = 0; u <= t; ++u) {
          const Sum<T> p =
              std::exp(Dot(q, head.k + u * head.stride, head.width) * head.scale() - top);
          total += p;
          for (std::int64_t d = 0; d < head.width; ++d)
            sums[static_cast<std::size_t>(d)] += p * head.v[u * head.stride + d];
        }
        for (std::int64_t d = 0; d < head.width; ++d)
          o[d] = As<T>(sums[static_cast<std::size_t>(d)] / total);
        args.log_sum_exp[(b * s.heads + h) * s.time + t] =
            static_cast<Wide<T>>(top + std::log(total));
      }
    }
  }
}

template <typename T>
void AttentionBackward(const AttentionBackwardArgs<T>& args, void* /*workspace*/) {
  const AttentionShape& s = args.shape;
  std::vector<Sum<T>> sums(static_cast<std::size_t>(s.batch * s.time * 3 * s.width()));
  for (std::int64_t b = 0; b < s.batch; ++b) {
    for (std::int64_t h = 0; h < s.heads; ++h) {
      const Head<T> head = HeadOf(s, args.qkv, b, h);
      Sum<T>* dq = sums.data() + (head.q - args.qkv);
      Sum<T>* dk = sums.data() + (head.k - args.qkv);
      Sum<T>* dv = sums.data() + (head.v - args.qkv);
      for (std::int64_t t = 0; t < s.time; ++t) {
        const std::int64_t at = (b * s.time + t) * s.width() + h * s.head_width;
        const Sum<T> delta = Dot(args.out + at, args.dout + at, head.width);
        for (std::int64_t u = 0; u <= t; ++u) {
          const T* q = head.q + t * head.stride;
          const T* k = head.k + u * head.stride;
          const Sum<T> p = std::exp(Dot(q, k, head.width) * head.scale() -
                                    args.log_sum_exp[(b * s.heads + h) * s.time + t]);
          const Sum<T> dp = Dot(args.dout + at, head.v + u * head.stride, head.width);
          const Sum<T> ds = p * (dp - delta) * head.scale();
          for (std::int64_t d = 0; d < head.width; ++d) {
            dv[u * head.stride + d] += p * args.dout[at + d];
            dq[t * head.stride + d] += ds * k[d];
            dk[u * head.stride + d] += ds * q[d];
          }
        }
      }
    }
  }
  std::transform(sums.begin(), sums.end(), args.dqkv, [](Sum<T> sum) { return As<T>(sum); });
}

template <typename T>
void EmbeddingForward(const EmbeddingForwardArgs<T>& args, void* /*workspace*/) {
  for (std::int64_t r = 0; r < args.batch * args.time; ++r) {
    for (std::int64_t c = 0; c < args.width; ++c) {
      args.out[r * args.width + c] =
          As<T>(Sum<T>(args.token_weights[args.tokens[r] * args.width + c]) +
                args.position_weights[r % args.time * args.width + c]);
    }
  }
}

template <typename T>
void EmbeddingBackward(const EmbeddingBackwardArgs<T>& args, void* /*workspace*/) {
  const std::int64_t width = args.shape.width;
  if (!args.add_token)
    std::fill(args.dtoken, args.dtoken + args.shape.vocabulary * width, Wide<T>(0));
  if (!args.add_position)
    std::fill(args.dposition, args.dposition + args.shape.positions * width, Wide<T>(0));
  for (std::int64_t r = 0; r < args.shape.batch * args.shape.time; ++r) {
    for (std::int64_t c = 0; c < width; ++c) {
      args.dtoken[args.tokens[r] * width + c] += args.dout[r * width + c];
      args.dposition[r % args.shape.time * width + c] += args.dout[r * width + c];
    }
  }
}

template <typename T>
void CrossEntropy(const CrossEntropyArgs<T>& args, void* /*workspace*/) {
  for (std::int64_t r = 0; r < args.rows; ++r) {
    T* row = args.logits + r * args.vocabulary;
    const Sum<T> top = *std::max_element(row, row + args.vocabulary);
    Sum<T> total = 0;
    for (std::int64_t v = 0; v < args.vocabulary; ++v) total += std::exp(row[v] - top);
    const Sum<T> log_total = top + std::log(total);
    args.losses[r] = static_cast<Wide<T>>(log_total - row[args.targets[r]]);
    for (std::int64_t v = 0; v < args.vocabulary; ++v) {
      row[v] = As<T>((std::exp(row[v] - log_total) - (v == args.targets[r])) *
                     static_cast<Sum<T>>(args.loss_scale));
    }
  }
}

template <typename T>
void AdamWUpdate(const AdamWArgs<T>& args, void* /*workspace*/) {
  const AdamWStep& step = args.step;
  for (std::int64_t i = 0; i < args.elements; ++i) {
    const double g = args.gradient[i] * step.grad_scale;
    const double m = args.first_moment[i] + (g - args.first_moment[i]) * (1 - step.beta1);
    const double v = args.second_moment[i] * step.beta2 + g * g * (1 - step.beta2);
    const double denominator = std::sqrt(v) / std::sqrt(step.correction2) + step.epsilon;
    const double decayed = args.weight[i] * (1 - step.lr * step.weight_decay);
    args.weight[i] = static_cast<T>(decayed - step.lr / step.correction1 * m / denominator);
    args.first_moment[i] = static_cast<T>(m);
    args.second_moment[i] = static_cast<T>(v);
  }
}

template <typename T>
void RoundWeights(const RoundWeightsArgs<T>& args, void* /*workspace*/) {
  for (std::int64_t i = 0; i < args.elements; ++i) {
    const Wide<T> weight = args.weights[i];
    args.rounded[i] = T(weight);
    if constexpr (std::is_same_v<T, BFloat16>) {
      if (!std::isfinite(weight)) continue;
      const std::uint32_t bits = RoundingBits(args.key, static_cast<std::uint32_t>(args.first + i));
      args.rounded[i].bits =
          static_cast<std::uint16_t>((std::bit_cast<std::uint32_t>(weight) + bits) >> 16);
    }
  }
}

template <typename T>
void Narrow(const NarrowArgs<T>& args, void* /*workspace*/) {
  for (std::int64_t i = 0; i < args.elements; ++i)
    args.y[i] = T(args.add ? args.y[i] + args.x[i] : args.x[i]);
}

template <typename T>
void Widen(const WidenArgs<T>& args, void* /*workspace*/) {
  for (std::int64_t i = 0; i < args.elements; ++i) args.x[i] = args.y[i];
}

template <typename T, typename Value>
double Added(std::int64_t elements, const T* x, const Value& value) {
  double sum = 0;
  for (std::int64_t i = 0; i < elements; ++i) sum += value(static_cast<double>(x[i]));
  return sum;
}
double Square(double x) { return x * x; }

template <typename T>
void SumSquares(const SumArgs<T>& args, void* /*workspace*/) {
  *args.sum = Added(args.elements, args.x, Square) + (args.add ? *args.sum : 0);
}

template <typename T>
void Total(const SumArgs<T>& args, void* /*workspace*/) {
  *args.sum = Added(args.elements, args.x, [](double x) { return x; }) + (args.add ? *args.sum : 0);
}

template <typename T>
void SquareBlocks(const SquareBlocksArgs<T>& args, void* /*workspace*/) {
  for (std::int64_t block = 0; block < args.elements; block += kSumBlock)
    args.sums[block / kSumBlock] =
        Added(std::min(kSumBlock, args.elements - block), args.x + block, Square);
}

template <typename T>
constexpr KernelTable<T> kReference = {
    .name = "reference",
    .linear_forward = LinearForward<T>,
    .linear_input_grad = LinearInputGrad<T>,
    .linear_weight_grad = LinearWeightGrad<T>,
    .bias_grad = BiasGrad<T>,
    .layer_norm_forward = LayerNormForward<T>,
    .layer_norm_backward = LayerNormBackward<T>,
    .gelu_forward = GeluForward<T>,
    .gelu_backward = GeluBackward<T>,
    .attention_forward = AttentionForward<T>,
    .attention_backward = AttentionBackward<T>,
    .embedding_forward = EmbeddingForward<T>,
    .embedding_backward = EmbeddingBackward<T>,
    .cross_entropy = CrossEntropy<T>,
    .round_weights = RoundWeights<T>,
    .narrow = Narrow<T>,
    .widen = Widen<T>,
    .adamw = AdamWUpdate<Wide<T>>,
    .sgd = UpdateSgd<Wide<T>>,
    .lamb = UpdateLamb<Wide<T>>,
    .trust_squares = SquareForTrust<Wide<T>>,
    .sum_squares = SumSquares<Wide<T>>,
    .sum = Total<Wide<T>>,
    .square_blocks = SquareBlocks<Wide<T>>,
};

}  // namespace

template <typename T>
const KernelTable<T>& ReferenceKernels() {
  return kReference<T>;
}
template const KernelTable<float>& ReferenceKernels<float>();
template const KernelTable<double>& ReferenceKernels<double>();
template const KernelTable<BFloat16>& ReferenceKernels<BFloat16>();
template const KernelTable<Half>& ReferenceKernels<Half>();

}  // namespace regroup::worker
