#pragma once

#include "worker/kernels/kernels.h"

namespace regroup::worker {

// Each from a file compiled for that instruction set. REQUIRES: the CPU has it.
void FillBaseline(Kernels& table);
void FillV3(Kernels& table);
void FillV4(Kernels& table);

}  // namespace regroup::worker
