#include "worker/comm/communicator.h"

#include "absl/strings/cord.h"

namespace regroup::worker {
namespace {
constexpr char kKey[] = "regroup/communicator-failure";
}  // namespace

bool IsCommunicatorFailure(const absl::Status& status) {
  return status.GetPayload(kKey).has_value();
}

absl::Status MarkCommunicatorFailure(absl::Status status) {
  if (!status.ok()) status.SetPayload(kKey, absl::Cord());
  return status;
}

}  // namespace regroup::worker
