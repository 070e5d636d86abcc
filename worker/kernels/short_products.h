#pragma once

#include "worker/kernels/kernels.h"

namespace regroup::worker {

// The linear layers of tables of 16 bits: by oneDNN's own products of such numbers if `native`,
// else by its products of floats between widening and rounding. Both sum in float. Memory for
// widening is the execution thread's and grows to its largest product; code is compiled at the
// first call with a shape.
void FillShortProducts(KernelTable<BFloat16>& table, bool native);
void FillShortProducts(KernelTable<Half>& table, bool native);

}  // namespace regroup::worker
