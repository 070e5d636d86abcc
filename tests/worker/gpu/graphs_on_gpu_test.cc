// On a GPU: kernels, products and zeros that come as a graph from the third time on, against those
// that come by themselves.

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "worker/cuda/cuda_api.h"
#include "worker/cuda/cuda_device.h"
#include "worker/cuda/libraries.h"
#include "worker/cuda_kernels/tables.h"

namespace regroup::worker {
namespace {

constexpr std::int64_t kRows = 64, kWide = 128;
constexpr std::size_t kBytes = kRows * kWide * sizeof(BFloat16);

// What x is after some steps, each of which adds half of x · w^T to zeros and takes its GELU for x.
std::vector<BFloat16> Steps(CudaDevice& device, bool graphs, int steps) {
  device.UseGraphs(graphs);
  const std::unique_ptr<Stream> stream = device.NewStream(StreamKind::kCompute);
  Arena memory = *device.Allocate(MemoryKind::kDevice, 4 * kBytes);
  const std::span<BFloat16> x = memory.Take<BFloat16>(kRows * kWide),
                            w = memory.Take<BFloat16>(kWide * kWide),
                            y = memory.Take<BFloat16>(kRows * kWide);
  std::vector<BFloat16> numbers(kWide * kWide);
  for (std::size_t i = 0; i < numbers.size(); ++i)
    numbers[i] = BFloat16(static_cast<float>(i * 7 % 23) / 64 - 0.15f);
  stream->Copy(x.data(), numbers.data(), kBytes);
  stream->Copy(w.data(), numbers.data(), kWide * kWide * sizeof(BFloat16));
  const KernelTable<BFloat16>& k = CudaKernels<BFloat16>();
  for (int step = 0; step < steps; ++step) {
    stream->Zero(y.data(), kBytes);
    k.linear_forward({*stream}, {.shape = {kRows, kWide, kWide},
                                 .order = WeightOrder::kOutIn,
                                 .x = x.data(),
                                 .w = w.data(),
                                 .y = y.data(),
                                 .add = true});
    k.gelu_forward({*stream}, {kRows * kWide, y.data(), x.data()});
    stream->Submit();
  }
  std::vector<BFloat16> result(kRows * kWide);
  stream->Copy(result.data(), x.data(), kBytes);
  EXPECT_EQ(stream->Await(), absl::OkStatus());
  return result;
}

TEST(GraphsOnGpu, ChangeNoBit) {
  const std::unique_ptr<CudaDevice> device = *CudaDevice::Create(LinkedCudaApi(), 0);
  if (const absl::StatusOr<CublasLtApi> found = FindCublasLt(); found.ok()) {
    device->SetProducts(*CublasLt::Create(*found));
    ASSERT_EQ(CublasLt::Check(*device), absl::OkStatus());
  }
  for (const int steps : {1, 2, 3, 4, 50}) {
    const std::vector<BFloat16> graphs = Steps(*device, true, steps),
                                none = Steps(*device, false, steps);
    EXPECT_EQ(std::memcmp(graphs.data(), none.data(), kBytes), 0) << steps;
  }
}

}  // namespace
}  // namespace regroup::worker
