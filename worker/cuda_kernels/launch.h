#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "worker/cuda/products.h"
#include "worker/kernels/arguments.h"

namespace regroup::worker::cuda {

// The threads of one launch. Kernels take their memory of a block (BlockMemory) at run time only.
struct Geometry {
  std::int64_t blocks = 0, blocks_y = 1;
  int threads = 0, threads_y = 1;  // Of a block.
  std::size_t block_bytes = 0;     // Memory that the threads of a block share.
};

inline constexpr std::int64_t kMostBlocks = 0x7FFFFFFF, kMostBlocksY = 65535;

// So many threads of one block for kernels that have nothing to say to each other.
inline constexpr int kThreads = 256;
inline constexpr int kWarp = 32;
inline constexpr int kWarps = kThreads / kWarp;
constexpr std::int64_t BlocksFor(std::int64_t work, std::int64_t of_block) {
  return (work + of_block - 1) / of_block;
}

// Puts a __global__ function of one argument on the stream; none of no blocks, and more of them
// than CUDA counts are refused. What fails is the stream. The argument is copied.
void PutOnStream(Stream& stream, const void* kernel, const Geometry& geometry,
                 std::span<const std::byte> argument);
void ZeroOnStream(Stream& stream, void* to, std::size_t bytes);
// By the library that the stream has for products; false: by none, and nothing was put on it.
bool MultiplyByLibrary(Stream& stream, const MatrixProduct& product);
// The stream fails: it cannot do what it was asked for.
void Refuse(Stream& stream, const char* why);

template <typename Args>
void LaunchKernel(const Launch& launch, void (*kernel)(Args), const Geometry& geometry, Args args);

#if defined(__CUDACC__)
template <typename Args>
void LaunchKernel(const Launch& launch, void (*kernel)(Args), const Geometry& geometry, Args args) {
#if __has_builtin(__builtin_clear_padding)
  __builtin_clear_padding(&args);  // Equal arguments are equal bytes (CudaStream::Launch).
#endif
  PutOnStream(launch.stream, reinterpret_cast<const void*>(kernel), geometry,
              std::as_bytes(std::span(&args, 1)));
}
#endif

}  // namespace regroup::worker::cuda
