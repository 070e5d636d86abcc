// Embeddings and their gradients. Who adds to a row of a table adds all of its terms, in their
// order.
#include <algorithm>

#include "worker/cuda_kernels/block.cuh"
#include "worker/cuda_kernels/block_memory.cuh"
#include "worker/cuda_kernels/kernels.h"

namespace regroup::worker::cuda {
namespace {

template <typename T>
__global__ void ForwardKernel(EmbeddingForwardArgs<T> args) {
  const std::int64_t row = blockIdx.x, width = args.width;
  const T* token = args.token_weights + args.tokens[row] * width;
  const T* position = args.position_weights + row % args.time * width;
  for (std::int64_t c = threadIdx.x; c < width; c += blockDim.x)
    args.out[row * width + c] = Narrowed<T>(Widened(token[c]) + Widened(position[c]));
}

// One block has a position, which has a row of each sequence.
template <typename T>
__global__ void PositionGradKernel(EmbeddingBackwardArgs<T> args) {
  const std::int64_t position = blockIdx.x, width = args.shape.width, time = args.shape.time;
  float* sums = args.dposition + position * width;
  for (std::int64_t c = threadIdx.x; c < width; c += blockDim.x) {
    float sum = args.add_position ? sums[c] : 0;
    if (position < time) {
      for (std::int64_t b = 0; b < args.shape.batch; ++b)
        sum += Widened(args.dout[(b * time + position) * width + c]);
    }
    sums[c] = sum;
  }
}

// One block has a row whose token stands nowhere before it, and all rows of that token.
template <typename T>
__global__ void TokenGradKernel(EmbeddingBackwardArgs<T> args) {
  auto* of_warps = BlockMemory<int>();  // (kThreads / kWarp)
  const std::int64_t width = args.shape.width, rows = args.shape.batch * args.shape.time;
  const std::int64_t first = blockIdx.x;
  const std::int32_t token = args.tokens[first];
  int before = 0;
  for (std::int64_t row = threadIdx.x; row < first; row += kThreads)
    before += args.tokens[row] == token;
  if (BlockSum<kThreads>(before, of_warps) != 0) return;
  float* sums = args.dtoken + token * width;
  for (std::int64_t c = threadIdx.x; c < width; c += kThreads) {
    float sum = args.add_token ? sums[c] : 0;
    for (std::int64_t row = first; row < rows; ++row) {
      if (args.tokens[row] == token) sum += Widened(args.dout[row * width + c]);
    }
    sums[c] = sum;
  }
}

struct Fill {
  std::int64_t elements;
  float* x;
};
__global__ void ZeroKernel(Fill args) {
  for (std::int64_t i = FirstElement(); i < args.elements; i += ElementStride()) args.x[i] = 0;
}

}  // namespace

template <typename T>
void EmbeddingForward(const Launch& launch, const EmbeddingForwardArgs<T>& args) {
  const auto warps = static_cast<int>(std::min<std::int64_t>(BlocksFor(args.width, kWarp), 8));
  LaunchKernel(launch, ForwardKernel<T>,
               {.blocks = args.batch * args.time, .threads = warps * kWarp}, args);
}

template <typename T>
void EmbeddingBackward(const Launch& launch, const EmbeddingBackwardArgs<T>& args) {
  const EmbeddingShape& s = args.shape;
  if (!args.add_token) {  // Of tokens that are nowhere too.
    const Fill all{s.vocabulary * s.width, args.dtoken};
    LaunchKernel(launch, ZeroKernel,
                 {.blocks = std::min<std::int64_t>(BlocksFor(all.elements, kThreads), 4096),
                  .threads = kThreads},
                 all);
  }
  LaunchKernel(launch, TokenGradKernel<T>,
               {.blocks = s.batch * s.time,
                .threads = kThreads,
                .block_bytes = kThreads / kWarp * sizeof(int)},
               args);
  const std::int64_t positions = args.add_position ? s.time : s.positions;
  LaunchKernel(launch, PositionGradKernel<T>, {.blocks = positions, .threads = kThreads}, args);
}

#define REGROUP_INSTANTIATE(T)                                                      \
  template void EmbeddingForward<T>(const Launch&, const EmbeddingForwardArgs<T>&); \
  template void EmbeddingBackward<T>(const Launch&, const EmbeddingBackwardArgs<T>&);
REGROUP_FOR_NUMBER_TYPES(REGROUP_INSTANTIATE)

}  // namespace regroup::worker::cuda
