// Cross-entropy: one block has a row of logits, which becomes its own gradient.
#include "worker/cuda_kernels/block.cuh"
#include "worker/cuda_kernels/block_memory.cuh"
#include "worker/cuda_kernels/kernels.h"

namespace regroup::worker::cuda {
namespace {

constexpr int kRowThreads = 512;
constexpr int kRowWarps = kRowThreads / kWarp;

// expf of differences from the largest, so nothing overflows; a row that holds what is not a number
// has a loss that is none.
template <typename T>
__global__ void __launch_bounds__(kRowThreads) Kernel(CrossEntropyArgs<T> args) {
  auto* of_warps = BlockMemory<float>();  // (2, kRowWarps): of the largest, of the sum.
  const std::int64_t row = blockIdx.x, V = args.vocabulary;
  const int target = args.targets[row];
  T* logits = args.logits + row * V;
  float top = -INFINITY;
  for (std::int64_t v = threadIdx.x; v < V; v += kRowThreads) top = fmaxf(top, Widened(logits[v]));
  top = BlockMax<kRowThreads>(top, of_warps);
  float total = 0;
  for (std::int64_t v = threadIdx.x; v < V; v += kRowThreads)
    total += expf(Widened(logits[v]) - top);
  // Behind its barrier the target may be overwritten, so it is read before.
  const float at_target = Widened(logits[target]);
  total = BlockSum<kRowThreads>(total, of_warps + kRowWarps);
  const float log_total = logf(total);
  if (threadIdx.x == 0) args.losses[row] = log_total - (at_target - top);
  const auto scale = static_cast<float>(args.loss_scale);
  for (std::int64_t v = threadIdx.x; v < V; v += kRowThreads) {
    const float p = expf(Widened(logits[v]) - top) / total;
    logits[v] = Narrowed<T>((p - static_cast<float>(v == target)) * scale);
  }
}

}  // namespace

template <typename T>
void CrossEntropy(const Launch& launch, const CrossEntropyArgs<T>& args) {
  LaunchKernel(
      launch, Kernel<T>,
      {.blocks = args.rows, .threads = kRowThreads, .block_bytes = 2 * kRowWarps * sizeof(float)},
      args);
}

#define REGROUP_INSTANTIATE(T) \
  template void CrossEntropy<T>(const Launch&, const CrossEntropyArgs<T>&);
REGROUP_FOR_NUMBER_TYPES(REGROUP_INSTANTIATE)

}  // namespace regroup::worker::cuda
