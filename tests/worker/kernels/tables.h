#pragma once

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

// fp32 against fp64, relative in the 2-norm.
inline constexpr double kFloatTolerance = 5e-6;
inline constexpr double kDoubleTolerance = 1e-12;

}  // namespace regroup::worker
