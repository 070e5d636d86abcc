#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/base/control.h"
#include "common/io/fd.h"

namespace regroup::io {

// "10.0.0.4:29400", "[fe80::1%eth0]:29400". Only IP literals; names are resolved elsewhere, off the
// loop.
absl::StatusOr<Address> ParseAddress(std::string_view text);
std::string FormatAddress(const Address& address);
// Host and port of user input, a name or a literal: "node0", "node0:29400", "[::1]:1", "::1".
struct HostPort {
  std::string host;
  std::uint16_t port = 0;
};
absl::StatusOr<HostPort> ParseHostPort(std::string_view text, std::uint16_t default_port);

// Is it an IPv4 or IPv6 literal? Canonical form of one; "::ffff:10.0.0.4" becomes "10.0.0.4".
bool IsIp(std::string_view text);
absl::StatusOr<std::string> CanonicalIp(std::string_view text);
bool IsLoopback(std::string_view ip);
bool IsWildcard(std::string_view ip);  // 0.0.0.0, ::

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};
absl::StatusOr<SocketAddress> ToSocketAddress(const Address& address);
absl::StatusOr<Address> FromSocketAddress(const SocketAddress& address);  // Canonical.
absl::StatusOr<Address> LocalAddressOf(int socket_fd);
absl::StatusOr<Address> PeerAddressOf(int socket_fd);

// The local IP that packets to `peer` leave from (a connected UDP socket; nothing is sent).
absl::StatusOr<std::string> LocalIpTowards(const Address& peer);
// Name of the interface that owns this IP, as in GLOO_SOCKET_IFNAME. NOT_FOUND: this host does not
// have the IP.
absl::StatusOr<std::string> InterfaceOwning(std::string_view ip);

struct PortRange {
  std::uint16_t first = 0, last = 0;  // 0-0: the kernel chooses.
  friend bool operator==(const PortRange&, const PortRange&) = default;
};
absl::StatusOr<PortRange> ParsePortRange(std::string_view text);  // "A-B", 1 <= A <= B.

// Bound to exactly this address and listening; close-on-exec, non-blocking, no SO_REUSEPORT, IPv6
// sockets are v6 only. ALREADY_EXISTS: the port is taken.
absl::StatusOr<UniqueFd> ListenTcp(const Address& address, int backlog = 4096);
// Its two halves. No one else can listen at what is bound (unless he bound it as well before either
// listened: the second to listen is told ALREADY_EXISTS), and who dials it is refused until it
// listens.
absl::StatusOr<UniqueFd> BindTcp(const Address& address);
absl::Status ListenAt(int bound_fd, int backlog = 4096);
// As ListenTcp at some free port of the range. RESOURCE_EXHAUSTED names the range when all are
// taken.
absl::StatusOr<UniqueFd> ListenTcpInRange(const std::string& ip, PortRange range,
                                          int backlog = 4096);

}  // namespace regroup::io
