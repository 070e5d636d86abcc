#include "common/io/files.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <thread>

#include "common/io/unix_socket.h"
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

// Each of these kept a reader waiting for ever, or led it elsewhere.
TEST(Files, WhatIsNoRegularFileIsRefusedAtOnceByItsKind) {
  TempDirectory directory;
  ASSERT_EQ(::mkfifo((directory / "fifo").c_str(), 0600), 0);
  ASSERT_EQ(::symlink("/dev/zero", (directory / "link").c_str()), 0);
  ASSERT_TRUE(MakeDirectories(directory / "dir").ok());
  ASSERT_TRUE(ListenUnix(directory / "socket").ok());
  const struct {
    std::string path;
    const char* says;
  } rows[] = {
      {directory / "fifo", "is a FIFO, not a regular file"},
      {directory / "link", "is a symbolic link, not a regular file"},
      {directory / "dir", "is a directory, not a regular file"},
      {directory / "socket", "is a socket, not a regular file"},
      {"/dev/null", "is a device, not a regular file"},
  };
  for (const auto& row : rows) {
    for (const absl::Status& refused :
         {ReadFile(row.path, 10).status(), OpenRegular(row.path, O_WRONLY | O_CREAT).status(),
          OpenRegular(row.path, O_RDWR).status()}) {
      EXPECT_THAT(refused.message(), testing::HasSubstr(row.says)) << row.path;
    }
  }
  EXPECT_FALSE(*IsLocked(AT_FDCWD, directory / "fifo"));
  EXPECT_TRUE(absl::IsNotFound(OpenRegular(directory / "none", O_RDONLY).status()));
  ASSERT_TRUE(OpenRegular(directory / "new", O_WRONLY | O_CREAT).ok());
  EXPECT_EQ(*ReadFile(directory / "new", 10), "");
}

TEST(Files, AFileThatTheUserNamedMayBeALinkOrAFifo) {
  TempDirectory directory;
  ASSERT_TRUE(ReplaceFile(directory / "f", "text", Durability::kVolatile).ok());
  ASSERT_EQ(::symlink("f", (directory / "link").c_str()), 0);
  EXPECT_EQ(*ReadNamedFile(directory / "link", 10), "text");
  ASSERT_EQ(::mkfifo((directory / "fifo").c_str(), 0600), 0);
  std::thread writer([&] {
    const UniqueFd fd(::open((directory / "fifo").c_str(), O_WRONLY | O_CLOEXEC));
    EXPECT_TRUE(WriteAll(fd.get(), "piped").ok());
  });
  EXPECT_EQ(*ReadNamedFile(directory / "fifo", 10), "piped");
  writer.join();
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
