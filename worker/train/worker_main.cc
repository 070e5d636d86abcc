// regroup-worker: the native trainer. Subcommands train, generate, plan, check-gpu and version.

#include "common/io/standard_fds.h"
#include "worker/train/worker_program.h"
#if defined(REGROUP_CUDA)
#include "worker/cuda/cuda_api.h"
#include "worker/cuda_kernels/tables.h"
#endif

int main(int argc, char** argv) {
  regroup::io::OpenStandardDescriptors();
#if defined(REGROUP_CUDA)
  const regroup::worker::CudaBuild cuda{regroup::worker::LinkedCudaApi(),
                                        regroup::worker::CudaKernelTables()};
  return regroup::worker::RunWorkerProgram({argv + 1, argv + argc}, &cuda);
#else
  return regroup::worker::RunWorkerProgram({argv + 1, argv + argc}, nullptr);
#endif
}
