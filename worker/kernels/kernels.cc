#include "worker/kernels/kernels.h"

#include <algorithm>
#include <type_traits>

#include "common/base/check.h"
#include "worker/kernels/fixed_chunks.h"
#include "worker/kernels/isa.h"
#include "worker/kernels/onednn.h"
#include "worker/kernels/parallel_for.h"
#include "worker/kernels/short_products.h"
#include "worker/kernels/updates.h"

namespace regroup::worker {
namespace {

template <typename T>
KernelTable<T> MakeTable(Isa isa, void (*fill)(KernelTable<T>&)) {
  KernelTable<T> table{};
  table.name = NameOf(isa);
  if constexpr (std::is_same_v<T, float>) {
    table.linear_forward = OnednnLinearForward;
    table.linear_input_grad = OnednnLinearInputGrad;
    table.linear_weight_grad = OnednnLinearWeightGrad;
  } else {
    FillShortProducts(table, MultipliesNatively(DTypeOf<T>(), isa));
  }
  table.sgd = UpdateSgd<float>;
  table.lamb = UpdateLamb<float>;
  table.trust_squares = SquareForTrust<float>;
  fill(table);
  return table;
}

}  // namespace

// In the order of SumOf in vector_kernels.h.
double AddBlocks(std::int64_t elements, const double* sums) {
  const std::int64_t blocks = (elements + kSumBlock - 1) / kSumBlock,
                     of_chunk = SumChunkElements(elements) / kSumBlock;
  double total = 0;
  for (std::int64_t chunk = 0; chunk < kSumChunks; ++chunk) {
    double sum = 0;
    const std::int64_t end = std::min(blocks, (chunk + 1) * of_chunk);
    for (std::int64_t block = chunk * of_chunk; block < end; ++block) sum += sums[block];
    total += sum;
  }
  return total;
}

// Not the chunks of exactly these rows, but the most that any smaller batch has.
std::int64_t ColumnSumElements(std::int64_t rows, std::int64_t out) {
  return std::min((rows + kMinChunkRows - 1) / kMinChunkRows, kMaxRowChunks) * out;
}

std::int64_t LayerNormElements(std::int64_t rows, std::int64_t width) {
  return ColumnSumElements(rows, 2 * width);
}

std::int64_t AttentionElements(const AttentionShape& shape) {
  const std::int64_t of_rows =
      shape.batch * shape.heads * shape.time;  // A number for each, on a GPU.
  return std::max(ThreadCount() * AttentionScratchOfThread(shape.time, shape.head_width), of_rows);
}

bool MultipliesNatively(DType type, Isa isa) {
  if (type == DType::kF32) return true;
#if defined(__x86_64__)
  // Of what oneDNN can do, it is slower than widening without these instructions.
  return type == DType::kBF16 && isa == Isa::kV4 && __builtin_cpu_supports("avx512bf16");
#else
  return false;
#endif
}

template <typename T>
const KernelTable<T>& KernelsOf(Isa isa) {
  CHECK(isa <= BestIsa());
  // Each when it is asked for: even filling a table takes the instructions that it is for.
  switch (isa) {
    case Isa::kBaseline: {
      static const KernelTable<T> table = MakeTable<T>(Isa::kBaseline, FillBaseline);
      return table;
    }
    case Isa::kV3: {
      static const KernelTable<T> table = MakeTable<T>(Isa::kV3, FillV3);
      return table;
    }
    case Isa::kV4: {
      static const KernelTable<T> table = MakeTable<T>(Isa::kV4, FillV4);
      return table;
    }
  }
  CHECK(false);
}
template const KernelTable<float>& KernelsOf<float>(Isa);
template const KernelTable<BFloat16>& KernelsOf<BFloat16>(Isa);
template const KernelTable<Half>& KernelsOf<Half>(Isa);

}  // namespace regroup::worker
