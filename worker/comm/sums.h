#pragma once

#include <cstddef>

#include "worker/device/instruction_set.h"
#include "worker/tensor/dtype.h"

namespace regroup::worker {

// What reduce.h adds with, for numbers of one type: its functions of these names, for any number of
// sources and elements. All sets give the same bits, and a NaN stays a NaN.
template <typename T>
struct SumTable {
  void (*into_all)(T* const* sources, std::size_t source_count, std::size_t begin, std::size_t end);
  void (*into)(const T* const* sources, std::size_t source_count, std::size_t begin,
               std::size_t end, T* out);
  void (*widen)(float* sum, const T* in, std::size_t count);
  void (*add_wide)(float* sum, const T* in, std::size_t count);
  void (*narrow)(T* out, const float* sum, std::size_t count);
};

// T is float, BFloat16 or Half. REQUIRES: isa <= BestIsa().
template <typename T>
SumTable<T> SumsOf(Isa isa);

// Each from a file compiled for that instruction set. REQUIRES: the CPU has it.
#define REGROUP_SUMS(Name)        \
  void Name(SumTable<float>&);    \
  void Name(SumTable<BFloat16>&); \
  void Name(SumTable<Half>&);
REGROUP_SUMS(FillSumsBaseline)
REGROUP_SUMS(FillSumsV3)
REGROUP_SUMS(FillSumsV4)
#undef REGROUP_SUMS

}  // namespace regroup::worker
