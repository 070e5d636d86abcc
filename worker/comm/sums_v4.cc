#include "worker/comm/vector_sums.h"

namespace regroup::worker {

void FillSumsV4(SumTable<float>& table) { FillSums(table); }
void FillSumsV4(SumTable<BFloat16>& table) { FillSums(table); }
void FillSumsV4(SumTable<Half>& table) { FillSums(table); }

}  // namespace regroup::worker
