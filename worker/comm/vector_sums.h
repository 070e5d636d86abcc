// The entries of SumTable. Included by the sums_*.cc files only; vectors.h says why nothing here
// may have external linkage.
//
// A sum waits for memory, or for the caches of the core that wrote what is added. So each line is
// asked for before it is needed, also across the ends of pages, where a CPU does not look ahead.
#pragma once

#include <cstddef>
#include <cstdint>

#include "worker/comm/sums.h"
#include "worker/tensor/vectors.h"

namespace regroup::worker {
namespace {

// A block of floats stays in the first-level cache between its passes.
constexpr std::size_t kBlock = 2048;
constexpr std::size_t kLineBytes = 64, kAheadBytes = 4096;

// An address alone: it may lie behind what `p` points into.
template <typename T>
REGROUP_INLINE void FetchAhead(const T* p) {
  __builtin_prefetch(  // NOLINTNEXTLINE(performance-no-int-to-ptr)
      reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(p) + kAheadBytes));
}

template <typename T>
REGROUP_INLINE Vec LoadUpTo(const T* p, std::size_t n) {
  return n == kLanes ? Load(p) : LoadFirst(p, static_cast<std::int64_t>(n));
}
template <typename T>
REGROUP_INLINE void StoreUpTo(T* p, Vec v, std::size_t n) {
  if (n == kLanes) return Store(p, v);
  StoreFirst(p, v, static_cast<std::int64_t>(n));
}

// Of what EachVector calls: a call for each vector would cost more than the sum.
#define REGROUP_IN_LOOP __attribute__((always_inline))

// work(i, n) for the n elements from i on, vector by vector. Lines of `a` and `b` are fetched
// ahead.
template <typename T, typename Work>
REGROUP_INLINE void EachVector(const T* a, const T* b, std::size_t count, const Work& work) {
  constexpr std::size_t kLine = kLineBytes / sizeof(T);
  std::size_t i = 0;
  for (; i + kLine <= count; i += kLine) {
    FetchAhead(a + i);
    if (b != a) FetchAhead(b + i);
    for (std::size_t j = 0; j < kLine; j += kLanes) work(i + j, std::size_t{kLanes});
  }
  for (; i + kLanes <= count; i += kLanes) work(i, std::size_t{kLanes});
  if (i < count) work(i, count - i);
}

template <typename T>
void SumOfTwoIntoBoth(T* a, T* b, std::size_t count) {
  EachVector<T>(a, b, count, [=](std::size_t i, std::size_t n) REGROUP_IN_LOOP {
    const Vec sum = LoadUpTo(a + i, n) + LoadUpTo(b + i, n);
    StoreUpTo(a + i, sum, n);
    StoreUpTo(b + i, sum, n);
  });
}

// `out` is `a`, `b` or neither.
template <typename T, typename Out>
void SumOfTwo(Out* out, const T* a, const T* b, std::size_t count) {
  EachVector<T>(a, b, count, [=](std::size_t i, std::size_t n) REGROUP_IN_LOOP {
    StoreUpTo(out + i, LoadUpTo(a + i, n) + LoadUpTo(b + i, n), n);
  });
}

// From and to floats. `out` may begin where `in` does unless it is wider: a store never passes the
// next load.
template <typename Out, typename In>
void Convert(Out* out, const In* in, std::size_t count) {
  EachVector<In>(in, in, count, [=](std::size_t i, std::size_t n) REGROUP_IN_LOOP {
    StoreUpTo(out + i, LoadUpTo(in + i, n), n);
  });
}

template <typename T>
void AddWideTo(float* sum, const T* in, std::size_t count) {
  EachVector<T>(in, in, count, [=](std::size_t i, std::size_t n) REGROUP_IN_LOOP {
    StoreUpTo(sum + i, LoadUpTo(sum + i, n) + LoadUpTo(in + i, n), n);
  });
}

#undef REGROUP_IN_LOOP

// REQUIRES: source_count >= 2.
template <typename T>
void SumBlock(float* sum, const T* const* sources, std::size_t source_count, std::size_t at,
              std::size_t count) {
  SumOfTwo(sum, sources[0] + at, sources[1] + at, count);
  for (std::size_t s = 2; s < source_count; ++s) AddWideTo(sum, sources[s] + at, count);
}

template <typename T>
void SumIntoAllOf(T* const* sources, std::size_t source_count, std::size_t begin, std::size_t end) {
  if (source_count == 1) return;
  if (source_count == 2)
    return SumOfTwoIntoBoth(sources[0] + begin, sources[1] + begin, end - begin);
  alignas(kLineBytes) float sum[kBlock];
  for (std::size_t at = begin; at < end; at += kBlock) {
    const std::size_t count = end - at < kBlock ? end - at : kBlock;
    SumBlock<T>(sum, sources, source_count, at, count);
    Convert(sources[0] + at, sum, count);
    for (std::size_t s = 1; s < source_count; ++s)
      __builtin_memcpy(sources[s] + at, sources[0] + at, count * sizeof(T));
  }
}

template <typename T>
void SumIntoOne(const T* const* sources, std::size_t source_count, std::size_t begin,
                std::size_t end, T* out) {
  if (begin == end) return;  // Of nothing there may be no address.
  if (source_count == 1) {
    __builtin_memmove(out + begin, sources[0] + begin, (end - begin) * sizeof(T));
    return;
  }
  if (source_count == 2)
    return SumOfTwo(out + begin, sources[0] + begin, sources[1] + begin, end - begin);
  alignas(kLineBytes) float sum[kBlock];
  for (std::size_t at = begin; at < end; at += kBlock) {
    const std::size_t count = end - at < kBlock ? end - at : kBlock;
    SumBlock(sum, sources, source_count, at, count);
    Convert(out + at, sum, count);
  }
}

template <typename T>
void FillSums(SumTable<T>& table) {
  table = {.into_all = SumIntoAllOf<T>,
           .into = SumIntoOne<T>,
           .widen = Convert<float, T>,
           .add_wide = AddWideTo<T>,
           .narrow = Convert<T, float>};
}

}  // namespace
}  // namespace regroup::worker
