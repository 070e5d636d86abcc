#include "worker/cuda/cuda_api.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace regroup::worker {

absl::Status CudaStatus(const CudaApi& api, int error, const char* call) {
  if (error == kCudaSuccess) return absl::OkStatus();
  const std::string text =
      absl::StrCat(call, ": ", api.get_error_string(error), " (CUDA error ", error, ")");
  switch (error) {
    case kCudaErrorMemoryAllocation: return absl::ResourceExhaustedError(text);
    case kCudaErrorInsufficientDriver:
    case kCudaErrorNoDevice: return absl::UnavailableError(text);
    default: return absl::InternalError(text);
  }
}

}  // namespace regroup::worker
