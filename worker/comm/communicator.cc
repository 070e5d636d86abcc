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

void HostCollectives::AllReduceSum(Stream& stream, Tensor inout) {
  stream.Run([this, inout] { return AllReduceSum(inout); });
}

void HostCollectives::ReduceScatter(Stream& stream, Tensor arena,
                                    std::span<const Stretch> stretches, Tensor out, int group) {
  stream.Run([=, this] { return ReduceScatter(arena, stretches, out, group); });
}

void HostCollectives::AllGather(Stream& stream, Tensor arena, std::span<const Stretch> stretches,
                                Tensor out, int group) {
  stream.Run([=, this] { return AllGather(arena, stretches, out, group); });
}

bool IsCommunicatorFailure(const absl::Status& status) {
  return status.GetPayload(kKey).has_value();
}

absl::Status MarkCommunicatorFailure(absl::Status status) {
  if (!status.ok()) status.SetPayload(kKey, absl::Cord());
  return status;
}

}  // namespace regroup::worker
