#include "common/config/network_rule.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <string>

#include "common/base/user_error.h"
#include "common/config/text.h"
#include "common/config/values.h"

namespace regroup {
namespace {

// The flag goes behind the sub-command: `regroup run … PROGRAM` must not hand it to the program.
std::string WithInsecure(std::string_view command) {
  std::size_t first = command.find(' ');
  std::size_t second = first == std::string_view::npos ? first : command.find(' ', first + 1);
  if (second == std::string_view::npos) return Cat(command, " --insecure");
  return Cat(command.substr(0, second), " --insecure", command.substr(second));
}

}  // namespace

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

absl::Status CheckNetworkRule(const Endpoint& endpoint, bool insecure, std::string_view command) {
  if (insecure || IsLoopback(endpoint.host)) return absl::OkStatus();
  return UserError(
      absl::StatusCode::kPermissionDenied,
      Cat(FormatEndpoint(endpoint.host, endpoint.port), " is on another host or may be"),
      "traffic between hosts is not encrypted yet, so it has to be allowed", WithInsecure(command));
}

}  // namespace regroup
