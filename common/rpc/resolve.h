#pragma once

// Names to IP literals, by the system's resolver, before anything is dialled: gRPC's own resolver
// caches for 30 s and knows nothing of /etc/hosts changes. Blocks, so it runs on a thread of its
// own.

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/control.h"
#include "common/base/time.h"
#include "common/io/address.h"

namespace regroup {

// IP literals of a name, in the resolver's order, without repeats; a literal is its own answer.
// UNAVAILABLE when the resolver can't say now, NOT_FOUND when it says that there is no such name.
// May block for the resolver's own time.
absl::StatusOr<std::vector<std::string>> ResolveHost(const std::string& host);
absl::StatusOr<std::vector<Address>> Resolve(const io::HostPort& endpoint);

// The same on a thread of its own; `done` is called there, once; or at once where there is none to
// have. The thread is detached: a resolver that hangs holds nobody. `done` must not refer to
// anything that may be gone by then.
void ResolveLater(io::HostPort endpoint,
                  const std::function<void(absl::StatusOr<std::vector<Address>>)>& done);

}  // namespace regroup
