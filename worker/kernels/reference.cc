// The plain C++ twins: every kernel as its formula reads, for float and double. They state what the
// fast ones compute.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "worker/kernels/fixed_chunks.h"
#include "worker/kernels/kernels.h"

namespace regroup::worker {
namespace {

constexpr double kLayerNormEpsilon = 1e-5;
constexpr double kGeluScale = 0.79788456080286535588;  // sqrt(2 / pi)
constexpr double kGeluCubic = 0.044715;

template <typename T>
T Weight(const LinearShape& shape, WeightOrder order, const T* w, std::int64_t i, std::int64_t o) {
  return order == WeightOrder::kInOut ? w[i * shape.out + o] : w[o * shape.in + i];
}

template <typename T>
absl::Status LinearForward(const LinearShape& shape, WeightOrder order, const T* x, const T* w,
                           const T* bias, T* y, bool add) {
  for (std::int64_t r = 0; r < shape.rows; ++r) {
    for (std::int64_t o = 0; o < shape.out; ++o) {
      T sum = bias == nullptr ? T(0) : bias[o];
      for (std::int64_t i = 0; i < shape.in; ++i) {
        sum += x[r * shape.in + i] * Weight(shape, order, w, i, o);
      }
      T& target = y[r * shape.out + o];
      target = add ? target + sum : sum;
    }
  }
  return absl::OkStatus();
}

template <typename T>
absl::Status LinearInputGrad(const LinearShape& shape, WeightOrder order, const T* dy, const T* w,
                             T* dx) {
  for (std::int64_t r = 0; r < shape.rows; ++r) {
    for (std::int64_t i = 0; i < shape.in; ++i) {
      T sum = 0;
      for (std::int64_t o = 0; o < shape.out; ++o) {
        sum += dy[r * shape.out + o] * Weight(shape, order, w, i, o);
      }
      dx[r * shape.in + i] = sum;
    }
  }
  return absl::OkStatus();
}

template <typename T>
absl::Status LinearWeightGrad(const LinearShape& shape, WeightOrder order, const T* x, const T* dy,
                              T* dw, bool add) {
  for (std::int64_t i = 0; i < shape.in; ++i) {
    for (std::int64_t o = 0; o < shape.out; ++o) {
      T sum = 0;
      for (std::int64_t r = 0; r < shape.rows; ++r) {
        sum += x[r * shape.in + i] * dy[r * shape.out + o];
      }
      T& target = order == WeightOrder::kInOut ? dw[i * shape.out + o] : dw[o * shape.in + i];
      target = add ? target + sum : sum;
    }
  }
  return absl::OkStatus();
}

template <typename T>
void BiasGrad(std::int64_t rows, std::int64_t out, const T* dy, T* db, bool add, T* /*scratch*/) {
  for (std::int64_t o = 0; o < out; ++o) {
    T sum = 0;
    for (std::int64_t r = 0; r < rows; ++r) sum += dy[r * out + o];
    db[o] = add ? db[o] + sum : sum;
  }
}

template <typename T>
void LayerNormForward(std::int64_t rows, std::int64_t width, const T* x, const T* residual, T* sum,
                      const T* gain, const T* bias, T* y, T* mean, T* rstd) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const T* row = x + r * width;
    if (residual != nullptr) {
      for (std::int64_t c = 0; c < width; ++c)
        sum[r * width + c] = row[c] + residual[r * width + c];
      row = sum + r * width;
    }
    T total = 0, squares = 0;
    for (std::int64_t c = 0; c < width; ++c) total += row[c];
    mean[r] = total / static_cast<T>(width);
    for (std::int64_t c = 0; c < width; ++c) squares += (row[c] - mean[r]) * (row[c] - mean[r]);
    rstd[r] = 1 / std::sqrt(squares / static_cast<T>(width) + static_cast<T>(kLayerNormEpsilon));
    for (std::int64_t c = 0; c < width; ++c) {
      y[r * width + c] = (row[c] - mean[r]) * rstd[r] * gain[c] + bias[c];
    }
  }
}

template <typename T>
void LayerNormBackward(std::int64_t rows, std::int64_t width, const T* dy, const T* x,
                       const T* gain, const T* mean, const T* rstd, T* dx, bool add_dx, T* dgain,
                       T* dbias, bool add, T* /*scratch*/) {
  const auto normed = [&](std::int64_t r, std::int64_t c) {
    return (x[r * width + c] - mean[r]) * rstd[r];
  };
  for (std::int64_t c = 0; c < width; ++c) {
    T gain_sum = 0, bias_sum = 0;
    for (std::int64_t r = 0; r < rows; ++r) {
      gain_sum += dy[r * width + c] * normed(r, c);
      bias_sum += dy[r * width + c];
    }
    dgain[c] = add ? dgain[c] + gain_sum : gain_sum;
    dbias[c] = add ? dbias[c] + bias_sum : bias_sum;
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    T mean_d = 0, mean_dn = 0;
    for (std::int64_t c = 0; c < width; ++c) {
      mean_d += dy[r * width + c] * gain[c];
      mean_dn += dy[r * width + c] * gain[c] * normed(r, c);
    }
    mean_d /= static_cast<T>(width);
    mean_dn /= static_cast<T>(width);
    for (std::int64_t c = 0; c < width; ++c) {
      const T d = rstd[r] * (dy[r * width + c] * gain[c] - mean_d - normed(r, c) * mean_dn);
      dx[r * width + c] = add_dx ? dx[r * width + c] + d : d;
    }
  }
}

template <typename T>
T GeluTanh(T x) {
  return std::tanh(static_cast<T>(kGeluScale) * (x + static_cast<T>(kGeluCubic) * x * x * x));
}

template <typename T>
void GeluForward(std::int64_t elements, const T* x, T* y) {
  for (std::int64_t i = 0; i < elements; ++i) y[i] = x[i] / 2 * (1 + GeluTanh(x[i]));
}

template <typename T>
void GeluBackward(std::int64_t elements, const T* x, const T* dy, T* dx) {
  for (std::int64_t i = 0; i < elements; ++i) {
    const T t = GeluTanh(x[i]);
    const T slope = static_cast<T>(kGeluScale) * (1 + 3 * static_cast<T>(kGeluCubic) * x[i] * x[i]);
    dx[i] = dy[i] * ((1 + t) / 2 + x[i] / 2 * (1 - t * t) * slope);
  }
}

// The dot product of two head vectors.
template <typename T>
T Dot(const T* a, const T* b, std::int64_t width) {
  T sum = 0;
  for (std::int64_t d = 0; d < width; ++d) sum += a[d] * b[d];
  return sum;
}

// One head of one sequence: where its vectors lie.
template <typename T>
struct Head {
  std::int64_t time, width, stride;  // Stride between positions of qkv; a third of it in out.
  const T *q, *k, *v;                // At position 0.
  T scale() const { return 1 / std::sqrt(static_cast<T>(width)); }
};

template <typename T>
Head<T> HeadOf(const AttentionShape& s, const T* qkv, std::int64_t b, std::int64_t h) {
  const T* q = qkv + b * s.time * 3 * s.width() + h * s.head_width;
  return {s.time, s.head_width, 3 * s.width(), q, q + s.width(), q + 2 * s.width()};
}

template <typename T>
void AttentionForward(const AttentionShape& s, const T* qkv, T* out, T* log_sum_exp,
                      T* /*scratch*/) {
  for (std::int64_t b = 0; b < s.batch; ++b) {
    for (std::int64_t h = 0; h < s.heads; ++h) {
      const Head<T> head = HeadOf(s, qkv, b, h);
      for (std::int64_t t = 0; t < s.time; ++t) {
        const T* q = head.q + t * head.stride;
        T top = -INFINITY, total = 0;
        for (std::int64_t u = 0; u <= t; ++u) {
          top = std::max(top, Dot(q, head.k + u * head.stride, head.width) * head.scale());
        }
        T* o = out + (b * s.time + t) * s.width() + h * s.head_width;
        std::fill(o, o + head.width, T(0));
        for (std::int64_t u = 0; u <= t; ++u) {
          const T p = std::exp(Dot(q, head.k + u * head.stride, head.width) * head.scale() - top);
          total += p;
          for (std::int64_t d = 0; d < head.width; ++d) o[d] += p * head.v[u * head.stride + d];
        }
        for (std::int64_t d = 0; d < head.width; ++d) o[d] /= total;
        log_sum_exp[(b * s.heads + h) * s.time + t] = top + std::log(total);
      }
    }
  }
}

template <typename T>
void AttentionBackward(const AttentionShape& s, const T* qkv, const T* out, const T* log_sum_exp,
                       const T* dout, T* dqkv, T* /*scratch*/) {
  std::fill(dqkv, dqkv + s.batch * s.time * 3 * s.width(), T(0));
  for (std::int64_t b = 0; b < s.batch; ++b) {
    for (std::int64_t h = 0; h < s.heads; ++h) {
      const Head<T> head = HeadOf(s, qkv, b, h);
      T* dq = dqkv + (head.q - qkv);
      T* dk = dqkv + (head.k - qkv);
      T* dv = dqkv + (head.v - qkv);
      for (std::int64_t t = 0; t < s.time; ++t) {
        const std::int64_t at = (b * s.time + t) * s.width() + h * s.head_width;
        const T delta = Dot(out + at, dout + at, head.width);
        for (std::int64_t u = 0; u <= t; ++u) {
          const T* q = head.q + t * head.stride;
          const T* k = head.k + u * head.stride;
          const T p = std::exp(Dot(q, k, head.width) * head.scale() -
                               log_sum_exp[(b * s.heads + h) * s.time + t]);
          const T dp = Dot(dout + at, head.v + u * head.stride, head.width);
          const T ds = p * (dp - delta) * head.scale();
          for (std::int64_t d = 0; d < head.width; ++d) {
            dv[u * head.stride + d] += p * dout[at + d];
            dq[t * head.stride + d] += ds * k[d];
            dk[u * head.stride + d] += ds * q[d];
          }
        }
      }
    }
  }
}

template <typename T>
void EmbeddingForward(std::int64_t batch, std::int64_t time, std::int64_t width,
                      const std::int32_t* tokens, const T* token_weights, const T* position_weights,
                      T* out) {
  for (std::int64_t r = 0; r < batch * time; ++r) {
    for (std::int64_t c = 0; c < width; ++c) {
      out[r * width + c] =
          token_weights[tokens[r] * width + c] + position_weights[r % time * width + c];
    }
  }
}

template <typename T>
void EmbeddingBackward(const EmbeddingShape& shape, const std::int32_t* tokens, const T* dout,
                       T* dtoken, bool add_token, T* dposition, bool add_position) {
  const std::int64_t width = shape.width;
  if (!add_token) std::fill(dtoken, dtoken + shape.vocabulary * width, T(0));
  if (!add_position) std::fill(dposition, dposition + shape.positions * width, T(0));
  for (std::int64_t r = 0; r < shape.batch * shape.time; ++r) {
    for (std::int64_t c = 0; c < width; ++c) {
      dtoken[tokens[r] * width + c] += dout[r * width + c];
      dposition[r % shape.time * width + c] += dout[r * width + c];
    }
  }
}

template <typename T>
void CrossEntropy(std::int64_t rows, std::int64_t vocabulary, T* logits,
                  const std::int32_t* targets, double loss_scale, T* losses) {
  for (std::int64_t r = 0; r < rows; ++r) {
    T* row = logits + r * vocabulary;
    const T top = *std::max_element(row, row + vocabulary);
    T total = 0;
    for (std::int64_t v = 0; v < vocabulary; ++v) total += std::exp(row[v] - top);
    const T log_total = top + std::log(total);
    losses[r] = log_total - row[targets[r]];
    for (std::int64_t v = 0; v < vocabulary; ++v) {
      row[v] = (std::exp(row[v] - log_total) - (v == targets[r])) * static_cast<T>(loss_scale);
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
double SumSquares(std::int64_t elements, const T* x) {
  double sum = 0;
  for (std::int64_t i = 0; i < elements; ++i) sum += static_cast<double>(x[i]) * x[i];
  return sum;
}

template <typename T>
double Sum(std::int64_t elements, const T* x) {
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
    .adamw = AdamWUpdate<T>,
    .sum_squares = SumSquares<T>,
    .sum = Sum<T>,
    .square_blocks = SquareBlocks<T>,
};

}  // namespace

template <typename T>
const KernelTable<T>& ReferenceKernels() {
  return kReference<T>;
}
template const KernelTable<float>& ReferenceKernels<float>();
template const KernelTable<double>& ReferenceKernels<double>();

}  // namespace regroup::worker
