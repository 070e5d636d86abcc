// Functions of vectors. As vectors.h it is included by files that are compiled for one set only.
#pragma once

#include <cstdint>

#include "worker/tensor/vectors.h"

namespace regroup::worker {
namespace {

REGROUP_INLINE Vec Max(Vec a, Vec b) { return a < b ? b : a; }

REGROUP_INLINE float SumLanes(Vec v) {
  float lane[kLanes];
  __builtin_memcpy(lane, &v, sizeof(v));
  for (int width = kLanes / 2; width >= 1; width /= 2) {
    for (int i = 0; i < width; ++i) lane[i] += lane[i + width];
  }
  return lane[0];
}
REGROUP_INLINE float MaxLanes(Vec v) {
  float lane[kLanes];
  __builtin_memcpy(lane, &v, sizeof(v));
  for (int width = kLanes / 2; width >= 1; width /= 2) {
    for (int i = 0; i < width; ++i) lane[i] = lane[i] < lane[i + width] ? lane[i + width] : lane[i];
  }
  return lane[0];
}

// Within 2 ulp. 0 below -87.3; saturates at 88.3; NaN stays NaN, so that a diverged run is seen.
REGROUP_INLINE Vec Exp(Vec x) {
  const Vec high = Splat(88.3f), low = Splat(-87.3f);
  const Vec clamped = high < x ? high : x;
  // Adding 1.5 · 2^23 rounds to an integer that can be read from the low bits (Cephes' expf
  // otherwise).
  const Vec shifted = clamped * 1.44269504088896341f + 12582912.0f;
  const Vec n = shifted - 12582912.0f;
  const Vec r = (clamped - n * 0.693359375f) - n * -2.12194440e-4f;
  Vec y = r * 1.9875691500e-4f + 1.3981999507e-3f;
  y = y * r + 8.3334519073e-3f;
  y = y * r + 4.1665795894e-2f;
  y = y * r + 1.6666665459e-1f;
  y = y * r + 5.0000001201e-1f;
  y = y * (r * r) + r + 1.0f;
  // Unsigned: far below `low` it is nonsense that wraps, and is thrown away.
  const BitsVec power = (reinterpret_cast<BitsVec>(shifted) - 0x4B400000u + 127u) << 23;
  return x < low ? Vec{} : y * reinterpret_cast<Vec>(power);
}

}  // namespace
}  // namespace regroup::worker
