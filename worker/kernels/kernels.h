#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "absl/status/status.h"
#include "worker/device/device.h"
#include "worker/device/instruction_set.h"
#include "worker/kernels/arguments.h"
#include "worker/tensor/dtype.h"

namespace regroup::worker {

// One computation, in the order of a stream; what fails is the stream. Either a function of the
// host's that works on the device's memory, which allocates nothing where a stream does its work at
// once, but what onednn.h and short_products.h say; or what puts it on a stream of another device.
template <typename Args, typename Result = void>
class Kernel {
 public:
  using Body = Result (*)(const Args& args, void* workspace);
  using Put = void (*)(const Launch& launch, const Args& args);
  constexpr Kernel() = default;
  constexpr Kernel(Body body) : body_(body) {}  // NOLINT(google-explicit-constructor)
  constexpr Kernel(Put put) : put_(put) {}      // NOLINT(google-explicit-constructor)
  explicit operator bool() const { return body_ != nullptr || put_ != nullptr; }
  void operator()(const Launch& launch, const Args& args) const {
    if (put_ != nullptr) return put_(launch, args);
    launch.stream.Run(
        [body = body_, args, workspace = launch.workspace] { return body(args, workspace); });
  }

 private:
  Body body_ = nullptr;
  Put put_ = nullptr;
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
  // Or none: it is two.
  Kernel<LinearGeluInputGradArgs<T>, absl::Status> linear_gelu_input_grad = {};
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

// A table has the name of its set. Of float, BFloat16 and Half. REQUIRES: isa <= BestIsa().
template <typename T>
const KernelTable<T>& KernelsOf(Isa isa);
inline const Kernels& KernelsFor(Isa isa) { return KernelsOf<float>(isa); }

// What one kind of device computes with, for each type of a training's numbers.
struct KernelTables {
  const KernelTable<float>* f32;
  const KernelTable<BFloat16>* bf16;
  const KernelTable<Half>* f16;

  template <typename T>
  const KernelTable<T>& Of() const {
    if constexpr (std::is_same_v<T, float>) return *f32;
    if constexpr (std::is_same_v<T, BFloat16>) return *bf16;
    if constexpr (std::is_same_v<T, Half>) return *f16;
  }
};
// Of this CPU. REQUIRES: isa <= BestIsa().
inline KernelTables KernelTablesOf(Isa isa) {
  return {&KernelsOf<float>(isa), &KernelsOf<BFloat16>(isa), &KernelsOf<Half>(isa)};
}

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
