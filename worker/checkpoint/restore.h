#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/checkpoint/repository.h"
#include "worker/comm/communicator.h"

namespace regroup::worker {

struct Restored {
  std::optional<Manifest> manifest;  // None: there was no commit at all, and `state` is as it was.
  std::string record;                // Of that manifest.
  std::vector<std::string> skipped;  // One sentence per newer commit that did not verify.
};

// Loads the commit of the highest step that verifies on every rank; rank 0 chooses, so that all
// ranks take the same. Collective. Failed precondition: the checkpoint is of another model. Data
// loss, with every reason: there are commits, but none verifies.
absl::StatusOr<Restored> RestoreNewest(Group& ranks, const Repository& repository,
                                       const std::vector<StateTensor>& state);

}  // namespace regroup::worker
