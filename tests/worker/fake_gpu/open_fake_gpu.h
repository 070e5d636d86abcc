#pragma once

#include <dlfcn.h>

#include <array>
#include <string>

#include "common/base/check.h"
#include "tests/worker/fake_gpu/fake_gpu.h"
#include "worker/cuda/cuda_api.h"

namespace regroup::worker {

// The library behind fake_gpu.h, opened once. Constructing one of these begins a test anew.
class FakeGpu {
 public:
  FakeGpu() {
    library_ = dlopen(REGROUP_FAKE_GPU, RTLD_NOW | RTLD_LOCAL);
    CHECK(library_ != nullptr);
    Bind("cudaDriverGetVersion", cuda_.driver_get_version);
    Bind("cudaRuntimeGetVersion", cuda_.runtime_get_version);
    Bind("cudaDeviceGetAttribute", cuda_.device_get_attribute);
    Bind("cudaGetDeviceCount", cuda_.get_device_count);
    Bind("cudaSetDevice", cuda_.set_device);
    Bind("cudaMalloc", cuda_.malloc);
    Bind("cudaFree", cuda_.free);
    Bind("cudaHostAlloc", cuda_.host_alloc);
    Bind("cudaFreeHost", cuda_.free_host);
    Bind("cudaHostRegister", cuda_.host_register);
    Bind("cudaHostUnregister", cuda_.host_unregister);
    Bind("cudaStreamCreateWithPriority", cuda_.stream_create);
    Bind("cudaStreamDestroy", cuda_.stream_destroy);
    Bind("cudaStreamWaitEvent", cuda_.stream_wait_event);
    Bind("cudaLaunchHostFunc", cuda_.launch_host_func);
    Bind("cudaMemcpyAsync", cuda_.memcpy_async);
    Bind("cudaMemsetAsync", cuda_.memset_async);
    Bind("cudaEventCreateWithFlags", cuda_.event_create);
    Bind("cudaEventRecord", cuda_.event_record);
    Bind("cudaEventQuery", cuda_.event_query);
    Bind("cudaEventDestroy", cuda_.event_destroy);
    Bind("cudaStreamBeginCapture", cuda_.stream_begin_capture);
    Bind("cudaStreamEndCapture", cuda_.stream_end_capture);
    Bind("cudaGraphInstantiate", cuda_.graph_instantiate);
    Bind("cudaGraphLaunch", cuda_.graph_launch);
    Bind("cudaGraphDestroy", cuda_.graph_destroy);
    Bind("cudaGraphExecDestroy", cuda_.graph_exec_destroy);
    Bind("cudaFuncSetAttribute", cuda_.func_set_attribute);
    Bind("cudaLaunchKernel", cuda_.launch_kernel);
    Bind("cudaGetErrorString", cuda_.get_error_string);
    Bind("fakeGpuSetDevices", set_devices);
    Bind("fakeGpuAbortOnRefusal", abort_on_refusal);
    Bind("fakeGpuSetRuntime", set_runtime);
    Bind("fakeGpuSetDriver", set_driver);
    Bind("fakeGpuSetCapability", set_capability);
    Bind("fakeGpuSetMemory", set_memory);
    Bind("fakeGpuSetKernels", set_kernels);
    Bind("fakeGpuPlayCapture", play_capture);
    Bind("fakeGpuCaptures", captures);
    Bind("fakeGpuSayGraphs", say_graphs);
    Bind("fakeGpuGraphLaunches", graph_launches);
    Bind("fakeNcclSetVersion", set_version);
    Bind("fakeNcclPlay", play);
    Bind("fakeNcclRelease", release);
    Bind("fakeGpuLive", live);
    Bind("fakeGpuForget", forget);
    Bind("fakeNcclComms", comms);
    Bind("fakeNcclCalls", calls);
    Bind("fakeCublasLtSetVersion", set_products_version);
    Bind("fakeCublasLtPlay", play_products);
    Bind("fakeCublasLtSay", say_products);
    Bind("fakeCublasLtLive", live_products);
    Bind("fakeCublasLtCalls", products_calls);
    Bind("fakeGpuRefusals", refusals_);
    void (*reset)() = nullptr;
    Bind("fakeGpuReset", reset);
    reset();
  }

  const CudaApi& cuda() const { return cuda_; }
  static const char* path() { return REGROUP_FAKE_GPU; }
  // What was refused since the test began, a line each; empty: nothing.
  std::string Refusals() const {
    std::array<char, 4096> text{};
    refusals_(text.data(), text.size());
    return text.data();
  }
  template <typename Function>
  void Bind(const char* name, Function& function) const {
    function = reinterpret_cast<Function>(dlsym(library_, name));
    CHECK(function != nullptr);
  }

  decltype(&fakeGpuSetDevices) set_devices = nullptr;
  decltype(&fakeGpuAbortOnRefusal) abort_on_refusal = nullptr;
  decltype(&fakeGpuSetRuntime) set_runtime = nullptr;
  decltype(&fakeGpuSetDriver) set_driver = nullptr;
  decltype(&fakeGpuSetCapability) set_capability = nullptr;
  decltype(&fakeGpuSetMemory) set_memory = nullptr;
  decltype(&fakeGpuSetKernels) set_kernels = nullptr;
  decltype(&fakeGpuPlayCapture) play_capture = nullptr;
  decltype(&fakeGpuCaptures) captures = nullptr;
  decltype(&fakeGpuSayGraphs) say_graphs = nullptr;
  decltype(&fakeGpuGraphLaunches) graph_launches = nullptr;
  decltype(&fakeNcclSetVersion) set_version = nullptr;
  decltype(&fakeNcclPlay) play = nullptr;
  decltype(&fakeNcclRelease) release = nullptr;
  decltype(&fakeGpuLive) live = nullptr;
  decltype(&fakeGpuForget) forget = nullptr;
  decltype(&fakeNcclComms) comms = nullptr;
  decltype(&fakeNcclCalls) calls = nullptr;
  decltype(&fakeCublasLtSetVersion) set_products_version = nullptr;
  decltype(&fakeCublasLtPlay) play_products = nullptr;
  decltype(&fakeCublasLtSay) say_products = nullptr;
  decltype(&fakeCublasLtLive) live_products = nullptr;
  decltype(&fakeCublasLtCalls) products_calls = nullptr;

 private:
  void* library_ = nullptr;
  CudaApi cuda_;
  decltype(&fakeGpuRefusals) refusals_ = nullptr;
};

}  // namespace regroup::worker
