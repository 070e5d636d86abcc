#include "worker/cuda_kernels/launch.h"

#include "absl/status/status.h"
#include "worker/cuda/cuda_device.h"

namespace regroup::worker::cuda {

void PutOnStream(Stream& stream, const void* kernel, const Geometry& geometry, void** arguments) {
  if (geometry.blocks == 0 || geometry.blocks_y == 0) return;
  const auto number = [](std::int64_t n) { return static_cast<unsigned>(n); };
  static_cast<CudaStream&>(stream).Launch(
      kernel, {number(geometry.blocks), number(geometry.blocks_y), 1},
      {number(geometry.threads), number(geometry.threads_y), 1}, geometry.block_bytes, arguments);
}

void Refuse(Stream& stream, const char* why) {
  static_cast<CudaStream&>(stream).progress()->Fail(absl::InvalidArgumentError(why));
}

}  // namespace regroup::worker::cuda
