#pragma once

#include <cstddef>

#include "absl/status/status.h"

namespace regroup::worker {

// What is used of CUDA's runtime library, under declarations of our own: names, order of arguments
// and numbers are those of <cuda_runtime_api.h> of CUDA 12 and 13. So what is built on it needs no
// toolkit, and tests put a runtime in its place that has no GPU.
using CudaStreamHandle = void*;  // cudaStream_t.
using CudaEventHandle = void*;   // cudaEvent_t.
using CudaGraphHandle = void*;   // cudaGraph_t.
using CudaExecHandle = void*;    // cudaGraphExec_t.

inline constexpr int kCudaSuccess = 0;
inline constexpr int kCudaErrorMemoryAllocation = 2;
inline constexpr int kCudaErrorInsufficientDriver = 35;
inline constexpr int kCudaErrorNoDevice = 100;
inline constexpr int kCudaErrorNotReady = 600;
inline constexpr unsigned kCudaStreamNonBlocking = 1;
inline constexpr unsigned kCudaEventDisableTiming = 2;
inline constexpr unsigned kCudaHostAllocPortable = 1;
inline constexpr unsigned kCudaHostAllocMapped = 2;
inline constexpr unsigned kCudaHostRegisterPortable = 1;
inline constexpr int kCudaMemcpyDefault = 4;
inline constexpr int kCudaStreamCaptureThreadLocal = 1;
inline constexpr int kCudaFuncMaxDynamicSharedMemory = 8;
// A kernel may ask for so much of a block's memory; for more it must be told so before.
inline constexpr std::size_t kCudaUsualBlockBytes = 48 << 10;

struct CudaDim3 {
  unsigned x = 1, y = 1, z = 1;
};

inline constexpr int kCudaComputeCapabilityMajor = 75;  // Attributes of a device.
inline constexpr int kCudaComputeCapabilityMinor = 76;

struct CudaApi {
  int (*driver_get_version)(int*) = nullptr;  // 1000 · major + 10 · minor; 0: there is no driver.
  int (*runtime_get_version)(int*) = nullptr;
  int (*device_get_attribute)(int*, int attribute, int device) = nullptr;
  int (*get_device_count)(int*) = nullptr;
  int (*set_device)(int) = nullptr;
  int (*malloc)(void**, std::size_t) = nullptr;
  int (*free)(void*) = nullptr;
  int (*host_alloc)(void**, std::size_t, unsigned flags) = nullptr;
  int (*free_host)(void*) = nullptr;
  int (*host_register)(void*, std::size_t, unsigned flags) = nullptr;
  int (*host_unregister)(void*) = nullptr;
  int (*stream_create)(CudaStreamHandle*, unsigned flags, int priority) = nullptr;
  int (*stream_destroy)(CudaStreamHandle) = nullptr;
  int (*stream_wait_event)(CudaStreamHandle, CudaEventHandle, unsigned flags) = nullptr;
  int (*launch_host_func)(CudaStreamHandle, void (*)(void*), void*) = nullptr;
  int (*memcpy_async)(void*, const void*, std::size_t, int kind, CudaStreamHandle) = nullptr;
  int (*memset_async)(void*, int, std::size_t, CudaStreamHandle) = nullptr;
  int (*event_create)(CudaEventHandle*, unsigned flags) = nullptr;
  int (*event_record)(CudaEventHandle, CudaStreamHandle) = nullptr;
  int (*event_query)(CudaEventHandle) = nullptr;
  int (*event_destroy)(CudaEventHandle) = nullptr;
  // What is put on a stream in between becomes a graph, and is not done.
  int (*stream_begin_capture)(CudaStreamHandle, int mode) = nullptr;
  int (*stream_end_capture)(CudaStreamHandle, CudaGraphHandle*) = nullptr;
  int (*graph_instantiate)(CudaExecHandle*, CudaGraphHandle, unsigned long long flags) = nullptr;
  int (*graph_launch)(CudaExecHandle, CudaStreamHandle) = nullptr;
  int (*graph_destroy)(CudaGraphHandle) = nullptr;
  int (*graph_exec_destroy)(CudaExecHandle) = nullptr;
  // These two know the kernels of files that were linked with this very runtime, no other's.
  int (*func_set_attribute)(const void* kernel, int attribute, int value) = nullptr;
  int (*launch_kernel)(const void* kernel, CudaDim3 blocks, CudaDim3 threads, void** arguments,
                       std::size_t block_bytes, CudaStreamHandle) = nullptr;
  const char* (*get_error_string)(int) = nullptr;
};

// That which this program is linked with, in builds that have nvcc (REGROUP_CUDA).
const CudaApi& LinkedCudaApi();

// OK for kCudaSuccess; else what the runtime says of it: resource exhausted for memory, unavailable
// where there is no GPU or no driver, else internal. `call` is what returned it.
absl::Status CudaStatus(const CudaApi& api, int error, const char* call);

}  // namespace regroup::worker
