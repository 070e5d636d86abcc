#pragma once

#include <string>

#include "common/base/check.h"
#include "worker/cuda/cuda_api.h"
#include "worker/nccl/nccl_api.h"

namespace regroup::worker {

// What tests ask of a FakeGpu, of what this machine has (REGROUP_REAL_GPU).
class RealGpu {
 public:
  const CudaApi& cuda() const { return LinkedCudaApi(); }
  int count() const {
    int count = 0;
    CHECK(cuda().get_device_count(&count) == kCudaSuccess);
    return count;
  }
  absl::StatusOr<NcclApi> Nccl() const { return FindNccl(NcclPlaces()); }
  // It does not keep count.
  void set_devices(int /*count*/, int /*error*/) const {}
  std::string Refusals() const { return ""; }
  int live() const { return 0; }
  int comms() const { return 0; }
};

}  // namespace regroup::worker
