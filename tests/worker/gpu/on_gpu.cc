// Kernels on a GPU for tests that compute on streams of the host: each is waited for, and works on
// the memory of the test program (visible_memory.h). Products are cuBLASLt's, unless GPU_PRODUCTS
// is "own" or there is none.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <utility>

#include "common/base/status_macros.h"
#include "common/config/env.h"
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
  const absl::StatusOr<CublasLtApi> found = FindCublasLt();
  if (!found.ok() || GetEnv("GPU_PRODUCTS") == "own") {
    std::printf("products by own kernels\n");
    return new CudaStream(api);
  }
  ASSIGN_OR_RETURN(std::unique_ptr<CublasLt> products, CublasLt::Create(*found));
  std::printf("products by %s (%s)\n", products->name().c_str(), products->path().c_str());
  static CudaDevice& device = *CudaDevice::Create(api, 0)->release();
  device.SetProducts(std::move(products));
  RETURN_IF_ERROR(CublasLt::Check(device));
  return static_cast<CudaStream*>(device.NewStream(StreamKind::kCompute).release());
}

const absl::StatusOr<CudaStream*>& Gpu() {
  static const absl::StatusOr<CudaStream*> stream = OpenGpu();
  return stream;
}

absl::Status RunOnGpu(const void* kernel, const Geometry& geometry,
                      std::span<const std::byte> argument) {
  const absl::StatusOr<CudaStream*>& stream = Gpu();
  if (!stream.ok()) return stream.status();
  const auto number = [](std::int64_t n) { return static_cast<unsigned>(n); };
  (*stream)->Launch(kernel, {number(geometry.blocks), number(geometry.blocks_y), 1},
                    {number(geometry.threads), number(geometry.threads_y), 1}, geometry.block_bytes,
                    argument);
  return (*stream)->Await();
}

}  // namespace

void PutOnStream(Stream& stream, const void* kernel, const Geometry& geometry,
                 std::span<const std::byte> argument) {
  if (geometry.blocks == 0 || geometry.blocks_y == 0) return;
  if (geometry.blocks > kMostBlocks || geometry.blocks_y > kMostBlocksY)
    return Refuse(stream, "a tensor is too large for one launch on a GPU");
  if (auto* const own = dynamic_cast<CudaStream*>(&stream)) {
    const auto number = [](std::int64_t n) { return static_cast<unsigned>(n); };
    return own->Launch(kernel, {number(geometry.blocks), number(geometry.blocks_y), 1},
                       {number(geometry.threads), number(geometry.threads_y), 1},
                       geometry.block_bytes, argument);
  }
  // At once, as streams of HostCompute do: the argument is the caller's.
  stream.Run([&] { return RunOnGpu(kernel, geometry, argument); });
}

void ZeroOnStream(Stream& stream, void* to, std::size_t bytes) { stream.Zero(to, bytes); }

bool MultiplyByLibrary(Stream& stream, const MatrixProduct& product) {
  if (auto* const own = dynamic_cast<CudaStream*>(&stream))
    return own->products() != nullptr && own->products()->Multiply(*own, product);
  if (!Gpu().ok() || (*Gpu())->products() == nullptr) return false;
  bool has_way = false;
  stream.Run([&] {
    has_way = (*Gpu())->products()->Multiply(**Gpu(), product);
    return (*Gpu())->Await();
  });
  return has_way;
}

void Refuse(Stream& stream, const char* why) {
  stream.Run([why] { return absl::InvalidArgumentError(why); });
}

}  // namespace regroup::worker::cuda
