#include "launcher/coordinator/shell/free_space.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <limits>
#include <memory>

namespace regroup::coordinator {
namespace {

// A disk that answers until it hangs.
struct Disk {
  std::atomic<std::uint64_t> bytes = 1;
  std::atomic<int> looks = 0;
  std::atomic<bool> hangs = false;
  std::promise<void> heal;
  std::shared_future<void> healed = heal.get_future().share();

  std::uint64_t Look() {
    ++looks;
    if (hangs) healed.wait();
    return bytes;
  }
};

TEST(FreeSpaceTest, IsWhatTheDiskSaysNow) {
  auto disk = std::make_shared<Disk>();
  FreeSpace space([disk] { return disk->Look(); });
  for (std::uint64_t bytes = 5; bytes < 10; ++bytes) {
    disk->bytes = bytes;
    EXPECT_EQ(space.Bytes(), bytes);
  }
}

TEST(FreeSpaceTest, ADiskThatHangsHoldsOneCallForAMomentAndNoOther) {
  auto disk = std::make_shared<Disk>();
  FreeSpace space([disk] { return disk->Look(); });
  EXPECT_EQ(space.Bytes(), 1u);
  disk->hangs = true;
  disk->bytes = 2;
  EXPECT_EQ(space.Bytes(), 1u);  // With a disk that is waited for this test does not end.
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 1'000; ++i) EXPECT_EQ(space.Bytes(), 1u);
  // A thousand that waited would take 100 s.
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(50));
  EXPECT_EQ(disk->looks, 2);  // Nor does it get more to do.
  disk->hangs = false;
  disk->heal.set_value();
  while (space.Bytes() != 2u) continue;
  disk->bytes = 3;
  EXPECT_EQ(space.Bytes(), 3u);
}

TEST(FreeSpaceTest, WithoutAnyAnswerThereIsRoom) {
  auto disk = std::make_shared<Disk>();
  disk->hangs = true;
  {
    FreeSpace space([disk] { return disk->Look(); });
    EXPECT_EQ(space.Bytes(), std::numeric_limits<std::uint64_t>::max());
  }  // Its end does not wait for the disk either.
  disk->heal.set_value();
}

}  // namespace
}  // namespace regroup::coordinator
