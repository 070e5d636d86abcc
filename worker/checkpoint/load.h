#pragma once

#include <vector>

#include "absl/status/status.h"
#include "worker/checkpoint/repository.h"
#include "worker/checkpoint/shard.h"
#include "worker/comm/communicator.h"

namespace regroup::worker {

// Collective. The worst of what the ranks bring, and of equally bad ones that of the lowest rank,
// cut at 1 KiB: OK, data loss, or worst of all failed precondition.
absl::Status AgreeOn(Group& ranks, const absl::Status& own);

// Collective. Copies what `state` holds of a checkpoint, whose world size and division among ranks
// may be others. Every chunk of every file is read and checked by one rank, which is one that holds
// some of it, and handed to the others only if more than one does. No byte is used before the CRC
// of its chunk was found right. The same on all ranks: OK; data loss, if any chunk or file is
// damaged or cannot be read; failed precondition, naming the first difference, if `state` has other
// tensors. After a failure the state is unspecified. REQUIRES: all ranks have equal manifests.
absl::Status Load(Group& ranks, const Repository& repository, const Manifest& manifest,
                  const std::vector<StateTensor>& state);

}  // namespace regroup::worker
