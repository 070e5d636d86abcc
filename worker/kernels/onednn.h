#pragma once

#include "worker/kernels/kernels.h"

namespace regroup::worker {

// The linear layers of KernelTable<float> by oneDNN. Its failures come back as internal errors with
// the shape. The first call with a shape compiles code for it and allocates; later ones find it
// again.
absl::Status OnednnLinearForward(const LinearShape& shape, WeightOrder order, const float* x,
                                 const float* w, const float* bias, float* y, bool add);
absl::Status OnednnLinearInputGrad(const LinearShape& shape, WeightOrder order, const float* dy,
                                   const float* w, float* dx);
absl::Status OnednnLinearWeightGrad(const LinearShape& shape, WeightOrder order, const float* x,
                                    const float* dy, float* dw, bool add);

}  // namespace regroup::worker
