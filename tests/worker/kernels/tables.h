#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "worker/kernels/kernels.h"

namespace regroup::worker {

// Of every float table that this CPU can run, the plain twins among them.
inline std::vector<const Kernels*> FloatTables() {
  std::vector<const Kernels*> tables = {&ReferenceKernels<float>()};
  for (Isa isa : {Isa::kBaseline, Isa::kV3, Isa::kV4}) {
    if (isa <= BestIsa()) tables.push_back(&KernelsFor(isa));
  }
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
