#include "worker/kernels/isa.h"
#include "worker/kernels/vector_attention.h"

namespace regroup::worker {

void FillV4(Kernels& table) { FillWithVectorKernels(table); }

}  // namespace regroup::worker
