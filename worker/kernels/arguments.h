#pragma once

#include <cstdint>

#include "worker/tensor/dtype.h"

namespace regroup::worker {

class Stream;

// What a linear layer multiplies: `rows` tokens, weights (in, out) row-major as in GPT-2's Conv1D.
struct LinearShape {
  std::int64_t rows = 0, in = 0, out = 0;
};

// The head whose weights are the token embedding (out, in): transposed.
enum class WeightOrder : std::uint8_t { kInOut, kOutIn };

struct AttentionShape {
  std::int64_t batch = 0, time = 0, heads = 0, head_width = 0;
  std::int64_t width() const { return heads * head_width; }
};

struct EmbeddingShape {
  std::int64_t batch = 0, time = 0, width = 0;
  std::int64_t vocabulary = 0, positions = 0;  // Rows of the two tables; time <= positions.
};

// What a kernel works on. Pointers are to memory of the device, dense and row-major, and do not
// overlap unless said otherwise. W is Wide<T> of numbers T.

// y (rows, out) = x (rows, in) · w [+ bias (out)]; with `add`, y += instead.
template <typename T>
struct LinearForwardArgs {
  LinearShape shape;
  WeightOrder order = WeightOrder::kInOut;
  const T *x = nullptr, *w = nullptr;
  const T* bias = nullptr;  // May be none.
  T* y = nullptr;
  bool add = false;
};

// dx (rows, in) = dy · w^T.
template <typename T>
struct LinearInputGradArgs {
  LinearShape shape;
  WeightOrder order = WeightOrder::kInOut;
  const T *dy = nullptr, *w = nullptr;
  T* dx = nullptr;
};

// The gradient of what GELU was given, x (rows, in): dx = (dy · w^T) · gelu'(x).
template <typename T>
struct LinearGeluInputGradArgs {
  LinearInputGradArgs<T> linear;
  const T* x = nullptr;
};

// dw = x^T · dy in the weights' order; with `add`, dw +=.
template <typename T>
struct LinearWeightGradArgs {
  LinearShape shape;
  WeightOrder order = WeightOrder::kInOut;
  const T *x = nullptr, *dy = nullptr;
  Wide<T>* dw = nullptr;
  bool add = false;
};

// db (out) = column sums of dy (rows, out); with `add`, db +=. Workspace: ColumnSumElements.
template <typename T>
struct BiasGradArgs {
  std::int64_t rows = 0, out = 0;
  const T* dy = nullptr;
  Wide<T>* db = nullptr;
  bool add = false;
};

// sum = x + residual if there is one (sum may be x), else sum is not touched; y = layer norm of
// that. mean and rstd (rows) are kept for the backward pass. epsilon 1e-5.
template <typename T>
struct LayerNormForwardArgs {
  std::int64_t rows = 0, width = 0;
  const T *x = nullptr, *residual = nullptr;
  T* sum = nullptr;
  const T *gain = nullptr, *bias = nullptr;
  T* y = nullptr;
  Wide<T>*mean = nullptr, *rstd = nullptr;
};

// dx += gradient of the norm's input if add_dx, else =. x is what was normalised. dgain, dbias as
// `add` says. Workspace: LayerNormElements.
template <typename T>
struct LayerNormBackwardArgs {
  std::int64_t rows = 0, width = 0;
  const T *dy = nullptr, *x = nullptr, *gain = nullptr;
  const Wide<T>*mean = nullptr, *rstd = nullptr;
  T* dx = nullptr;
  bool add_dx = false;
  Wide<T>*dgain = nullptr, *dbias = nullptr;
  bool add = false;
};

// y = gelu(x), tanh approximation.
template <typename T>
struct GeluForwardArgs {
  std::int64_t elements = 0;
  const T* x = nullptr;
  T* y = nullptr;
};

// dx = dy · gelu'(x); dx may be dy.
template <typename T>
struct GeluBackwardArgs {
  std::int64_t elements = 0;
  const T *x = nullptr, *dy = nullptr;
  T* dx = nullptr;
};

// Causal attention. qkv (B, T, 3, H, D) → out (B, T, H, D); log_sum_exp (B, H, T) is kept for the
// backward pass. Workspace of both: AttentionElements.
template <typename T>
struct AttentionForwardArgs {
  AttentionShape shape;
  const T* qkv = nullptr;
  T* out = nullptr;
  Wide<T>* log_sum_exp = nullptr;
};
template <typename T>
struct AttentionBackwardArgs {
  AttentionShape shape;
  const T *qkv = nullptr, *out = nullptr;
  const Wide<T>* log_sum_exp = nullptr;
  const T* dout = nullptr;
  T* dqkv = nullptr;
};

// out (B, T, C) = token_weights (V, C) row of each token + position_weights (T.., C) row of its
// position. REQUIRES: 0 <= token < V; checked by whoever reads the data.
template <typename T>
struct EmbeddingForwardArgs {
  std::int64_t batch = 0, time = 0, width = 0;
  const std::int32_t* tokens = nullptr;
  const T *token_weights = nullptr, *position_weights = nullptr;
  T* out = nullptr;
};

// Gradients of the two tables, dtoken (vocabulary, C) and dposition (positions, C), each of which
// is added to or written as told: then rows that nothing reads become zero.
template <typename T>
struct EmbeddingBackwardArgs {
  EmbeddingShape shape;
  const std::int32_t* tokens = nullptr;
  const T* dout = nullptr;
  Wide<T>* dtoken = nullptr;
  bool add_token = false;
  Wide<T>* dposition = nullptr;
  bool add_position = false;
};

// losses (rows) = cross-entropy in nats of each row of logits (rows, V) at its target; logits
// become their gradient, times loss_scale. REQUIRES: 0 <= target < V.
template <typename T>
struct CrossEntropyArgs {
  std::int64_t rows = 0, vocabulary = 0;
  T* logits = nullptr;
  const std::int32_t* targets = nullptr;
  double loss_scale = 1;
  Wide<T>* losses = nullptr;
};

// Weights as the optimizer has them, and as a step computes with them. BFloat16: up or down at
// random, likelier to the nearer one (RoundingBits), so that steps smaller than a weight's last bit
// still add up on average. Others: to the nearest.
template <typename T>
struct RoundWeightsArgs {
  std::int64_t elements = 0;
  const Wide<T>* weights = nullptr;
  T* rounded = nullptr;
  std::int64_t first = 0;  // Of its parameter is weights[0]; that and `key` decide random rounding.
  std::uint32_t key = 0;
};

// y = x rounded to the nearest numbers; with `add`, y = y + x, each sum being rounded once, as it
// is stored.
template <typename T>
struct NarrowArgs {
  std::int64_t elements = 0;
  const Wide<T>* x = nullptr;
  T* y = nullptr;
  bool add = false;
};
// x = numbers of 16 bits in full precision.
template <typename T>
struct WidenArgs {
  std::int64_t elements = 0;
  const T* y = nullptr;
  Wide<T>* x = nullptr;
};

struct AdamWStep {
  double lr = 0, beta1 = 0, beta2 = 0, epsilon = 0, weight_decay = 0;
  double correction1 = 1, correction2 = 1;  // 1 - beta^(step + 1).
  double grad_scale = 1;
};
template <typename W>
struct AdamWArgs {
  std::int64_t elements = 0;
  AdamWStep step;
  const W* gradient = nullptr;
  W *weight = nullptr, *first_moment = nullptr, *second_moment = nullptr;
};

// buffer = momentum · buffer + rate · (gradient · scale + decay · weight); weight -= lr · buffer.
template <typename W>
struct SgdStep {
  W scale = 1, decay = 0, momentum = 0;
  W rate = 1, lr = 0;  // `rate` is 1 where the learning rate is lr (SGD), else lr is 1 (LARS).
};
template <typename W>
struct SgdArgs {
  std::int64_t elements = 0;
  SgdStep<W> step;
  const W* gradient = nullptr;
  W *weight = nullptr, *buffer = nullptr;
};

// weight -= lr · (AdamW's direction without its learning rate + decay · weight).
template <typename W>
struct LambStep {
  W scale = 1, rate1 = 0, beta2 = 0, rate2 = 0;  // rate = 1 - beta.
  W correction1 = 1, root2 = 1;                  // 1 / (1 - beta1^t), 1 / sqrt(1 - beta2^t).
  W epsilon = 0, decay = 0, lr = 0;              // lr: times trust.
};
template <typename W>
struct LambArgs {
  std::int64_t elements = 0;
  LambStep<W> step;
  const W* gradient = nullptr;
  W *weight = nullptr, *first_moment = nullptr, *second_moment = nullptr;
};

// What norms of whole tensors are made of: of each kSumBlock of the flat order that has some of
// these elements, of_weights[i] = the sum of the squares of its weights, of_others[i] = that of
// LAMB's updates if there are moments, else of gradients · scale.
template <typename W>
struct TrustSquaresArgs {
  std::int64_t first = 0, elements = 0;  // In the flat order; the pointers are to `first`.
  LambStep<W> step;
  const W *gradient = nullptr, *weight = nullptr;
  const W *first_moment = nullptr, *second_moment = nullptr;
  double *of_weights = nullptr, *of_others = nullptr;
};

// *sum = the sum of x, or of its squares; with `add`, *sum +=. Accumulated in double over fixed
// chunks. Workspace: kSumChunks doubles (fixed_chunks.h), or none, which is as good for a few
// thousand elements.
template <typename W>
struct SumArgs {
  std::int64_t elements = 0;
  const W* x = nullptr;
  double* sum = nullptr;
  bool add = false;
};

// sums[i] = the sum of squares of the ith kSumBlock elements (fixed_chunks.h), the last ones being
// fewer: ranks that have some of the blocks each add them up together by AddBlocks.
template <typename W>
struct SquareBlocksArgs {
  std::int64_t elements = 0;
  const W* x = nullptr;
  double* sums = nullptr;
};

// Where a kernel goes. Its workspace is as large as the *Elements functions of kernels.h say, and
// until it is over nobody else's.
struct Launch {
  Stream& stream;
  void* workspace = nullptr;
};

}  // namespace regroup::worker
