#include "common/io/address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/tcp.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace regroup::io {
namespace {

absl::Status BadAddress(std::string_view text, std::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("'", std::string(text), "' is no address: ", std::string(why)));
}

absl::StatusOr<std::uint16_t> ParsePort(std::string_view text) {
  unsigned port = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (text.empty() || error != std::errc() || end != text.data() + text.size() || port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", std::string(text), "' is no port: 0 to 65535"));
  }
  return static_cast<std::uint16_t>(port);
}

bool ParseIpv4(const std::string& host, std::uint16_t port, SocketAddress& out) {
  auto* v4 = reinterpret_cast<sockaddr_in*>(&out.storage);
  if (::inet_pton(AF_INET, host.c_str(), &v4->sin_addr) != 1) return false;
  v4->sin_family = AF_INET;
  v4->sin_port = htons(port);
  out.size = sizeof(sockaddr_in);
  return true;
}

bool ParseIpv6(const std::string& host, std::uint16_t port, SocketAddress& out) {
  std::string bare = host, scope;
  if (std::size_t percent = host.find('%'); percent != std::string::npos) {
    bare = host.substr(0, percent);
    scope = host.substr(percent + 1);
    if (scope.empty()) return false;
  }
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&out.storage);
  if (::inet_pton(AF_INET6, bare.c_str(), &v6->sin6_addr) != 1) return false;
  if (!scope.empty()) {
    unsigned index = ::if_nametoindex(scope.c_str());
    if (index == 0 && !absl::SimpleAtoi(scope, &index)) return false;
    v6->sin6_scope_id = index;
  }
  v6->sin6_family = AF_INET6;
  v6->sin6_port = htons(port);
  out.size = sizeof(sockaddr_in6);
  return true;
}

absl::StatusOr<Address> NameOf(int socket_fd, int (*call)(int, sockaddr*, socklen_t*),
                               const char* what) {
  SocketAddress address;
  address.size = sizeof(address.storage);
  if (call(socket_fd, address.get(), &address.size) < 0) return ErrnoStatus(errno, what);
  return FromSocketAddress(address);
}

}  // namespace

absl::StatusOr<SocketAddress> ToSocketAddress(const Address& address) {
  SocketAddress out;
  if (ParseIpv4(address.host, address.port, out)) return out;
  out = SocketAddress{};
  if (ParseIpv6(address.host, address.port, out)) return out;
  return BadAddress(address.host, "not an IPv4 or IPv6 literal");
}

absl::StatusOr<Address> FromSocketAddress(const SocketAddress& address) {
  char text[INET6_ADDRSTRLEN] = {};
  if (address.storage.ss_family == AF_INET) {
    auto* v4 = reinterpret_cast<const sockaddr_in*>(&address.storage);
    ::inet_ntop(AF_INET, &v4->sin_addr, text, sizeof(text));
    return Address{text, ntohs(v4->sin_port)};
  }
  if (address.storage.ss_family != AF_INET6) {
    return absl::InvalidArgumentError(
        absl::StrCat("address family ", address.storage.ss_family, " is not IP"));
  }
  auto* v6 = reinterpret_cast<const sockaddr_in6*>(&address.storage);
  const std::uint16_t port = ntohs(v6->sin6_port);
  if (IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr)) {
    ::inet_ntop(AF_INET, &v6->sin6_addr.s6_addr[12], text, sizeof(text));
    return Address{text, port};
  }
  ::inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof(text));
  std::string host = text;
  if (v6->sin6_scope_id != 0) {
    char name[IF_NAMESIZE];
    const char* known = ::if_indextoname(v6->sin6_scope_id, name);
    absl::StrAppend(&host, "%",
                    known != nullptr ? std::string(known) : absl::StrCat(v6->sin6_scope_id));
  }
  return Address{host, port};
}

absl::StatusOr<HostPort> ParseHostPort(std::string_view text, std::uint16_t default_port) {
  HostPort out{.host = std::string(text), .port = default_port};
  if (!text.empty() && text.front() == '[') {
    std::size_t close = text.find(']');
    if (close == std::string_view::npos) return BadAddress(text, "']' is missing");
    out.host = std::string(text.substr(1, close - 1));
    std::string_view rest = text.substr(close + 1);
    if (!rest.empty() && rest.front() != ':') return BadAddress(text, "':' must follow ']'");
    if (!rest.empty()) {
      ASSIGN_OR_RETURN(out.port, ParsePort(rest.substr(1)));
    }
    if (!IsIp(out.host)) return BadAddress(text, "brackets hold an IPv6 address");
  } else if (std::size_t colon = text.find(':');
             colon != std::string_view::npos &&
             text.find(':', colon + 1) == std::string_view::npos) {
    out.host = std::string(text.substr(0, colon));
    ASSIGN_OR_RETURN(out.port, ParsePort(text.substr(colon + 1)));
  } else if (colon != std::string_view::npos && !IsIp(text)) {
    return BadAddress(text, "an IPv6 address with a port needs brackets");
  }
  if (out.host.empty()) return BadAddress(text, "the host is empty");
  return out;
}

absl::StatusOr<Address> ParseAddress(std::string_view text) {
  std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || (text.front() != '[' && text.find(':') != colon)) {
    return BadAddress(text, "IP:PORT or [IPv6]:PORT is needed");
  }
  ASSIGN_OR_RETURN(HostPort parsed, ParseHostPort(text, 0));
  ASSIGN_OR_RETURN(std::string ip, CanonicalIp(parsed.host));
  return Address{ip, parsed.port};
}

std::string FormatAddress(const Address& address) {
  const bool v6 = address.host.find(':') != std::string::npos;
  return v6 ? absl::StrCat("[", address.host, "]:", address.port)
            : absl::StrCat(address.host, ":", address.port);
}

bool IsIp(std::string_view text) { return ToSocketAddress({std::string(text), 0}).ok(); }

absl::StatusOr<std::string> CanonicalIp(std::string_view text) {
  ASSIGN_OR_RETURN(SocketAddress address, ToSocketAddress({std::string(text), 0}));
  ASSIGN_OR_RETURN(Address canonical, FromSocketAddress(address));
  return canonical.host;
}

bool IsLoopback(std::string_view ip) {
  absl::StatusOr<std::string> canonical = CanonicalIp(ip);
  return canonical.ok() && (canonical->rfind("127.", 0) == 0 || *canonical == "::1");
}

bool IsWildcard(std::string_view ip) {
  absl::StatusOr<std::string> canonical = CanonicalIp(ip);
  return canonical.ok() && (*canonical == "0.0.0.0" || *canonical == "::");
}

absl::StatusOr<Address> LocalAddressOf(int socket_fd) {
  return NameOf(socket_fd, ::getsockname, "getsockname");
}
absl::StatusOr<Address> PeerAddressOf(int socket_fd) {
  return NameOf(socket_fd, ::getpeername, "getpeername");
}

absl::StatusOr<std::string> LocalIpTowards(const Address& peer) {
  ASSIGN_OR_RETURN(SocketAddress target,
                   ToSocketAddress({peer.host, peer.port == 0 ? std::uint16_t{9} : peer.port}));
  UniqueFd fd(::socket(target.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd) return ErrnoStatus(errno, "socket(SOCK_DGRAM)");
  if (::connect(fd.get(), target.get(), target.size) < 0) {
    return ErrnoStatus(errno, absl::StrCat("no route to ", peer.host));
  }
  ASSIGN_OR_RETURN(Address local, LocalAddressOf(fd.get()));
  return local.host;
}

absl::StatusOr<std::string> InterfaceOwning(std::string_view ip) {
  ASSIGN_OR_RETURN(std::string wanted, CanonicalIp(ip));
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) < 0) return ErrnoStatus(errno, "getifaddrs");
  std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, &::freeifaddrs);
  for (ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    SocketAddress address;
    address.size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    std::memcpy(&address.storage, entry->ifa_addr, address.size);
    absl::StatusOr<Address> own = FromSocketAddress(address);
    if (own.ok() && own->host == wanted) return std::string(entry->ifa_name);
  }
  return absl::NotFoundError(absl::StrCat("no interface of this host has the address ", wanted));
}

absl::StatusOr<PortRange> ParsePortRange(std::string_view text) {
  std::size_t dash = text.find('-');
  if (dash == std::string_view::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", std::string(text), "' is no port range: A-B"));
  }
  ASSIGN_OR_RETURN(std::uint16_t first, ParsePort(text.substr(0, dash)));
  ASSIGN_OR_RETURN(std::uint16_t last, ParsePort(text.substr(dash + 1)));
  if (first == 0 || last < first) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", std::string(text), "' is no port range: 1 <= A <= B"));
  }
  return PortRange{first, last};
}

namespace {

absl::Status ListenError(const Address& address, int error) {
  if (error == EADDRINUSE)
    return absl::AlreadyExistsError(absl::StrCat(FormatAddress(address), " is in use"));
  return ErrnoStatus(error, absl::StrCat("listen at ", FormatAddress(address)));
}

}  // namespace

absl::StatusOr<UniqueFd> BindTcp(const Address& address) {
  ASSIGN_OR_RETURN(SocketAddress target, ToSocketAddress(address));
  UniqueFd fd(::socket(target.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return ErrnoStatus(errno, "socket(SOCK_STREAM)");
  const int on = 1;
  // REUSEADDR only lifts TIME_WAIT here: two listeners at one port still exclude each other.
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (target.storage.ss_family == AF_INET6) {
    ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on));
  }
  if (::bind(fd.get(), target.get(), target.size) < 0) return ListenError(address, errno);
  return fd;
}

absl::Status ListenAt(int bound_fd, int backlog) {
  if (::listen(bound_fd, backlog) == 0) return absl::OkStatus();
  const int error = errno;
  ASSIGN_OR_RETURN(const Address address, LocalAddressOf(bound_fd));
  return ListenError(address, error);
}

absl::StatusOr<UniqueFd> ListenTcp(const Address& address, int backlog) {
  ASSIGN_OR_RETURN(UniqueFd fd, BindTcp(address));
  RETURN_IF_ERROR(ListenAt(fd.get(), backlog));
  return fd;
}

absl::StatusOr<UniqueFd> ListenTcpInRange(const std::string& ip, PortRange range, int backlog) {
  if (range == PortRange{}) return ListenTcp({ip, 0}, backlog);
  for (unsigned port = range.first; port <= range.last; ++port) {
    absl::StatusOr<UniqueFd> fd = ListenTcp({ip, static_cast<std::uint16_t>(port)}, backlog);
    if (fd.ok() || !absl::IsAlreadyExists(fd.status())) return fd;
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("every port of ", range.first, "-", range.last, " at ", ip, " is in use"));
}

}  // namespace regroup::io
