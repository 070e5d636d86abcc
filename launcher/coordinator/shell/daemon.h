#pragma once

// The coordinator as a process: sockets, journal, core, calls.

#include <grpcpp/channel.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/control.h"
#include "launcher/coordinator/shell/coordinator_config.h"

namespace regroup {

// `regroup coordinator`: serves until SIGTERM, SIGINT or SIGHUP (0), until an ad-hoc coordinator
// has nothing left to do (0), or until it can't go on (125; the reason is on standard error and in
// the log). Touches no worker in any case.
int RunCoordinator(const CoordinatorConfig& config);

namespace coordinator {

// The same inside another process, for tests and benchmarks.
class Daemon {
 public:
  // Locks the folder and listens. The error is a UserError.
  static absl::StatusOr<std::unique_ptr<Daemon>> Open(const CoordinatorConfig& config);
  virtual ~Daemon() = default;

  // Serves until stopped; the exit status. Once, on a thread of the caller's.
  virtual int Run(bool catch_signals) = 0;
  // Any thread, also a signal's: commits what is pending and makes Run return.
  virtual void RequestStop() = 0;

  virtual const std::vector<Address>& addresses() const = 0;
  virtual std::string socket_path() const = 0;
  virtual std::string folder() const = 0;
  // A channel that goes round the sockets: for tests of what a caller may do who comes by no way
  // that the listener opens. While it runs; not on its thread.
  virtual std::shared_ptr<grpc::Channel> FromThisProcess() = 0;
};

}  // namespace coordinator
}  // namespace regroup
