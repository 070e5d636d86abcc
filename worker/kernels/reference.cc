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
absl::Status LinearForward(const LinearShape& shape, WeightOrder order, const T* x, const T* w,
                           const T* bias, T* y, bool add) {
  for (std::int64_t r = 0; r < shape.rows; ++r) {
    for (std::int64_t o = 0; o < shape.out; ++o) {
      Sum<T> sum = bias == nullptr ? Sum<T>(0) : Sum<T>(bias[o]);
      for (std::int64_t i = 0; i < shape.in; ++i) {
        sum += Sum<T>(x[r * shape.in + i]) * Weight(shape, order, w, i, o);
      }
      T& target = y[r * shape.out + o];
      target = As<T>(add ? target + sum : sum);
    }
  }
  return absl::OkStatus();
}

template <typename T>
absl::Status LinearInputGrad(const LinearShape& shape, WeightOrder order, const T* dy, const T* w,
                             T* dx) {
  for (std::int64_t r = 0; r < shape.rows; ++r) {
    for (std::int64_t i = 0; i < shape.in; ++i) {
      Sum<T> sum = 0;
      for (std::int64_t o = 0; o < shape.out; ++o) {
        sum += Sum<T>(dy[r * shape.out + o]) * Weight(shape, order, w, i, o);
      }
      dx[r * shape.in + i] = As<T>(sum);
    }
  }
  return absl::OkStatus();
}

template <typename T>
absl::Status LinearWeightGrad(const LinearShape& shape, WeightOrder order, const T* x, const T* dy,
                              Wide<T>* dw, bool add) {
  for (std::int64_t i = 0; i < shape.in; ++i) {
    for (std::int64_t o = 0; o < shape.out; ++o) {
      Sum<T> sum = 0;
      for (std::int64_t r = 0; r < shape.rows; ++r) {
        sum += Sum<T>(x[r * shape.in + i]) * dy[r * shape.out + o];
      }
      Wide<T>& target = order == WeightOrder::kInOut ? dw[i * shape.out + o] : dw[o * shape.in + i];
      target = static_cast<Wide<T>>(add ? target + sum : sum);
    }
  }
  return absl::OkStatus();
}

template <typename T>
void BiasGrad(std::int64_t rows, std::int64_t out, const T* dy, Wide<T>* db, bool add,
              Wide<T>* /*scratch*/) {
  for (std::int64_t o = 0; o < out; ++o) {
    Sum<T> sum = 0;
    for (std::int64_t r = 0; r < rows; ++r) sum += dy[r * out + o];
    db[o] = static_cast<Wide<T>>(add ? db[o] + sum : sum);
  }
}

template <typename T>
void LayerNormForward(std::int64_t rows, std::int64_t width, const T* x, const T* residual, T* sum,
                      const T* gain, const T* bias, T* y, Wide<T>* mean, Wide<T>* rstd) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const T* row = x + r * width;
    if (residual != nullptr) {
      for (std::int64_t c = 0; c < width; ++c)
        sum[r * width + c] = As<T>(Sum<T>(row[c]) + residual[r * width + c]);
      row = sum + r * width;
    }
    Sum<T> total = 0, squares = 0;
    for (std::int64_t c = 0; c < width; ++c) total += row[c];
    const Sum<T> center = total / static_cast<Sum<T>>(width);
    for (std::int64_t c = 0; c < width; ++c) squares += (row[c] - center) * (row[c] - center);
    const Sum<T> scale = 1 / std::sqrt(squares / static_cast<Sum<T>>(width) +
                                       static_cast<Sum<T>>(kLayerNormEpsilon));
    for (std::int64_t c = 0; c < width; ++c) {
      y[r * width + c] = As<T>((row[c] - center) * scale * gain[c] + bias[c]);
    }
    mean[r] = static_cast<Wide<T>>(center);
    rstd[r] = static_cast<Wide<T>>(scale);
  }
}

template <typename T>
void LayerNormBackward(std::int64_t rows, std::int64_t width, const T* dy, const T* x,
                       const T* gain, const Wide<T>* mean, const Wide<T>* rstd, T* dx, bool add_dx,
                       Wide<T>* dgain, Wide<T>* dbias, bool add, Wide<T>* /*scratch*/) {
  const auto normed = [&](std::int64_t r, std::int64_t c) {
    return (Sum<T>(x[r * width + c]) - mean[r]) * rstd[r];
  };
  for (std::int64_t c = 0; c < width; ++c) {
    Sum<T> gain_sum = 0, bias_sum = 0;
    for (std::int64_t r = 0; r < rows; ++r) {
      gain_sum += dy[r * width + c] * normed(r, c);
      bias_sum += dy[r * width + c];
    }
    dgain[c] = static_cast<Wide<T>>(add ? dgain[c] + gain_sum : gain_sum);
    dbias[c] = static_cast<Wide<T>>(add ? dbias[c] + bias_sum : bias_sum);
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    Sum<T> mean_d = 0, mean_dn = 0;
    for (std::int64_t c = 0; c < width; ++c) {
      mean_d += Sum<T>(dy[r * width + c]) * gain[c];
      mean_dn += Sum<T>(dy[r * width + c]) * gain[c] * normed(r, c);
    }
    mean_d /= static_cast<Sum<T>>(width);
    mean_dn /= static_cast<Sum<T>>(width);
    for (std::int64_t c = 0; c < width; ++c) {
      const Sum<T> d =
          rstd[r] * (Sum<T>(dy[r * width + c]) * gain[c] - mean_d - normed(r, c) * mean_dn);
      dx[r * width + c] = As<T>(add_dx ? dx[r * width + c] + d : d);
    }
  }
}

template <typename T>
T GeluTanh(T x) {
  return std::tanh(static_cast<T>(kGeluScale) * (x + static_cast<T>(kGeluCubic) * x * x * x));
}

template <typename T>
void GeluForward(std::int64_t elements, const T* x, T* y) {
  for (std::int64_t i = 0; i < elements; ++i) {
    const Sum<T> value = x[i];
    y[i] = As<T>(value / 2 * (1 + GeluTanh(value)));
  }
}

template <typename T>
void GeluBackward(std::int64_t elements, const T* x, const T* dy, T* dx) {
  for (std::int64_t i = 0; i < elements; ++i) {
    const Sum<T> value = x[i], t = GeluTanh(value);
    const Sum<T> slope =
        static_cast<Sum<T>>(kGeluScale) * (1 + 3 * static_cast<Sum<T>>(kGeluCubic) * value * value);
    dx[i] = As<T>(dy[i] * ((1 + t) / 2 + value / 2 * (1 - t * t) * slope));
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
void AttentionForward(const AttentionShape& s, const T* qkv, T* out, Wide<T>* log_sum_exp,
                      Wide<T>* /*scratch*/) {
  for (std::int64_t b = 0; b < s.batch; ++b) {
    for (std::int64_t h = 0; h < s.heads; ++h) {
      const Head<T> head = HeadOf(s, qkv, b, h);
      for (std::int64_t t = 0; t < s.time; ++t) {
        const T* q = head.q + t * head.stride;
        Sum<T> top = -INFINITY, total = 0;
        std::vector<Sum<T>> sums(static_cast<std::size_t>(head.width));
        for (std::int64_t u = 0; u <= t; ++u) {
          top = std::max(top, Dot(q, head.k + u * head.stride, head.width) * head.scale());
        }
        T* o = out + (b * s.time + t) * s.width() + h * s.head_width;
        for (std::int64_t u = 0; u <= t; ++u) {
          const Sum<T> p =
              std::exp(Dot(q, head.k + u * head.stride, head.width) * head.scale() - top);
          total += p;
          for (std::int64_t d = 0; d < head.width; ++d)
            sums[static_cast<std::size_t>(d)] += p * head.v[u * head.stride + d];
        }
        for (std::int64_t d = 0; d < head.width; ++d)
          o[d] = As<T>(sums[static_cast<std::size_t>(d)] / total);
        log_sum_exp[(b * s.heads + h) * s.time + t] = static_cast<Wide<T>>(top + std::log(total));
      }
    }
  }
}

template <typename T>
void AttentionBackward(const AttentionShape& s, const T* qkv, const T* out,
                       const Wide<T>* log_sum_exp, const T* dout, T* dqkv, Wide<T>* /*scratch*/) {
  std::vector<Sum<T>> sums(static_cast<std::size_t>(s.batch * s.time * 3 * s.width()));
  for (std::int64_t b = 0; b < s.batch; ++b) {
    for (std::int64_t h = 0; h < s.heads; ++h) {
      const Head<T> head = HeadOf(s, qkv, b, h);
      Sum<T>* dq = sums.data() + (head.q - qkv);
      Sum<T>* dk = sums.data() + (head.k - qkv);
      Sum<T>* dv = sums.data() + (head.v - qkv);
      for (std::int64_t t = 0; t < s.time; ++t) {
        const std::int64_t at = (b * s.time + t) * s.width() + h * s.head_width;
        const Sum<T> delta = Dot(out + at, dout + at, head.width);
        for (std::int64_t u = 0; u <= t; ++u) {
          const T* q = head.q + t * head.stride;
          const T* k = head.k + u * head.stride;
          const Sum<T> p = std::exp(Dot(q, k, head.width) * head.scale() -
                                    log_sum_exp[(b * s.heads + h) * s.time + t]);
          const Sum<T> dp = Dot(dout + at, head.v + u * head.stride, head.width);
          const Sum<T> ds = p * (dp - delta) * head.scale();
          for (std::int64_t d = 0; d < head.width; ++d) {
            dv[u * head.stride + d] += p * dout[at + d];
            dq[t * head.stride + d] += ds * k[d];
            dk[u * head.stride + d] += ds * q[d];
          }
        }
      }
    }
  }
  std::transform(sums.begin(), sums.end(), dqkv, [](Sum<T> sum) { return As<T>(sum); });
}

template <typename T>
void EmbeddingForward(std::int64_t batch, std::int64_t time, std::int64_t width,
                      const std::int32_t* tokens, const T* token_weights, const T* position_weights,
                      T* out) {
  for (std::int64_t r = 0; r < batch * time; ++r) {
    for (std::int64_t c = 0; c < width; ++c) {
      out[r * width + c] = As<T>(Sum<T>(token_weights[tokens[r] * width + c]) +
                                 position_weights[r % time * width + c]);
    }
  }
}

template <typename T>
void EmbeddingBackward(const EmbeddingShape& shape, const std::int32_t* tokens, const T* dout,
                       Wide<T>* dtoken, bool add_token, Wide<T>* dposition, bool add_position) {
  const std::int64_t width = shape.width;
  if (!add_token) std::fill(dtoken, dtoken + shape.vocabulary * width, Wide<T>(0));
  if (!add_position) std::fill(dposition, dposition + shape.positions * width, Wide<T>(0));
  for (std::int64_t r = 0; r < shape.batch * shape.time; ++r) {
    for (std::int64_t c = 0; c < width; ++c) {
      dtoken[tokens[r] * width + c] += dout[r * width + c];
      dposition[r % shape.time * width + c] += dout[r * width + c];
    }
  }
}

template <typename T>
void CrossEntropy(std::int64_t rows, std::int64_t vocabulary, T* logits,
                  const std::int32_t* targets, double loss_scale, Wide<T>* losses) {
  for (std::int64_t r = 0; r < rows; ++r) {
    T* row = logits + r * vocabulary;
    const Sum<T> top = *std::max_element(row, row + vocabulary);
    Sum<T> total = 0;
    for (std::int64_t v = 0; v < vocabulary; ++v) total += std::exp(row[v] - top);
    const Sum<T> log_total = top + std::log(total);
    losses[r] = static_cast<Wide<T>>(log_total - row[targets[r]]);
    for (std::int64_t v = 0; v < vocabulary; ++v) {
      row[v] = As<T>((std::exp(row[v] - log_total) - (v == targets[r])) *
                     static_cast<Sum<T>>(loss_scale));
    }
  }
}

template <typename T>
void AdamWUpdate(std::int64_t elements, const AdamWStep& step, const T* gradient, T* weight,
                 T* first_moment, T* second_moment) {
  for (std::int64_t i = 0; i < elements; ++i) {
    const double g = gradient[i] * step.grad_scale;
    const double m = first_moment[i] + (g - first_moment[i]) * (1 - step.beta1);
    const double v = second_moment[i] * step.beta2 + g * g * (1 - step.beta2);
    const double denominator = std::sqrt(v) / std::sqrt(step.correction2) + step.epsilon;
    const double decayed = weight[i] * (1 - step.lr * step.weight_decay);
    weight[i] = static_cast<T>(decayed - step.lr / step.correction1 * m / denominator);
    first_moment[i] = static_cast<T>(m);
    second_moment[i] = static_cast<T>(v);
  }
}

template <typename T>
void RoundWeights(const WeightRounding<T>& rounding) {
  for (std::int64_t i = 0; i < rounding.elements; ++i) {
    const Wide<T> weight = rounding.weights[i];
    rounding.rounded[i] = T(weight);
    if constexpr (std::is_same_v<T, BFloat16>) {
      if (!std::isfinite(weight)) continue;
      const std::uint32_t bits =
          RoundingBits(rounding.key, static_cast<std::uint32_t>(rounding.first + i));
      rounding.rounded[i].bits =
          static_cast<std::uint16_t>((std::bit_cast<std::uint32_t>(weight) + bits) >> 16);
    }
  }
}

template <typename T>
double SumSquares(std::int64_t elements, const T* x) {
  double sum = 0;
  for (std::int64_t i = 0; i < elements; ++i) sum += static_cast<double>(x[i]) * x[i];
  return sum;
}

template <typename T>
double Total(std::int64_t elements, const T* x) {
  double sum = 0;
  for (std::int64_t i = 0; i < elements; ++i) sum += x[i];
  return sum;
}

template <typename T>
void SquareBlocks(std::int64_t elements, const T* x, double* sums) {
  for (std::int64_t block = 0; block < elements; block += kSumBlock)
    sums[block / kSumBlock] = SumSquares(std::min(kSumBlock, elements - block), x + block);
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
    .adamw = AdamWUpdate<Wide<T>>,
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
