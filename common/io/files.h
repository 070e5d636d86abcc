#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/io/fd.h"

namespace regroup::io {

// Opens what another process may have put there. It never waits for a peer, as open() of a FIFO
// does, and follows no link in the last component of `name`; what is no regular file is refused by
// saying what it is. `flags` as for open(); O_CLOEXEC is added.
absl::StatusOr<UniqueFd> OpenRegularAt(int directory_fd, const std::string& name, int flags,
                                       mode_t mode = 0600);
absl::StatusOr<UniqueFd> OpenRegular(const std::string& path, int flags, mode_t mode = 0600);

// The whole file, opened like that; OUT_OF_RANGE when it is longer than `max_bytes`, NOT_FOUND when
// there is none. Works for /proc files, whose size is not known before.
absl::StatusOr<std::string> ReadFile(const std::string& path, std::size_t max_bytes);
absl::StatusOr<std::string> ReadFileAt(int directory_fd, const std::string& name,
                                       std::size_t max_bytes);

// A file that this program's user named: a link is followed, and a FIFO is read to its end.
absl::StatusOr<std::string> ReadNamedFile(const std::string& path, std::size_t max_bytes);

// Readers see the old contents or the new ones, whole. kDurable: also after a power cut, once this
// returns. kVolatile does no fsync: for run directories on a tmpfs.
enum class Durability { kVolatile, kDurable };
absl::Status ReplaceFile(const std::string& path, std::string_view contents, Durability durability,
                         mode_t mode = 0600);
absl::Status ReplaceFileAt(int directory_fd, const std::string& name, std::string_view contents,
                           Durability durability, mode_t mode = 0600);
// Makes file and folders when missing. Not durable.
absl::Status AppendToFile(const std::string& path, std::string_view text);
absl::Status SyncDirectory(const std::string& path);

// Makes `path` (parents as well, 0755) with mode 0700. An existing one must be a directory of this
// user that nobody else may write to; other permission bits are taken away. Symbolic links are not
// followed in the last component.
absl::Status MakePrivateDirectory(const std::string& path);
absl::Status MakeDirectories(const std::string& path, mode_t mode = 0755);
absl::StatusOr<UniqueFd> OpenDirectory(const std::string& path);

// Names without "." and "..", sorted. NOT_FOUND when there is no such directory.
absl::StatusOr<std::vector<std::string>> ListDirectory(const std::string& path);
// Removes the tree; links are removed, not followed. OK when nothing was there. What another
// process adds meanwhile goes too, in up to a hundred rounds.
absl::Status RemoveTree(const std::string& path);

// An flock of a file, held until destruction or the process's end (also SIGKILL). Descriptors that
// were passed on to a child (release(), posix_spawn) keep it held.
class FileLock {
 public:
  // Makes the file when missing. UNAVAILABLE when another process holds the lock.
  static absl::StatusOr<FileLock> TryAcquire(const std::string& path);
  FileLock() = default;
  int fd() const { return fd_.get(); }
  UniqueFd TakeFd() { return std::move(fd_); }

 private:
  explicit FileLock(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};
// Does some process hold the flock of this file? A missing file is not
// locked, nor is what is no regular file.
absl::StatusOr<bool> IsLocked(int directory_fd, const std::string& name);

enum class FileSystemKind { kDisk, kMemory, kNetwork };
// Of an existing path. FUSE counts as network.
absl::StatusOr<FileSystemKind> FileSystemKindOf(const std::string& path);
struct DiskSpace {
  std::uint64_t total_bytes = 0,
                free_bytes = 0;  // Free: for this user, without the reserve of root.
};
absl::StatusOr<DiskSpace> DiskSpaceOf(const std::string& path);

// `bytes` random bytes as lower-case hex (getrandom).
std::string RandomHex(std::size_t bytes);

}  // namespace regroup::io
