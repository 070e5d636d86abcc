#pragma once

#include <memory>
#include <vector>

#include "worker/comm/communicator.h"

namespace regroup::worker {

// The ranks are threads of this process: element r of the result belongs to the thread of rank r.
// For tests, and for a world of one. REQUIRES: 1 <= world_size <= 64.
std::vector<std::unique_ptr<Communicator>> MakeInProcessCommunicators(
    int world_size, Duration deadline = std::chrono::seconds(60));

}  // namespace regroup::worker
