#include "common/io/files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace regroup::io {
namespace {

// From linux/magic.h, which lacks some of them.
constexpr unsigned kTmpfsMagic = 0x01021994, kRamfsMagic = 0x858458f6, kNfsMagic = 0x6969,
                   kSmbMagic = 0x517b, kCifsMagic = 0xff534d42, kSmb2Magic = 0xfe534d42,
                   kFuseMagic = 0x65735546, kCephMagic = 0x00c36400, kLustreMagic = 0x0bd00bd0,
                   kGpfsMagic = 0x47504653, kAfsMagic = 0x5346414f, kV9fsMagic = 0x01021997,
                   kBeegfsMagic = 0x19830326;

absl::StatusOr<std::string> ReadAll(int fd, const std::string& name, std::size_t max_bytes) {
  std::string bytes;
  for (;;) {
    std::size_t old_size = bytes.size();
    std::size_t want =
        std::min<std::size_t>(std::max<std::size_t>(4096, old_size), max_bytes - old_size + 1);
    bytes.resize(old_size + want);
    ssize_t n = ::read(fd, bytes.data() + old_size, want);
    if (n < 0 && errno == EINTR) {
      bytes.resize(old_size);
      continue;
    }
    if (n < 0) return ErrnoStatus(errno, absl::StrCat("read ", name));
    bytes.resize(old_size + static_cast<std::size_t>(n));
    if (n == 0) return bytes;
    if (bytes.size() > max_bytes) {
      return absl::OutOfRangeError(absl::StrCat(name, " is longer than ", max_bytes, " bytes"));
    }
  }
}

std::string TemporaryName(const std::string& name) {
  static std::atomic<unsigned> counter{
      0};  // Names only have to differ within this process and from others'.
  return absl::StrCat(name, ".tmp.", ::getpid(), ".", counter.fetch_add(1));
}

absl::Status WriteNew(int directory_fd, const std::string& name, std::string_view contents,
                      Durability durability, mode_t mode) {
  UniqueFd fd(::openat(directory_fd, name.c_str(),
                       O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode));
  if (!fd) return ErrnoStatus(errno, absl::StrCat("create ", name));
  RETURN_IF_ERROR(WriteAll(fd.get(), contents));
  if (durability == Durability::kDurable && ::fsync(fd.get()) < 0) {
    return ErrnoStatus(errno, absl::StrCat("fsync ", name));
  }
  return absl::OkStatus();
}

std::string ParentOf(const std::string& path) {
  std::size_t slash = path.find_last_of('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

absl::Status RemoveEntry(int directory_fd, const char* name);

absl::Status RemoveChildren(int directory_fd) {
  UniqueFd copy(::openat(directory_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!copy) return ErrnoStatus(errno, "open directory");
  DIR* listing = ::fdopendir(copy.get());
  if (listing == nullptr) return ErrnoStatus(errno, "fdopendir");
  copy.release();
  absl::Status result;
  while (dirent* entry = ::readdir(listing)) {
    std::string_view name = entry->d_name;
    if (name == "." || name == "..") continue;
    result.Update(RemoveEntry(directory_fd, entry->d_name));
  }
  ::closedir(listing);
  return result;
}

absl::Status RemoveEntry(int directory_fd, const char* name) {
  if (::unlinkat(directory_fd, name, 0) == 0 || errno == ENOENT) return absl::OkStatus();
  if (errno != EISDIR && errno != EPERM) return ErrnoStatus(errno, absl::StrCat("unlink ", name));
  UniqueFd child(::openat(directory_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!child) return ErrnoStatus(errno, absl::StrCat("open ", name));
  // What others write meanwhile is removed too, as long as they stop some time.
  constexpr int kRounds = 100;
  for (int round = 1;; ++round) {
    absl::Status result = RemoveChildren(child.get());
    if (::unlinkat(directory_fd, name, AT_REMOVEDIR) == 0 || errno == ENOENT) return result;
    if (errno == ENOTEMPTY && result.ok() && round < kRounds) continue;
    result.Update(ErrnoStatus(errno, absl::StrCat("rmdir ", name)));
    return result;
  }
}

const char* KindOf(mode_t mode) {
  switch (mode & S_IFMT) {
    case S_IFIFO: return "a FIFO";
    case S_IFDIR: return "a directory";
    case S_IFLNK: return "a symbolic link";
    case S_IFSOCK: return "a socket";
    default: return "a device";
  }
}

absl::Status NotRegular(const std::string& name, mode_t mode) {
  return absl::FailedPreconditionError(
      absl::StrCat(name, " is ", KindOf(mode), ", not a regular file"));
}

}  // namespace

absl::StatusOr<UniqueFd> OpenRegularAt(int directory_fd, const std::string& name, int flags,
                                       mode_t mode) {
  const int safe = flags | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW | O_NOCTTY;
  UniqueFd fd(::openat(directory_fd, name.c_str(), safe, mode));
  const int error = errno;
  struct stat info;
  if (fd) {
    if (::fstat(fd.get(), &info) < 0) return ErrnoStatus(errno, absl::StrCat("stat ", name));
    if (!S_ISREG(info.st_mode)) return NotRegular(name, info.st_mode);
    return fd;
  }
  // A link (ELOOP), a FIFO without a reader and a socket (ENXIO), and a directory that was to be
  // written (EISDIR): the errno alone does not tell what is in the way.
  const bool in_the_way = error == ELOOP || error == ENXIO || error == EISDIR;
  if (in_the_way && ::fstatat(directory_fd, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0 &&
      !S_ISREG(info.st_mode))
    return NotRegular(name, info.st_mode);
  return ErrnoStatus(error, absl::StrCat("open ", name));
}

absl::StatusOr<UniqueFd> OpenRegular(const std::string& path, int flags, mode_t mode) {
  return OpenRegularAt(AT_FDCWD, path, flags, mode);
}

absl::StatusOr<std::string> ReadFile(const std::string& path, std::size_t max_bytes) {
  return ReadFileAt(AT_FDCWD, path, max_bytes);
}

absl::StatusOr<std::string> ReadFileAt(int directory_fd, const std::string& name,
                                       std::size_t max_bytes) {
  ASSIGN_OR_RETURN(const UniqueFd fd, OpenRegularAt(directory_fd, name, O_RDONLY));
  return ReadAll(fd.get(), name, max_bytes);
}

absl::StatusOr<std::string> ReadNamedFile(const std::string& path, std::size_t max_bytes) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY));
  if (!fd) return ErrnoStatus(errno, absl::StrCat("open ", path));
  return ReadAll(fd.get(), path, max_bytes);
}

absl::Status ReplaceFile(const std::string& path, std::string_view contents, Durability durability,
                         mode_t mode) {
  return ReplaceFileAt(AT_FDCWD, path, contents, durability, mode);
}

absl::Status ReplaceFileAt(int directory_fd, const std::string& name, std::string_view contents,
                           Durability durability, mode_t mode) {
  const std::string temporary = TemporaryName(name);
  absl::Status written = WriteNew(directory_fd, temporary, contents, durability, mode);
  if (written.ok() && ::renameat(directory_fd, temporary.c_str(), directory_fd, name.c_str()) < 0) {
    written = ErrnoStatus(errno, absl::StrCat("rename ", temporary, " to ", name));
  }
  if (!written.ok()) {
    ::unlinkat(directory_fd, temporary.c_str(), 0);
    return written;
  }
  if (durability == Durability::kVolatile) return absl::OkStatus();
  UniqueFd parent(
      ::openat(directory_fd, ParentOf(name).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!parent) return ErrnoStatus(errno, absl::StrCat("open directory of ", name));
  if (::fsync(parent.get()) < 0)
    return ErrnoStatus(errno, absl::StrCat("fsync directory of ", name));
  return absl::OkStatus();
}

absl::Status AppendToFile(const std::string& path, std::string_view text) {
  RETURN_IF_ERROR(MakeDirectories(ParentOf(path)));
  ASSIGN_OR_RETURN(const UniqueFd file, OpenRegular(path, O_WRONLY | O_CREAT | O_APPEND));
  while (!text.empty()) {
    const ssize_t wrote = ::write(file.get(), text.data(), text.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return ErrnoStatus(errno, absl::StrCat("write ", path));
    text.remove_prefix(static_cast<std::size_t>(wrote));
  }
  return absl::OkStatus();
}

absl::Status SyncDirectory(const std::string& path) {
  ASSIGN_OR_RETURN(UniqueFd fd, OpenDirectory(path));
  if (::fsync(fd.get()) < 0) return ErrnoStatus(errno, absl::StrCat("fsync ", path));
  return absl::OkStatus();
}

absl::Status MakeDirectories(const std::string& path, mode_t mode) {
  if (path.empty() || path == "/" || path == ".") return absl::OkStatus();
  if (::mkdir(path.c_str(), mode) == 0) return absl::OkStatus();
  if (errno == ENOENT) {
    RETURN_IF_ERROR(MakeDirectories(ParentOf(path), mode));
    if (::mkdir(path.c_str(), mode) == 0) return absl::OkStatus();
  }
  if (errno != EEXIST) return ErrnoStatus(errno, absl::StrCat("mkdir ", path));
  struct stat info;
  if (::stat(path.c_str(), &info) < 0) return ErrnoStatus(errno, absl::StrCat("stat ", path));
  if (!S_ISDIR(info.st_mode)) return ErrnoStatus(ENOTDIR, path);
  return absl::OkStatus();
}

absl::Status MakePrivateDirectory(const std::string& path) {
  RETURN_IF_ERROR(MakeDirectories(ParentOf(path)));
  if (::mkdir(path.c_str(), 0700) < 0 && errno != EEXIST) {
    return ErrnoStatus(errno, absl::StrCat("mkdir ", path));
  }
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd) return ErrnoStatus(errno, absl::StrCat("open ", path));
  struct stat info;
  if (::fstat(fd.get(), &info) < 0) return ErrnoStatus(errno, absl::StrCat("stat ", path));
  if (info.st_uid != ::geteuid()) {
    return absl::PermissionDeniedError(absl::StrCat(path, " belongs to user ", info.st_uid,
                                                    ", this process is user ", ::geteuid()));
  }
  if ((info.st_mode & 0022) != 0) {
    return absl::PermissionDeniedError(
        absl::StrFormat("%s may be written by others (mode %04o)", path, info.st_mode & 07777));
  }
  if ((info.st_mode & 07777) != 0700 && ::fchmod(fd.get(), 0700) < 0) {
    return ErrnoStatus(errno, absl::StrCat("chmod ", path));
  }
  return absl::OkStatus();
}

absl::StatusOr<UniqueFd> OpenDirectory(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return ErrnoStatus(errno, absl::StrCat("open ", path));
  return fd;
}

absl::StatusOr<std::vector<std::string>> ListDirectory(const std::string& path) {
  DIR* listing = ::opendir(path.c_str());
  if (listing == nullptr) return ErrnoStatus(errno, absl::StrCat("open ", path));
  std::vector<std::string> names;
  errno = 0;
  while (dirent* entry = ::readdir(listing)) {
    std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
    errno = 0;
  }
  int error = errno;
  ::closedir(listing);
  if (error != 0) return ErrnoStatus(error, absl::StrCat("list ", path));
  std::sort(names.begin(), names.end());
  return names;
}

absl::Status RemoveTree(const std::string& path) { return RemoveEntry(AT_FDCWD, path.c_str()); }

absl::StatusOr<FileLock> FileLock::TryAcquire(const std::string& path) {
  ASSIGN_OR_RETURN(UniqueFd fd, OpenRegular(path, O_RDWR | O_CREAT));
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) < 0) {
    if (errno == EWOULDBLOCK)
      return absl::UnavailableError(absl::StrCat(path, " is locked by another process"));
    return ErrnoStatus(errno, absl::StrCat("flock ", path));
  }
  return FileLock(std::move(fd));
}

absl::StatusOr<bool> IsLocked(int directory_fd, const std::string& name) {
  absl::StatusOr<UniqueFd> fd = OpenRegularAt(directory_fd, name, O_RDONLY);
  const bool other_kind = absl::IsFailedPrecondition(fd.status()) && ErrnoOf(fd.status()) == 0;
  if (absl::IsNotFound(fd.status()) || other_kind) return false;
  if (!fd.ok()) return fd.status();
  // Shared, so that two who ask do not see each other; released with fd.
  if (::flock(fd->get(), LOCK_SH | LOCK_NB) == 0) return false;
  if (errno == EWOULDBLOCK) return true;
  return ErrnoStatus(errno, absl::StrCat("flock ", name));
}

absl::StatusOr<FileSystemKind> FileSystemKindOf(const std::string& path) {
  struct statfs info;
  if (::statfs(path.c_str(), &info) < 0) return ErrnoStatus(errno, absl::StrCat("statfs ", path));
  switch (static_cast<unsigned>(info.f_type)) {
    case kTmpfsMagic:
    case kRamfsMagic: return FileSystemKind::kMemory;
    case kNfsMagic:
    case kSmbMagic:
    case kCifsMagic:
    case kSmb2Magic:
    case kFuseMagic:
    case kCephMagic:
    case kLustreMagic:
    case kGpfsMagic:
    case kAfsMagic:
    case kV9fsMagic:
    case kBeegfsMagic: return FileSystemKind::kNetwork;
    default: return FileSystemKind::kDisk;
  }
}

absl::StatusOr<DiskSpace> DiskSpaceOf(const std::string& path) {
  struct statvfs info;
  if (::statvfs(path.c_str(), &info) < 0) return ErrnoStatus(errno, absl::StrCat("statvfs ", path));
  return DiskSpace{.total_bytes = std::uint64_t{info.f_blocks} * info.f_frsize,
                   .free_bytes = std::uint64_t{info.f_bavail} * info.f_frsize};
}

std::string RandomHex(std::size_t bytes) {
  std::string raw(bytes, '\0');
  CHECK(bytes <= 256);  // One getrandom call of at most 256 bytes is never cut short.
  ssize_t n;
  do {
    n = ::getrandom(raw.data(), bytes, 0);
  } while (n < 0 && errno == EINTR);
  CHECK(n == static_cast<ssize_t>(bytes));
  return absl::BytesToHexString(raw);
}

}  // namespace regroup::io
