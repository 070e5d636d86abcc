#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace regroup {

struct StateDirectory {
  std::string path;    // Absolute.
  std::string notice;  // Not empty: why it is not where one would look for it; to be shown once.
};

// CLI.md, State directory: `given` if not empty; for a service /var/lib/regroup when root, else
// ${XDG_STATE_HOME:-~/.local/state}/regroup/<host>; where that is a network file system
// /var/tmp/regroup-<uid>/<host>. Looks only; makes nothing.
absl::StatusOr<StateDirectory> DefaultStateDirectory(std::string_view given, bool service);

// Makes it and what is missing above it, mode 0700. One of this user that others may enter becomes
// 0700 too where it holds nothing but what is Regroup's (so an empty one); that is told by the
// sentence returned, which is empty otherwise. Any other, and one of another user, is refused.
absl::StatusOr<std::string> MakeStateDirectory(const std::string& path);

bool OnNetworkFileSystem(const std::string& path);  // Of the nearest existing parent.
std::string HostName();       // The node's label by default: gethostname() up to the first dot, as
                              // ValidateNodeName wants it.
std::string HomeDirectory();  // $HOME, else the password file's; empty when neither knows.

}  // namespace regroup
