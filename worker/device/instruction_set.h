#pragma once

#include <cstdint>

namespace regroup::worker {

enum class Isa : std::uint8_t { kBaseline, kV3, kV4 };  // x86-64, -v3 (AVX2, FMA), -v4 (AVX-512).

Isa BestIsa();                // What this CPU and kernel can run.
const char* NameOf(Isa isa);  // "baseline", "x86-64-v3", "x86-64-v4".

}  // namespace regroup::worker
