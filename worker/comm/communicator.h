#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/time.h"
#include "worker/device/device.h"
#include "worker/tensor/tensor.h"

namespace regroup::worker {

enum class Reduction { kSum, kMax };

// The ranks of one generation, and their small messages. Every rank issues the same calls in the
// same order, from one thread; a call returns once its result is in the caller's buffer. Whatever
// moves the tensors, ranks agree here: either all live ranks of a host get a call's result or none
// does. Where a whole host is lost while a result is on its way, some hosts have it and others not.
// Who has left after a call fails nobody in it. A process may end once a call of all ranks is over,
// or its communicator is destroyed: after a gather of groups on one host each, others may not have
// come to it.
//
// Failures end the group for every rank: the first one is published to all ranks, whose pending and
// later calls return it, marked for IsCommunicatorFailure. Buffers of a failed call hold
// unspecified values.
//   kAborted             Abort() was called on some rank.
//   kUnavailable         a rank died or left; the message names it.
//   kDeadlineExceeded    a rank did not arrive within the deadline of one call; the message names
//                        it.
//   kFailedPrecondition  ranks issued different calls (operation, count, type, place or sequence).
class Group {
 public:
  virtual ~Group() = default;
  virtual int rank() const = 0;
  virtual int world_size() const = 0;

  // Applies to every later call of this rank: how long it waits for the others.
  virtual void SetDeadline(Duration per_call) = 0;

  virtual absl::Status AllReduce(std::span<double> inout, Reduction reduction) = 0;
  virtual absl::Status AllReduce(std::span<std::int64_t> inout, Reduction reduction) = 0;
  virtual absl::Status Broadcast(std::span<std::byte> inout, int root) = 0;
  virtual absl::Status Barrier() = 0;

  // Not collective, and waits for nobody: the failure of the group, also of a rank that died
  // outside of any call. Any thread, while none is inside another call of this rank.
  virtual absl::Status Health() = 0;

  // Any thread. Every rank's pending and later calls return kAborted, naming this rank.
  virtual void Abort() = 0;
};

// Elements that belong to one rank, or to one of each group of consecutive ranks. All ranks bring
// the same ones, in the same order.
struct Stretch {
  int owner = 0;          // Its place in its group.
  std::int64_t from = 0;  // Of the arena: the same place in every rank's part of it.
  std::int64_t to = 0;    // Of the buffer for results.
  std::int64_t size = 0;
  friend bool operator==(const Stretch&, const Stretch&) = default;
};

// What moves tensors between the ranks of a group, each call in the order of the stream that it is
// begun on; its failure is the stream's. A sum has equal bits on all ranks. Calls keep the order of
// the group's, and fail as they do: so none is begun while another, or one of the group's, may be
// under way on another stream or thread. All tensors of one call are of one type.
class Collectives {
 public:
  virtual ~Collectives() = default;

  // Zeroed memory of `count` elements, aligned to 256 bytes, valid until the collectives are
  // destroyed: what lies in it is reduced and gathered without a copy. Ranks name equal ranges of
  // the same arena.
  absl::StatusOr<Tensor> AllocateTensor(DType type, std::size_t count) {
    return AllocateShared(type, count, /*group=*/1);
  }
  // One such memory for the ranks of a group of so many consecutive ones, or as many as it takes
  // where they are on several hosts: what one of them has written others have after the next call.
  // It may be gathered in place, by that group, and nothing is copied within a host; it may not be
  // reduced. The world is a multiple of the group.
  virtual absl::StatusOr<Tensor> AllocateShared(DType type, std::size_t count, int group) = 0;
  absl::StatusOr<std::span<float>> AllocateArena(std::size_t count);  // Of floats.

  // Whether calls wait for a network, so that it pays to compute meanwhile. Equal on all ranks.
  virtual bool WaitsForNetwork() const { return false; }

  virtual void AllReduceSum(Stream& stream, Tensor inout) = 0;

  // The sum over all ranks of each stretch of their arenas is written to `out` of its owners, one
  // in each group of so many ranks. REQUIRES: `arena` is one that AllocateTensor returned; `out` is
  // that arena, with from == to in every stretch, or overlaps no arena. Stretches do not overlap,
  // and stay as they are until the call is over. The world is a multiple of the group. Arenas keep
  // what they hold, but for results in place.
  virtual void ReduceScatter(Stream& stream, Tensor arena, std::span<const Stretch> stretches,
                             Tensor out, int group) = 0;
  // Each stretch of an owner's arena is written to `out` of every rank; from the owner in its own
  // group, where each group is on one host. REQUIRES as above, or memory
  // that a group shares, and that owners at one place hold the same.
  virtual void AllGather(Stream& stream, Tensor arena, std::span<const Stretch> stretches,
                         Tensor out, int group) = 0;
};

// Collectives of tensors in the host's memory. Sums are made in floats, in rank order whatever the
// timing, and rounded once where the tensors are of 16 bits: so they have equal bits in all runs of
// one world size, and by whatever call they were asked for. Calls may also be made without a
// stream: they return once their result is there.
class HostCollectives : public Collectives {
 public:
  virtual absl::Status AllReduceSum(Tensor inout) = 0;
  virtual absl::Status ReduceScatter(Tensor arena, std::span<const Stretch> stretches, Tensor out,
                                     int group) = 0;
  virtual absl::Status AllGather(Tensor arena, std::span<const Stretch> stretches, Tensor out,
                                 int group) = 0;

  void AllReduceSum(Stream& stream, Tensor inout) final;
  void ReduceScatter(Stream& stream, Tensor arena, std::span<const Stretch> stretches, Tensor out,
                     int group) final;
  void AllGather(Stream& stream, Tensor arena, std::span<const Stretch> stretches, Tensor out,
                 int group) final;
};

// A group whose tensors move by the same means as its messages.
class Communicator : public Group, public HostCollectives {};

// Whether the group has failed. A file or a data set fails with the same codes as a communicator,
// so a failure of the group is marked, by the communicator, and its code decides nothing.
bool IsCommunicatorFailure(const absl::Status& status);
// For implementations.
absl::Status MarkCommunicatorFailure(absl::Status status);

}  // namespace regroup::worker
