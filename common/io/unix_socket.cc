#include "common/io/unix_socket.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/io/files.h"

namespace regroup::io {
namespace {

// One byte and room for one descriptor.
struct FdMessage {
  FdMessage() {
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
  }
  FdMessage(const FdMessage&) = delete;

  char byte = 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
};

struct SplitPath {
  std::string directory, name;
};
SplitPath Split(const std::string& path) {
  std::size_t slash = path.find_last_of('/');
  if (slash == std::string::npos) return {".", path};
  return {slash == 0 ? "/" : path.substr(0, slash), path.substr(slash + 1)};
}

absl::StatusOr<sockaddr_un> UnixAddress(int directory_fd, const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = ShortSocketPath(directory_fd, name);
  if (name.empty() || path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(
        absl::StrCat("socket name '", name, "' is empty or too long"));
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

absl::StatusOr<UniqueFd> NewUnixSocket() {
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return ErrnoStatus(errno, "socket(AF_UNIX)");
  return fd;
}

}  // namespace

std::string ShortSocketPath(int directory_fd, const std::string& name) {
  return absl::StrCat("/proc/self/fd/", directory_fd, "/", name);
}

absl::StatusOr<UniqueFd> ListenUnix(int directory_fd, const std::string& name, int backlog) {
  ASSIGN_OR_RETURN(sockaddr_un address, UnixAddress(directory_fd, name));
  ASSIGN_OR_RETURN(UniqueFd fd, NewUnixSocket());
  auto bind = [&] {
    return ::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address));
  };
  if (bind() < 0) {
    if (errno != EADDRINUSE) return ErrnoStatus(errno, absl::StrCat("bind ", name));
    absl::StatusOr<UniqueFd> other = ConnectUnix(directory_fd, name);
    if (other.ok() || absl::IsResourceExhausted(other.status()))
      return absl::UnavailableError(absl::StrCat(name, ": somebody listens there already"));
    if (!absl::IsUnavailable(other.status()) && !absl::IsNotFound(other.status()))
      return other.status();
    ::unlinkat(directory_fd, name.c_str(), 0);
    if (bind() < 0) return ErrnoStatus(errno, absl::StrCat("bind ", name));
  }
  // The mode is set before listen(): nobody can connect in between.
  if (::fchmodat(directory_fd, name.c_str(), 0600, 0) < 0)
    return ErrnoStatus(errno, absl::StrCat("chmod ", name));
  if (::listen(fd.get(), backlog) < 0) return ErrnoStatus(errno, absl::StrCat("listen ", name));
  return fd;
}

absl::StatusOr<UniqueFd> ListenUnix(const std::string& path, int backlog) {
  SplitPath split = Split(path);
  ASSIGN_OR_RETURN(UniqueFd directory, OpenDirectory(split.directory));
  return ListenUnix(directory.get(), split.name, backlog);
}

absl::StatusOr<UniqueFd> ConnectUnix(int directory_fd, const std::string& name) {
  ASSIGN_OR_RETURN(sockaddr_un address, UnixAddress(directory_fd, name));
  ASSIGN_OR_RETURN(UniqueFd fd, NewUnixSocket());
  int result;
  do {
    result = ::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address));
  } while (result < 0 && errno == EINTR);
  if (result == 0) return fd;
  if (errno == ECONNREFUSED)
    return absl::UnavailableError(absl::StrCat("connect ", name, ": ", std::strerror(errno)));
  if (errno == EAGAIN)
    return absl::ResourceExhaustedError(absl::StrCat("connect ", name, ": its backlog is full"));
  return ErrnoStatus(errno, absl::StrCat("connect ", name));
}

absl::StatusOr<UniqueFd> ConnectUnix(const std::string& path) {
  SplitPath split = Split(path);
  ASSIGN_OR_RETURN(UniqueFd directory, OpenDirectory(split.directory));
  return ConnectUnix(directory.get(), split.name);
}

absl::StatusOr<PeerCredentials> PeerCredentialsOf(int socket_fd) {
  ucred credentials{};
  socklen_t size = sizeof(credentials);
  if (::getsockopt(socket_fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size) < 0) {
    return ErrnoStatus(errno, "getsockopt(SO_PEERCRED)");
  }
  return PeerCredentials{credentials.pid, credentials.uid, credentials.gid};
}

absl::Status SendFd(int socket_fd, int fd) {
  FdMessage out;
  cmsghdr* header = CMSG_FIRSTHDR(&out.message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &fd, sizeof(int));
  ssize_t sent = 0;
  do {
    sent = ::sendmsg(socket_fd, &out.message, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent == 1 ? absl::OkStatus() : ErrnoStatus(errno, "sendmsg(SCM_RIGHTS)");
}

absl::Status SendFds(int socket_fd, std::string_view message, std::span<const int> fds) {
  CHECK(!message.empty() && !fds.empty() && fds.size() <= kMaxSentFds);
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxSentFds * sizeof(int))] = {};
  iovec text{const_cast<char*>(message.data()), message.size()};
  msghdr out{};
  out.msg_iov = &text;
  out.msg_iovlen = 1;
  out.msg_control = control;
  out.msg_controllen = CMSG_SPACE(fds.size_bytes());
  cmsghdr* header = CMSG_FIRSTHDR(&out);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(fds.size_bytes());
  std::memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());
  ssize_t sent = 0;
  do {
    sent = ::sendmsg(socket_fd, &out, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(message.size()) ? absl::OkStatus()
                                                      : ErrnoStatus(errno, "sendmsg(SCM_RIGHTS)");
}

absl::StatusOr<UniqueFd> ReceiveFd(int socket_fd) {
  FdMessage in;
  ssize_t got = 0;
  do {
    got = ::recvmsg(socket_fd, &in.message, MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
    return absl::UnavailableError("nothing has arrived");
  if (got < 0) return absl::InternalError(absl::StrCat("recvmsg: ", std::strerror(errno)));
  const cmsghdr* header = CMSG_FIRSTHDR(&in.message);
  if (header == nullptr || header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS ||
      header->cmsg_len != CMSG_LEN(sizeof(int))) {
    return absl::InvalidArgumentError("no descriptor was sent");
  }
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(header), sizeof(int));
  return UniqueFd(fd);
}

}  // namespace regroup::io
