#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "worker/device/device.h"
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

// y = x rounded to the nearest numbers, and x = those in full precision.
template <typename T>
struct NarrowArgs {
  std::int64_t elements = 0;
  const Wide<T>* x = nullptr;
  T* y = nullptr;
};
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
// chunks.
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

// Where a kernel goes. Its workspace is as large as the *Elements function below says, and until
// it is over nobody else's.
struct Launch {
  Stream& stream;
  void* workspace = nullptr;
};

// A function of the host's that works on a device's memory, in the order of a stream. What fails is
// the stream. Where that does it at once it allocates nothing, but what onednn.h and
// short_products.h say.
template <typename Args, typename Result = void>
class Kernel {
 public:
  using Body = Result (*)(const Args& args, void* workspace);
  constexpr Kernel() = default;
  constexpr Kernel(Body body) : body_(body) {}  // NOLINT(google-explicit-constructor)
  void operator()(const Launch& launch, const Args& args) const {
    launch.stream.Run(
        [body = body_, args, workspace = launch.workspace] { return body(args, workspace); });
  }

 private:
  Body body_ = nullptr;
};

// Every computation on tensors, for one number type T of weights and activations and one
// instruction set. Gradients of weights, statistics, losses and sums are Wide<T>. Results of own
// kernels do not depend on the thread count; those of oneDNN's products do not either where it has
// AVX-512, but for the input gradient of some sizes (out = 2560 is one), which rounds differently;
// on AVX2 it also divides sums among threads, so most round differently.
template <typename T>
struct KernelTable {
  using W = Wide<T>;
  const char* name;
  Kernel<LinearForwardArgs<T>, absl::Status> linear_forward;
  Kernel<LinearInputGradArgs<T>, absl::Status> linear_input_grad;
  Kernel<LinearWeightGradArgs<T>, absl::Status> linear_weight_grad;
  Kernel<BiasGradArgs<T>> bias_grad;
  Kernel<LayerNormForwardArgs<T>> layer_norm_forward;
  Kernel<LayerNormBackwardArgs<T>> layer_norm_backward;
  Kernel<GeluForwardArgs<T>> gelu_forward;
  Kernel<GeluBackwardArgs<T>> gelu_backward;
  Kernel<AttentionForwardArgs<T>> attention_forward;
  Kernel<AttentionBackwardArgs<T>> attention_backward;
  Kernel<EmbeddingForwardArgs<T>> embedding_forward;
  Kernel<EmbeddingBackwardArgs<T>> embedding_backward;
  Kernel<CrossEntropyArgs<T>> cross_entropy;
  Kernel<RoundWeightsArgs<T>> round_weights;
  Kernel<NarrowArgs<T>> narrow;
  Kernel<WidenArgs<T>> widen;
  Kernel<AdamWArgs<W>> adamw;
  Kernel<SgdArgs<W>> sgd;
  Kernel<LambArgs<W>> lamb;
  Kernel<TrustSquaresArgs<W>> trust_squares;
  Kernel<SumArgs<W>> sum_squares;
  Kernel<SumArgs<W>> sum;
  Kernel<SquareBlocksArgs<W>> square_blocks;
};

using Kernels = KernelTable<float>;

// Workspaces, of Wide<T>. Also enough for fewer rows, respectively less time. A plan knows them
// without a device: so they are not entries of a table, but enough for all.
std::int64_t ColumnSumElements(std::int64_t rows, std::int64_t out);
std::int64_t LayerNormElements(std::int64_t rows, std::int64_t width);
// For ThreadCount() as it is now; it must not grow afterwards.
std::int64_t AttentionElements(const AttentionShape& shape);

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

// What computes: a device, a stream that it is told by, and the kernels that it has.
template <typename T>
struct Compute {
  Device& device;
  Stream& stream;
  const KernelTable<T>& kernels;
};

// Whether this CPU multiplies numbers of this type itself, where `isa` may use what it has.
// Products of others are done on floats: their operands are widened first, each time, into memory
// that is kept for it.
bool MultipliesNatively(DType type, Isa isa);
// The bytes of that memory once the largest of its products has this shape.
std::size_t WideningBytes(DType type, Isa isa, const LinearShape& largest);

// The plain C++ twins, of which every other table is a faster copy. Slow, single-threaded, GEMM
// included; but for sgd, lamb and trust_squares, which all tables share (updates.h).
template <typename T>
const KernelTable<T>& ReferenceKernels();
extern template const KernelTable<float>& ReferenceKernels<float>();
extern template const KernelTable<double>& ReferenceKernels<double>();
extern template const KernelTable<BFloat16>& ReferenceKernels<BFloat16>();
extern template const KernelTable<Half>& ReferenceKernels<Half>();

}  // namespace regroup::worker
