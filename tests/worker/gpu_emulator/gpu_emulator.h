#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>

#include "absl/status/status.h"
#include "worker/cuda_kernels/launch.h"

// Runs what is written for a GPU on the CPU, one thread of it at a time, so that sanitizers see
// every index and whoever breaks a rule of barriers is told. Each thread of a block is a fibre,
// which goes on until it waits for others: at a barrier for its block, at a shuffle for its warp.
//
// Each warp goes on until the whole block has to wait, so a race between warps shows as another
// result in another order of them, as does memory of the block that is read before it is written:
// it is filled with what is not a number. What does not show: which of two calls of one function,
// say a sum over a warp, two lanes are in; what only nvcc compiles (__CUDA_ARCH__); and what
// depends on the hardware, as coalescing and speed.
namespace regroup::worker::gpu_emulator {

// In which order threads go on, and blocks begin. Of all runs from here on.
enum class Order : std::uint8_t { kForward, kBackward, kShuffled };
void SetOrder(Order order);

struct Index {
  unsigned x = 0, y = 0, z = 0;
};
// Where in a kernel.
struct Place {
  const char* file = "";
  int line = 0;
};

// Until every thread of every block has returned. Internal, with what they did: some waited for
// others that never came, or the geometry is none that every GPU since sm_80 can run.
absl::Status RunGrid(const cuda::Geometry& geometry, const std::function<void()>& kernel);

// A kernel of one argument of `bytes`, as code that does not know its type calls it.
struct KernelType {
  std::size_t bytes;
  absl::Status (*run)(const void* kernel, const cuda::Geometry& geometry, const void* argument);
};
// Puts it on the stream as what CUDA launches, where the runtime below it launches kernels by
// WorkOfKernel, else as what the host calls.
void PutOnStream(Stream& stream, const void* kernel, const KernelType& type,
                 const cuda::Geometry& geometry, const void* argument);
// What a kernel does that was put on a stream before; ends the process where it breaks a rule.
std::function<void()> WorkOfKernel(const void* kernel, const cuda::Geometry& geometry,
                                   const void* argument);
void LaunchByRuntime();  // From here on.

// What CUDA's words mean; REQUIRES: called inside of RunGrid.
const Index& ThreadIndex();
const Index& BlockIndex();
const Index& BlockSize();
const Index& GridSize();
void* MemoryOfBlock();
void Barrier(Place at);
// The bits that the lane of the warp has brought whose number differs by `lanes`; of kBallot, one
// of each lane. `type`: equal for all that may meet.
inline constexpr int kBallot = -1;
std::uint64_t ExchangeBits(unsigned mask, std::uint64_t bits, int lanes, const void* type,
                           Place at);

template <typename Number>
Number Exchange(unsigned mask, Number number, int lanes, Place at) {
  static_assert(sizeof(Number) <= sizeof(std::uint64_t));
  static const char kType = 0;
  std::uint64_t bits = 0;
  std::memcpy(&bits, &number, sizeof number);
  bits = ExchangeBits(mask, bits, lanes, &kType, at);
  std::memcpy(&number, &bits, sizeof number);
  return number;
}
inline unsigned Ballot(unsigned mask, bool vote, Place at) {
  return static_cast<unsigned>(ExchangeBits(mask, vote ? 1 : 0, kBallot, nullptr, at));
}

// What the lanes of a warp do as one: called once for all of them, with what each has brought.
using OfWarp = void (*)(void* const* lanes);
void DoTogether(OfWarp what, void* own, Place at);

// Instructions of tensor cores, where the PTX ISA says that lanes hold what
// (worker/cuda_kernels/tensor_cores.cuh). A row that does not begin at a multiple of 16 bytes ends
// the process.
void LoadBlocks(std::uint32_t (&blocks)[4], const void* row, bool transposed, Place at);
using Widen = float (*)(std::uint16_t bits);
void MultiplyAdd(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1,
                 Widen widen, Place at);

}  // namespace regroup::worker::gpu_emulator
