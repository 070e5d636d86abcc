#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/comm/communicator.h"
#include "worker/device/device.h"
#include "worker/tensor/arena.h"

namespace regroup::worker {

// Collectives of tensors in a device's memory by way of the host's: each call copies what it needs
// to the host, moves it as `ranks` does, and copies the results back, one piece after the other. So
// any number of ranks may share a device, and none needs a library; sums have the bits that the
// host's have. A call takes the time of all three steps, since its pieces do not overlap.
//
// A rank that is alone has its results without the host.
//
// What moves on the host is called by the stream: a thread that may be the device's own.
class HostStagedCommunicator final : public Collectives {
 public:
  static constexpr std::size_t kPieceBytes = std::size_t{4} << 20;

  // Collective. Resource exhausted, with the size; or the failure of `ranks`. What is referred to
  // outlives this. `piece_bytes`: at least 8, and equal on all ranks.
  static absl::StatusOr<std::unique_ptr<HostStagedCommunicator>> Create(
      Communicator& ranks, Device& device, std::size_t piece_bytes = kPieceBytes);
  // REQUIRES: what was begun is over.
  ~HostStagedCommunicator() override;

  // Memory of the device, for each rank its own. Resource exhausted, with the size.
  absl::StatusOr<Tensor> AllocateShared(DType type, std::size_t count, int group) override;
  bool WaitsForNetwork() const override { return ranks_.world_size() > 1; }
  void AllReduceSum(Stream& stream, Tensor inout) override;
  void ReduceScatter(Stream& stream, Tensor arena, std::span<const Stretch> stretches, Tensor out,
                     int group) override;
  void AllGather(Stream& stream, Tensor arena, std::span<const Stretch> stretches, Tensor out,
                 int group) override;

 private:
  HostStagedCommunicator(Communicator& ranks, Device& device) : ranks_(ranks), device_(device) {}
  // Where tensors of that type lie on the host: an arena of `ranks`.
  const Tensor& StagedOf(DType type) const;
  // Stretches are cut where they are too long. Of each piece they lie in the staged arena one after
  // the other, at `moved`; the places of arena and results are those of the caller.
  struct Piece {
    std::vector<Stretch> of_caller, moved;
  };
  // What goes to the host of each piece, the host's call, and what comes back.
  void Move(Stream& stream, Tensor arena, std::span<const Stretch> stretches, Tensor out, int group,
            bool gathers);
  std::vector<Piece> PiecesOf(std::span<const Stretch> stretches, DType type) const;

  Communicator& ranks_;
  Device& device_;
  std::vector<Tensor> staged_;  // One of each type.
  std::vector<std::byte*> pinned_;
  std::vector<Arena> arenas_;  // What AllocateShared has given.
};

}  // namespace regroup::worker
