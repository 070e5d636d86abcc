#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "worker/tensor/dtype.h"

namespace regroup::worker {

// As memcpy, but what is more than 256 KiB is written past the caches: it is not read soon, and
// they would have to fetch what it is written over.
void CopyPastCaches(std::byte* to, const std::byte* from, std::size_t bytes);

// Sums of float, BFloat16 and Half are made in floats.

// sources[0][i] + sources[1][i] + …, added in this order, is written to every one of the sources,
// for i in [begin, end). REQUIRES: the sources do not overlap.
template <typename T>
void SumIntoAll(std::span<T* const> sources, std::size_t begin, std::size_t end);

// The same sum is written to out[i] alone, which may be one of the sources.
template <typename T>
void SumInto(std::span<const T* const> sources, std::size_t begin, std::size_t end, T* out);

// sum[i] = in[i], sum[i] += in[i], out[i] = sum[i]. In the last, `out` may begin where `sum` does.
template <typename T>
void Widen(float* sum, const T* in, std::size_t count);
template <typename T>
void AddWide(float* sum, const T* in, std::size_t count);
template <typename T>
void Narrow(T* out, const float* sum, std::size_t count);

// inout[i] = inout[i] (+ | max) in[i]. A NaN in either operand gives NaN.
void Add(float* inout, const float* in, std::size_t count);
void Add(double* inout, const double* in, std::size_t count);
void Add(std::int64_t* inout, const std::int64_t* in, std::size_t count);
void Max(double* inout, const double* in, std::size_t count);
void Max(std::int64_t* inout, const std::int64_t* in, std::size_t count);

}  // namespace regroup::worker
