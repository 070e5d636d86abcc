#include "worker/comm/in_process_communicator.h"

#include <cstdlib>
#include <mutex>
#include <new>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "worker/comm/shared_memory_communicator.h"

namespace regroup::worker {
namespace {

struct FreeAligned {
  void operator()(std::byte* memory) const { ::operator delete[](memory, std::align_val_t(4096)); }
};
using AlignedMemory = std::unique_ptr<std::byte[], FreeAligned>;

AlignedMemory MakeZeroed(std::size_t bytes) {
  return AlignedMemory(new (std::align_val_t(4096)) std::byte[bytes]());
}

// Owned by the communicators of all ranks; the last one frees it.
struct SharedState {
  explicit SharedState(int world_size)
      : memory(MakeZeroed(SegmentBytes(world_size))), segment(new (memory.get()) Segment) {}
  AlignedMemory memory;
  Segment* segment;
  std::mutex mutex;
  std::vector<AlignedMemory> arenas;  // Guarded by mutex.
};

class ThreadPeers final : public Peers {
 public:
  explicit ThreadPeers(std::shared_ptr<SharedState> group) : group_(std::move(group)) {}
  bool Gone(int) override { return false; }
  std::string NameOf(int rank) const override { return absl::StrCat("rank ", rank); }
  absl::StatusOr<Arena> MakeArena(std::size_t bytes) override {
    AlignedMemory memory = MakeZeroed(bytes);
    const Arena arena{memory.get(), {0, reinterpret_cast<std::uintptr_t>(memory.get()), bytes}};
    const std::scoped_lock lock(group_->mutex);
    group_->arenas.push_back(std::move(memory));
    return arena;
  }
  absl::StatusOr<Arena> OpenArena(const ArenaTicket& ticket) override {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): within one process a handle is an address.
    return Arena{reinterpret_cast<std::byte*>(ticket.handle), ticket};
  }
  void ArenaShared(const ArenaTicket&) override {}

 private:
  const std::shared_ptr<SharedState> group_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> MakeInProcessCommunicators(int world_size,
                                                                      Duration deadline) {
  CHECK(world_size >= 1 && world_size <= kMaxRanks);
  const auto group = std::make_shared<SharedState>(world_size);
  std::vector<std::unique_ptr<Communicator>> ranks;
  for (int r = 0; r < world_size; ++r) {
    ranks.push_back(std::make_unique<SharedMemoryCommunicator>(
        r, world_size, group->segment, SharedMemoryOptions{.deadline = deadline, .spin = 200},
        std::make_unique<ThreadPeers>(group)));
  }
  return ranks;
}

}  // namespace regroup::worker
