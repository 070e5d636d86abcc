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
  auto* of_warps = BlockMemory<int>();  // (kWarps)
  const std::int64_t width = args.shape.width, rows = args.shape.batch * args.shape.time;
  const std::int64_t first = blockIdx.x;
  const std::int32_t token = args.tokens[first];
  int before = 0;
  for (std::int64_t row = threadIdx.x; row < first; row += kThreads)
    before += args.tokens[row] == token;
  if (BlockSum<kThreads>(before, of_warps) != 0) return;
  float* sums = args.dtoken + token * width;
  for (std::int64_t begin = first; begin < rows; begin += kThreads) {
    const std::int64_t row = begin + threadIdx.x;
    const unsigned own = __ballot_sync(kWholeWarp, row < rows && args.tokens[row] == token);
    __syncthreads();  // All have read what was there before.
    if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = static_cast<int>(own);
    __syncthreads();
    for (int warp = 0; warp < kWarps; ++warp) {
      for (auto left = static_cast<unsigned>(of_warps[warp]); left != 0; left &= left - 1) {
        const T* dout = args.dout + (begin + warp * kWarp + __ffs(left) - 1) * width;
        for (std::int64_t c = threadIdx.x; c < width; c += kThreads) sums[c] += Widened(dout[c]);
      }
    }
  }
}

}  // namespace

template <typename T>
void EmbeddingForward(const Launch& launch, const EmbeddingForwardArgs<T>& args) {
  const auto warps = static_cast<int>(std::min<std::int64_t>(BlocksFor(args.width, kWarp), kWarps));
  LaunchKernel(launch, ForwardKernel<T>,
               {.blocks = args.batch * args.time, .threads = warps * kWarp}, args);
}

template <typename T>
void EmbeddingBackward(const Launch& launch, const EmbeddingBackwardArgs<T>& args) {
  const EmbeddingShape& s = args.shape;
  if (!args.add_token) {  // Of tokens that are nowhere too.
    ZeroOnStream(launch.stream, args.dtoken,
                 static_cast<std::size_t>(s.vocabulary * s.width) * sizeof(float));
  }
  LaunchKernel(
      launch, TokenGradKernel<T>,
      {.blocks = s.batch * s.time, .threads = kThreads, .block_bytes = kWarps * sizeof(int)}, args);
  const std::int64_t positions = args.add_position ? s.time : s.positions;
  LaunchKernel(launch, PositionGradKernel<T>, {.blocks = positions, .threads = kThreads}, args);
}

#define REGROUP_INSTANTIATE(T)                                                      \
  template void EmbeddingForward<T>(const Launch&, const EmbeddingForwardArgs<T>&); \
  template void EmbeddingBackward<T>(const Launch&, const EmbeddingBackwardArgs<T>&);
REGROUP_FOR_NUMBER_TYPES(REGROUP_INSTANTIATE)

}  // namespace regroup::worker::cuda
