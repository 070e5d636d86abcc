#pragma once

#include <memory>

#include "worker/device/device.h"

namespace regroup::worker {

// The CPU: all memory is the host's. What computes is done at once, by whoever begins it, with that
// thread's ThreadCount(); what moves is done by a thread of its stream.
class HostDevice final : public Device {
 public:
  bool IsHost() const override { return true; }
  absl::StatusOr<Arena> Allocate(MemoryKind kind, std::size_t bytes) override;
  std::unique_ptr<Stream> NewStream(StreamKind kind) override;
};

}  // namespace regroup::worker
