#include "tests/worker/gpu/visible_memory.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>

// NOLINTBEGIN(performance-no-int-to-ptr): system calls return addresses as numbers.
namespace regroup::worker {
namespace {

constexpr std::size_t kRegion = std::size_t{2} << 30, kPage = 4096, kStack = std::size_t{64} << 20;

// Blocks of powers of two, each freed one kept for the next of its size. In front of what is handed
// out lies where its block begins, and which power that is.
class Region {
 public:
  std::span<std::byte> all() {
    const std::scoped_lock lock(mutex_);
    return {Begin(), kRegion};
  }
  bool Has(const void* memory) const {
    const auto* at = static_cast<const std::byte*>(memory);
    return begin_ != nullptr && at >= begin_ && at < begin_ + kRegion;
  }

  void* Take(std::size_t bytes, std::size_t alignment) {
    const std::size_t room = std::bit_ceil(bytes + sizeof(Front) + std::max(alignment, kLeast));
    const auto power = static_cast<std::size_t>(std::countr_zero(room));
    const std::scoped_lock lock(mutex_);
    std::byte* block = free_[power];
    if (block != nullptr) {
      std::memcpy(&free_[power], block, sizeof(std::byte*));
    } else {
      if (room > kRegion - used_) return nullptr;
      block = Begin() + used_;
      used_ += room;
    }
    const auto after = reinterpret_cast<std::uintptr_t>(block) + sizeof(Front);
    auto* const given =
        reinterpret_cast<std::byte*>((after + alignment - 1) / alignment * alignment);
    const Front front{block, power};
    std::memcpy(given - sizeof front, &front, sizeof front);
    return given;
  }
  void Give(void* given) {
    Front front;
    std::memcpy(&front, static_cast<std::byte*>(given) - sizeof front, sizeof front);
    const std::scoped_lock lock(mutex_);
    std::memcpy(front.block, &free_[front.power], sizeof(std::byte*));
    free_[front.power] = front.block;
  }

 private:
  struct Front {
    std::byte* block;
    std::size_t power;
  };
  static constexpr std::size_t kLeast = 16;

  std::byte* Begin() {
    if (begin_ == nullptr) {
      // Not mmap, which is ours.
      const long made = syscall(SYS_mmap, nullptr, kRegion, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (made == -1) std::abort();
      begin_ = reinterpret_cast<std::byte*>(made);
    }
    return begin_;
  }

  std::mutex mutex_;
  std::byte* begin_ = nullptr;
  std::size_t used_ = 0;
  std::array<std::byte*, 48> free_{};
};

constinit Region g_region;

void* TakeOrThrow(std::size_t bytes, std::size_t alignment) {
  void* const taken = g_region.Take(bytes, alignment);
  if (taken == nullptr) throw std::bad_alloc();
  return taken;
}

}  // namespace

std::span<std::byte> VisibleMemory() { return g_region.all(); }

int OnVisibleStack(const std::function<int()>& call) {
  struct Call {
    const std::function<int()>& call;
    int result;
  } run{call, 0};
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  if (pthread_attr_setstack(&attributes, TakeOrThrow(kStack, kPage), kStack) != 0) std::abort();
  pthread_t thread;
  const auto body = [](void* argument) -> void* {
    auto* const own = static_cast<Call*>(argument);
    own->result = own->call();
    return nullptr;
  };
  if (pthread_create(&thread, &attributes, body, &run) != 0) std::abort();
  pthread_join(thread, nullptr);
  return run.result;
}

}  // namespace regroup::worker

void* operator new(std::size_t bytes) { return regroup::worker::TakeOrThrow(bytes, 16); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return regroup::worker::TakeOrThrow(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* given) noexcept {
  if (given != nullptr) regroup::worker::g_region.Give(given);
}
void operator delete(void* given, std::size_t) noexcept { operator delete(given); }
void operator delete(void* given, std::align_val_t) noexcept { operator delete(given); }
void operator delete(void* given, std::size_t, std::align_val_t) noexcept {
  operator delete(given);
}

// Of this program's own objects (-Wl,--wrap=mmap), arenas among them.
extern "C" {  // NOLINTBEGIN(bugprone-reserved-identifier): the linker's names.
void* __wrap_mmap(void* at, std::size_t bytes, int protection, int flags, int fd, off_t offset) {
  if (at != nullptr || fd != -1 || (flags & MAP_SHARED) != 0) {
    return reinterpret_cast<void*>(syscall(SYS_mmap, at, bytes, protection, flags, fd, offset));
  }
  void* const taken = regroup::worker::g_region.Take(bytes, regroup::worker::kPage);
  if (taken == nullptr) return MAP_FAILED;
  return std::memset(taken, 0, bytes);
}
int __wrap_munmap(void* at, std::size_t bytes) {
  if (!regroup::worker::g_region.Has(at)) return static_cast<int>(syscall(SYS_munmap, at, bytes));
  regroup::worker::g_region.Give(at);
  return 0;
}
}  // NOLINTEND(bugprone-reserved-identifier)
// NOLINTEND(performance-no-int-to-ptr)
