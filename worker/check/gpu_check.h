#pragma once

// `regroup-worker check-gpu`, which is what `--node-check gpu` runs on each node before a
// generation: are the GPUs of these slots there, idle and able to compute?
//
// It waits for a driver as long as that takes; whoever runs it has a time limit (the shim's is
// JobSpec::node_check.timeout).

#include <chrono>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/config/hardware.h"
#include "common/gpu/nvml.h"
#include "worker/check/cuda_driver.h"

namespace regroup::worker {

struct GpuCheck {
  std::optional<VisibleDevices> visible;  // Unset: all that the driver has.
  // For processes of a generation that has just ended to be gone from a GPU.
  std::chrono::milliseconds idle = std::chrono::seconds(5);
  // For one product; a well one takes less than 20 ms.
  std::chrono::milliseconds product = std::chrono::seconds(1);
  std::string nvml = Nvml::kLibrary;
  std::string cuda = CudaDriver::kLibrary;
};

// Each GPU is known to the driver and to CUDA, has neither failed nor an uncorrected memory error,
// nobody computes on it, and a product of two matrices on it is right and in time. A line that says
// what was found. kFailedPrecondition: a line with all that is wrong, each with its GPU.
absl::StatusOr<std::string> CheckGpus(const GpuCheck& check);

}  // namespace regroup::worker
