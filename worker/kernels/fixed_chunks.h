#pragma once

#include <cstdint>

namespace regroup::worker {

// Reductions are cut into chunks by the size of the problem alone, never by the number of threads:
// so the order of summation, and every bit of the result, is the same with any of them.

inline constexpr std::int64_t kMaxRowChunks = 64;
inline constexpr std::int64_t kMinChunkRows = 16;
// Rows of one chunk of a sum over rows.
constexpr std::int64_t ChunkRows(std::int64_t rows) {
  const std::int64_t even = (rows + kMaxRowChunks - 1) / kMaxRowChunks;
  return even < kMinChunkRows ? kMinChunkRows : even;
}

inline constexpr std::int64_t kSumChunks = 256;  // Of a sum over a flat buffer.
inline constexpr std::int64_t kSumBlock =
    1024;  // Elements summed in float before double takes over.
constexpr std::int64_t SumChunkElements(std::int64_t elements) {
  const std::int64_t even = (elements + kSumChunks - 1) / kSumChunks;
  return (even + kSumBlock - 1) / kSumBlock * kSumBlock;
}

// Attention works on blocks of this many queries; its scratch rows are padded to whole vectors of
// any width.
inline constexpr std::int64_t kQueryBlock = 64;
inline constexpr std::int64_t kPadFloats = 16;
constexpr std::int64_t PadFloats(std::int64_t n) {
  return (n + kPadFloats - 1) / kPadFloats * kPadFloats;
}

// Floats of scratch that one thread needs: keys and values in both orders, their gradients, and one
// block of queries.
constexpr std::int64_t AttentionScratchOfThread(std::int64_t time, std::int64_t head_width) {
  const std::int64_t width = PadFloats(head_width);
  const std::int64_t length = PadFloats(time);
  const std::int64_t side = width * length;  // One of K, V, …
  const std::int64_t block = kQueryBlock * width, scores = kQueryBlock * length;
  return 5 * side + 3 * block + 2 * scores;
}

}  // namespace regroup::worker
