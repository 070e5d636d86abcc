#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace regroup::worker {

// What is used of CUDA's driver API, which is there wherever a driver is: no toolkit, and no
// runtime of any version. Names, order of arguments and numbers are those of <cuda.h>.
struct CudaDriver {
  static constexpr char kLibrary[] = "libcuda.so.1";
  using Device = int;
  using Address = std::uint64_t;

  int (*init)(unsigned flags) = nullptr;
  int (*error_string)(int, const char**) = nullptr;
  int (*device_count)(int*) = nullptr;
  int (*device_get)(Device*, int ordinal) = nullptr;
  int (*context_retain)(void** context, Device) = nullptr;  // The device's primary one.
  int (*context_release)(Device) = nullptr;
  int (*context_set)(void* context) = nullptr;
  int (*synchronize)() = nullptr;
  int (*module_load)(void** module, const void* ptx) = nullptr;
  int (*module_function)(void** function, void* module, const char* name) = nullptr;
  int (*allocate)(Address*, std::size_t bytes) = nullptr;
  int (*copy_in)(Address, const void*, std::size_t bytes) = nullptr;
  int (*copy_out)(void*, Address, std::size_t bytes) = nullptr;
  int (*launch)(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                unsigned block_y, unsigned block_z, unsigned shared_bytes, void* stream,
                void** arguments, void** extra) = nullptr;

  std::string Words(int code) const;
};

// kNotFound: there is no such library. kFailedPrecondition: a function of it is missing.
absl::StatusOr<CudaDriver> OpenCudaDriver(const std::string& library = CudaDriver::kLibrary);

}  // namespace regroup::worker
