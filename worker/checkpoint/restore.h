#pragma once

#include <functional>
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

// Loads the commit of the highest step that verifies: every chunk of its files has the CRC that the
// record says, by whichever rank reads it. Rank 0 chooses, so that all ranks take the same.
// Collective. Failed precondition: the checkpoint is of another model. Data loss, with every
// reason: there are commits, but none verifies. `accept`, if given, judges a record before its data
// is read: what it says of a commit counts as if that were of another model, where it is failed
// precondition, or damaged.
absl::StatusOr<Restored> RestoreNewest(
    Group& ranks, const Repository& repository, const std::vector<StateTensor>& state,
    const std::function<absl::Status(const Manifest&)>& accept = nullptr);

}  // namespace regroup::worker
