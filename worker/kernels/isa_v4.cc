#include "worker/kernels/isa.h"
#include "worker/kernels/vector_attention.h"

namespace regroup::worker {

void FillV4(KernelTable<float>& table) { FillWithVectorKernels(table); }
void FillV4(KernelTable<BFloat16>& table) { FillWithVectorKernels(table); }
void FillV4(KernelTable<Half>& table) { FillWithVectorKernels(table); }

}  // namespace regroup::worker
