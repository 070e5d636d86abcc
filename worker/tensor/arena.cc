#include "worker/tensor/arena.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace regroup::worker {

absl::StatusOr<Arena> Arena::Create(std::size_t bytes) {
  if (bytes == 0) return Arena();
  const std::size_t size = Aligned(bytes);
  if (size < bytes) return absl::ResourceExhaustedError(absl::StrCat(bytes, " bytes for an arena"));
  void* address = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for an arena of ", bytes, " bytes: ", std::strerror(errno)));
  }
  // Fewer TLB misses; a kernel without huge pages just says no.
  (void)madvise(address, size, MADV_HUGEPAGE);
  return Of({static_cast<std::byte*>(address), size},
            [](std::span<std::byte> mapped) { CHECK(munmap(mapped.data(), mapped.size()) == 0); });
}

Arena Arena::Of(std::span<std::byte> bytes, std::function<void(std::span<std::byte>)> release) {
  CHECK(reinterpret_cast<std::uintptr_t>(bytes.data()) % kAlignment == 0);
  CHECK(bytes.size() % kAlignment == 0);
  Arena arena;
  arena.bytes_ = bytes;
  arena.release_ = std::move(release);
  return arena;
}

Arena::Arena(Arena&& other) noexcept
    : bytes_(std::exchange(other.bytes_, {})),
      release_(std::move(other.release_)),
      used_(std::exchange(other.used_, 0)) {}

Arena& Arena::operator=(Arena&& other) noexcept {
  if (this != &other) {
    Release();
    bytes_ = std::exchange(other.bytes_, {});
    release_ = std::move(other.release_);
    used_ = std::exchange(other.used_, 0);
  }
  return *this;
}

Arena::~Arena() { Release(); }

std::byte* Arena::TakeBytes(std::size_t bytes) {
  CHECK(bytes <= bytes_.size() - used_);
  std::byte* taken = bytes_.data() + used_;
  used_ += bytes;
  return taken;
}

void Arena::Release() {
  if (!bytes_.empty()) release_(bytes_);
}

}  // namespace regroup::worker
