#include "worker/checkpoint/owner.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <optional>

#include "tests/worker/checkpoint/testing.h"

namespace regroup::worker {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class OwnerTest : public testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<Owner>> Take(const OwnerClaim& claim) {
    waited_for_.reset();
    return Owner::Take(directory_ / "", claim,
                       [&](const std::string& holder, Duration) { waited_for_ = holder; });
  }
  std::string File() const { return directory_ / "owner"; }
  // As if the owner had last renewed that long ago.
  void Age(seconds by) const {
    struct stat info {};
    ASSERT_EQ(stat(File().c_str(), &info), 0);
    const std::array<timespec, 2> times{
        timespec{0, UTIME_OMIT}, timespec{info.st_mtim.tv_sec - by.count(), info.st_mtim.tv_nsec}};
    ASSERT_EQ(utimensat(AT_FDCWD, File().c_str(), times.data(), 0), 0);
  }
  // What a process that was killed leaves.
  void Abandon(const OwnerClaim& claim) {
    const pid_t child = fork();
    if (child == 0) _exit(Take(claim).ok() ? (std::quick_exit(0), 0) : 1);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_EQ(status, 0);
  }

  TemporaryDirectory directory_;
  std::optional<std::string> waited_for_;
};

TEST_F(OwnerTest, AJobThatIsDoneLeavesNothing) {
  {
    auto owner = Take({.job = "a-1", .generation = 1});
    ASSERT_TRUE(owner.ok()) << owner.status();
    EXPECT_TRUE((*owner)->Check().ok());
    (*owner)->Release();
  }
  EXPECT_TRUE(AllFiles(directory_ / "").empty());
  EXPECT_TRUE(Take({.job = "b-1", .generation = 1}).ok());
  EXPECT_FALSE(waited_for_.has_value());
}

TEST_F(OwnerTest, ASecondJobIsRefusedByNameWhileTheFirstRenews) {
  auto first = Take({.job = "a-1", .generation = 3, .lease = milliseconds(600)});
  ASSERT_TRUE(first.ok());
  const auto second = Take({.job = "b-1", .generation = 9, .lease = seconds(60)});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(second.status().message().find("is in use by a-1"), std::string::npos)
      << second.status();
  EXPECT_EQ(waited_for_, "a-1");
  EXPECT_TRUE((*first)->Check().ok());
  EXPECT_FALSE((*first)->lost());
  EXPECT_EQ(AllFiles(directory_ / ""), std::vector<std::string>{"owner"});
}

// Another coordinator may call its job the same: only a later generation is a successor.
TEST_F(OwnerTest, TheSameNameWithoutALaterGenerationIsAnotherJob) {
  auto first = Take({.job = "a-1", .generation = 2, .lease = milliseconds(600)});
  ASSERT_TRUE(first.ok());
  for (const std::uint64_t generation : {1, 2}) {
    EXPECT_EQ(Take({.job = "a-1", .generation = generation}).status().code(),
              absl::StatusCode::kFailedPrecondition);
  }
}

TEST_F(OwnerTest, TheNextGenerationTakesItAtOnceAndTheFormerHasLostIt) {
  auto first = Take({.job = "a-1", .generation = 1});
  auto second = Take({.job = "a-1", .generation = 2});
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_FALSE(waited_for_.has_value());
  EXPECT_EQ((*first)->Check().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE((*first)->lost());
  (*first)->Release();  // Not its own any more.
  first->reset();
  EXPECT_TRUE((*second)->Check().ok());
}

TEST_F(OwnerTest, TakingOverAsksNobodyAndIsNoticedByTheRenewingThread) {
  auto first = Take({.job = "a-1", .generation = 1, .lease = milliseconds(120)});
  auto second = Take({.job = "b-1", .generation = 1, .take_over = true});
  ASSERT_TRUE(first.ok() && second.ok());
  while (!(*first)->lost()) std::this_thread::yield();
  EXPECT_NE((*first)->Check().message().find("b-1"), std::string::npos);
}

// What is another's by then keeps its text and its time.
TEST_F(OwnerTest, WhoLostItTakesNothingAlongWhenItGoes) {
  for (const auto go : {&Owner::Release, &Owner::Leave}) {
    std::filesystem::remove(File());
    const auto first = Take({.job = "a-1", .generation = 1});
    const auto second = Take({.job = "b-1", .generation = 1, .take_over = true});
    ASSERT_TRUE(first.ok() && second.ok());
    const std::string text = ReadAll(File());
    const auto renewed = std::filesystem::last_write_time(File());
    ((**first).*go)();
    EXPECT_EQ(ReadAll(File()), text);
    EXPECT_EQ(std::filesystem::last_write_time(File()), renewed);
  }
}

TEST_F(OwnerTest, TheLeaseOfAKilledJobRunsOut) {
  Abandon({.job = "a-1", .generation = 1});
  Age(seconds(59));
  EXPECT_TRUE(Take({.job = "b-1", .generation = 1}).ok());  // A second later, or two.
  EXPECT_EQ(waited_for_, "a-1");
  std::filesystem::remove(File());
  Abandon({.job = "a-1", .generation = 1});
  Age(seconds(61));
  EXPECT_TRUE(Take({.job = "b-1", .generation = 1}).ok());
  EXPECT_FALSE(waited_for_.has_value());
}

TEST_F(OwnerTest, WhoLeavesHoldsItForAFewSecondsMore) {
  auto first = Take({.job = "a-1", .generation = 1});
  ASSERT_TRUE(first.ok());
  const auto modified = [&](const std::string& path) {
    struct stat info {};
    EXPECT_EQ(stat(path.c_str(), &info), 0);
    return info.st_mtim.tv_sec;
  };
  Age(seconds(5));  // It counts from now, not from the last renewal.
  WriteAll(directory_ / "before", "");
  (*first)->LeaveWithin(seconds(60));
  WriteAll(directory_ / "after", "");
  EXPECT_GE(modified(File()), modified(directory_ / "before") - 55);
  EXPECT_LE(modified(File()), modified(directory_ / "after") - 55);
  Age(seconds(3));
  EXPECT_TRUE(Take({.job = "b-1", .generation = 1}).ok());
  EXPECT_EQ(waited_for_, "a-1");
}

TEST_F(OwnerTest, WithoutALauncherTheJobIsTheProcess) {
  Abandon({});
  EXPECT_TRUE(Take({}).ok());
  EXPECT_FALSE(waited_for_.has_value());
}

TEST_F(OwnerTest, ARecordThatCannotBeReadHoldsItsLeaseToo) {
  WriteAll(File(), "garbage");
  Age(seconds(59));
  EXPECT_TRUE(Take({.job = "b-1", .generation = 1}).ok());
  EXPECT_EQ(waited_for_, "a job that cannot be named");
}

TEST_F(OwnerTest, ATimeInTheFutureIsWaitedForALeaseAtMost) {
  WriteAll(File(), "{\"job\":\"a-1\",\"generation\":1}");
  Age(seconds(-10'800));
  EXPECT_TRUE(Take({.job = "b-1", .generation = 1, .lease = milliseconds(200)}).ok());
  EXPECT_EQ(waited_for_, "a-1");
}

TEST_F(OwnerTest, WhatIsNoFileIsNamedAndGivesWayToATakeOver) {
  ASSERT_EQ(mkfifo(File().c_str(), 0600), 0);
  const auto refused = Take({.job = "b-1", .generation = 1});
  EXPECT_NE(refused.status().message().find("is a FIFO"), std::string::npos) << refused.status();
  EXPECT_TRUE(Take({.job = "b-1", .generation = 1, .take_over = true}).ok());
}

TEST_F(OwnerTest, AnEmptiedDirectoryIsStillItsOwners) {
  auto owner = Take({.job = "a-1", .generation = 1});
  ASSERT_TRUE(owner.ok());
  std::filesystem::remove(File());
  EXPECT_TRUE((*owner)->Check().ok());
  EXPECT_EQ(AllFiles(directory_ / ""), std::vector<std::string>{"owner"});
}

}  // namespace
}  // namespace regroup::worker
