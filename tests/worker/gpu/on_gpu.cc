// Kernels on a GPU for tests that compute on streams of the host: each is waited for, and works on
// the memory of the test program (visible_memory.h).

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/base/status_macros.h"
#include "tests/worker/gpu/visible_memory.h"
#include "worker/cuda/cuda_api.h"
#include "worker/cuda/cuda_device.h"
#include "worker/cuda_kernels/launch.h"
#include "worker/device/device.h"

namespace regroup::worker::cuda {
namespace {

// The first GPU, which sees that memory. Lives as long as the program.
absl::StatusOr<CudaStream*> OpenGpu() {
  const CudaApi& api = LinkedCudaApi();
  RETURN_IF_ERROR(CudaStatus(api, api.set_device(0), "cudaSetDevice"));
  const std::span<std::byte> memory = VisibleMemory();
  RETURN_IF_ERROR(
      CudaStatus(api, api.host_register(memory.data(), memory.size(), kCudaHostRegisterPortable),
                 "cudaHostRegister"));
  return new CudaStream(api);
}

absl::Status RunOnGpu(const void* kernel, const Geometry& geometry, void** arguments) {
  static const absl::StatusOr<CudaStream*> stream = OpenGpu();
  if (!stream.ok()) return stream.status();
  const auto number = [](std::int64_t n) { return static_cast<unsigned>(n); };
  (*stream)->Launch(kernel, {number(geometry.blocks), number(geometry.blocks_y), 1},
                    {number(geometry.threads), number(geometry.threads_y), 1}, geometry.block_bytes,
                    arguments);
  return (*stream)->Await();
}

}  // namespace

void PutOnStream(Stream& stream, const void* kernel, const Geometry& geometry, void** arguments) {
  if (geometry.blocks == 0 || geometry.blocks_y == 0) return;
  if (geometry.blocks > kMostBlocks || geometry.blocks_y > kMostBlocksY)
    return Refuse(stream, "a tensor is too large for one launch on a GPU");
  // At once, as streams of HostCompute do: the arguments are the caller's.
  stream.Run([&] { return RunOnGpu(kernel, geometry, arguments); });
}

void ZeroOnStream(Stream& stream, void* to, std::size_t bytes) { stream.Zero(to, bytes); }

void Refuse(Stream& stream, const char* why) {
  stream.Run([why] { return absl::InvalidArgumentError(why); });
}

}  // namespace regroup::worker::cuda
