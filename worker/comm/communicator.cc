#include "worker/comm/communicator.h"

#include "absl/strings/cord.h"
#include "common/base/status_macros.h"

namespace regroup::worker {
namespace {
constexpr char kKey[] = "regroup/communicator-failure";
}  // namespace

absl::StatusOr<std::span<float>> Collectives::AllocateArena(std::size_t count) {
  ASSIGN_OR_RETURN(const Tensor tensor, AllocateTensor(DType::kF32, count));
  return tensor.Elements<float>();
}

bool IsCommunicatorFailure(const absl::Status& status) {
  return status.GetPayload(kKey).has_value();
}

absl::Status MarkCommunicatorFailure(absl::Status status) {
  if (!status.ok()) status.SetPayload(kKey, absl::Cord());
  return status;
}

}  // namespace regroup::worker
