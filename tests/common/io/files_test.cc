#include "common/io/files.h"

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <thread>

#include "tests/common/io/temp_directory.h"

namespace regroup::io {
namespace {

TEST(Files, ReadIsBounded) {
  TempDirectory directory;
  ASSERT_TRUE(ReplaceFile(directory / "f", std::string(5000, 'x'), Durability::kDurable).ok());
  EXPECT_EQ(ReadFile(directory / "f", 5000)->size(), 5000u);
  EXPECT_TRUE(absl::IsOutOfRange(ReadFile(directory / "f", 4999).status()));
  EXPECT_TRUE(absl::IsNotFound(ReadFile(directory / "none", 1).status()));
  EXPECT_EQ(ErrnoOf(ReadFile(directory / "none", 1).status()), ENOENT);
}

TEST(Files, ReplaceLeavesNoTemporaryFileAndKeepsTheOldOneOnFailure) {
  TempDirectory directory;
  ASSERT_TRUE(ReplaceFile(directory / "f", "old", Durability::kVolatile).ok());
  ASSERT_TRUE(ReplaceFile(directory / "f", "new", Durability::kVolatile, 0640).ok());
  EXPECT_EQ(*ReadFile(directory / "f", 10), "new");
  EXPECT_EQ(*ListDirectory(directory.path()), std::vector<std::string>{"f"});
  ASSERT_TRUE(MakeDirectories(directory / "d/e").ok());
  EXPECT_FALSE(ReplaceFile(directory / "d", "x", Durability::kVolatile).ok());
  EXPECT_THAT(*ListDirectory(directory.path()), testing::ElementsAre("d", "f"));
}

TEST(Files, PrivateDirectoryIsOurs) {
  TempDirectory directory;
  ASSERT_TRUE(MakePrivateDirectory(directory / "a/b/c").ok());
  struct stat info;
  ASSERT_EQ(::stat((directory / "a/b/c").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0700u);
  ASSERT_EQ(::chmod((directory / "a/b/c").c_str(), 0755), 0);
  EXPECT_TRUE(MakePrivateDirectory(directory / "a/b/c").ok());  // Readable by others: tightened.
  ASSERT_EQ(::stat((directory / "a/b/c").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0700u);
  ASSERT_EQ(::chmod((directory / "a/b/c").c_str(), 0777), 0);
  EXPECT_TRUE(absl::IsPermissionDenied(MakePrivateDirectory(directory / "a/b/c")));
  ASSERT_EQ(::symlink("b", (directory / "a/link").c_str()), 0);
  EXPECT_FALSE(MakePrivateDirectory(directory / "a/link").ok());
  ASSERT_TRUE(ReplaceFile(directory / "file", "", Durability::kVolatile).ok());
  EXPECT_FALSE(MakePrivateDirectory(directory / "file").ok());
}

// A process that is told to end still writes its last state into its directory.
TEST(Files, RemoveTreeRemovesWhatIsWrittenMeanwhile) {
  for (int round = 0; round < 200; ++round) {
    const TempDirectory directory;
    const std::string tree = directory / "tree";
    ASSERT_TRUE(MakeDirectories(tree).ok());
    absl::StatusOr<UniqueFd> fd = OpenDirectory(tree);
    ASSERT_TRUE(fd.ok());
    std::thread writer([&] {
      for (int i = 0; i < 3; ++i)
        ReplaceFileAt(fd->get(), "state", "last words", Durability::kVolatile).IgnoreError();
    });
    const absl::Status removed = RemoveTree(tree);
    writer.join();
    ASSERT_TRUE(removed.ok()) << removed;
    ASSERT_NE(::access(tree.c_str(), F_OK), 0) << round;
  }
}

TEST(Files, RemoveTreeDoesNotFollowLinks) {
  TempDirectory directory;
  ASSERT_TRUE(MakeDirectories(directory / "keep").ok());
  ASSERT_TRUE(ReplaceFile(directory / "keep/f", "x", Durability::kVolatile).ok());
  ASSERT_TRUE(MakeDirectories(directory / "tree/sub").ok());
  ASSERT_EQ(::symlink("../keep", (directory / "tree/link").c_str()), 0);
  EXPECT_TRUE(RemoveTree(directory / "tree").ok());
  EXPECT_TRUE(RemoveTree(directory / "tree").ok());
  EXPECT_THAT(*ListDirectory(directory.path()), testing::ElementsAre("keep"));
  EXPECT_TRUE(ReadFile(directory / "keep/f", 1).ok());
}

TEST(Files, LockIsExclusiveAndEndsWithItsOwner) {
  TempDirectory directory;
  ASSERT_TRUE(MakeDirectories(directory.path()).ok());
  UniqueFd folder = std::move(*OpenDirectory(directory.path()));
  EXPECT_FALSE(*IsLocked(folder.get(), "lock"));
  {
    FileLock lock = std::move(*FileLock::TryAcquire(directory / "lock"));
    EXPECT_TRUE(*IsLocked(folder.get(), "lock"));
    EXPECT_TRUE(absl::IsUnavailable(FileLock::TryAcquire(directory / "lock").status()));
  }
  EXPECT_FALSE(*IsLocked(folder.get(), "lock"));
}

TEST(Files, KindOfFileSystem) {
  EXPECT_EQ(*FileSystemKindOf("/dev/shm"), FileSystemKind::kMemory);
  EXPECT_TRUE(absl::IsNotFound(FileSystemKindOf("/nowhere").status()));
  EXPECT_GT(DiskSpaceOf("/tmp")->total_bytes, 0u);
}

TEST(Files, RandomHex) {
  EXPECT_EQ(RandomHex(16).size(), 32u);
  EXPECT_NE(RandomHex(16), RandomHex(16));
}

TEST(Files, AppendMakesWhatIsMissing) {
  TempDirectory temp;
  const std::string path = temp.path() + "/a/b/notes";
  EXPECT_TRUE(AppendToFile(path, "one\n").ok());
  EXPECT_TRUE(AppendToFile(path, "two\n").ok());
  EXPECT_EQ(ReadFile(path, 100).value(), "one\ntwo\n");
  EXPECT_FALSE(AppendToFile(path + "/below", "x").ok());
}

}  // namespace
}  // namespace regroup::io
