#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "worker/tensor/dtype.h"

namespace regroup::worker {

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

struct AdamWStep {
  double lr = 0, beta1 = 0, beta2 = 0, epsilon = 0, weight_decay = 0;
  double correction1 = 1, correction2 = 1;  // 1 - beta^(step + 1).
  double grad_scale = 1;
};

// Weights as the optimizer has them, and as a step computes with them.
template <typename T>
struct WeightRounding {
  std::int64_t elements = 0;
  const Wide<T>* weights = nullptr;
  T* rounded = nullptr;
  std::int64_t first = 0;  // Of its parameter is weights[0]; that and `key` decide random rounding.
  std::uint32_t key = 0;
};

// Every computation on tensors, for one number type T of weights and activations and one
// instruction set. Gradients of weights, statistics, losses and sums are Wide<T>. Pointers are
// dense row-major and must not overlap unless said otherwise. Results of own kernels do not depend
// on the thread count; those of oneDNN's products do not either where it has AVX-512, but for the
// input gradient of some sizes (out = 2560 is one), which rounds differently; on AVX2 it also
// divides sums among threads, so most round differently. Own kernels allocate nothing; `scratch`
// arguments are as large as the *ScratchElements functions below say. Execution thread only.
template <typename T>
struct KernelTable {
  using W = Wide<T>;
  const char* name;

  // y (rows, out) = x (rows, in) · w [+ bias (out)]; with `add`, y += instead. bias may be null.
  absl::Status (*linear_forward)(const LinearShape& shape, WeightOrder order, const T* x,
                                 const T* w, const T* bias, T* y, bool add);
  // dx (rows, in) = dy · w^T.
  absl::Status (*linear_input_grad)(const LinearShape& shape, WeightOrder order, const T* dy,
                                    const T* w, T* dx);
  // dw = x^T · dy in the weights' order; with `add`, dw +=.
  absl::Status (*linear_weight_grad)(const LinearShape& shape, WeightOrder order, const T* x,
                                     const T* dy, W* dw, bool add);
  // db (out) = column sums of dy; with `add`, db +=. Scratch: ColumnSumScratchElements.
  void (*bias_grad)(std::int64_t rows, std::int64_t out, const T* dy, W* db, bool add, W* scratch);

  // sum = x + residual if residual is not null (sum may be x), else sum is not touched; y = layer
  // norm of that. mean and rstd (rows) are kept for the backward pass. epsilon 1e-5.
  void (*layer_norm_forward)(std::int64_t rows, std::int64_t width, const T* x, const T* residual,
                             T* sum, const T* gain, const T* bias, T* y, W* mean, W* rstd);
  // dx += gradient of the norm's input if add_dx, else =. x is what was normalised. dgain, dbias as
  // `add` says. Scratch: LayerNormScratchElements.
  void (*layer_norm_backward)(std::int64_t rows, std::int64_t width, const T* dy, const T* x,
                              const T* gain, const W* mean, const W* rstd, T* dx, bool add_dx,
                              W* dgain, W* dbias, bool add, W* scratch);

  // y = gelu(x), tanh approximation.
  void (*gelu_forward)(std::int64_t elements, const T* x, T* y);
  // dx = dy · gelu'(x); dx may be dy.
  void (*gelu_backward)(std::int64_t elements, const T* x, const T* dy, T* dx);

  // Causal attention. qkv (B, T, 3, H, D) → out (B, T, H, D); log_sum_exp (B, H, T) is kept for the
  // backward pass. Scratch: AttentionScratchElements.
  void (*attention_forward)(const AttentionShape& shape, const T* qkv, T* out, W* log_sum_exp,
                            W* scratch);
  void (*attention_backward)(const AttentionShape& shape, const T* qkv, const T* out,
                             const W* log_sum_exp, const T* dout, T* dqkv, W* scratch);

  // out (B, T, C) = token_weights (V, C) row of each token + position_weights (T.., C) row of its
  // position. REQUIRES: 0 <= token < V; checked by whoever reads the data.
  void (*embedding_forward)(std::int64_t batch, std::int64_t time, std::int64_t width,
                            const std::int32_t* tokens, const T* token_weights,
                            const T* position_weights, T* out);
  // Gradients of the two tables, dtoken (vocabulary, C) and dposition (positions, C), each of which
  // is added to or written as told: then rows that nothing reads become zero.
  void (*embedding_backward)(const EmbeddingShape& shape, const std::int32_t* tokens, const T* dout,
                             W* dtoken, bool add_token, W* dposition, bool add_position);

  // losses (rows) = cross-entropy in nats of each row of logits (rows, V) at its target; logits
  // become their gradient, times loss_scale. REQUIRES: 0 <= target < V.
  void (*cross_entropy)(std::int64_t rows, std::int64_t vocabulary, T* logits,
                        const std::int32_t* targets, double loss_scale, W* losses);

  // BFloat16: up or down at random, likelier to the nearer one (RoundingBits), so that steps
  // smaller than a weight's last bit still add up on average. Others: to the nearest.
  void (*round_weights)(const WeightRounding<T>& rounding);

  void (*adamw)(std::int64_t elements, const AdamWStep& step, const W* gradient, W* weight,
                W* first_moment, W* second_moment);
  // Sum of squares, accumulated in double over fixed chunks.
  double (*sum_squares)(std::int64_t elements, const W* x);
  double (*sum)(std::int64_t elements, const W* x);
  // sums[i] = the sum of squares of the ith kSumBlock elements (fixed_chunks.h), the last ones
  // being fewer: ranks that have some of the blocks each add them up together by AddBlocks.
  void (*square_blocks)(std::int64_t elements, const W* x, double* sums);
};

using Kernels = KernelTable<float>;

// Also enough for fewer rows, respectively less time.
std::int64_t ColumnSumScratchElements(std::int64_t rows, std::int64_t out);
std::int64_t LayerNormScratchElements(std::int64_t rows, std::int64_t width);
// For ThreadCount() as it is now; it must not grow afterwards.
std::int64_t AttentionScratchElements(const AttentionShape& shape);

// sum_squares of `elements`, to the bit, from what square_blocks has said of all their blocks. The
// twins add in another order.
double AddBlocks(std::int64_t elements, const double* sums);

enum class Isa : std::uint8_t { kBaseline, kV3, kV4 };  // x86-64, -v3 (AVX2, FMA), -v4 (AVX-512).

Isa BestIsa();                // What this CPU and kernel can run.
const char* NameOf(Isa isa);  // "baseline", "x86-64-v3", "x86-64-v4"; also of its table.
// Of float, BFloat16 and Half. REQUIRES: isa <= BestIsa().
template <typename T>
const KernelTable<T>& KernelsOf(Isa isa);
inline const Kernels& KernelsFor(Isa isa) { return KernelsOf<float>(isa); }

// Whether this CPU multiplies numbers of this type itself, where `isa` may use what it has.
// Products of others are done on floats: their operands are widened first, each time, into memory
// that is kept for it.
bool MultipliesNatively(DType type, Isa isa);
// The bytes of that memory once the largest of its products has this shape.
std::size_t WideningBytes(DType type, Isa isa, const LinearShape& largest);

// The plain C++ twins, of which every other table is a faster copy. Slow, single-threaded, GEMM
// included.
template <typename T>
const KernelTable<T>& ReferenceKernels();
extern template const KernelTable<float>& ReferenceKernels<float>();
extern template const KernelTable<double>& ReferenceKernels<double>();
extern template const KernelTable<BFloat16>& ReferenceKernels<BFloat16>();
extern template const KernelTable<Half>& ReferenceKernels<Half>();

}  // namespace regroup::worker
