#pragma once

// The memory that the ranks of one group share, besides their arenas. Private to worker/comm.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace regroup::worker {

inline constexpr int kMaxRanks = 64;  // On one host; bounds what a peer can make us map.
inline constexpr std::uint64_t kSegmentMagic = 0x5247434F4D4D3031;  // "RGCOMM01".
inline constexpr std::size_t kBufferBytes =
    256 << 10;  // One rank's part of one exchange; fits the second-level cache.

// What a rank is about to do; equal on all ranks but for `rank`, or the call fails.
struct CallHeader {
  std::uint32_t operation = 0;
  std::uint32_t type = 0;
  std::uint64_t count = 0;
  std::uint64_t place = 0;  // Arena and offset, root, or reduction.
  std::uint64_t sequence = 0;
  friend bool operator==(const CallHeader&, const CallHeader&) = default;
};

// What ended a group, in one word: why, the rank that found it, the rank that it is about. Ranks
// are numbered as in the world.
enum FailureKind : std::uint32_t { kAbort = 1, kGone, kLate, kMismatch, kBadBytes };
inline constexpr std::uint64_t PackFailure(std::uint32_t kind, int by, int about) {
  return static_cast<std::uint64_t>(kind) << 32 | static_cast<std::uint64_t>(by) << 16 |
         static_cast<std::uint64_t>(about);
}
inline constexpr std::uint32_t FailureKindOf(std::uint64_t packed) {
  return static_cast<std::uint32_t>(packed >> 32);
}
inline constexpr int FoundBy(std::uint64_t packed) {
  return static_cast<int>(packed >> 16 & 0xFFFF);
}
inline constexpr int FoundAbout(std::uint64_t packed) { return static_cast<int>(packed & 0xFFFF); }

// Ranks advance in lockstep through phases. What a rank publishes in phase p (header, buffer p % 2,
// arena) is complete once its `phase` is >= p; it overwrites it in phase p + 2 at the earliest,
// when every rank has reached p + 1 and so has read it.
struct alignas(128) RankSlot {
  std::atomic<std::uint32_t> phase{0};    // A futex.
  std::atomic<std::uint32_t> waiters{0};  // Ranks that sleep on `phase`, or died doing so.
  std::atomic<std::uint32_t> left{
      0};  // The rank's communicator is gone, though its process may live.
  std::atomic<std::uint64_t> call{0};  // The last one that it has begun.
  alignas(64) std::array<CallHeader, 2> header;
};

struct alignas(128) Segment {
  std::uint64_t magic = kSegmentMagic;
  std::uint64_t nonce = 0;
  std::uint64_t world_size = 0;
  alignas(128) std::atomic<std::uint64_t> failure{
      0};  // 0, or the first failure, packed; never changes again.
  std::array<RankSlot, kMaxRanks> slots;
  // Followed by world_size × 2 buffers of kBufferBytes.
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

inline constexpr std::size_t kSegmentHeadBytes = (sizeof(Segment) + 4095) / 4096 * 4096;
inline constexpr std::size_t SegmentBytes(int world_size) {
  return kSegmentHeadBytes + static_cast<std::size_t>(world_size) * 2 * kBufferBytes;
}

}  // namespace regroup::worker
