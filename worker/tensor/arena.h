#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "absl/status/statusor.h"

namespace regroup::worker {

// Zeroed memory that is handed out front to back and returned as a whole. Everything
// that a training step touches lies in arenas that were sized before the first step.
class Arena {
 public:
  static constexpr std::size_t kAlignment = 256;

  // Resource exhausted, with the size, if the kernel refuses.
  static absl::StatusOr<Arena> Create(std::size_t bytes);
  // Of memory that `release` gives back. REQUIRES: aligned, and a multiple of the alignment.
  static Arena Of(std::span<std::byte> bytes, std::function<void(std::span<std::byte>)> release);
  static constexpr std::size_t Aligned(std::size_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  // Bytes that `elements` of T take in an arena, alignment included.
  template <typename T>
  static constexpr std::size_t Footprint(std::size_t elements) {
    return Aligned(elements * sizeof(T));
  }

  Arena() = default;
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;
  ~Arena();

  // kAlignment-aligned. REQUIRES: the rest of the arena is large enough.
  template <typename T>
  std::span<T> Take(std::size_t elements) {
    return {reinterpret_cast<T*>(TakeBytes(Footprint<T>(elements))), elements};
  }

  std::size_t size_bytes() const { return bytes_.size(); }
  std::size_t used_bytes() const { return used_; }

 private:
  std::byte* TakeBytes(std::size_t bytes);
  void Release();

  std::span<std::byte> bytes_;
  std::function<void(std::span<std::byte>)> release_;
  std::size_t used_ = 0;  // A multiple of kAlignment, at most bytes_.size().
};

}  // namespace regroup::worker
