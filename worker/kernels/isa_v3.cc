#include "worker/kernels/isa.h"
#include "worker/kernels/vector_attention.h"

namespace regroup::worker {

void FillV3(KernelTable<float>& table) { FillWithVectorKernels(table); }
void FillV3(KernelTable<BFloat16>& table) { FillWithVectorKernels(table); }
void FillV3(KernelTable<Half>& table) { FillWithVectorKernels(table); }

}  // namespace regroup::worker
