#pragma once

// The coordinators that run on this host for this user. Each holds the lock of its folder for life
// (places.h) and writes into it where it listens; by that lock it is found whatever state directory
// it was given, so that agents and commands of its host can use its Unix socket whatever address of
// it they were told.

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/control.h"
#include "common/io/address.h"

namespace regroup {

// The text of a coordinator's lock. It stays there when the coordinator has ended.
struct CoordinatorLock {
  pid_t pid = 0;
  std::vector<Address> listening;  // Empty: on its Unix socket only.
  std::string command;             // That starts a service again; empty: a launch command did.
  friend bool operator==(const CoordinatorLock&, const CoordinatorLock&) = default;
};
std::string FormatCoordinatorLock(const CoordinatorLock& lock);
// Unset when the text is none of ours.
std::optional<CoordinatorLock> ParseCoordinatorLock(std::string_view text);
// Of the coordinator that runs or last ran in `folder`.
std::optional<CoordinatorLock> ReadCoordinatorLock(const std::string& folder);

// The token that lies in `folder`.
absl::StatusOr<std::string> ReadCoordinatorToken(const std::string& folder);

struct LocalCoordinator {
  std::string folder;  // <state>/coordinator-<port> or <state>/coordinator-local.
  CoordinatorLock lock;
  bool ad_hoc() const { return lock.command.empty(); }
  std::string Socket() const;
};

// All that run now as this very user (root sees those of root only) in this network namespace, in
// the order of their folders. Reads /proc.
std::vector<LocalCoordinator> LocalCoordinators();

// The one of them that listens at `endpoint`. Unset when there is none; then it runs elsewhere, for
// another user, or not at all. May resolve a name, and so block, where one of them has that port.
std::optional<LocalCoordinator> FindLocalCoordinator(const io::HostPort& endpoint);

// Does a coordinator that listens at `listening` serve this address of its host?
bool ServedBy(const std::vector<Address>& listening, const Address& address);

}  // namespace regroup
