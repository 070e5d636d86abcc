#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "common/config/launch_config.h"

namespace regroup {

// "localhost" or a loopback literal. A name that merely resolves to loopback (Debian's 127.0.1.1)
// is another host's address as far as anyone knows.
bool IsLoopback(std::string_view host);

// A coordinator beyond loopback takes who shows its token, or everybody with --insecure (CLI.md,
// Who may talk). The error prints `command` with a place for the token.
absl::Status CheckNetworkRule(const Endpoint& endpoint, bool insecure, std::string_view token,
                              std::string_view command);

}  // namespace regroup
