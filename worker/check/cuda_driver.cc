#include "worker/check/cuda_driver.h"

#include <dlfcn.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace regroup::worker {

std::string CudaDriver::Words(int code) const {
  const char* words = nullptr;
  if (error_string(code, &words) != 0 || words == nullptr) return absl::StrCat("CUDA error ", code);
  return absl::StrCat(words, " (CUDA error ", code, ")");
}

absl::StatusOr<CudaDriver> OpenCudaDriver(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return absl::NotFoundError(absl::StrCat("no CUDA driver: ", dlerror()));
  CudaDriver driver;
  std::vector<const char*> missing;
  const auto bind = [&](const char* name, auto& function) {
    function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
    if (function == nullptr) missing.push_back(name);
  };
  bind("cuInit", driver.init);
  bind("cuGetErrorString", driver.error_string);
  bind("cuDeviceGetCount", driver.device_count);
  bind("cuDeviceGet", driver.device_get);
  bind("cuDevicePrimaryCtxRetain", driver.context_retain);
  bind("cuDevicePrimaryCtxRelease_v2", driver.context_release);
  bind("cuCtxSetCurrent", driver.context_set);
  bind("cuCtxSynchronize", driver.synchronize);
  bind("cuModuleLoadData", driver.module_load);
  bind("cuModuleGetFunction", driver.module_function);
  bind("cuMemAlloc_v2", driver.allocate);
  bind("cuMemcpyHtoD_v2", driver.copy_in);
  bind("cuMemcpyDtoH_v2", driver.copy_out);
  bind("cuLaunchKernel", driver.launch);
  if (missing.empty()) return driver;
  return absl::FailedPreconditionError(
      absl::StrCat(path, " has no ", absl::StrJoin(missing, ", ")));
}

}  // namespace regroup::worker
