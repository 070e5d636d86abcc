#include "common/io/fd.h"

#include <dirent.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <cerrno>
#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace regroup::io {
namespace {
constexpr char kErrnoPayload[] = "regroup/errno";
}  // namespace

absl::Status Watch(int epoll_fd, int fd, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  if (::epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0) return ErrnoStatus(errno, "epoll_ctl");
  return absl::OkStatus();
}

std::size_t RaiseDescriptorLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1024;
  if (limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) ::getrlimit(RLIMIT_NOFILE, &limit);
  }
  return limit.rlim_cur;
}

int ShutDownSockets(const std::function<bool(int fd)>& which) {
  DIR* listing = ::opendir("/proc/self/fd");
  if (listing == nullptr) return 0;
  int ended = 0;
  while (const dirent* entry = ::readdir(listing)) {
    int number = -1;
    if (!absl::SimpleAtoi(entry->d_name, &number)) continue;
    // Its owner may close it meanwhile, and another get its number.
    const UniqueFd copy(::fcntl(number, F_DUPFD_CLOEXEC, 0));
    int listens = 1;
    socklen_t size = sizeof listens;
    if (!copy || ::getsockopt(copy.get(), SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 ||
        listens != 0 || !which(copy.get()))
      continue;
    if (::shutdown(copy.get(), SHUT_RDWR) == 0) ++ended;
  }
  ::closedir(listing);
  return ended;
}

absl::Status ErrnoStatus(int error, std::string_view what) {
  absl::Status status = absl::ErrnoToStatus(error, {what.data(), what.size()});
  status.SetPayload(kErrnoPayload, absl::Cord(absl::StrCat(error)));
  return status;
}

int ErrnoOf(const absl::Status& status) {
  auto payload = status.GetPayload(kErrnoPayload);
  int error = 0;
  if (!payload || !absl::SimpleAtoi(std::string(*payload), &error)) return 0;
  return error;
}

absl::Status SetNonBlocking(int fd, bool on) {
  int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0) return ErrnoStatus(errno, "fcntl(F_GETFL)");
  int wanted = on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK;
  if (wanted != flags && ::fcntl(fd, F_SETFL, wanted) < 0)
    return ErrnoStatus(errno, "fcntl(F_SETFL)");
  return absl::OkStatus();
}

absl::Status WriteAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, "write");
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return absl::OkStatus();
}

}  // namespace regroup::io
