#pragma once

#include "worker/kernels/kernels.h"

namespace regroup::worker {

// The linear layers of KernelTable<float> by oneDNN. Its failures come back as internal errors with
// the shape. The first call with a shape compiles code for it and allocates; later ones find it
// again.
absl::Status OnednnLinearForward(const LinearForwardArgs<float>& args, void* workspace);
absl::Status OnednnLinearInputGrad(const LinearInputGradArgs<float>& args, void* workspace);
absl::Status OnednnLinearWeightGrad(const LinearWeightGradArgs<float>& args, void* workspace);

}  // namespace regroup::worker
