#include "worker/train/worker_exit.h"

#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace regroup::worker {
namespace {
constexpr char kKey[] = "regroup/worker-exit";
}  // namespace

absl::Status WithExit(absl::Status status, WorkerExit exit) {
  if (!status.ok()) status.SetPayload(kKey, absl::Cord(absl::StrCat(static_cast<int>(exit))));
  return status;
}

bool HasExit(const absl::Status& status) { return status.GetPayload(kKey).has_value(); }

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
