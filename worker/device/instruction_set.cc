#include "worker/device/instruction_set.h"

#include "common/base/check.h"

namespace regroup::worker {

Isa BestIsa() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                  __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512vl");
  if (v4) return Isa::kV4;
  if (v3) return Isa::kV3;
#endif
  return Isa::kBaseline;
}

const char* NameOf(Isa isa) {
  switch (isa) {
    case Isa::kBaseline: return "baseline";
    case Isa::kV3: return "x86-64-v3";
    case Isa::kV4: return "x86-64-v4";
  }
  CHECK(false);
}

}  // namespace regroup::worker
