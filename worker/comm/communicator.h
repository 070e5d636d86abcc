#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/time.h"

namespace regroup::worker {

enum class Reduction { kSum, kMax };

// The ranks of one generation. Every rank issues the same calls in the same order, from one thread;
// a call returns once its result is in the caller's buffer. Sums are added in rank order whatever
// the timing, so the result has equal bits on all ranks and in all runs of one world size.
//
// Failures end the communicator for every rank: the first one is published to all ranks, whose
// pending and later calls return it, marked for IsCommunicatorFailure. Buffers of a failed call
// hold unspecified values.
//   kAborted             Abort() was called on some rank.
//   kUnavailable         a rank died or left; the message names it.
//   kDeadlineExceeded    a rank did not arrive within the deadline of one call; the message names
//   it. kFailedPrecondition  ranks issued different calls (operation, count, type, place or
//   sequence).
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int world_size() const = 0;

  // Applies to every later call of this rank: how long it waits for the others.
  virtual void SetDeadline(Duration per_call) = 0;

  // Collective. Zeroed memory of `count` floats, aligned to 256 bytes, valid until the communicator
  // is destroyed: AllReduceSum of any range of it needs no copy. Ranks reduce equal ranges of the
  // same arena.
  virtual absl::StatusOr<std::span<float>> AllocateArena(std::size_t count) = 0;

  virtual absl::Status AllReduceSum(std::span<float> inout) = 0;
  virtual absl::Status AllReduce(std::span<double> inout, Reduction reduction) = 0;
  virtual absl::Status AllReduce(std::span<std::int64_t> inout, Reduction reduction) = 0;
  virtual absl::Status Broadcast(std::span<std::byte> inout, int root) = 0;
  virtual absl::Status Barrier() = 0;

  // Not collective, and waits for nobody: the failure of the group, also of a rank that died
  // outside of any call.
  virtual absl::Status Health() = 0;

  // Any thread. Every rank's pending and later calls return kAborted, naming this rank.
  virtual void Abort() = 0;
};

// Whether the group has failed. A file or a data set fails with the same codes as a communicator,
// so a failure of the group is marked, by the communicator, and its code decides nothing.
bool IsCommunicatorFailure(const absl::Status& status);
// For implementations.
absl::Status MarkCommunicatorFailure(absl::Status status);

}  // namespace regroup::worker
