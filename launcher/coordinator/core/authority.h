#pragma once

// Who may call what: one table, asked by every handler. What is not in it is denied.

#include <span>
#include <string_view>

namespace regroup::coordinator {

enum class Caller {
  kHost,    // The coordinator's own user, or root, over its Unix socket.
  kToken,   // Over TCP, with the token shown.
  kAnyone,  // Over TCP under --insecure.
};

struct Authority {
  std::string_view call;
  bool host, token, anyone;
};
// In the order of the service.
std::span<const Authority> AuthorityTable();

// `call`: a method of the service Coordinator.
bool MayCall(Caller caller, std::string_view call);

}  // namespace regroup::coordinator
