#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "worker/comm/communicator.h"
#include "worker/comm/host_chain.h"
#include "worker/comm/host_links.h"
#include "worker/comm/host_watch.h"
#include "worker/comm/shared_memory_communicator.h"

namespace regroup::worker {

// All collectives over several hosts. The ranks of one host share memory; its first rank holds
// connections to the first ranks of the hosts before and behind it, and moves what all of them
// need. Sums are added in the order of the world's ranks, so they have the bits that one host with
// the same ranks gives.
//
// All ranks of a host that is alive get a call's result or none does, as on one host. Between hosts
// that cannot be had: where a host is lost while the result is on its way, hosts that it has
// reached return it, and the others the failure.
class MultiHostCommunicator final : public Communicator {
 public:
  // `local` is this rank's among the ranks of its host. `links` are those of the host's first rank;
  // others bring none. Collective: returns once every rank is here, or `join_deadline` is over.
  // REQUIRES: at least two hosts.
  static absl::StatusOr<std::unique_ptr<Communicator>> Create(
      int rank, Hosts hosts, std::unique_ptr<SharedMemoryCommunicator> local,
      std::optional<HostLinks> links, Duration join_deadline, Duration deadline);
  ~MultiHostCommunicator() override;

  int rank() const override { return rank_; }
  int world_size() const override { return hosts_.back().first + hosts_.back().count; }
  void SetDeadline(Duration per_call) override;
  bool WaitsForNetwork() const override { return true; }
  absl::StatusOr<Tensor> AllocateShared(DType type, std::size_t count, int group) override;
  absl::Status AllReduceSum(Tensor inout) override;
  absl::Status ReduceScatter(Tensor arena, std::span<const Stretch> stretches, Tensor out,
                             int group) override;
  absl::Status AllGather(Tensor arena, std::span<const Stretch> stretches, Tensor out,
                         int group) override;
  absl::Status AllReduce(std::span<double> inout, Reduction reduction) override;
  absl::Status AllReduce(std::span<std::int64_t> inout, Reduction reduction) override;
  absl::Status Broadcast(std::span<std::byte> inout, int root) override;
  absl::Status Barrier() override;
  absl::Status Health() override;
  void Abort() override;

 private:
  class Call;

  MultiHostCommunicator(int rank, Hosts hosts, std::unique_ptr<SharedMemoryCommunicator> local,
                        Duration deadline);
  const HostRanks& host() const { return hosts_[static_cast<std::size_t>(own_)]; }
  int local_rank() const { return rank_ - host().first; }
  std::chrono::steady_clock::time_point End() const;

  // One piece of at most kBufferBytes that every rank brings, summed into `inout`.
  absl::Status SumBrought(const CallHeader& header, std::span<std::byte> inout,
                          const Summing& summing);
  absl::Status ReduceStaged(const CallHeader& header, std::span<std::byte> inout,
                            const Summing& summing);
  absl::Status SumInArena(SharedMemoryCommunicator::Place place, const Tensor& range,
                          std::uint64_t call);
  // Pieces move between hosts, and what belongs to this rank goes to `out`; null: in place, in the
  // parts of the arena.
  absl::Status Move(Flow flow, std::byte* out, std::byte* own_part, const std::byte* first_part);
  // Where a root puts what it hands round, for its host's ranks to read: the part of the board's
  // arena that is their second rank's, of which nothing else is used. Two in turn: all have come to
  // the next one before any is written again.
  std::byte* NextStage();
  // Each group of so many ranks.
  bool EachOnOneHost(int group) const;
  // With the owners of the first group.
  std::vector<Piece> PiecesOf(std::span<const Stretch> stretches, std::size_t element_bytes,
                              std::size_t piece_bytes) const;
  // By rank of this host.
  std::vector<const std::byte*> PartsOf(std::size_t arena) const;

  const int rank_;
  const Hosts hosts_;
  const int own_;  // Which of the hosts this is.
  const std::unique_ptr<SharedMemoryCommunicator> local_;
  Duration deadline_;
  std::chrono::steady_clock::time_point begun_;  // The call in progress.
  std::size_t board_arena_ = 0;
  Board* board_ = nullptr;
  std::size_t stages_ = 0;  // That were used, on every rank of this host.
  // Of the host's first rank.
  std::unique_ptr<HostWatch> watch_;
  std::unique_ptr<HostChain> chain_;
  // Of the others.
  std::optional<PieceTaker> taker_;
};

}  // namespace regroup::worker
