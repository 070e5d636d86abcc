// Vectors as wide as the instruction set of the including file, of any type of dtype.h.
//
// Included by files that are compiled for one set only. There everything has internal linkage, and
// inline functions of the standard library stay out: the linker keeps one copy of an inline
// function, and must not keep one compiled for AVX-512 for all.
#pragma once

#include <cstdint>

#include "worker/tensor/dtype.h"

namespace regroup::worker {
namespace {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif
constexpr int kLanes = kVectorBytes / 4;

typedef float Vec __attribute__((vector_size(kVectorBytes)));
typedef std::uint32_t BitsVec __attribute__((vector_size(kVectorBytes)));
typedef float UnalignedVec __attribute__((vector_size(kVectorBytes), aligned(4), may_alias));
typedef std::uint16_t ShortVec __attribute__((vector_size(kVectorBytes / 2)));
typedef std::uint16_t UnalignedShortVec
    __attribute__((vector_size(kVectorBytes / 2), aligned(2), may_alias));

#define REGROUP_INLINE inline __attribute__((always_inline))

REGROUP_INLINE Vec Splat(float a) { return a - Vec{}; }
REGROUP_INLINE BitsVec BitsOf(Vec v) { return reinterpret_cast<BitsVec>(v); }
REGROUP_INLINE Vec FloatOf(BitsVec v) { return reinterpret_cast<Vec>(v); }

// Numbers of 16 bits to floats and back, as dtype.h's scalars do it, to the bit.
REGROUP_INLINE Vec Widen(BFloat16, ShortVec v) {
  return FloatOf(__builtin_convertvector(v, BitsVec) << 16);
}
REGROUP_INLINE ShortVec Narrow(BFloat16, Vec v) {
  const BitsVec wide = BitsOf(v);
  const BitsVec nearest = (wide + 0x7FFFu + (wide >> 16 & 1u)) >> 16;
  const BitsVec nan = wide >> 16 | 0x40u;
  return __builtin_convertvector((wide & 0x7FFFFFFFu) > 0x7F800000u ? nan : nearest, ShortVec);
}
REGROUP_INLINE Vec Widen(Half, ShortVec v) {
  const BitsVec all = __builtin_convertvector(v, BitsVec), shifted = (all & 0x7FFFu) << 13;
  const BitsVec wide = shifted + (112u << 23);
  const BitsVec small = BitsOf(FloatOf(shifted + (113u << 23)) - 0x1p-14f);
  const BitsVec large = wide | 255u << 23;
  return FloatOf((shifted < 1u << 23   ? small
                  : wide >= 143u << 23 ? large
                                       : wide) |
                 (all & 0x8000u) << 16);
}
REGROUP_INLINE ShortVec Narrow(Half, Vec v) {
  const BitsVec sign = BitsOf(v) & 0x80000000u, wide = BitsOf(v) ^ sign;
  const BitsVec large = wide > 255u << 23 ? BitsVec{} + 0x7E00u : BitsVec{} + 0x7C00u;
  const BitsVec small = BitsOf(FloatOf(wide) + 0.5f) - 0x3F000000u;
  const BitsVec normal = (wide + ((15u - 127u) << 23) + 0xFFFu + (wide >> 13 & 1u)) >> 13;
  const BitsVec rounded = wide >= 143u << 23 ? large : wide < 113u << 23 ? small : normal;
  return __builtin_convertvector(rounded | sign >> 16, ShortVec);
}

REGROUP_INLINE Vec Load(const float* p) { return *reinterpret_cast<const UnalignedVec*>(p); }
REGROUP_INLINE void Store(float* p, Vec v) { *reinterpret_cast<UnalignedVec*>(p) = v; }
template <typename E>
REGROUP_INLINE Vec Load(const E* p) {
  return Widen(E{}, *reinterpret_cast<const UnalignedShortVec*>(p));
}
template <typename E>
REGROUP_INLINE void Store(E* p, Vec v) {
  *reinterpret_cast<UnalignedShortVec*>(p) = Narrow(E{}, v);
}

// The first n lanes; the others are zero, respectively not written.
REGROUP_INLINE Vec LoadFirst(const float* p, std::int64_t n) {
  Vec v{};
  __builtin_memcpy(&v, p, static_cast<std::size_t>(n) * 4);
  return v;
}
REGROUP_INLINE void StoreFirst(float* p, Vec v, std::int64_t n) {
  __builtin_memcpy(p, &v, static_cast<std::size_t>(n) * 4);
}
template <typename E>
REGROUP_INLINE Vec LoadFirst(const E* p, std::int64_t n) {
  ShortVec v{};
  __builtin_memcpy(&v, p, static_cast<std::size_t>(n) * 2);
  return Widen(E{}, v);
}
template <typename E>
REGROUP_INLINE void StoreFirst(E* p, Vec v, std::int64_t n) {
  const ShortVec rounded = Narrow(E{}, v);
  __builtin_memcpy(p, &rounded, static_cast<std::size_t>(n) * 2);
}

REGROUP_INLINE float Get(const float* p) { return *p; }
REGROUP_INLINE void Put(float* p, float value) { *p = value; }
template <typename E>
REGROUP_INLINE float Get(const E* p) {
  return LoadFirst(p, 1)[0];
}
template <typename E>
REGROUP_INLINE void Put(E* p, float value) {
  StoreFirst(p, Splat(value), 1);
}

}  // namespace
}  // namespace regroup::worker
