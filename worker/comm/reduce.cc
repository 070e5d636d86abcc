#include "worker/comm/reduce.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace regroup::worker {
namespace {

// A block of every source stays in the first-level cache between its read and its write.
constexpr std::size_t kBlock = 2048;

void SumOfTwo(float* __restrict a, float* __restrict b, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const float sum = a[i] + b[i];
    a[i] = sum;
    b[i] = sum;
  }
}

void AddTo(float* __restrict sum, const float* __restrict in, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) sum[i] += in[i];
}

template <typename T>
void SumTo(float* __restrict sum, const T* a, const T* b, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i)
    sum[i] = static_cast<float>(a[i]) + static_cast<float>(b[i]);
}

// In one pass. `out` is `a`, `b` or neither.
void SumOfTwoTo(float* out, const float* a, const float* b, std::size_t count) {
  if (out == a) return AddTo(out, b, count);
  if (out == b) return AddTo(out, a, count);
  SumTo(out, a, b, count);
}

template <typename T>
void Round(T* __restrict out, const float* __restrict sum, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) out[i] = T(sum[i]);
}

}  // namespace

void CopyPastCaches(std::byte* to, const std::byte* from, std::size_t bytes) {
#if defined(__x86_64__)
  constexpr std::size_t kCached = 256 << 10, kLine = 64;
  if (bytes <= kCached) {
    std::memcpy(to, from, bytes);
    return;
  }
  const std::size_t head =
      std::min(bytes, (kLine - reinterpret_cast<std::uintptr_t>(to) % kLine) % kLine);
  std::memcpy(to, from, head);
  std::size_t at = head;
  for (; at + kLine <= bytes; at += kLine) {
    const auto* in = reinterpret_cast<const __m128i*>(from + at);
    auto* out = reinterpret_cast<__m128i*>(to + at);
    const __m128i a = _mm_loadu_si128(in), b = _mm_loadu_si128(in + 1), c = _mm_loadu_si128(in + 2),
                  d = _mm_loadu_si128(in + 3);
    _mm_stream_si128(out, a);
    _mm_stream_si128(out + 1, b);
    _mm_stream_si128(out + 2, c);
    _mm_stream_si128(out + 3, d);
  }
  _mm_sfence();
  std::memcpy(to + at, from + at, bytes - at);
#else
  std::memcpy(to, from, bytes);
#endif
}

template <typename T>
void SumIntoAll(std::span<T* const> sources, std::size_t begin, std::size_t end) {
  if constexpr (std::is_same_v<T, float>) {
    if (sources.size() == 2) return SumOfTwo(sources[0] + begin, sources[1] + begin, end - begin);
  }
  alignas(64) float sum[kBlock];
  for (std::size_t at = begin; at < end; at += kBlock) {
    const std::size_t count = std::min(kBlock, end - at);
    Widen(sum, sources[0] + at, count);
    for (std::size_t s = 1; s < sources.size(); ++s) AddWide(sum, sources[s] + at, count);
    for (T* source : sources) Round(source + at, sum, count);
  }
}

template <typename T>
void SumInto(std::span<const T* const> sources, std::size_t begin, std::size_t end, T* out) {
  if constexpr (std::is_same_v<T, float>) {
    if (sources.size() == 2)
      return SumOfTwoTo(out + begin, sources[0] + begin, sources[1] + begin, end - begin);
  }
  alignas(64) float sum[kBlock];
  for (std::size_t at = begin; at < end; at += kBlock) {
    const std::size_t count = std::min(kBlock, end - at);
    if (sources.size() == 1) {
      Widen(sum, sources[0] + at, count);
    } else {
      SumTo(sum, sources[0] + at, sources[1] + at, count);
    }
    for (std::size_t s = 2; s < sources.size(); ++s) AddWide(sum, sources[s] + at, count);
    Round(out + at, sum, count);
  }
}

template <typename T>
void Widen(float* __restrict sum, const T* __restrict in, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) sum[i] = static_cast<float>(in[i]);
}

template <typename T>
void AddWide(float* __restrict sum, const T* __restrict in, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) sum[i] += static_cast<float>(in[i]);
}

template <typename T>
void Narrow(T* out, const float* sum, std::size_t count) {
  alignas(64) float block[kBlock];  // What is written may be what is read.
  for (std::size_t at = 0; at < count; at += kBlock) {
    const std::size_t size = std::min(kBlock, count - at);
    std::memcpy(block, sum + at, size * sizeof(float));
    Round(out + at, block, size);
  }
}

#define REGROUP_SUMS_OF(T)                                                           \
  template void SumIntoAll<T>(std::span<T* const>, std::size_t, std::size_t);        \
  template void SumInto<T>(std::span<const T* const>, std::size_t, std::size_t, T*); \
  template void Widen<T>(float*, const T*, std::size_t);                             \
  template void AddWide<T>(float*, const T*, std::size_t);                           \
  template void Narrow<T>(T*, const float*, std::size_t);
REGROUP_SUMS_OF(float)
REGROUP_SUMS_OF(BFloat16)
REGROUP_SUMS_OF(Half)
#undef REGROUP_SUMS_OF

void Add(float* inout, const float* in, std::size_t count) { AddTo(inout, in, count); }

void Add(double* __restrict inout, const double* __restrict in, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) inout[i] += in[i];
}

void Add(std::int64_t* inout, const std::int64_t* in, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    // Wraps instead of overflowing: the counts come from peers.
    inout[i] = static_cast<std::int64_t>(static_cast<std::uint64_t>(inout[i]) +
                                         static_cast<std::uint64_t>(in[i]));
  }
}

void Max(double* inout, const double* in, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    if (in[i] > inout[i] || std::isnan(in[i])) inout[i] = in[i];
  }
}

void Max(std::int64_t* inout, const std::int64_t* in, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) inout[i] = std::max(inout[i], in[i]);
}

}  // namespace regroup::worker
