#include "worker/comm/reduce.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include "common/base/check.h"
#include "worker/comm/sums.h"

namespace regroup::worker {
namespace {

template <typename T>
const SumTable<T>& Sums() {
  static const SumTable<T> table = SumsOf<T>(BestIsa());
  return table;
}

#if defined(__x86_64__)
void StreamLine(std::byte* to, const std::byte* from) {
  for (std::size_t i = 0; i < 64; i += sizeof(__m128i)) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + i),
                     _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
  }
}
#endif

}  // namespace

template <typename T>
SumTable<T> SumsOf(Isa isa) {
  CHECK(isa <= BestIsa());
  SumTable<T> table{};
  switch (isa) {
    case Isa::kBaseline: FillSumsBaseline(table); break;
    case Isa::kV3: FillSumsV3(table); break;
    case Isa::kV4: FillSumsV4(table); break;
  }
  return table;
}

void CopyPastCaches(std::byte* to, const std::byte* from, std::size_t bytes) {
#if defined(__x86_64__)
  constexpr std::size_t kCached = 256 << 10, kLine = 64, kPage = 4096;
  // Lines of four pages alternate, so that more loads are in flight.
  constexpr std::size_t kPages = 4;
  if (bytes <= kCached) {
    std::memcpy(to, from, bytes);
    return;
  }
  const std::size_t head = (kLine - reinterpret_cast<std::uintptr_t>(to) % kLine) % kLine;
  std::memcpy(to, from, head);
  std::size_t at = head;
  for (; at + kPages * kPage <= bytes; at += kPages * kPage) {
    for (std::size_t line = 0; line < kPage; line += kLine) {
      for (std::size_t page = 0; page < kPages; ++page)
        StreamLine(to + at + page * kPage + line, from + at + page * kPage + line);
    }
  }
  for (; at + kLine <= bytes; at += kLine) StreamLine(to + at, from + at);
  _mm_sfence();
  std::memcpy(to + at, from + at, bytes - at);
#else
  std::memcpy(to, from, bytes);
#endif
}

template <typename T>
void SumIntoAll(std::span<T* const> sources, std::size_t begin, std::size_t end) {
  Sums<T>().into_all(sources.data(), sources.size(), begin, end);
}

template <typename T>
void SumInto(std::span<const T* const> sources, std::size_t begin, std::size_t end, T* out) {
  Sums<T>().into(sources.data(), sources.size(), begin, end, out);
}

template <typename T>
void Widen(float* sum, const T* in, std::size_t count) {
  Sums<T>().widen(sum, in, count);
}

template <typename T>
void AddWide(float* sum, const T* in, std::size_t count) {
  Sums<T>().add_wide(sum, in, count);
}

template <typename T>
void Narrow(T* out, const float* sum, std::size_t count) {
  Sums<T>().narrow(out, sum, count);
}

#define REGROUP_SUMS_OF(T)                                                           \
  template SumTable<T> SumsOf<T>(Isa);                                               \
  template void SumIntoAll<T>(std::span<T* const>, std::size_t, std::size_t);        \
  template void SumInto<T>(std::span<const T* const>, std::size_t, std::size_t, T*); \
  template void Widen<T>(float*, const T*, std::size_t);                             \
  template void AddWide<T>(float*, const T*, std::size_t);                           \
  template void Narrow<T>(T*, const float*, std::size_t);
REGROUP_SUMS_OF(float)
REGROUP_SUMS_OF(BFloat16)
REGROUP_SUMS_OF(Half)
#undef REGROUP_SUMS_OF

void Add(float* inout, const float* in, std::size_t count) { AddWide(inout, in, count); }

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
