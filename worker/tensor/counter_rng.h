#pragma once

#include <cstdint>
#include <string_view>

namespace regroup::worker {

// Random numbers without state: each is a function of (seed, stream, counter), so that no order of
// computation, no thread and no world size can change them. Integer arithmetic only;
// tests/worker/golden/counter_rng.py computes the same bits.
constexpr std::uint64_t MixBits(std::uint64_t z) {  // SplitMix64's finaliser (Steele et al. 2014).
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

struct RngKey {
  std::uint64_t value = 0;

  constexpr RngKey Fold(std::uint64_t word) const {
    return {MixBits(value ^ MixBits(word + 0x9E3779B97F4A7C15ull))};
  }
  constexpr RngKey Fold(std::string_view name) const {  // FNV-1a of the name.
    std::uint64_t hash = 0xCBF29CE484222325ull;
    for (char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3ull;
    return Fold(hash);
  }
  constexpr std::uint64_t Bits(std::uint64_t counter) const {
    return MixBits(value + (counter + 1) * 0x9E3779B97F4A7C15ull);
  }
};

constexpr RngKey SeedKey(std::uint64_t seed) { return RngKey{}.Fold(seed); }

// 16 random bits for each element under one key, by multiplications that vectors have (the
// constants are Wellons's, 2018).
constexpr std::uint32_t RoundingBits(std::uint32_t key, std::uint32_t element) {
  std::uint32_t z = element ^ key;
  z = (z ^ (z >> 16)) * 0x7FEB352Du;
  z = (z ^ (z >> 15)) * 0x846CA68Bu;
  return (z ^ (z >> 16)) & 0xFFFFu;
}

// Mean 0, standard deviation 1, within ±3.47: the sum of four 16-bit uniforms. Close enough to a
// normal for weights, and exact in every language.
constexpr double UnitBell(std::uint64_t bits) {
  const std::int64_t sum = static_cast<std::int64_t>((bits & 0xFFFF) + ((bits >> 16) & 0xFFFF) +
                                                     ((bits >> 32) & 0xFFFF) + (bits >> 48));
  return static_cast<double>(sum - 131070) * 2.6428997921303014e-05;  // 1 / sqrt(4 (2^32 - 1) / 12)
}

}  // namespace regroup::worker
