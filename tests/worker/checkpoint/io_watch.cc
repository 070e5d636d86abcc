// Functions of the C library, defined here once more: what is linked statically into the test calls
// these.

#include "tests/worker/checkpoint/io_watch.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <mutex>
#include <utility>

#include "common/base/check.h"

namespace regroup::worker {
namespace {

struct Watch {
  std::string root;
  IoWatch::Before before;
  IoWatch::After after;
};
std::mutex g_mutex;        // Held from `before` to `after`.
Watch* g_watch = nullptr;  // Changes while no other thread makes calls.
thread_local bool t_inside = false;
thread_local std::uint64_t t_bytes_read = 0;

std::string PathOf(int fd) {
  std::array<char, 4096> target;
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const long size = syscall(SYS_readlinkat, AT_FDCWD, link.c_str(), target.data(), target.size());
  return size > 0 ? std::string(target.data(), static_cast<std::size_t>(size)) : "";
}

std::string PathOf(int directory, const char* name) {
  if (name[0] == '/') return name;
  if (directory != AT_FDCWD) return PathOf(directory) + "/" + name;
  std::array<char, 4096> here;
  return std::string(getcwd(here.data(), here.size())) + "/" + name;
}

// Makes the call; -1 and errno as the C library has it.
template <class Make>
long Watched(const std::function<IoCall()>& describe, const Make& make) {
  if (g_watch == nullptr || t_inside) return make();
  const int before = errno;
  const IoCall call = describe();
  errno = before;
  if (call.path.rfind(g_watch->root, 0) != 0) return make();
  const std::scoped_lock lock(g_mutex);
  t_inside = true;
  const int refused = g_watch->before ? g_watch->before(call) : 0;
  long result = -1;
  if (refused == 0) {
    result = make();
    const int error = errno;
    if (result >= 0 && g_watch->after) g_watch->after(call);
    errno = error;
  } else {
    errno = refused;
  }
  t_inside = false;
  return result;
}

long Open(int directory, const char* path, int flags, unsigned mode) {
  const auto make = [&] { return syscall(SYS_openat, directory, path, flags, mode); };
  if ((flags & O_CREAT) == 0) return make();
  return Watched([&] { return IoCall{IoCall::kCreate, PathOf(directory, path), {}, 0, {}}; }, make);
}

long Rename(int from_directory, const char* from, int to_directory, const char* to,
            unsigned flags) {
  return Watched(
      [&] {
        return IoCall{
            IoCall::kRename, PathOf(from_directory, from), PathOf(to_directory, to), 0, {}};
      },
      [&] { return syscall(SYS_renameat2, from_directory, from, to_directory, to, flags); });
}

long Unlink(int directory, const char* path, int flags) {
  return Watched(
      [&] {
        return IoCall{IoCall::kUnlink, PathOf(directory, path), {}, 0, {}};
      },
      [&] { return syscall(SYS_unlinkat, directory, path, flags); });
}

std::string Bytes(const void* data, std::size_t size) {
  return std::string(static_cast<const char*>(data), size);
}

}  // namespace

IoWatch::IoWatch(std::string root, Before before, After after) {
  CHECK(g_watch == nullptr);
  g_watch = new Watch{std::move(root), std::move(before), std::move(after)};
}
IoWatch::~IoWatch() { delete std::exchange(g_watch, nullptr); }

std::uint64_t BytesRead() { return t_bytes_read; }
void CountRead(std::uint64_t bytes) { t_bytes_read += bytes; }

}  // namespace regroup::worker

using regroup::worker::IoCall;

extern "C" {

int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const unsigned mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(rest, unsigned) : 0;
  va_end(rest);
  return static_cast<int>(regroup::worker::Open(AT_FDCWD, path, flags, mode));
}

int openat(int directory, const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const unsigned mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(rest, unsigned) : 0;
  va_end(rest);
  return static_cast<int>(regroup::worker::Open(directory, path, flags, mode));
}

int mkdir(const char* path, mode_t mode) noexcept {
  return static_cast<int>(regroup::worker::Watched(
      [&] {
        return IoCall{IoCall::kMakeDirectory, regroup::worker::PathOf(AT_FDCWD, path), {}, 0, {}};
      },
      [&] { return syscall(SYS_mkdirat, AT_FDCWD, path, mode); }));
}

ssize_t write(int fd, const void* data, size_t size) {
  // Only new files are written this way: from their start, in one piece.
  return regroup::worker::Watched(
      [&] {
        return IoCall{
            IoCall::kWrite, regroup::worker::PathOf(fd), {}, 0, regroup::worker::Bytes(data, size)};
      },
      [&] { return syscall(SYS_write, fd, data, size); });
}

ssize_t pwrite(int fd, const void* data, size_t size, off_t offset) {
  return regroup::worker::Watched(
      [&] {
        return IoCall{IoCall::kWrite,
                      regroup::worker::PathOf(fd),
                      {},
                      static_cast<std::uint64_t>(offset),
                      regroup::worker::Bytes(data, size)};
      },
      [&] { return syscall(SYS_pwrite64, fd, data, size, offset); });
}

ssize_t pread(int fd, void* data, size_t size, off_t offset) {
  const long got = syscall(SYS_pread64, fd, data, size, offset);
  if (got > 0) regroup::worker::CountRead(static_cast<std::uint64_t>(got));
  return got;
}

int ftruncate(int fd, off_t size) noexcept {
  return static_cast<int>(regroup::worker::Watched(
      [&] {
        return IoCall{IoCall::kTruncate,
                      regroup::worker::PathOf(fd),
                      {},
                      static_cast<std::uint64_t>(size),
                      {}};
      },
      [&] { return syscall(SYS_ftruncate, fd, size); }));
}

int fsync(int fd) {
  return static_cast<int>(regroup::worker::Watched(
      [&] {
        return IoCall{IoCall::kSync, regroup::worker::PathOf(fd), {}, 0, {}};
      },
      [&] { return syscall(SYS_fsync, fd); }));
}

int link(const char* from, const char* to) noexcept {
  return static_cast<int>(regroup::worker::Watched(
      [&] {
        return IoCall{IoCall::kLink,
                      regroup::worker::PathOf(AT_FDCWD, from),
                      regroup::worker::PathOf(AT_FDCWD, to),
                      0,
                      {}};
      },
      [&] { return syscall(SYS_linkat, AT_FDCWD, from, AT_FDCWD, to, 0); }));
}

int rename(const char* from, const char* to) noexcept {
  return static_cast<int>(regroup::worker::Rename(AT_FDCWD, from, AT_FDCWD, to, 0));
}

int renameat(int from_directory, const char* from, int to_directory, const char* to) noexcept {
  return static_cast<int>(regroup::worker::Rename(from_directory, from, to_directory, to, 0));
}

int unlink(const char* path) noexcept {
  return static_cast<int>(regroup::worker::Unlink(AT_FDCWD, path, 0));
}

int unlinkat(int directory, const char* path, int flags) noexcept {
  return static_cast<int>(regroup::worker::Unlink(directory, path, flags));
}

int rmdir(const char* path) noexcept {
  return static_cast<int>(regroup::worker::Unlink(AT_FDCWD, path, AT_REMOVEDIR));
}

}  // extern "C"
