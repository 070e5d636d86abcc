#include "worker/comm/reduce.h"

#include <algorithm>
#include <cmath>
#include <cstring>

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

void SumTo(float* __restrict sum, const float* a, const float* b, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) sum[i] = a[i] + b[i];
}

}  // namespace

void SumIntoAll(std::span<float* const> sources, std::size_t begin, std::size_t end) {
  if (sources.size() == 2) return SumOfTwo(sources[0] + begin, sources[1] + begin, end - begin);
  alignas(64) float sum[kBlock];
  for (std::size_t at = begin; at < end; at += kBlock) {
    const std::size_t count = std::min(kBlock, end - at);
    std::memcpy(sum, sources[0] + at, count * sizeof(float));
    for (std::size_t s = 1; s < sources.size(); ++s) AddTo(sum, sources[s] + at, count);
    for (float* source : sources) std::memcpy(source + at, sum, count * sizeof(float));
  }
}

void SumInto(std::span<const float* const> sources, std::size_t begin, std::size_t end,
             float* out) {
  alignas(64) float sum[kBlock];
  for (std::size_t at = begin; at < end; at += kBlock) {
    const std::size_t count = std::min(kBlock, end - at);
    if (sources.size() == 1) {
      std::memcpy(sum, sources[0] + at, count * sizeof(float));
    } else {
      SumTo(sum, sources[0] + at, sources[1] + at, count);
    }
    for (std::size_t s = 2; s < sources.size(); ++s) AddTo(sum, sources[s] + at, count);
    std::memcpy(out + at, sum, count * sizeof(float));
  }
}

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
