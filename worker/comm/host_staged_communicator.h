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
// to the host, moves it as `ranks` does, and copies the results back, a piece of `piece_bytes`
// after the other. So any number of ranks may share one device, and none needs a library; sums have
// the bits that the host's have. The pieces of a call follow each other, so what is copied, moved
// and copied back takes the time of all three.
//
// What moves on the host is called by the stream: a thread that may be the device's own.
class HostStagedCommunicator final : public Collectives {
 public:
  static constexpr std::size_t kPieceBytes = std::size_t{4} << 20;

  // Resource exhausted, with the size. What is referred to outlives this. `piece_bytes` is equal on
  // all ranks, and that of some elements.
  static absl::StatusOr<std::unique_ptr<HostStagedCommunicator>> Create(
      Communicator& ranks, Device& device, std::size_t piece_bytes = kPieceBytes);
  // REQUIRES: what was begun is over.
  ~HostStagedCommunicator() override;

  // Memory of the device for each rank, whatever the group, and as much of the host.
  absl::StatusOr<Tensor> AllocateShared(DType type, std::size_t count, int group) override;
  bool WaitsForNetwork() const override { return ranks_.world_size() > 1; }
  void AllReduceSum(Stream& stream, Tensor inout) override;
  void ReduceScatter(Stream& stream, Tensor arena, std::span<const Stretch> stretches, Tensor out,
                     int group) override;
  void AllGather(Stream& stream, Tensor arena, std::span<const Stretch> stretches, Tensor out,
                 int group) override;

 private:
  struct Mirrored {  // An arena, and the host's of the same size.
    Arena memory;
    Tensor of_device, of_host;
    bool pinned = false;  // The host's.
  };
  HostStagedCommunicator(Communicator& ranks, Device& device) : ranks_(ranks), device_(device) {}
  Tensor MirrorOf(const Tensor& arena) const;
  Tensor Staged(DType type) const;
  // What is to be moved in turn: stretches, cut where they are too long, whose results lie one
  // after the other in the staged piece. `to` says where each begins in the buffer of results.
  struct Piece {
    std::vector<Stretch> stretches;
    std::vector<std::int64_t> to;
  };
  std::vector<Piece> PiecesOf(std::span<const Stretch> stretches, DType type) const;

  Communicator& ranks_;
  Device& device_;
  Arena staged_memory_;
  std::span<std::byte> staged_;  // A piece.
  std::vector<Mirrored> mirrored_;
};

}  // namespace regroup::worker
