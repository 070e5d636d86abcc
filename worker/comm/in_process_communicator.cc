#include "worker/comm/in_process_communicator.h"

#include <cstdlib>
#include <iterator>
#include <mutex>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "worker/comm/shared_memory_communicator.h"
#include "worker/tensor/arena.h"

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
  std::vector<Arena> arenas;  // Guarded by mutex.
};

class ThreadPeers final : public Peers {
 public:
  explicit ThreadPeers(std::shared_ptr<SharedState> group) : group_(std::move(group)) {}
  bool Gone(int) override { return false; }
  std::string NameOf(int rank) const override { return absl::StrCat("rank ", rank); }
  absl::StatusOr<Arena> MakeArena(std::size_t bytes) override {
    ASSIGN_OR_RETURN(worker::Arena memory, worker::Arena::Create(bytes));
    std::byte* const base = memory.Take<std::byte>(bytes).data();
    const std::scoped_lock lock(group_->mutex);
    group_->arenas.push_back(std::move(memory));
    return Arena{base, {0, reinterpret_cast<std::uintptr_t>(base), bytes}};
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

std::vector<std::unique_ptr<SharedMemoryCommunicator>> MakeInProcessHost(int first_rank, int count,
                                                                         Duration deadline) {
  CHECK(count >= 1 && count <= kMaxRanks);
  const auto group = std::make_shared<SharedState>(count);
  std::vector<std::unique_ptr<SharedMemoryCommunicator>> ranks;
  for (int r = 0; r < count; ++r) {
    ranks.push_back(std::make_unique<SharedMemoryCommunicator>(
        r, count, group->segment,
        SharedMemoryOptions{.deadline = deadline, .spin = 200, .first_rank = first_rank},
        std::make_unique<ThreadPeers>(group)));
  }
  return ranks;
}

std::vector<std::unique_ptr<Communicator>> MakeInProcessCommunicators(int world_size,
                                                                      Duration deadline) {
  auto host = MakeInProcessHost(0, world_size, deadline);
  return {std::make_move_iterator(host.begin()), std::make_move_iterator(host.end())};
}

}  // namespace regroup::worker
