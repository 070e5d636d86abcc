#pragma once

#include "worker/kernels/kernels.h"

namespace regroup::worker {

// Each from a file compiled for that instruction set. REQUIRES: the CPU has it.
void FillBaseline(KernelTable<float>& table);
void FillBaseline(KernelTable<BFloat16>& table);
void FillBaseline(KernelTable<Half>& table);
void FillV3(KernelTable<float>& table);
void FillV3(KernelTable<BFloat16>& table);
void FillV3(KernelTable<Half>& table);
void FillV4(KernelTable<float>& table);
void FillV4(KernelTable<BFloat16>& table);
void FillV4(KernelTable<Half>& table);

}  // namespace regroup::worker
