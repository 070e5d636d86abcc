#pragma once

#include <memory>

#include "worker/device/host_device.h"
#include "worker/kernels/kernels.h"

namespace regroup::worker {

// The host, and a stream of it that computes at once.
struct HostCompute {
  template <typename T>
  Compute<T> With(const KernelTable<T>& kernels) {
    return {device, *stream, kernels};
  }
  Launch On(void* workspace = nullptr) const { return {*stream, workspace}; }
  HostDevice device;
  const std::unique_ptr<Stream> stream = device.NewStream(StreamKind::kCompute);
};

}  // namespace regroup::worker
