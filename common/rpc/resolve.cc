#include "common/rpc/resolve.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <signal.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>

#include "common/base/status_macros.h"
#include "common/io/thread.h"

namespace regroup {
namespace {

absl::Status ResolverError(const std::string& host, int code) {
  const std::string text = "name " + host + " cannot be resolved: " +
                           (code == EAI_SYSTEM ? std::strerror(errno) : gai_strerror(code));
  if (code == EAI_NONAME || code == EAI_NODATA) return absl::NotFoundError(text);
  return absl::UnavailableError(text);
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ResolveHost(const std::string& host) {
  if (host.empty()) return absl::InvalidArgumentError("the host's name is empty");
  if (io::IsIp(host)) {
    ASSIGN_OR_RETURN(std::string literal, io::CanonicalIp(host));
    return std::vector<std::string>{literal};
  }
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int code = getaddrinfo(host.c_str(), nullptr, &hints, &found); code != 0)
    return ResolverError(host, code);
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
  std::vector<std::string> literals;
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    char text[NI_MAXHOST];
    if (getnameinfo(entry->ai_addr, entry->ai_addrlen, text, sizeof text, nullptr, 0,
                    NI_NUMERICHOST) != 0)
      continue;
    absl::StatusOr<std::string> literal = io::CanonicalIp(text);
    if (literal.ok() && std::find(literals.begin(), literals.end(), *literal) == literals.end()) {
      literals.push_back(*literal);
    }
  }
  if (literals.empty()) return absl::NotFoundError("name " + host + " has no IPv4 or IPv6 address");
  return literals;
}

absl::StatusOr<std::vector<Address>> Resolve(const io::HostPort& endpoint) {
  ASSIGN_OR_RETURN(std::vector<std::string> literals, ResolveHost(endpoint.host));
  std::vector<Address> addresses;
  for (std::string& literal : literals) addresses.push_back({std::move(literal), endpoint.port});
  return addresses;
}

void ResolveLater(io::HostPort endpoint,
                  const std::function<void(absl::StatusOr<std::vector<Address>>)>& done) {
  absl::StatusOr<std::thread> thread = io::StartThread([endpoint = std::move(endpoint), done] {
    // Signals belong to the daemon's loop.
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
    done(Resolve(endpoint));
  });
  if (!thread.ok()) return done(thread.status());
  thread->detach();
}

}  // namespace regroup
