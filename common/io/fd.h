#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <utility>

#include "absl/status/status.h"

namespace regroup::io {

// Owns one descriptor.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) reset(other.release());
    return *this;
  }
  ~UniqueFd() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  void reset(int fd = -1) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = fd;
  }

 private:
  int fd_ = -1;
};

// EPOLL_CTL_ADD, level-triggered; what comes carries the number of `fd`.
absl::Status Watch(int epoll_fd, int fd, std::uint32_t events);
// As many descriptors as this process may have; how many that are.
std::size_t RaiseDescriptorLimit();

// shutdown(2) of both directions of each socket of this process that does not listen and that
// `which` picks, whoever owns it; `which` is given a copy of its descriptor. How many there were.
int ShutDownSockets(const std::function<bool(int fd)>& which);

// "<what>: <strerror>", with the code that fits the errno. ErrnoOf gives the number back (0: none).
absl::Status ErrnoStatus(int error, std::string_view what);
int ErrnoOf(const absl::Status& status);

absl::Status SetNonBlocking(int fd, bool on);

// Writes everything, also after partial writes and EINTR. REQUIRES: a blocking descriptor or a
// file.
absl::Status WriteAll(int fd, std::string_view bytes);

}  // namespace regroup::io
