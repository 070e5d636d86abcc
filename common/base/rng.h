#pragma once

#include <cstdint>

#include "common/base/check.h"

namespace regroup {

// Seeded and portable: equal seeds give equal numbers with every compiler (SplitMix64, Steele et
// al. 2014).
class Rng {
 public:
  explicit Rng(std::uint64_t seed) : state_(seed) {}
  std::uint64_t Next() {
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }
  // Uniform in [0, bound). REQUIRES: bound > 0.
  std::uint64_t Below(std::uint64_t bound) {
    CHECK(bound > 0);
    return static_cast<std::uint64_t>((static_cast<unsigned __int128>(Next()) * bound) >> 64);
  }
  // Uniform in [0, 1).
  double Unit() { return static_cast<double>(Next() >> 11) * 0x1.0p-53; }

 private:
  std::uint64_t state_;
};

}  // namespace regroup
