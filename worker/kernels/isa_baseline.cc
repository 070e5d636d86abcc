#include "worker/kernels/isa.h"
#include "worker/kernels/vector_attention.h"

namespace regroup::worker {

void FillBaseline(KernelTable<float>& table) { FillWithVectorKernels(table); }
void FillBaseline(KernelTable<BFloat16>& table) { FillWithVectorKernels(table); }
void FillBaseline(KernelTable<Half>& table) { FillWithVectorKernels(table); }

}  // namespace regroup::worker
