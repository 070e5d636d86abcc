#include "worker/cuda_kernels/launch.h"

#include "absl/status/status.h"
#include "worker/cuda/cuda_device.h"
#include "worker/device/device.h"

namespace regroup::worker::cuda {

void PutOnStream(Stream& stream, const void* kernel, const Geometry& geometry,
                 std::span<const std::byte> argument) {
  if (geometry.blocks == 0 || geometry.blocks_y == 0) return;
  if (geometry.blocks > kMostBlocks || geometry.blocks_y > kMostBlocksY)
    return Refuse(stream, "a tensor is too large for one launch on a GPU");
  const auto number = [](std::int64_t n) { return static_cast<unsigned>(n); };
  static_cast<CudaStream&>(stream).Launch(
      kernel, {number(geometry.blocks), number(geometry.blocks_y), 1},
      {number(geometry.threads), number(geometry.threads_y), 1}, geometry.block_bytes, argument);
}

void ZeroOnStream(Stream& stream, void* to, std::size_t bytes) { stream.Zero(to, bytes); }

bool MultiplyByLibrary(Stream& stream, const MatrixProduct& product) {
  auto& on = static_cast<CudaStream&>(stream);
  return on.products() != nullptr && on.products()->Multiply(on, product);
}

void Refuse(Stream& stream, const char* why) {
  static_cast<CudaStream&>(stream).progress()->Fail(absl::InvalidArgumentError(why));
}

}  // namespace regroup::worker::cuda
