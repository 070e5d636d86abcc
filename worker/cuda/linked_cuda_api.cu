// The one file that sees CUDA's own declarations: they check ours.
#include <cuda_runtime_api.h>
#if __has_include(<cublasLt.h>)
#include <cublasLt.h>
#endif

#include <cstddef>

#include "worker/cuda/cublas_lt_api.h"
#include "worker/cuda/cuda_api.h"

namespace regroup::worker {
namespace {

static_assert(kCudaSuccess == cudaSuccess &&
              kCudaErrorMemoryAllocation == cudaErrorMemoryAllocation);
static_assert(kCudaErrorInsufficientDriver == cudaErrorInsufficientDriver);
static_assert(kCudaErrorNoDevice == cudaErrorNoDevice && kCudaErrorNotReady == cudaErrorNotReady);
static_assert(kCudaStreamNonBlocking == cudaStreamNonBlocking);
static_assert(kCudaEventDisableTiming == cudaEventDisableTiming);
static_assert(kCudaHostRegisterPortable == cudaHostRegisterPortable);
static_assert(kCudaHostAllocPortable == cudaHostAllocPortable);
static_assert(kCudaHostAllocMapped == cudaHostAllocMapped &&
              kCudaMemcpyDefault == cudaMemcpyDefault);
static_assert(kCudaStreamCaptureThreadLocal == cudaStreamCaptureModeThreadLocal);
static_assert(kCudaFuncMaxDynamicSharedMemory == cudaFuncAttributeMaxDynamicSharedMemorySize);
static_assert(kCudaComputeCapabilityMajor == cudaDevAttrComputeCapabilityMajor);
static_assert(kCudaComputeCapabilityMinor == cudaDevAttrComputeCapabilityMinor);

#if __has_include(<cublasLt.h>)
static_assert(kCublasSuccess == CUBLAS_STATUS_SUCCESS && kCublasCompute32F == CUBLAS_COMPUTE_32F);
static_assert(kCudaR32F == CUDA_R_32F && kCudaR16F == CUDA_R_16F && kCudaR16BF == CUDA_R_16BF);
static_assert(kCublasOpN == CUBLAS_OP_N && kCublasOpT == CUBLAS_OP_T);
static_assert(kCublasLtEpilogueDefault == CUBLASLT_EPILOGUE_DEFAULT);
static_assert(kCublasLtEpilogueBias == CUBLASLT_EPILOGUE_BIAS);
static_assert(kCublasLtEpilogueDGelu == CUBLASLT_EPILOGUE_DGELU);
static_assert(kCublasLtDescAuxPointer == CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER);
static_assert(kCublasLtDescAuxLd == CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD);
static_assert(kCublasLtReductionComputeType == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
static_assert(kCublasLtDescTransA == CUBLASLT_MATMUL_DESC_TRANSA);
static_assert(kCublasLtDescTransB == CUBLASLT_MATMUL_DESC_TRANSB);
static_assert(kCublasLtDescEpilogue == CUBLASLT_MATMUL_DESC_EPILOGUE);
static_assert(kCublasLtDescBiasPointer == CUBLASLT_MATMUL_DESC_BIAS_POINTER);
static_assert(kCublasLtPrefMaxWorkspaceBytes == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
static_assert(kCublasLtPrefReductionSchemeMask == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK);
static_assert(kCublasLtPrefMinAlignmentABytes == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES);
static_assert(kCublasLtPrefMinAlignmentBBytes == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES);
static_assert(kCublasLtPrefMinAlignmentCBytes == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES);
static_assert(kCublasLtPrefMinAlignmentDBytes == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES);
static_assert(sizeof(CublasLtAlgo) == sizeof(cublasLtMatmulAlgo_t));
static_assert(sizeof(CublasLtHeuristic) == sizeof(cublasLtMatmulHeuristicResult_t));
static_assert(offsetof(CublasLtHeuristic, workspace_bytes) ==
              offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize));
static_assert(offsetof(CublasLtHeuristic, state) ==
              offsetof(cublasLtMatmulHeuristicResult_t, state));
#endif

cudaStream_t StreamOf(CudaStreamHandle handle) { return static_cast<cudaStream_t>(handle); }
cudaEvent_t EventOf(CudaEventHandle handle) { return static_cast<cudaEvent_t>(handle); }

void AddGraphs(CudaApi& api) {
  api.stream_begin_capture = [](CudaStreamHandle stream, int mode) -> int {
    return cudaStreamBeginCapture(StreamOf(stream), static_cast<cudaStreamCaptureMode>(mode));
  };
  api.stream_end_capture = [](CudaStreamHandle stream, CudaGraphHandle* out) -> int {
    return cudaStreamEndCapture(StreamOf(stream), reinterpret_cast<cudaGraph_t*>(out));
  };
  api.graph_instantiate = [](CudaExecHandle* out, CudaGraphHandle graph,
                             unsigned long long flags) -> int {
    return cudaGraphInstantiate(reinterpret_cast<cudaGraphExec_t*>(out),
                                static_cast<cudaGraph_t>(graph), flags);
  };
  api.graph_launch = [](CudaExecHandle exec, CudaStreamHandle stream) -> int {
    return cudaGraphLaunch(static_cast<cudaGraphExec_t>(exec), StreamOf(stream));
  };
  api.graph_destroy = [](CudaGraphHandle graph) -> int {
    return cudaGraphDestroy(static_cast<cudaGraph_t>(graph));
  };
  api.graph_exec_destroy = [](CudaExecHandle exec) -> int {
    return cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(exec));
  };
}

CudaApi Linked() {
  CudaApi api;
  api.driver_get_version = [](int* version) -> int { return cudaDriverGetVersion(version); };
  api.runtime_get_version = [](int* version) -> int { return cudaRuntimeGetVersion(version); };
  api.device_get_attribute = [](int* value, int attribute, int device) -> int {
    return cudaDeviceGetAttribute(value, static_cast<cudaDeviceAttr>(attribute), device);
  };
  api.get_device_count = [](int* count) -> int { return cudaGetDeviceCount(count); };
  api.set_device = [](int device) -> int { return cudaSetDevice(device); };
  api.malloc = [](void** out, std::size_t bytes) -> int { return cudaMalloc(out, bytes); };
  api.free = [](void* memory) -> int { return cudaFree(memory); };
  api.host_alloc = [](void** out, std::size_t bytes, unsigned flags) -> int {
    return cudaHostAlloc(out, bytes, flags);
  };
  api.free_host = [](void* memory) -> int { return cudaFreeHost(memory); };
  api.host_register = [](void* memory, std::size_t bytes, unsigned flags) -> int {
    return cudaHostRegister(memory, bytes, flags);
  };
  api.host_unregister = [](void* memory) -> int { return cudaHostUnregister(memory); };
  api.stream_create = [](CudaStreamHandle* out, unsigned flags, int priority) -> int {
    return cudaStreamCreateWithPriority(reinterpret_cast<cudaStream_t*>(out), flags, priority);
  };
  api.stream_destroy = [](CudaStreamHandle stream) -> int {
    return cudaStreamDestroy(StreamOf(stream));
  };
  api.stream_wait_event = [](CudaStreamHandle stream, CudaEventHandle event,
                             unsigned flags) -> int {
    return cudaStreamWaitEvent(StreamOf(stream), EventOf(event), flags);
  };
  api.launch_host_func = [](CudaStreamHandle stream, void (*call)(void*), void* argument) -> int {
    return cudaLaunchHostFunc(StreamOf(stream), call, argument);
  };
  api.memcpy_async = [](void* to, const void* from, std::size_t bytes, int kind,
                        CudaStreamHandle stream) -> int {
    return cudaMemcpyAsync(to, from, bytes, static_cast<cudaMemcpyKind>(kind), StreamOf(stream));
  };
  api.memset_async = [](void* to, int value, std::size_t bytes, CudaStreamHandle stream) -> int {
    return cudaMemsetAsync(to, value, bytes, StreamOf(stream));
  };
  api.event_create = [](CudaEventHandle* out, unsigned flags) -> int {
    return cudaEventCreateWithFlags(reinterpret_cast<cudaEvent_t*>(out), flags);
  };
  api.event_record = [](CudaEventHandle event, CudaStreamHandle stream) -> int {
    return cudaEventRecord(EventOf(event), StreamOf(stream));
  };
  api.event_query = [](CudaEventHandle event) -> int { return cudaEventQuery(EventOf(event)); };
  api.event_destroy = [](CudaEventHandle event) -> int { return cudaEventDestroy(EventOf(event)); };
  AddGraphs(api);
  api.func_set_attribute = [](const void* kernel, int attribute, int value) -> int {
    return cudaFuncSetAttribute(kernel, static_cast<cudaFuncAttribute>(attribute), value);
  };
  api.launch_kernel = [](const void* kernel, CudaDim3 blocks, CudaDim3 threads, void** arguments,
                         std::size_t block_bytes, CudaStreamHandle stream) -> int {
    return cudaLaunchKernel(kernel, dim3(blocks.x, blocks.y, blocks.z),
                            dim3(threads.x, threads.y, threads.z), arguments, block_bytes,
                            StreamOf(stream));
  };
  api.get_error_string = [](int error) {
    return cudaGetErrorString(static_cast<cudaError_t>(error));
  };
  return api;
}

}  // namespace

const CudaApi& LinkedCudaApi() {
  static const CudaApi api = Linked();
  return api;
}

}  // namespace regroup::worker
