#include "worker/cuda_kernels/tables.h"

#include "worker/cuda_kernels/kernels.h"

namespace regroup::worker {

template <typename T>
const KernelTable<T>& CudaKernels() {
  static constexpr KernelTable<T> kTable = {
      .name = "cuda",
      .linear_forward = cuda::LinearForward<T>,
      .linear_input_grad = cuda::LinearInputGrad<T>,
      .linear_gelu_input_grad = cuda::LinearGeluInputGrad<T>,
      .linear_weight_grad = cuda::LinearWeightGrad<T>,
      .bias_grad = cuda::BiasGrad<T>,
      .layer_norm_forward = cuda::LayerNormForward<T>,
      .layer_norm_backward = cuda::LayerNormBackward<T>,
      .gelu_forward = cuda::GeluForward<T>,
      .gelu_backward = cuda::GeluBackward<T>,
      .attention_forward = cuda::AttentionForward<T>,
      .attention_backward = cuda::AttentionBackward<T>,
      .embedding_forward = cuda::EmbeddingForward<T>,
      .embedding_backward = cuda::EmbeddingBackward<T>,
      .cross_entropy = cuda::CrossEntropy<T>,
      .round_weights = cuda::RoundWeights<T>,
      .narrow = cuda::Narrow<T>,
      .widen = cuda::Widen<T>,
      .adamw = cuda::UpdateAdamW,
      .sgd = cuda::UpdateSgd,
      .lamb = cuda::UpdateLamb,
      .trust_squares = cuda::SquareForTrust,
      .sum_squares = cuda::SumSquares,
      .sum = cuda::Sum,
      .square_blocks = cuda::SquareBlocks,
  };
  return kTable;
}
template const KernelTable<float>& CudaKernels<float>();
template const KernelTable<BFloat16>& CudaKernels<BFloat16>();
template const KernelTable<Half>& CudaKernels<Half>();

}  // namespace regroup::worker
