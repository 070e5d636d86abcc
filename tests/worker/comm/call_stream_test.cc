#include "worker/comm/call_stream.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace regroup::worker {
namespace {

TEST(CallStream, MakesCallsInOrderWhileItsUserGoesOn) {
  CallStream stream;
  std::atomic<bool> open{false};
  std::vector<int> made;
  const std::uint64_t first = stream.Start([&] {
    while (!open) std::this_thread::yield();
    made.push_back(1);
    return absl::OkStatus();
  });
  const std::uint64_t second = stream.Start([&] {
    made.push_back(2);
    return absl::OkStatus();
  });
  open = true;  // Before it, nothing could have been made.
  EXPECT_TRUE(stream.Await(second).ok());
  EXPECT_EQ(made, (std::vector<int>{1, 2}));
  EXPECT_TRUE(stream.Await(first).ok());
  EXPECT_TRUE(stream.AwaitAll().ok());
}

TEST(CallStream, AfterAFailureNoCallIsMadeAndAllAreToldOfIt) {
  CallStream stream;
  int made = 0;
  const auto count = [&] {
    ++made;
    return absl::OkStatus();
  };
  stream.Start(count);
  const std::uint64_t failed =
      stream.Start([] { return absl::UnavailableError("rank 1 is gone"); });
  const std::uint64_t behind = stream.Start(count);
  EXPECT_EQ(stream.Await(behind).message(), "rank 1 is gone");
  EXPECT_EQ(stream.Await(failed).message(), "rank 1 is gone");
  EXPECT_EQ(stream.Await(stream.Start(count)).message(), "rank 1 is gone");
  EXPECT_EQ(stream.AwaitAll().message(), "rank 1 is gone");
  EXPECT_EQ(made, 1);
}

TEST(CallStream, ItsEndWaitsForTheCallUnderWayAndMakesNoOther) {
  constexpr int kCalls = 100'000;
  std::atomic<int> begun{0}, over{0};
  {
    CallStream stream;
    for (int i = 0; i < kCalls; ++i) {
      stream.Start([&] {
        ++begun;
        std::this_thread::yield();
        ++over;
        return absl::OkStatus();
      });
    }
    while (begun == 0) std::this_thread::yield();
  }
  EXPECT_EQ(begun, over);
  EXPECT_LT(begun, kCalls);
}

}  // namespace
}  // namespace regroup::worker
