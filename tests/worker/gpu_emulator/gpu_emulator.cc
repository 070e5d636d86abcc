#include "tests/worker/gpu_emulator/gpu_emulator.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "worker/cuda/cuda_device.h"
#include "worker/device/device.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

// Keeps what a call keeps, remembers where the stack of one fibre ends, and goes on in another.
extern "C" void RegroupSwitchStacks(void** from, void* to);
asm(R"(
.text
.type RegroupSwitchStacks, @function
RegroupSwitchStacks:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size RegroupSwitchStacks, .-RegroupSwitchStacks
)");

namespace regroup::worker::gpu_emulator {
namespace {

// What every GPU since sm_80 has.
constexpr int kMostThreads = 1024;
constexpr std::size_t kMostBlockBytes = 99 << 10;

constexpr std::size_t kPage = 4096, kStackBytes = 64 << 10;

// What AddressSanitizer is told when a thread of the CPU goes on with another stack. `shadow`: what
// belongs to the one that is left; null: it ends.
#if defined(__SANITIZE_ADDRESS__)
void StartSwitch(void** shadow, const void* bottom, std::size_t bytes) {
  __sanitizer_start_switch_fiber(shadow, bottom, bytes);
}
void FinishSwitch(void* shadow, const void** old_bottom, std::size_t* old_bytes) {
  __sanitizer_finish_switch_fiber(shadow, old_bottom, old_bytes);
}
void ForgetStack(std::byte* bottom) { ASAN_UNPOISON_MEMORY_REGION(bottom, kStackBytes); }
#else
void StartSwitch(void**, const void*, std::size_t) {}
void FinishSwitch(void*, const void**, std::size_t*) {}
void ForgetStack(std::byte*) {}
#endif

enum class State : std::uint8_t { kReady, kAtBarrier, kAtShuffle, kEnded };

struct Thread {
  Index index;
  State state = State::kReady;
  void* stack = nullptr;  // Where it ends while another one goes on.
  void* shadow = nullptr;
  Place at;           // Of what it waits at.
  unsigned mask = 0;  // Of a shuffle, as what follows.
  int lanes = 0;
  const void* type = nullptr;
  std::uint64_t bits = 0;
  OfWarp together = nullptr;
  void* own = nullptr;
};

class Block {
 public:
  Block(const cuda::Geometry& geometry, const std::function<void()>& kernel, Order order);

  absl::Status Run(Index block);

  void Wait(State state, Place at);
  Thread& current() { return *current_; }
  Index index, size, grid;
  void* memory() { return memory_.get(); }

 private:
  static void Begin();
  std::byte* StackOf(std::size_t thread) {
    return stacks_ + thread * (kPage + kStackBytes) + kPage;
  }
  void PrepareStack(std::size_t thread);
  void GoOn(std::size_t thread);
  void Leave();
  bool ReleaseWarp(std::size_t first);
  bool ReleaseBlock();
  absl::Status Stuck() const;

  const cuda::Geometry& geometry_;
  const std::function<void()>& kernel_;
  std::vector<Thread> threads_;
  std::vector<std::size_t> warps_, lanes_;  // The order in which they go on.
  std::unique_ptr<std::byte[]> memory_;
  std::byte* stacks_ = nullptr;  // Of the process, below each a page that nobody may touch.
  Thread* current_ = nullptr;
  void* own_stack_ = nullptr;
  const void* own_bottom_ = nullptr;
  std::size_t own_bytes_ = 0;
};

Order g_order = Order::kForward;
Block* g_block = nullptr;

std::byte* Stacks() {
  static std::byte* const stacks = [] {
    const std::size_t bytes = kMostThreads * (kPage + kStackBytes);
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(memory != MAP_FAILED);
    auto* first = static_cast<std::byte*>(memory);
    for (int i = 0; i < kMostThreads; ++i)
      CHECK(mprotect(first + static_cast<std::size_t>(i) * (kPage + kStackBytes), kPage,
                     PROT_NONE) == 0);
    return first;
  }();
  return stacks;
}

std::vector<std::size_t> Ordered(std::size_t count, Order order) {
  std::vector<std::size_t> all(count);
  std::iota(all.begin(), all.end(), std::size_t{0});
  if (order == Order::kBackward) std::reverse(all.begin(), all.end());
  if (order == Order::kShuffled) std::shuffle(all.begin(), all.end(), std::mt19937_64(count));
  return all;
}

Block::Block(const cuda::Geometry& geometry, const std::function<void()>& kernel, Order order)
    : size{static_cast<unsigned>(geometry.threads), static_cast<unsigned>(geometry.threads_y), 1},
      grid{static_cast<unsigned>(geometry.blocks), static_cast<unsigned>(geometry.blocks_y), 1},
      geometry_(geometry),
      kernel_(kernel),
      threads_(std::size_t{size.x} * size.y),
      warps_(Ordered((threads_.size() + cuda::kWarp - 1) / cuda::kWarp, order)),
      lanes_(Ordered(cuda::kWarp, order)),
      stacks_(Stacks()) {}

void Block::PrepareStack(std::size_t thread) {
  std::byte* bottom = StackOf(thread);
  ForgetStack(bottom);
  // Six kept registers, where it begins, and what a call would have left above.
  auto** top = reinterpret_cast<void**>(bottom + kStackBytes) - 8;
  std::fill(top, top + 8, nullptr);
  top[6] = reinterpret_cast<void*>(&Block::Begin);
  threads_[thread].stack = top;
}

void Block::Begin() {
  Block& block = *g_block;
  FinishSwitch(nullptr, &block.own_bottom_, &block.own_bytes_);
  block.kernel_();
  block.current_->state = State::kEnded;
  block.Leave();
  CHECK(false);  // Nobody goes on with what has ended.
}

void Block::GoOn(std::size_t thread) {
  current_ = &threads_[thread];
  void* shadow = nullptr;
  StartSwitch(&shadow, StackOf(thread), kStackBytes);
  RegroupSwitchStacks(&own_stack_, current_->stack);
  FinishSwitch(shadow, nullptr, nullptr);
}

void Block::Leave() {
  Thread& thread = *current_;
  StartSwitch(thread.state == State::kEnded ? nullptr : &thread.shadow, own_bottom_, own_bytes_);
  RegroupSwitchStacks(&thread.stack, own_stack_);
  FinishSwitch(thread.shadow, nullptr, nullptr);
}

void Block::Wait(State state, Place at) {
  current_->state = state;
  current_->at = at;
  Leave();
}

bool AtSamePlace(const Thread& a, const Thread& b) {
  return a.state == b.state && a.at.line == b.at.line && std::string_view(a.at.file) == b.at.file &&
         a.mask == b.mask && a.type == b.type && a.lanes == b.lanes && a.together == b.together;
}

// A shuffle, a ballot or what a whole warp does as one, all of whose lanes have come to it.
bool Block::ReleaseWarp(std::size_t first) {
  if (threads_.size() - first < cuda::kWarp) return false;
  Thread* warp = &threads_[first];
  if (warp->state != State::kAtShuffle || warp->mask != 0xFFFFFFFFu ||
      !std::all_of(warp, warp + cuda::kWarp,
                   [&](const Thread& lane) { return AtSamePlace(lane, *warp); }))
    return false;
  if (warp->together != nullptr) {
    void* lanes[cuda::kWarp];
    for (int lane = 0; lane < cuda::kWarp; ++lane) {
      lanes[lane] = warp[lane].own;
      warp[lane].state = State::kReady;
    }
    warp->together(lanes);
    return true;
  }
  std::uint64_t brought[cuda::kWarp], ballot = 0;
  for (int lane = 0; lane < cuda::kWarp; ++lane) {
    brought[lane] = warp[lane].bits;
    ballot |= brought[lane] << lane;
  }
  for (int lane = 0; lane < cuda::kWarp; ++lane) {
    warp[lane].bits = warp->lanes == kBallot ? ballot : brought[(lane ^ warp->lanes) % cuda::kWarp];
    warp[lane].state = State::kReady;
  }
  return true;
}

bool Block::ReleaseBlock() {
  const Thread& first = threads_.front();
  if (first.state != State::kAtBarrier ||
      !std::all_of(threads_.begin(), threads_.end(),
                   [&](const Thread& thread) { return AtSamePlace(thread, first); }))
    return false;
  for (Thread& thread : threads_) thread.state = State::kReady;
  return true;
}

std::string PlaceOf(const Thread& thread) {
  const std::string name = absl::StrCat("thread (", thread.index.x, ", ", thread.index.y, ")");
  if (thread.state == State::kEnded) return absl::StrCat(name, " has ended");
  return absl::StrCat(name, " waits at ", thread.at.file, ":", thread.at.line);
}

absl::Status Block::Stuck() const {
  const auto waits = std::find_if(threads_.begin(), threads_.end(),
                                  [](const Thread& t) { return t.state != State::kEnded; });
  const auto other = std::find_if(threads_.begin(), threads_.end(),
                                  [&](const Thread& t) { return !AtSamePlace(t, *waits); });
  return absl::InternalError(absl::StrCat(
      "block (", index.x, ", ", index.y, ") cannot go on: ", PlaceOf(*waits),
      other == threads_.end() ? ", as all of them do" : absl::StrCat(", ", PlaceOf(*other))));
}

absl::Status Block::Run(Index block) {
  index = block;
  memory_ = geometry_.block_bytes == 0
                ? nullptr
                : std::make_unique_for_overwrite<std::byte[]>(geometry_.block_bytes);
  if (memory_ != nullptr) std::memset(memory_.get(), 0xFF, geometry_.block_bytes);
  for (std::size_t i = 0; i < threads_.size(); ++i) {
    threads_[i] = {};
    threads_[i].index = {static_cast<unsigned>(i) % size.x, static_cast<unsigned>(i) / size.x, 0};
    PrepareStack(i);
  }
  // One warp after the other goes as far as it can without the rest of the block: further ahead no
  // GPU lets it be.
  while (true) {
    for (const std::size_t warp : warps_) {
      const std::size_t first = warp * cuda::kWarp;
      do {
        for (const std::size_t lane : lanes_) {
          if (first + lane < threads_.size() && threads_[first + lane].state == State::kReady)
            GoOn(first + lane);
        }
      } while (ReleaseWarp(first));
    }
    if (std::all_of(threads_.begin(), threads_.end(),
                    [](const Thread& thread) { return thread.state == State::kEnded; }))
      return absl::OkStatus();
    if (!ReleaseBlock()) return Stuck();
  }
}

}  // namespace

void SetOrder(Order order) { g_order = order; }

absl::Status RunGrid(const cuda::Geometry& geometry, const std::function<void()>& kernel) {
  CHECK(g_block == nullptr);
  const std::int64_t threads = std::int64_t{geometry.threads} * geometry.threads_y;
  if (geometry.blocks == 0 || geometry.blocks_y == 0) return absl::OkStatus();
  if (geometry.blocks < 0 || geometry.blocks > cuda::kMostBlocks || geometry.blocks_y < 0 ||
      geometry.blocks_y > cuda::kMostBlocksY || threads <= 0 || threads > kMostThreads ||
      geometry.block_bytes > kMostBlockBytes) {
    return absl::InternalError(absl::StrCat("not every GPU can run ", geometry.blocks, " x ",
                                            geometry.blocks_y, " blocks of ", geometry.threads,
                                            " x ", geometry.threads_y, " threads and ",
                                            geometry.block_bytes, " bytes"));
  }
  Block block(geometry, kernel, g_order);
  g_block = &block;
  absl::Status status;
  for (const std::size_t i :
       Ordered(static_cast<std::size_t>(geometry.blocks * geometry.blocks_y), g_order)) {
    status = block.Run(
        {static_cast<unsigned>(i) % block.grid.x, static_cast<unsigned>(i) / block.grid.x, 0});
    if (!status.ok()) break;
  }
  g_block = nullptr;
  return status;
}

namespace {

// Kernels that were put on a stream, and what their arguments are.
struct KnownKernels {
  std::mutex mutex;
  std::map<const void*, const KernelType*> types;
};
KnownKernels& Known() {
  static KnownKernels known;
  return known;
}
std::atomic<bool> g_by_runtime = false;

std::vector<std::byte> CopyOf(const void* argument, std::size_t bytes) {
  const auto* first = static_cast<const std::byte*>(argument);
  return {first, first + bytes};
}

}  // namespace

void LaunchByRuntime() { g_by_runtime = true; }

void PutOnStream(Stream& stream, const void* kernel, const KernelType& type,
                 const cuda::Geometry& geometry, const void* argument) {
  auto* const on = g_by_runtime ? dynamic_cast<CudaStream*>(&stream) : nullptr;
  if (on == nullptr) {
    return stream.Run([run = type.run, kernel, geometry, own = CopyOf(argument, type.bytes)] {
      return run(kernel, geometry, own.data());
    });
  }
  {
    const std::scoped_lock lock(Known().mutex);
    Known().types[kernel] = &type;
  }
  if (geometry.blocks == 0 || geometry.blocks_y == 0) return;
  const auto number = [](std::int64_t n) { return static_cast<unsigned>(n); };
  on->Launch(kernel, {number(geometry.blocks), number(geometry.blocks_y), 1},
             {number(geometry.threads), number(geometry.threads_y), 1}, geometry.block_bytes,
             {static_cast<const std::byte*>(argument), type.bytes});
}

std::function<void()> WorkOfKernel(const void* kernel, const cuda::Geometry& geometry,
                                   const void* argument) {
  const std::scoped_lock lock(Known().mutex);
  const KernelType& type = *Known().types.at(kernel);
  return [&type, kernel, geometry, own = CopyOf(argument, type.bytes)] {
    const absl::Status status = type.run(kernel, geometry, own.data());
    if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
    CHECK(status.ok());
  };
}

const Index& ThreadIndex() { return g_block->current().index; }
const Index& BlockIndex() { return g_block->index; }
const Index& BlockSize() { return g_block->size; }
const Index& GridSize() { return g_block->grid; }
void* MemoryOfBlock() { return g_block->memory(); }

void Barrier(Place at) {
  Thread& thread = g_block->current();
  thread.mask = 0, thread.lanes = 0, thread.type = nullptr, thread.together = nullptr;
  g_block->Wait(State::kAtBarrier, at);
}

std::uint64_t ExchangeBits(unsigned mask, std::uint64_t bits, int lanes, const void* type,
                           Place at) {
  Thread& thread = g_block->current();
  thread.mask = mask, thread.bits = bits, thread.lanes = lanes, thread.type = type;
  thread.together = nullptr;
  g_block->Wait(State::kAtShuffle, at);
  return thread.bits;
}

void DoTogether(OfWarp what, void* own, Place at) {
  Thread& thread = g_block->current();
  thread.mask = 0xFFFFFFFFu, thread.lanes = 0, thread.type = nullptr;
  thread.together = what, thread.own = own;
  g_block->Wait(State::kAtShuffle, at);
}

namespace {

struct Load {
  std::uint32_t* blocks;
  const void* row;
  bool transposed;
};

// Lanes 8i to 8i + 7 have the rows of block i.
std::uint16_t NumberOf(void* const* lanes, int block, int row, int column) {
  const auto& load = *static_cast<const Load*>(lanes[8 * block + row]);
  CHECK(reinterpret_cast<std::uintptr_t>(load.row) % 16 == 0);
  std::uint16_t bits;
  std::memcpy(&bits, static_cast<const std::byte*>(load.row) + 2 * column, sizeof bits);
  return bits;
}

void LoadOfWarp(void* const* lanes) {
  for (int lane = 0; lane < cuda::kWarp; ++lane) {
    const auto& load = *static_cast<const Load*>(lanes[lane]);
    const int group = lane / 4, pair = lane % 4 * 2;
    for (int i = 0; i < 4; ++i) {
      const auto at = [&](int n) -> std::uint32_t {
        return load.transposed ? NumberOf(lanes, i, pair + n, group)
                               : NumberOf(lanes, i, group, pair + n);
      };
      load.blocks[i] = at(0) | at(1) << 16;
    }
  }
}

struct Product {
  float* c;
  const std::uint32_t* a;
  std::uint32_t b[2];
  Widen widen;
};

// Figures "MMA .m16n8k16 fragment layout" of A, B and C, of 16-bit numbers.
void MultiplyOfWarp(void* const* lanes) {
  float a[16][16], b[16][8];
  for (int lane = 0; lane < cuda::kWarp; ++lane) {
    const auto& own = *static_cast<const Product*>(lanes[lane]);
    const int group = lane / 4, pair = lane % 4 * 2;
    for (int n = 0; n < 2; ++n) {
      const auto number = [&](std::uint32_t bits) {
        return own.widen(static_cast<std::uint16_t>(bits >> 16 * n));
      };
      for (int i = 0; i < 4; ++i) a[group + i % 2 * 8][pair + n + i / 2 * 8] = number(own.a[i]);
      for (int i = 0; i < 2; ++i) b[pair + n + i * 8][group] = number(own.b[i]);
    }
  }
  for (int lane = 0; lane < cuda::kWarp; ++lane) {
    const auto& own = *static_cast<const Product*>(lanes[lane]);
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
      float sum = 0;
      for (int k = 0; k < 16; ++k) sum += a[row][k] * b[k][column];
      own.c[i] += sum;
    }
  }
}

}  // namespace

void LoadBlocks(std::uint32_t (&blocks)[4], const void* row, bool transposed, Place at) {
  Load own{blocks, row, transposed};
  DoTogether(LoadOfWarp, &own, at);
}

void MultiplyAdd(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1,
                 Widen widen, Place at) {
  Product own{c, a, {b0, b1}, widen};
  DoTogether(MultiplyOfWarp, &own, at);
}

}  // namespace regroup::worker::gpu_emulator

namespace regroup::worker::cuda {

void ZeroOnStream(Stream& stream, void* to, std::size_t bytes) { stream.Zero(to, bytes); }

bool MultiplyByLibrary(Stream& stream, const MatrixProduct& product) {
  auto* on = dynamic_cast<CudaStream*>(&stream);  // Others are the host's.
  return on != nullptr && on->products() != nullptr && on->products()->Multiply(*on, product);
}

void Refuse(Stream& stream, const char* why) {
  stream.Run([why] { return absl::InvalidArgumentError(why); });
}

}  // namespace regroup::worker::cuda
