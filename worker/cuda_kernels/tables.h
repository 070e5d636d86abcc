#pragma once

#include "worker/kernels/kernels.h"

namespace regroup::worker {

// The own kernels of GPUs (kernels.h). They go on streams of a CudaDevice, and work on its memory.
template <typename T>
const KernelTable<T>& CudaKernels();
extern template const KernelTable<float>& CudaKernels<float>();
extern template const KernelTable<BFloat16>& CudaKernels<BFloat16>();
extern template const KernelTable<Half>& CudaKernels<Half>();
inline KernelTables CudaKernelTables() {
  return {&CudaKernels<float>(), &CudaKernels<BFloat16>(), &CudaKernels<Half>()};
}

}  // namespace regroup::worker
