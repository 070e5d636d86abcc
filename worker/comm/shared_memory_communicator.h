#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "worker/comm/communicator.h"
#include "worker/comm/segment.h"

namespace regroup::worker {

// How one rank reaches the others: who is alive, and how memory is handed over.
class Peers {
 public:
  virtual ~Peers() = default;
  // True once the rank's process has ended.
  virtual bool Gone(int rank) = 0;
  // For messages, as in "rank 2 (pid 4711)"; of any rank of the world.
  virtual std::string NameOf(int world_rank) const = 0;

  struct ArenaTicket {
    std::uint64_t holder = 0, handle = 0, bytes = 0;
  };
  struct Arena {
    std::byte* base = nullptr;
    ArenaTicket ticket;
  };
  // Rank 0: makes zeroed memory. Others: map what the ticket names. Released with the Peers.
  virtual absl::StatusOr<Arena> MakeArena(std::size_t bytes) = 0;
  virtual absl::StatusOr<Arena> OpenArena(const ArenaTicket& ticket) = 0;
  // Every rank has opened it.
  virtual void ArenaShared(const ArenaTicket& ticket) = 0;
};

struct SharedMemoryOptions {
  Duration deadline = std::chrono::seconds(300);
  // Pauses before a waiting rank sleeps. More than cores: a spinning rank keeps the one it waits
  // for off the core.
  int spin = 200;
  // What messages call rank 0, where these are some of the world's ranks.
  int first_rank = 0;
};

enum Operation : std::uint32_t {
  kBarrier = 1,
  kSum,
  kReduce,
  kBroadcast,
  kArena,
  kScatter,
  kGather
};
enum Type : std::uint32_t { kByte = 1, kFloat, kDouble, kInt64, kBFloat16, kHalf };
Type TypeOf(DType type);

inline constexpr std::uint64_t kNoArena = ~0ull;
// Below this a copy through the buffers (one phase) beats reducing in place (two phases).
inline constexpr std::size_t kStagedElements = 16384;
std::string Describe(const CallHeader& header);
// Ranks whose stretches or groups differ anywhere have other hashes.
std::uint64_t HashOf(std::span<const Stretch> stretches, int group);

// One look of a rank that waits. `come`: what it waits for is here; `failed`: the group has failed.
// Another rank that has it already may leave or abort between the two questions, so after a failure
// the first is asked again: what has come stays. REQUIRES: `failed` acquires what came before it.
enum class Look { kNothing, kCome, kFailed };
template <class Come, class Failed>
Look LookOnce(const Come& come, const Failed& failed) {
  if (come()) return Look::kCome;
  if (!failed()) return Look::kNothing;
  return come() ? Look::kCome : Look::kFailed;
}

// All collectives over one Segment. Waiting: `spin` pauses, then sleeps of 2 ms that a publishing
// rank cuts short; after each the failure word, the peers and the deadline are looked at.
class SharedMemoryCommunicator final : public Communicator {
 public:
  // REQUIRES: segment holds SegmentBytes(world_size), shared by all ranks, and outlives this object
  // with `peers`.
  SharedMemoryCommunicator(int rank, int world_size, Segment* segment, SharedMemoryOptions options,
                           std::unique_ptr<Peers> peers);
  ~SharedMemoryCommunicator() override;

  int rank() const override { return rank_; }
  int world_size() const override { return world_size_; }
  void SetDeadline(Duration per_call) override { deadline_ = per_call; }
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

  // What MultiHostCommunicator is made of, where these are the ranks of one of several hosts. Ranks
  // below are numbered from 0.
  struct Place {
    std::size_t arena, offset;
    std::uint64_t Packed() const { return static_cast<std::uint64_t>(arena) << 48 | offset; }
  };
  // Its number, on every rank; the call's deadline starts anew.
  std::uint64_t NextCall();
  // Every rank publishes `header` and up to kBufferBytes; returns when all buffers can be read.
  absl::Status Exchange(const CallHeader& header, const void* data, std::size_t bytes);
  // What `rank` brought to the last Exchange. Valid until the one after the next.
  const std::byte* Brought(int rank) const { return Buffer(rank, phase_); }
  // Publishes this rank's next phase and waits until every rank has reached it.
  absl::Status NextPhase();
  std::optional<Place> FindInArena(const Tensor& range) const;
  std::byte* PartOf(std::size_t arena, int rank) const { return PartOf(arenas_[arena], rank); }
  // Ranks that have a part of it together.
  int SharersOf(std::size_t arena) const { return arenas_[arena].sharers; }
  // All ranks do this, or none.
  void ForgetLastArena() { arenas_.pop_back(); }
  // Any thread: the failure word, or 0; the first that was published stays.
  std::uint64_t FailureWord() const { return segment_->failure.load(); }
  void PublishWord(std::uint64_t packed);
  // Publishes, and returns what was published first.
  absl::Status Fail(std::uint32_t kind, int about);
  absl::Status Failure() const;  // The failure word, as callers see it. Only of the calling thread.
  // Any thread: has the rank's process ended, or its communicator?
  bool HasLeft(int rank) const;
  // Any thread: the last call that the rank has begun.
  std::uint64_t CallOf(int rank) const { return segment_->slots[rank].call.load(); }
  std::string NameOf(int world_rank) const { return peers_->NameOf(world_rank); }
  // In Failure()'s words on this rank, where it is a kMismatch.
  void SetMismatch(std::string text) { mismatch_ = std::move(text); }

 private:
  struct SharedArena {
    std::byte* base;
    std::size_t stride;  // From one part to the next one.
    int sharers;         // Ranks that have a part together.
    DType type;
    std::size_t count;  // Elements in each part.
  };

  std::byte* Buffer(int rank, std::uint32_t phase) const;
  template <class T>
  absl::Status SumAll(std::span<T> inout);
  template <class T>
  absl::Status SumInArena(Place place, std::size_t count);
  // Of every owner's stretches, this rank's part.
  template <class T>
  absl::Status SumOwned(const SharedArena& arena, std::span<const Stretch> stretches,
                        std::span<T> out, int group);
  // The arena that `own` is this rank's part of. REQUIRES: it is one.
  const SharedArena& ArenaOf(const Tensor& own) const;
  std::byte* PartOf(const SharedArena& arena, int rank) const {
    return arena.base + static_cast<std::size_t>(rank / arena.sharers) * arena.stride;
  }
  // Every rank has come with the same stretches of the same arena.
  absl::Status Meet(std::uint32_t operation, const SharedArena& arena,
                    std::span<const Stretch> stretches, int group);
  template <class T>
  absl::Status ReduceStaged(std::span<T> inout, CallHeader header,
                            void (*combine)(T*, const T*, std::size_t));
  absl::Status AwaitRank(int rank, std::uint32_t phase);
  absl::Status AwaitAsleep(int rank, std::uint32_t phase);
  absl::Status CompareHeaders(const CallHeader& mine);
  void Publish(std::uint32_t kind, int about);  // Any thread. The first failure stays.
  absl::Status Published() const;               // The failure word in words.
  void WakeAll();

  const int rank_;
  const int world_size_;
  Segment* const segment_;
  const SharedMemoryOptions options_;
  const std::unique_ptr<Peers> peers_;
  Duration deadline_;
  std::uint32_t phase_ = 0;
  std::uint64_t sequence_ = 0;
  std::optional<std::chrono::steady_clock::time_point>
      call_end_;          // Set once the call had to sleep.
  std::string mismatch_;  // This rank's own view of a kMismatch.
  std::vector<SharedArena> arenas_;
};

}  // namespace regroup::worker
