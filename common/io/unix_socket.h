#pragma once

#include <sys/types.h>

#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/io/fd.h"

namespace regroup::io {

// Stream sockets in the file system at any path length: sun_path holds 107 bytes only, so they are
// bound and reached through /proc/self/fd/<directory_fd>/<name>. All descriptors are close-on-exec
// and non-blocking.

// Bound and listening, mode 0600. Replaces a socket file of that name which nobody listens on (a
// process that was killed); UNAVAILABLE when somebody does.
absl::StatusOr<UniqueFd> ListenUnix(int directory_fd, const std::string& name, int backlog = 128);
absl::StatusOr<UniqueFd> ListenUnix(const std::string& path, int backlog = 128);

// Connected. UNAVAILABLE when nobody listens, NOT_FOUND without the file, RESOURCE_EXHAUSTED when
// somebody listens who is behind with accepting.
absl::StatusOr<UniqueFd> ConnectUnix(int directory_fd, const std::string& name);
absl::StatusOr<UniqueFd> ConnectUnix(const std::string& path);

// A path of at most 107 bytes that names the same socket for this process as long as `directory_fd`
// is open; for libraries that take a path (gRPC's "unix:").
std::string ShortSocketPath(int directory_fd, const std::string& name);

struct PeerCredentials {
  pid_t pid = 0;
  uid_t uid = 0;
  gid_t gid = 0;
};
// Of the process that called connect() or, for a client, listen().
absl::StatusOr<PeerCredentials> PeerCredentialsOf(int socket_fd);

// One descriptor, with one byte, over a connected Unix socket. ReceiveFd: UNAVAILABLE when nothing
// has arrived, anything else when the other side sent no descriptor or is gone. Close-on-exec.
absl::Status SendFd(int socket_fd, int fd);
absl::StatusOr<UniqueFd> ReceiveFd(int socket_fd);
// One message with up to kMaxSentFds descriptors over a socket that keeps messages apart.
inline constexpr std::size_t kMaxSentFds = 16;
absl::Status SendFds(int socket_fd, std::string_view message, std::span<const int> fds);

}  // namespace regroup::io
