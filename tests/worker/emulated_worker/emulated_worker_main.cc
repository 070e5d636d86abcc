#include <cstdio>
#include <cstdlib>
#include <string>

#include "common/config/env.h"
#include "common/io/standard_fds.h"
#include "tests/worker/fake_gpu/open_fake_gpu.h"
#include "tests/worker/gpu_emulator/gpu_emulator.h"
#include "worker/cuda_kernels/tables.h"
#include "worker/train/worker_program.h"

namespace {

int FromEnv(const char* name, int otherwise) {
  const auto value = regroup::GetEnv(name);
  return value ? std::atoi(value->c_str()) : otherwise;
}

}  // namespace

int main(int argc, char** argv) {
  regroup::io::OpenStandardDescriptors();
  using namespace regroup::worker;
  const FakeGpu gpu;
  gpu.set_devices(FromEnv("FAKE_GPU_COUNT", 8), FromEnv("FAKE_GPU_ERROR", 0));
  gpu.abort_on_refusal();
  if (const auto bytes = regroup::GetEnv("FAKE_GPU_MEMORY"))
    gpu.set_memory(std::strtoull(bytes->c_str(), nullptr, 10));
  gpu.set_kernels([](const void* kernel, FakeDim3 blocks, FakeDim3 threads, void** arguments,
                     std::size_t block_bytes) {
    return gpu_emulator::WorkOfKernel(kernel,
                                      {.blocks = blocks.x,
                                       .blocks_y = blocks.y,
                                       .threads = static_cast<int>(threads.x),
                                       .threads_y = static_cast<int>(threads.y),
                                       .block_bytes = block_bytes},
                                      arguments[0]);
  });
  gpu_emulator::LaunchByRuntime();
  gpu.say_graphs();
  gpu.play_capture(static_cast<FakeCapture>(FromEnv("FAKE_GPU_CAPTURE", 0)));
  FakeScript script;
  if (regroup::GetEnv("FAKE_GPU_HANGS_AT")) {
    script = {FakeFault::kOpHangs, FromEnv("FAKE_GPU_HANGS_ON", 0),
              FromEnv("FAKE_GPU_HANGS_AT", 0)};
    gpu.play(&script);
  }
  if (regroup::GetEnv("FAKE_GPU_INIT_FAULT")) {
    script = {static_cast<FakeFault>(FromEnv("FAKE_GPU_INIT_FAULT", 0)),
              FromEnv("FAKE_GPU_INIT_FAULT_ON", 0)};
    gpu.play(&script);
  }
  gpu.set_runtime(FromEnv("FAKE_GPU_RUNTIME", 13000));
  gpu.set_driver(FromEnv("FAKE_GPU_DRIVER", 13000));
  gpu.set_capability(FromEnv("FAKE_GPU_CAPABILITY", 90));
  const int nccl = FromEnv("FAKE_GPU_NCCL", 22809);  // 0: none is to be found.
  gpu.set_version(nccl);
  const int cublas_lt = FromEnv("FAKE_GPU_CUBLASLT", 0);
  gpu.set_products_version(static_cast<std::size_t>(cublas_lt));
  gpu.play_products(static_cast<FakeProducts>(FromEnv("FAKE_GPU_PRODUCTS", 0)),
                    FromEnv("FAKE_GPU_PRODUCTS_AFTER", 0));
  gpu.say_products(CublasLt::kChecked);
  const CudaBuild build{gpu.cuda(),
                        CudaKernelTables(),
                        {nccl == 0 ? "/no/such/libnccl.so.2" : FakeGpu::path()},
                        {cublas_lt == 0 ? "/no/such/libcublasLt.so.13" : FakeGpu::path()}};
  return RunWorkerProgram({argv + 1, argv + argc}, &build);
}
