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

// Tensors of which other ranks hold copies, hashed: one number each, then one of the counters.
// Reads them once, on all threads of the execution thread.
std::vector<std::int64_t> HashState(const std::vector<StateTensor>& tensors,
                                    const std::map<std::string, std::int64_t>& counters);

// Collective, by which every rank learns whether those that should hold the same bits and the same
// counters: only then may each of them write a part of one checkpoint. Those are the ranks at one
// place of every group of so many; of groups of 1, all. `hashes` are HashState's. OK: they do. Data
// loss in three parts, the same on all ranks: they do not; it names step, ranks, tensor and unit.
// Ranks are compared with what most of them hold.
absl::Status CompareReplicas(Group& ranks, const ParamLayout& layout,
                             const std::vector<StateTensor>& tensors,
                             const std::vector<std::int64_t>& hashes, std::int64_t step,
                             int group = 1);

}  // namespace regroup::worker
