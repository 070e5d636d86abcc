// Layer norm: one warp has a row.
#include "worker/cuda_kernels/block.cuh"
#include "worker/cuda_kernels/column_sums.cuh"
#include "worker/cuda_kernels/kernels.h"

namespace regroup::worker::cuda {
namespace {

constexpr float kEpsilon = 1e-5f;

__device__ std::int64_t RowOfWarp() {
  return static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
}
__device__ int Lane() { return static_cast<int>(threadIdx.x % kWarp); }

// Each lane reads again what it has written itself, so the rounded sum is what is normalised.
template <typename T>
__global__ void ForwardKernel(LayerNormForwardArgs<T> args) {
  const std::int64_t row = RowOfWarp(), width = args.width;
  if (row >= args.rows) return;
  const T* x = args.x + row * width;
  if (args.residual != nullptr) {
    const T* residual = args.residual + row * width;
    T* sum = args.sum + row * width;
    for (std::int64_t c = Lane(); c < width; c += kWarp)
      sum[c] = Narrowed<T>(Widened(x[c]) + Widened(residual[c]));
    x = sum;
  }
  float total = 0, squares = 0;
  for (std::int64_t c = Lane(); c < width; c += kWarp) total += Widened(x[c]);
  const float mean = WarpSum(total) / static_cast<float>(width);
  for (std::int64_t c = Lane(); c < width; c += kWarp) {
    const float apart = Widened(x[c]) - mean;
    squares += apart * apart;
  }
  const float rstd = 1 / sqrtf(WarpSum(squares) / static_cast<float>(width) + kEpsilon);
  T* y = args.y + row * width;
  for (std::int64_t c = Lane(); c < width; c += kWarp) {
    y[c] =
        Narrowed<T>((Widened(x[c]) - mean) * rstd * Widened(args.gain[c]) + Widened(args.bias[c]));
  }
  if (Lane() != 0) return;
  args.mean[row] = mean;
  args.rstd[row] = rstd;
}

template <typename T>
__global__ void InputGradKernel(LayerNormBackwardArgs<T> args) {
  const std::int64_t row = RowOfWarp(), width = args.width;
  if (row >= args.rows) return;
  const T *dy = args.dy + row * width, *x = args.x + row * width;
  T* dx = args.dx + row * width;
  const float mean = args.mean[row], rstd = args.rstd[row];
  float mean_d = 0, mean_dn = 0;
  for (std::int64_t c = Lane(); c < width; c += kWarp) {
    const float d = Widened(dy[c]) * Widened(args.gain[c]);
    mean_d += d;
    mean_dn += d * ((Widened(x[c]) - mean) * rstd);
  }
  mean_d = WarpSum(mean_d) / static_cast<float>(width);
  mean_dn = WarpSum(mean_dn) / static_cast<float>(width);
  for (std::int64_t c = Lane(); c < width; c += kWarp) {
    const float normed = (Widened(x[c]) - mean) * rstd;
    const float d = rstd * (Widened(dy[c]) * Widened(args.gain[c]) - mean_d - normed * mean_dn);
    dx[c] = Narrowed<T>(args.add_dx ? Widened(dx[c]) + d : d);
  }
}

template <typename T>
struct GainAndBias {
  static constexpr int kSums = 2;
  const T *dy, *x;           // (rows, width)
  const float *mean, *rstd;  // (rows)
  __device__ void Add(std::int64_t row, std::int64_t at, float* sums) const {
    const float d = Widened(dy[at]);
    sums[0] += d * ((Widened(x[at]) - mean[row]) * rstd[row]);
    sums[1] += d;
  }
};

}  // namespace

template <typename T>
void LayerNormForward(const Launch& launch, const LayerNormForwardArgs<T>& args) {
  LaunchKernel(launch, ForwardKernel<T>,
               {.blocks = BlocksFor(args.rows, kWarps), .threads = kThreads}, args);
}

template <typename T>
void LayerNormBackward(const Launch& launch, const LayerNormBackwardArgs<T>& args) {
  SumColumns(launch, ColumnSums<GainAndBias<T>>{args.rows,
                                                args.width,
                                                {args.dy, args.x, args.mean, args.rstd},
                                                {args.dgain, args.dbias},
                                                args.add});
  LaunchKernel(launch, InputGradKernel<T>,
               {.blocks = BlocksFor(args.rows, kWarps), .threads = kThreads}, args);
}

#define REGROUP_INSTANTIATE(T)                                                      \
  template void LayerNormForward<T>(const Launch&, const LayerNormForwardArgs<T>&); \
  template void LayerNormBackward<T>(const Launch&, const LayerNormBackwardArgs<T>&);
REGROUP_FOR_NUMBER_TYPES(REGROUP_INSTANTIATE)

}  // namespace regroup::worker::cuda
