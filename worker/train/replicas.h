#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "worker/checkpoint/shard.h"
#include "worker/comm/communicator.h"
#include "worker/layout/layout.h"

namespace regroup::worker {

// Collective, by which every rank learns whether all of them hold the same bits in `tensors` and
// the same counters: only then may each of them write a part of one checkpoint. OK: they do. Data
// loss in three parts, the same on all ranks: they do not; it names step, ranks, tensor and unit.
// Ranks are compared with what most of them hold. Reads all of the state once, on all threads of
// the execution thread.
absl::Status CompareReplicas(Communicator& ranks, const ParamLayout& layout,
                             const std::vector<StateTensor>& tensors,
                             const std::map<std::string, std::int64_t>& counters,
                             std::int64_t step);

}  // namespace regroup::worker
