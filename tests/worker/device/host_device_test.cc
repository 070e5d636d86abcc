#include "worker/device/host_device.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <thread>
#include <vector>

#include "tests/worker/device/test_device.h"

namespace regroup::worker {
namespace {

TEST(HostDevice, ComputesAtOnce) {
  HostDevice device;
  const auto stream = device.NewStream(StreamKind::kCompute);
  std::vector<int> made;
  stream->Run([&] { made.push_back(1); });
  EXPECT_EQ(made, std::vector<int>{1});
  const std::array<int, 3> from{4, 5, 6};
  std::array<int, 3> to{};
  stream->Copy(to.data(), from.data(), sizeof(from));
  EXPECT_EQ(to, from);
  stream->Zero(to.data(), 2 * sizeof(int));
  EXPECT_EQ(to, (std::array<int, 3>{0, 0, 6}));
  stream->Copy(nullptr, nullptr, 0);
  EXPECT_TRUE(stream->Await().ok());
}

TEST(HostDevice, MovesInOrderWhileItsUserGoesOn) {
  HostDevice device;
  const auto stream = device.NewStream(StreamKind::kMove);
  std::atomic<bool> open{false};
  std::vector<int> made;
  stream->Run([&] {
    while (!open) std::this_thread::yield();
    made.push_back(1);
  });
  const Event first = stream->Record();
  stream->Run([&] { made.push_back(2); });
  open = true;  // Before it, nothing could have been made.
  EXPECT_TRUE(stream->Await().ok());
  EXPECT_EQ(made, (std::vector<int>{1, 2}));
  EXPECT_TRUE(stream->Await(first).ok());
}

TEST(HostDevice, WhatComputesWaitsForWhatMoves) {
  HostDevice device;
  const auto compute = device.NewStream(StreamKind::kCompute),
             moves = device.NewStream(StreamKind::kMove);
  for (int i = 0; i < 1000; ++i) {
    int made = 0;
    moves->Run([&] { made = 1; });
    const Event event = moves->Record();
    moves->Run([] {});
    compute->Wait(event);
    EXPECT_EQ(made, 1);
  }
  EXPECT_TRUE(moves->Await().ok());
}

TEST(HostDevice, AfterAFailureNothingIsBegunAndAllAreToldOfIt) {
  HostDevice device;
  for (const StreamKind kind : {StreamKind::kCompute, StreamKind::kMove}) {
    const auto stream = device.NewStream(kind);
    int made = 0;
    const auto count = [&] { ++made; };
    stream->Run(count);
    stream->Run([] { return absl::UnavailableError("rank 1 is gone"); });
    const Event failed = stream->Record();
    stream->Run(count);
    EXPECT_EQ(stream->Await().message(), "rank 1 is gone");
    EXPECT_EQ(stream->Await(failed).message(), "rank 1 is gone");
    // And on whatever waits for it, now or later.
    for (const StreamKind other : {StreamKind::kCompute, StreamKind::kMove}) {
      const auto behind = device.NewStream(other);
      behind->Run(count);
      behind->Wait(failed);
      behind->Run(count);
      EXPECT_EQ(behind->Await().message(), "rank 1 is gone");
    }
    EXPECT_EQ(made, 3);
  }
}

TEST(HostDevice, TheEndOfAStreamWaitsForTheWorkUnderWayAndBeginsNoOther) {
  constexpr int kCalls = 100'000;
  std::atomic<int> begun{0}, over{0};
  HostDevice device;
  {
    const auto stream = device.NewStream(StreamKind::kMove);
    for (int i = 0; i < kCalls; ++i) {
      stream->Run([&] {
        ++begun;
        std::this_thread::yield();
        ++over;
      });
    }
    while (begun == 0) std::this_thread::yield();
  }
  EXPECT_EQ(begun, over);
  EXPECT_LT(begun, kCalls);
}

// What the other tests stand on: it finds all orders that are allowed, and no other.
TEST(TestDevice, FindsEveryOrderThatWaitsAllow) {
  for (const bool waits : {false, true}) {
    std::vector<std::vector<int>> orders;
    for (std::uint64_t seed = 0; seed < 200; ++seed) {
      TestDevice device(seed);
      const auto one = device.NewStream(StreamKind::kCompute),
                 two = device.NewStream(StreamKind::kMove);
      std::vector<int> made;
      one->Run([&] { made.push_back(1); });
      if (waits) two->Wait(one->Record());
      two->Run([&] { made.push_back(2); });
      one->Run([&] { made.push_back(3); });
      EXPECT_TRUE(one->Await().ok() && two->Await().ok());
      if (std::ranges::find(orders, made) == orders.end()) orders.push_back(made);
    }
    EXPECT_EQ(orders.size(), waits ? 2u : 3u);
  }
}

TEST(TestDeviceDeathTest, ItsMemoryIsNotTheHosts) {
  TestDevice device(1);
  Arena arena = *device.Allocate(MemoryKind::kDevice, 64);
  volatile int* number = arena.Take<int>(16).data();
  EXPECT_DEATH(*number = 1, "");
  const auto stream = device.NewStream(StreamKind::kCompute);
  int read = 0;
  stream->Run([&] { read = *number + 1; });
  EXPECT_TRUE(stream->Await().ok());
  EXPECT_EQ(read, 1);
}

}  // namespace
}  // namespace regroup::worker
