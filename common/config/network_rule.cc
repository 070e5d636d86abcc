#include "common/config/network_rule.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <string>

#include "common/config/token.h"
#include "common/config/values.h"

namespace regroup {

bool IsLoopback(std::string_view host) {
  std::string name(host);
  if (name == "localhost") return true;
  in_addr v4{};
  if (::inet_pton(AF_INET, name.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  in6_addr v6{};
  if (::inet_pton(AF_INET6, name.c_str(), &v6) != 1) return false;
  bool mapped = IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == 127;
  return mapped || IN6_IS_ADDR_LOOPBACK(&v6);
}

absl::Status CheckNetworkRule(const Endpoint& endpoint, bool insecure, std::string_view token,
                              std::string_view command) {
  if (insecure || !token.empty() || IsLoopback(endpoint.host)) return absl::OkStatus();
  return NeedsToken(FormatEndpoint(endpoint.host, endpoint.port), command);
}

}  // namespace regroup
