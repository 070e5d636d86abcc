#pragma once

#include <string>
#include <vector>

#include "worker/train/compute_device.h"

namespace regroup::worker {

// regroup-worker itself: does what its words say, and returns how the process is to end; `train`
// does not return. `cuda`: what was built with it for GPUs; null: nothing.
int RunWorkerProgram(const std::vector<std::string>& words, const CudaBuild* cuda);

}  // namespace regroup::worker
