#include "launcher/coordinator/shell/own_connections.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <chrono>
#include <cstring>
#include <map>
#include <thread>

#include "common/io/fd.h"
#include "launcher/coordinator/shell/tcp_gate.h"

namespace regroup::coordinator {
namespace {

constexpr int kUnreadBytes = 16 << 10;  // As a heartbeat's answer is not.
constexpr auto kWhile = std::chrono::milliseconds(500);

std::uint16_t PortOf(const io::SocketAddress& name) {
  if (name.storage.ss_family == AF_INET)
    return reinterpret_cast<const sockaddr_in&>(name.storage).sin_port;
  if (name.storage.ss_family == AF_INET6)
    return reinterpret_cast<const sockaddr_in6&>(name.storage).sin6_port;
  return 0;
}

bool NameOf(int fd, io::SocketAddress& name) {
  name.size = sizeof name.storage;
  return ::getsockname(fd, name.get(), &name.size) == 0;
}

bool IsUnix(int fd) {
  io::SocketAddress name;
  return NameOf(fd, name) && name.storage.ss_family == AF_UNIX;
}

}  // namespace

void OwnConnections::Add(int listening_fd) {
  io::SocketAddress name;
  if (NameOf(listening_fd, name)) listening_.push_back(name);
}

// One that was accepted has the name of the socket that listens, of TCP its port.
bool OwnConnections::AreOurs(int fd) const {
  io::SocketAddress name;
  if (!NameOf(fd, name)) return false;
  for (const io::SocketAddress& own : listening_) {
    if (own.storage.ss_family != AF_UNIX && PortOf(own) != 0 && PortOf(own) == PortOf(name))
      return true;
    if (own.storage.ss_family == AF_UNIX && own.size == name.size &&
        std::memcmp(&own.storage, &name.storage, own.size) == 0)
      return true;
  }
  return false;
}

int OwnConnections::EndUnread(const std::set<std::string>& grpc_peers) const {
  std::set<std::string> peers;
  bool any_unix = false;
  for (const std::string& peer : grpc_peers) {
    peers.insert(PeerText(peer));
    // Only callers over TCP have an address in gRPC's name.
    any_unix = any_unix || peer == PeerText(peer);
  }
  std::map<ino_t, int> unread;  // Of the Unix socket: what waited before.
  const auto look = [&](bool again) {
    return io::ShutDownSockets([&, again](int fd) {
      if (!AreOurs(fd)) return false;
      if (!IsUnix(fd)) {
        const absl::StatusOr<Address> peer = io::PeerAddressOf(fd);
        return peer.ok() && peers.count(io::FormatAddress(*peer)) > 0;
      }
      struct stat which {};
      int waits = 0;
      if (::fstat(fd, &which) != 0 || ::ioctl(fd, SIOCOUTQ, &waits) != 0) return false;
      if (again) return waits >= kUnreadBytes && unread[which.st_ino] == waits;
      unread[which.st_ino] = waits;
      return false;
    });
  };
  const int ended = look(/*again=*/false);
  if (!any_unix) return ended;
  std::this_thread::sleep_for(kWhile);
  return ended + look(/*again=*/true);
}

int OwnConnections::EndAll() const {
  return io::ShutDownSockets([this](int fd) { return AreOurs(fd); });
}

}  // namespace regroup::coordinator
