// Products of matrices: by cuBLASLt, or without tensor cores where it is missing or has no way.
#include "worker/cuda_kernels/block.cuh"
#include "worker/cuda_kernels/block_memory.cuh"
#include "worker/cuda_kernels/kernels.h"

namespace regroup::worker::cuda {
namespace {

constexpr int kTile = 64;     // Rows and columns of c that a block has.
constexpr int kDepth = 16;    // Of a and b that it has at a time.
constexpr int kOfThread = 4;  // Rows and columns of c that a thread has.
constexpr int kLanes = kTile / kOfThread;
constexpr int kTileThreads = kLanes * kLanes;
constexpr int kPadded = kTile + 1;

// Element (i, j) of a matrix is at i · row + j · column.
template <typename T>
struct Matrix {
  T* at;
  std::int64_t row, column;
};

// c (m, n) = a (m, k) · b (k, n) [+ bias (n)] [+ c].
template <typename T, typename Result>
struct Product {
  std::int64_t m, n, k;
  Matrix<const T> a, b;
  Result* c;  // Dense.
  const T* bias;
  bool add;
};

// Rows from `first` on, kDepth columns from `depth` on, of a matrix of so many; zeros beyond it.
// Neighbours read what lies side by side.
template <typename T>
__device__ void ReadTile(const Matrix<const T>& matrix, std::int64_t first, std::int64_t rows,
                         std::int64_t depth, std::int64_t columns, float* tile) {
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kDepth; i += kTileThreads) {
    const bool by_row = matrix.column == 1;
    const int r = by_row ? i / kDepth : i % kTile, d = by_row ? i % kDepth : i / kTile;
    const bool inside = first + r < rows && depth + d < columns;
    tile[d * kPadded + r] =
        inside ? Widened(matrix.at[(first + r) * matrix.row + (depth + d) * matrix.column]) : 0;
  }
}

template <typename T, typename Result>
__global__ void __launch_bounds__(kTileThreads) ProductKernel(Product<T, Result> args) {
  auto* a = BlockMemory<float>();  // (kDepth, kPadded)
  float* b = a + kDepth * kPadded;
  const auto tiles = static_cast<unsigned>(BlocksFor(args.m, kTile));  // Of a column of them.
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x % tiles) * kTile,
                     column = static_cast<std::int64_t>(blockIdx.x / tiles) * kTile;
  const int r = static_cast<int>(threadIdx.x) / kLanes, c = static_cast<int>(threadIdx.x) % kLanes;
  const Matrix<const T> transposed{args.b.at, args.b.column, args.b.row};
  float sums[kOfThread][kOfThread] = {};
  for (std::int64_t depth = 0; depth < args.k; depth += kDepth) {
    ReadTile(args.a, row, args.m, depth, args.k, a);
    ReadTile(transposed, column, args.n, depth, args.k, b);
    __syncthreads();
    for (int d = 0; d < kDepth; ++d) {
      for (int i = 0; i < kOfThread; ++i) {
        for (int j = 0; j < kOfThread; ++j)
          sums[i][j] += a[d * kPadded + r + i * kLanes] * b[d * kPadded + c + j * kLanes];
      }
    }
    __syncthreads();
  }
  for (int i = 0; i < kOfThread; ++i) {
    for (int j = 0; j < kOfThread; ++j) {
      const std::int64_t at_row = row + r + i * kLanes, at_column = column + c + j * kLanes;
      if (at_row >= args.m || at_column >= args.n) continue;
      Result& target = args.c[at_row * args.n + at_column];
      float sum = sums[i][j];
      if (args.bias != nullptr) sum += Widened(args.bias[at_column]);
      if (args.add) sum += Widened(target);
      target = Narrowed<Result>(sum);
    }
  }
}

// x: see MatrixProduct.
template <typename T, typename Result>
bool ByLibrary(const Launch& launch, const Product<T, Result>& product, const T* x = nullptr) {
  return MultiplyByLibrary(launch.stream, {.type = DTypeOf<T>(),
                                           .result = DTypeOf<Result>(),
                                           .m = product.m,
                                           .n = product.n,
                                           .k = product.k,
                                           .a = product.a.at,
                                           .b = product.b.at,
                                           .a_transposed = product.a.column != 1,
                                           .b_transposed = product.b.column != 1,
                                           .bias = product.bias,
                                           .c = product.c,
                                           .add = product.add,
                                           .x = x});
}

template <typename T, typename Result>
void Multiply(const Launch& launch, const Product<T, Result>& product) {
  if (ByLibrary(launch, product)) return;
  LaunchKernel(launch, ProductKernel<T, Result>,
               {.blocks = BlocksFor(product.m, kTile) * BlocksFor(product.n, kTile),
                .threads = kTileThreads,
                .block_bytes = 2 * kDepth * kPadded * sizeof(float)},
               product);
}

// The weights as a matrix (in, out).
template <typename T>
Matrix<const T> Weights(const LinearShape& shape, WeightOrder order, const T* w) {
  return order == WeightOrder::kInOut ? Matrix<const T>{w, shape.out, 1}
                                      : Matrix<const T>{w, 1, shape.in};
}
template <typename T>
Matrix<const T> Transposed(const Matrix<const T>& matrix) {
  return {matrix.at, matrix.column, matrix.row};
}

template <typename T>
Product<T, T> ForInputGrad(const LinearInputGradArgs<T>& args) {
  const LinearShape& s = args.shape;
  return {s.rows,  s.in,    s.out, {args.dy, s.out, 1}, Transposed(Weights(s, args.order, args.w)),
          args.dx, nullptr, false};
}

}  // namespace

template <typename T>
void LinearForward(const Launch& launch, const LinearForwardArgs<T>& args) {
  const LinearShape& s = args.shape;
  Multiply(launch, Product<T, T>{s.rows,
                                 s.out,
                                 s.in,
                                 {args.x, s.in, 1},
                                 Weights(s, args.order, args.w),
                                 args.y,
                                 args.bias,
                                 args.add});
}

template <typename T>
void LinearInputGrad(const Launch& launch, const LinearInputGradArgs<T>& args) {
  Multiply(launch, ForInputGrad(args));
}

template <typename T>
void LinearGeluInputGrad(const Launch& launch, const LinearGeluInputGradArgs<T>& args) {
  const LinearInputGradArgs<T>& linear = args.linear;
  if (ByLibrary(launch, ForInputGrad(linear), args.x)) return;
  LinearInputGrad(launch, linear);
  GeluBackward<T>(launch, {.elements = linear.shape.rows * linear.shape.in,
                           .x = args.x,
                           .dy = linear.dx,
                           .dx = linear.dx});
}

template <typename T>
void LinearWeightGrad(const Launch& launch, const LinearWeightGradArgs<T>& args) {
  const LinearShape& s = args.shape;
  const Matrix<const T> x{args.x, s.in, 1}, dy{args.dy, s.out, 1};
  const Product<T, float> in_out{s.in, s.out,   s.rows,  Transposed(x),
                                 dy,   args.dw, nullptr, args.add};
  const Product<T, float> out_in{s.out, s.in,    s.rows,  Transposed(dy),
                                 x,     args.dw, nullptr, args.add};
  Multiply(launch, args.order == WeightOrder::kInOut ? in_out : out_in);
}

#define REGROUP_INSTANTIATE(T)                                                            \
  template void LinearForward<T>(const Launch&, const LinearForwardArgs<T>&);             \
  template void LinearInputGrad<T>(const Launch&, const LinearInputGradArgs<T>&);         \
  template void LinearGeluInputGrad<T>(const Launch&, const LinearGeluInputGradArgs<T>&); \
  template void LinearWeightGrad<T>(const Launch&, const LinearWeightGradArgs<T>&);
REGROUP_FOR_NUMBER_TYPES(REGROUP_INSTANTIATE)

}  // namespace regroup::worker::cuda
