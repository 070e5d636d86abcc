// The emulator against kernels that break a rule: what it exists for.
#if defined(REGROUP_GPU_EMULATOR)
#include "tests/worker/gpu_emulator/gpu_emulator.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "tests/worker/gpu_emulator/cuda_words.h"

namespace regroup::worker {
namespace {

using cuda::BlockMemory;
using gpu_emulator::Order;
using gpu_emulator::RunGrid;

constexpr unsigned kAll = 0xFFFFFFFFu;

class GpuEmulatorTest : public testing::Test {
 protected:
  ~GpuEmulatorTest() override { gpu_emulator::SetOrder(Order::kForward); }
  static void ExpectStuck(const absl::Status& status, const char* first, const char* second) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_NE(status.message().find("cannot go on: "), std::string::npos) << status;
    EXPECT_NE(status.message().find(first), std::string::npos) << status;
    EXPECT_NE(status.message().find(second), std::string::npos) << status;
  }
};

// Each thread writes into the memory of the block, and after `between` reads what a thread so far
// from it has written: how many different results two orders of the threads have.
template <typename Between>
std::size_t SeenOfOthers(unsigned distance, const Between& between) {
  std::set<std::vector<float>> results;
  for (const Order order : {Order::kForward, Order::kBackward}) {
    gpu_emulator::SetOrder(order);
    std::vector<float> next(64);
    const auto kernel = [&] {
      auto* memory = BlockMemory<float>();
      memory[threadIdx.x] = static_cast<float>(threadIdx.x);
      between();
      const float read = memory[(threadIdx.x + distance) % 64];
      next[threadIdx.x] = std::isnan(read) ? -1 : read;
    };
    EXPECT_EQ(RunGrid({.blocks = 2, .threads = 64, .block_bytes = 256}, kernel), absl::OkStatus());
    results.insert(next);
  }
  return results.size();
}

TEST_F(GpuEmulatorTest, EveryThreadOfEveryBlockRunsOnce) {
  for (const Order order : {Order::kForward, Order::kBackward, Order::kShuffled}) {
    gpu_emulator::SetOrder(order);
    std::vector<std::tuple<unsigned, unsigned, unsigned, unsigned>> seen;
    const absl::Status status =
        RunGrid({.blocks = 3, .blocks_y = 2, .threads = 4, .threads_y = 5}, [&] {
          EXPECT_EQ(blockDim.x * 100 + blockDim.y, 405u);
          EXPECT_EQ(gridDim.x * 100 + gridDim.y, 302u);
          seen.emplace_back(blockIdx.x, blockIdx.y, threadIdx.x, threadIdx.y);
        });
    EXPECT_EQ(status, absl::OkStatus());
    EXPECT_EQ(seen.size(), 3u * 2 * 4 * 5);
    const std::set different(seen.begin(), seen.end());
    EXPECT_EQ(different.size(), seen.size());
    const auto last = std::tuple(2u, 1u, 3u, 4u);
    EXPECT_EQ(order == Order::kForward ? seen.back() == last : seen.front() == last,
              order != Order::kShuffled);
  }
}

TEST_F(GpuEmulatorTest, NoneOfNoBlocks) {
  bool ran = false;
  EXPECT_EQ(RunGrid({.blocks = 0, .threads = 1}, [&] { ran = true; }), absl::OkStatus());
  EXPECT_FALSE(ran);
}

TEST_F(GpuEmulatorTest, ABarrierIsWhatMakesWritesSeen) {
  EXPECT_EQ(SeenOfOthers(1, [] {}), 2u);
  EXPECT_EQ(SeenOfOthers(1, [] { __syncthreads(); }), 1u);
}

TEST_F(GpuEmulatorTest, AShuffleIsNoBarrierOfTheBlock) {
  EXPECT_EQ(SeenOfOthers(32, [] { (void)__shfl_xor_sync(kAll, 1, 1); }), 2u);
}

TEST_F(GpuEmulatorTest, ShufflesExchangeWithinAWarp) {
  std::vector<int> got(64);
  EXPECT_EQ(RunGrid({.blocks = 1, .threads = 64},
                    [&] {
                      const int own = static_cast<int>(threadIdx.x);
                      got[threadIdx.x] = __shfl_xor_sync(kAll, own, 5);
                    }),
            absl::OkStatus());
  for (int i = 0; i < 64; ++i) EXPECT_EQ(got[static_cast<std::size_t>(i)], i ^ 5);
}

TEST_F(GpuEmulatorTest, ABallotHasABitOfEachLane) {
  std::vector<unsigned> got(64);
  EXPECT_EQ(RunGrid({.blocks = 1, .threads = 64},
                    [&] { got[threadIdx.x] = __ballot_sync(kAll, threadIdx.x % 33 == 1); }),
            absl::OkStatus());
  for (std::size_t i = 0; i < 64; ++i) EXPECT_EQ(got[i], i < 32 ? 2u : 4u);
}

// Matrices of small whole numbers, whose products are exact.
struct Matrix {
  std::vector<BFloat16> numbers;
  std::size_t columns;
  Matrix(std::size_t rows, std::size_t cols, int seed) : numbers(rows * cols), columns(cols) {
    for (std::size_t i = 0; i < numbers.size(); ++i)
      numbers[i] = BFloat16(static_cast<float>(static_cast<int>(i * i + i / 3) * seed % 15 - 7));
  }
  float operator()(std::size_t row, std::size_t column) const {
    return numbers[row * columns + column];
  }
};

// a (16 × 16) · b (16 × 8), of which b lies as it is or as its transpose: through the memory of the
// block, blocks, and a product.
std::vector<float> ByTensorCores(const Matrix& a, const Matrix& b, bool b_as_it_is) {
  std::vector<float> c(16 * 8, 1000);
  EXPECT_EQ(RunGrid({.blocks = 1, .threads = 32, .block_bytes = 1024},
                    [&] {
                      auto* left = BlockMemory<BFloat16>();  // (16, 16)
                      auto* right = left + 256;              // (16, 8) or (8, 16)
                      for (unsigned i = threadIdx.x; i < 256; i += 32) left[i] = a.numbers[i];
                      for (unsigned i = threadIdx.x; i < 128; i += 32) right[i] = b.numbers[i];
                      __syncthreads();
                      const unsigned lane = threadIdx.x, group = lane / 4, pair = lane % 4 * 2;
                      std::uint32_t of_a[4], of_b[4];
                      cuda::LoadBlocks(of_a, left + lane % 16 * 16 + lane / 16 * 8);
                      if (b_as_it_is) {
                        cuda::LoadTransposedBlocks(of_b, right + lane % 16 * 8);
                      } else {
                        cuda::LoadBlocks(of_b, right + lane % 8 * 16 + lane / 8 % 2 * 8);
                      }
                      float own[4] = {c[group * 8 + pair], c[group * 8 + pair + 1],
                                      c[(group + 8) * 8 + pair], c[(group + 8) * 8 + pair + 1]};
                      cuda::MultiplyAdd<BFloat16>(own, of_a, of_b[0], of_b[1]);
                      for (unsigned i = 0; i < 4; ++i)
                        c[(group + i / 2 * 8) * 8 + pair + i % 2] = own[i];
                    }),
            absl::OkStatus());
  return c;
}

TEST_F(GpuEmulatorTest, TensorCoresMultiplyMatrices) {
  const Matrix a(16, 16, 5), b(16, 8, 7), transposed(8, 16, 11);
  const std::vector<float> c = ByTensorCores(a, b, true), d = ByTensorCores(a, transposed, false);
  for (std::size_t row = 0; row < 16; ++row) {
    for (std::size_t column = 0; column < 8; ++column) {
      float sum = 1000, of_transposed = 1000;
      for (std::size_t k = 0; k < 16; ++k) {
        sum += a(row, k) * b(k, column);
        of_transposed += a(row, k) * transposed(column, k);
      }
      EXPECT_EQ(c[row * 8 + column], sum) << row << " " << column;
      EXPECT_EQ(d[row * 8 + column], of_transposed) << row << " " << column;
    }
  }
}

TEST_F(GpuEmulatorTest, TensorCoresAreOfTheWholeWarp) {
  const auto multiply = [] {
    float c[4] = {};
    cuda::MultiplyAdd<BFloat16>(c, {0, 0, 0, 0}, 0, 0);
  };
  ExpectStuck(RunGrid({.blocks = 1, .threads = 32},
                      [&] {
                        if (threadIdx.x != 7) multiply();
                      }),
              "thread (0, 0) waits at", "thread (7, 0) has ended");
  ExpectStuck(RunGrid({.blocks = 1, .threads = 32},
                      [&] {
                        if (threadIdx.x != 7) return multiply();
                        (void)__shfl_xor_sync(kAll, 1, 1);
                      }),
              "thread (0, 0) waits at", "thread (7, 0) waits at");
  // Of two products each lane is in the same one.
  ExpectStuck(RunGrid({.blocks = 1, .threads = 32},
                      [] {
                        float c[4] = {};
                        if (threadIdx.x == 7) {
                          cuda::MultiplyAdd<BFloat16>(c, {0, 0, 0, 0}, 0, 0);
                        } else {
                          cuda::MultiplyAdd<BFloat16>(c, {0, 0, 0, 0}, 1, 0);
                        }
                      }),
              "thread (0, 0) waits at", "thread (7, 0) waits at");
}

TEST_F(GpuEmulatorTest, RowsOfBlocksBeginAtMultiplesOfSixteenBytes) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH((void)RunGrid({.blocks = 1, .threads = 32, .block_bytes = 1024},
                             [] {
                               std::uint32_t blocks[4];
                               cuda::LoadBlocks(blocks, BlockMemory<BFloat16>() + 4);
                             }),
               "% 16 == 0");
}

TEST_F(GpuEmulatorTest, WhoNeverComesToABarrierIsNamed) {
  ExpectStuck(RunGrid({.blocks = 1, .threads = 64},
                      [] {
                        if (threadIdx.x == 40) return;
                        __syncthreads();
                      }),
              "thread (0, 0) waits at", "thread (40, 0) has ended");
  ExpectStuck(RunGrid({.blocks = 1, .threads = 64},
                      [] {
                        if (threadIdx.x < 32) {
                          __syncthreads();
                        } else {
                          __syncthreads();
                        }
                      }),
              "thread (0, 0) waits at", "thread (32, 0) waits at");
}

TEST_F(GpuEmulatorTest, AShuffleIsOfTheWholeWarp) {
  ExpectStuck(RunGrid({.blocks = 1, .threads = 32},
                      [] {
                        if (threadIdx.x < 31) (void)__shfl_xor_sync(kAll, 1, 1);
                      }),
              "thread (0, 0) waits at", "thread (31, 0) has ended");
  ExpectStuck(RunGrid({.blocks = 1, .threads = 32}, [] { (void)__shfl_xor_sync(kAll >> 1, 1, 1); }),
              "thread (0, 0) waits at", "as all of them do");
  ExpectStuck(RunGrid({.blocks = 1, .threads = 31}, [] { (void)__shfl_xor_sync(kAll, 1, 1); }),
              "thread (0, 0) waits at", "as all of them do");
  const auto one_of = [](auto x) { (void)__shfl_xor_sync(kAll, x, 1); };
  ExpectStuck(
      RunGrid({.blocks = 1, .threads = 32}, [&] { threadIdx.x == 3 ? one_of(1.0f) : one_of(1); }),
      "thread (0, 0) waits at", "thread (3, 0) waits at");
  ExpectStuck(RunGrid({.blocks = 1, .threads = 32},
                      [] { (void)__shfl_xor_sync(kAll, 1, threadIdx.x == 3 ? 2 : 1); }),
              "thread (0, 0) waits at", "thread (3, 0) waits at");
}

TEST_F(GpuEmulatorTest, WhatNotEveryGpuCanRunIsRefused) {
  const auto run = [](const cuda::Geometry& geometry) { return RunGrid(geometry, [] {}); };
  EXPECT_EQ(run({.blocks = 1, .threads = 512, .threads_y = 2, .block_bytes = 99 << 10}),
            absl::OkStatus());
  EXPECT_FALSE(run({.blocks = 1, .threads = 513, .threads_y = 2}).ok());
  EXPECT_FALSE(run({.blocks = 1, .threads = 0}).ok());
  EXPECT_FALSE(run({.blocks = 1, .threads = 1, .block_bytes = (99 << 10) + 1}).ok());
  EXPECT_FALSE(run({.blocks = 1, .blocks_y = 65536, .threads = 1}).ok());
  EXPECT_FALSE(run({.blocks = std::int64_t{1} << 31, .threads = 1}).ok());
  EXPECT_FALSE(run({.blocks = -1, .threads = 1}).ok());
}

#if defined(__SANITIZE_ADDRESS__)
TEST_F(GpuEmulatorTest, MemoryBehindABlocksOwnIsSeen) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH((void)RunGrid({.blocks = 1, .threads = 33, .block_bytes = 128},
                             [] { BlockMemory<float>()[threadIdx.x] = 1; }),
               "heap-buffer-overflow");
}
#endif

// After a kernel that was given up in the middle the next one has whole stacks.
TEST_F(GpuEmulatorTest, GoesOnAfterAKernelThatWasStuck) {
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(RunGrid({.blocks = 1, .threads = 1024}, [] {
                   float own[64];
                   for (float& x : own) x = 1;
                   if (threadIdx.x == 1023) return;
                   __syncthreads();
                   (void)__shfl_xor_sync(kAll, own[threadIdx.x % 64], 1);
                 }).ok());
    int ran = 0;
    EXPECT_EQ(RunGrid({.blocks = 2, .threads = 1024}, [&] { ++ran; }), absl::OkStatus());
    EXPECT_EQ(ran, 2048);
  }
}

}  // namespace
}  // namespace regroup::worker
#endif
