#pragma once

#include <memory>
#include <vector>

#include "worker/comm/communicator.h"
#include "worker/comm/shared_memory_communicator.h"

namespace regroup::worker {

// The ranks are threads of this process: element r of the result belongs to the thread of rank r.
// For tests, and for a world of one. REQUIRES: 1 <= world_size <= 64.
std::vector<std::unique_ptr<Communicator>> MakeInProcessCommunicators(
    int world_size, Duration deadline = std::chrono::seconds(60));

// As above, where these are the ranks of one of several hosts: `first_rank` of the world and those
// behind it.
std::vector<std::unique_ptr<SharedMemoryCommunicator>> MakeInProcessHost(int first_rank, int count,
                                                                         Duration deadline);

}  // namespace regroup::worker
