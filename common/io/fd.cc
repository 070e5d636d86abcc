#include "common/io/fd.h"

#include <cerrno>
#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace regroup::io {
namespace {
constexpr char kErrnoPayload[] = "regroup/errno";
}  // namespace

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
