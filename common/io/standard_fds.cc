#include "common/io/standard_fds.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace regroup::io {
namespace {

// Plain system calls: nothing is initialised yet, not even what sanitizers put around functions.
__attribute__((no_sanitize("address", "thread", "undefined"))) void Open() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (::syscall(SYS_fcntl, fd, F_GETFD) >= 0) continue;
    // The lowest free number is given, and all below `fd` are taken by now.
    if (::syscall(SYS_openat, AT_FDCWD, "/dev/null", O_RDWR) < 0) return;
  }
}

// Run before the initialisers of all libraries.
__attribute__((section(".preinit_array"), used)) void (*const kFirst)() = &Open;

}  // namespace

void OpenStandardDescriptors() { Open(); }

}  // namespace regroup::io
