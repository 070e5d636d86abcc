#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "agent/store/engine.h"
#include "common/base/control.h"
#include "common/io/fd.h"

namespace regroup::store {

struct ServerOptions {
  std::vector<std::string>
      members;  // IPs that may connect; beside them only this host by the listener's own address.
  OwnerOf owner_of = nullptr;
  std::size_t max_connections = 16384;
  // Fewer, so that this many descriptors are enough with `others` beside: a connection beyond is
  // refused; without a descriptor it could not even be accepted, and would be reported for ever.
  void FitInto(std::size_t descriptors, std::size_t others) {
    const std::size_t left = descriptors > 2 * others ? descriptors - others : descriptors / 2;
    max_connections = std::min(max_connections, left);
  }
  std::size_t max_unsent_bytes = 128u << 20;  // Of one connection.
  Limits limits;
  std::function<void(const std::string&)>
      log;  // One line per refused or broken connection, bounded; required.
  // Beside `log`: a client of a PyTorch that is too old; somebody has to install another. Optional.
  std::function<void(const std::string&)> on_old_client;
};

// Serves one keyspace, at one listening socket or to connections that others accepted. One thread,
// non-blocking: wait until epoll_fd() is readable (it can be nested in another epoll), then call
// HandleReady.
class Server {
 public:
  // `listener` may be empty: then connections come by Adopt alone.
  static absl::StatusOr<std::unique_ptr<Server>> Create(io::UniqueFd listener,
                                                        ServerOptions options);
  // A connection from anywhere, of which nothing has been read.
  void Adopt(io::UniqueFd connection);
  int epoll_fd() const { return epoll_.get(); }
  void HandleReady();
  std::size_t connection_count() const { return connections_.size(); }
  // No new connections; those that are there stay.
  void CloseListener();

 private:
  struct Connection {
    io::UniqueFd fd;
    std::string peer;
    std::string unsent;
    std::size_t sent = 0;  // Of `unsent`.
    std::uint32_t watched = 0;
    bool broken = false;
  };
  Server(io::UniqueFd listener, ServerOptions options)
      : options_(std::move(options)),
        engine_(options_.limits, options_.owner_of),
        listener_(std::move(listener)) {}
  void AcceptSome();
  void Take(io::UniqueFd fd, const Address& peer);
  void Read(ConnectionId id, Connection& connection);
  void Deliver(const std::vector<Reply>& replies);
  void Flush(Connection& connection, ConnectionId id);
  void Break(ConnectionId id, Connection& connection);
  void SweepBroken();
  void Log(const std::string& line);

  const ServerOptions options_;
  Engine engine_;
  io::UniqueFd epoll_, listener_;
  std::set<std::string> allowed_;
  std::unordered_map<ConnectionId, Connection> connections_;
  std::vector<ConnectionId> broken_;
  ConnectionId next_id_ = 1;
  int lines_left_ = 1000;
};

}  // namespace regroup::store
