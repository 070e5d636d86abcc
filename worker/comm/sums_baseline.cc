#include "worker/comm/vector_sums.h"

namespace regroup::worker {

void FillSumsBaseline(SumTable<float>& table) { FillSums(table); }
void FillSumsBaseline(SumTable<BFloat16>& table) { FillSums(table); }
void FillSumsBaseline(SumTable<Half>& table) { FillSums(table); }

}  // namespace regroup::worker
