#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace regroup::worker {

// sources[0][i] + sources[1][i] + …, added in this order, is written to every one of the sources,
// for i in [begin, end). REQUIRES: the sources do not overlap.
void SumIntoAll(std::span<float* const> sources, std::size_t begin, std::size_t end);

// The same sum is written to out[i] alone, which may be one of the sources.
void SumInto(std::span<const float* const> sources, std::size_t begin, std::size_t end, float* out);

// inout[i] = inout[i] (+ | max) in[i]. A NaN in either operand gives NaN.
void Add(float* inout, const float* in, std::size_t count);
void Add(double* inout, const double* in, std::size_t count);
void Add(std::int64_t* inout, const std::int64_t* in, std::size_t count);
void Max(double* inout, const double* in, std::size_t count);
void Max(std::int64_t* inout, const std::int64_t* in, std::size_t count);

}  // namespace regroup::worker
