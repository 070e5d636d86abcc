#pragma once

// How many bytes the journal's disk has free, for calls that a hanging disk must not hold: gRPC has
// two threads, and on them every agent is heard.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

namespace regroup::coordinator {

// How long a call waits for the disk's answer, before it goes by the last one.
inline constexpr auto kFreeSpacePatience = std::chrono::milliseconds(100);

class FreeSpace {
 public:
  // `look` asks the disk; called on a thread of this object's, which it may hold for good: then it
  // outlives this object, and so must what it uses.
  explicit FreeSpace(std::function<std::uint64_t()> look);
  ~FreeSpace();
  FreeSpace(const FreeSpace&) = delete;
  FreeSpace& operator=(const FreeSpace&) = delete;

  // As of now, or as of the last answer where none comes in time; without any, the largest number.
  // Only the first call that meets a hanging disk waits. Any thread.
  std::uint64_t Bytes();

 private:
  struct Shared;
  const std::shared_ptr<Shared> shared_;
};

}  // namespace regroup::coordinator
