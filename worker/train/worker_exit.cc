#include "worker/train/worker_exit.h"

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace regroup::worker {
namespace {
constexpr char kKey[] = "regroup/worker-exit";
}  // namespace

std::vector<std::pair<int, std::string>> DescribeExits() {
  return {
      {0, "done"},
      {1, "something that should not happen: no memory, a kernel that failed"},
      {2, "a flag, a configuration, or data that cannot be read"},
      {10,
       "the group was not formed: ranks or hosts are missing, ranks are of different builds, or "
       "NCCL failed on another rank"},
      {11, "another rank died, stopped or left in the middle of training"},
      {12, "ranks were given different settings or data, or would compute differently"},
      {13, "the checkpoint directory cannot be written, or another job uses it"},
      {14, "no checkpoint verifies, or they are of another model or other data"},
      {15, "the loss is not finite"},
      {16, "all steps are done, but the last checkpoint could not be saved"},
      {17, "saved for a notice, then nobody stopped this worker"},
      {18, "ranks that must hold the same weights do not; no checkpoint was made of that"},
      {19, "a GPU or NCCL is missing, is of no use, or fails before the first step"}};
}

absl::Status WithExit(absl::Status status, WorkerExit exit) {
  if (!status.ok()) status.SetPayload(kKey, absl::Cord(absl::StrCat(static_cast<int>(exit))));
  return status;
}

WorkerExit ExitOf(const absl::Status& status) {
  if (status.ok()) return WorkerExit::kDone;
  int code = 0;
  if (const auto payload = status.GetPayload(kKey);
      payload && absl::SimpleAtoi(std::string(*payload), &code)) {
    return static_cast<WorkerExit>(code);
  }
  return WorkerExit::kFailed;
}

}  // namespace regroup::worker
