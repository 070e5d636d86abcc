#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "agent/shim/control_socket.h"
#include "agent/shim/protocol.h"
#include "agent/store/server.h"
#include "common/io/fd.h"

namespace regroup::shim {

// The process of one generation's store: adopted, stopped and lifelined like a group's shim, with
// the same messages. kRunning until told to stop (or the lifeline closes); then it takes no new
// connections and ends when the last one is gone, at the deadline at the latest; Kill ends it now.
// By itself it ends once neither client nor agent was there for spec.agent_patience and no process
// holds the lock of its group's run directory.
class StoreHost {
 public:
  struct Fds {
    io::UniqueFd directory, socket, listener, lifeline;  // The last may be empty.
  };
  static absl::StatusOr<std::unique_ptr<StoreHost>> Create(Spec spec, Fds fds);
  void Run();  // Returns when the store is closed, reported as kFree.

 private:
  StoreHost(Spec spec, Fds fds) : spec_(std::move(spec)), fds_(std::move(fds)) {}
  absl::Status SetUp();
  void OnEvent(int fd, std::uint32_t events);
  void OnLifeline();
  void Stop(Instant deadline);
  void Report();
  void EndIfAbandoned();
  bool GroupMayLive() const;
  int MillisecondsLeft() const;

  const Spec spec_;
  Fds fds_;
  io::UniqueFd epoll_;
  std::optional<ControlSocket> control_;
  std::unique_ptr<store::Server> server_;
  std::optional<Instant> stop_deadline_;
  std::optional<Instant> abandoned_due_;  // Set while there is neither client nor agent.
  bool over_ = false;
  std::string trouble_;  // Told to people.
  State reported_;
};

}  // namespace regroup::shim
