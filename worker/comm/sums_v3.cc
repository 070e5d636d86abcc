#include "worker/comm/vector_sums.h"

namespace regroup::worker {

void FillSumsV3(SumTable<float>& table) { FillSums(table); }
void FillSumsV3(SumTable<BFloat16>& table) { FillSums(table); }
void FillSumsV3(SumTable<Half>& table) { FillSums(table); }

}  // namespace regroup::worker
