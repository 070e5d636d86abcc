#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "worker/kernels/kernels.h"
#if defined(REGROUP_CUDA_TABLE)
#include "worker/cuda_kernels/tables.h"
#endif

namespace regroup::worker {

// All that are to agree with the plain twins: of every instruction set that this CPU can run, and
// what a GPU computes: emulated (tests/worker/gpu_emulator), or on one (tests/worker/gpu).
template <typename T>
std::vector<const KernelTable<T>*> FastTables() {
  std::vector<const KernelTable<T>*> tables;
  for (const Isa isa : {Isa::kBaseline, Isa::kV3, Isa::kV4}) {
    if (isa <= BestIsa()) tables.push_back(&KernelsOf<T>(isa));
  }
#if defined(REGROUP_CUDA_TABLE)
  tables.push_back(&CudaKernels<T>());
#endif
  return tables;
}

// And the twins in float.
inline std::vector<const Kernels*> FloatTables() {
  std::vector<const Kernels*> tables = FastTables<float>();
  tables.push_back(&ReferenceKernels<float>());
  return tables;
}

// oneDNN's products are the same bits for every thread count where it has AVX-512 only.
inline bool ProductsKeepBits() { return BestIsa() == Isa::kV4; }

// Two results of the same products, for different thread counts.
inline void ExpectSameProducts(const std::vector<float>& a, const std::vector<float>& b) {
  ASSERT_EQ(a.size(), b.size());
  if (ProductsKeepBits()) {
    EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0);
    return;
  }
  float largest = 0, apart = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::abs(a[i]));
    apart = std::max(apart, std::abs(a[i] - b[i]));
  }
  EXPECT_LT(apart, 1e-5f * largest);
}

// fp32 against fp64, relative in the 2-norm.
inline constexpr double kFloatTolerance = 5e-6;
inline constexpr double kDoubleTolerance = 1e-12;

}  // namespace regroup::worker
