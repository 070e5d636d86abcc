#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace regroup::worker {

// How regroup-worker ends. Documented in --help; supervisors and retry rules may rely on the
// numbers.
enum class WorkerExit : int {
  kDone = 0,
  kFailed = 1,           // Something that should not happen: no memory, a kernel that failed.
  kUsage = 2,            // A flag, a configuration, or data that can not be read.
  kGroupNotFormed = 10,  // The store or another host does not answer, ranks are missing, or are of
                         // different builds, or NCCL failed on another rank before the first step.
  kCommunicatorFailed = 11,   // Another rank died, stopped or left in the middle of training.
  kRanksDisagree = 12,        // Different settings, data, kernels or plans.
  kCheckpointDirectory = 13,  // It cannot be written, or another job uses it.
  kCheckpointUnusable = 14,   // None verifies, or it is of another model or other data.
  kLossNotFinite = 15,        // NaN or infinite; the weights are those of the step before.
  kLastCheckpointFailed =
      16,                // All steps are done, but the last checkpoint could not be committed.
  kNoticeExpired = 17,   // Saved for a notice, then nobody stopped this worker.
  kReplicasDiffer = 18,  // Ranks no longer hold the same state.
  kNoDevice = 19,        // A GPU or NCCL is missing, is of no use, or fails before the first step.
};

// Each code and what it means to a person.
std::vector<std::pair<int, std::string>> DescribeExits();

// The exit travels inside the status. An OK status stays as it is.
absl::Status WithExit(absl::Status status, WorkerExit exit);
// kFailed where none was given, kDone for OK.
WorkerExit ExitOf(const absl::Status& status);

}  // namespace regroup::worker
