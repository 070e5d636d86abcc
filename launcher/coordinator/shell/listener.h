#pragma once

// The coordinator's sockets. They listen before anything is served (a connection waits in the
// backlog meanwhile); once started, connections are accepted on the loop and handed to gRPC. On the
// Unix socket only this user and root are let in.

#include <grpcpp/server_builder.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/control.h"
#include "common/io/fd.h"
#include "common/obs/logger.h"

namespace regroup::coordinator {

class Listener {
 public:
  Listener(boost::asio::io_context& io, obs::Logger& log) : io_(io), log_(log), pause_timer_(io) {}

  // Bound and listening when it returns. Port 0: the kernel chooses; `address` is completed.
  absl::Status ListenTcp(Address& address);
  absl::Status ListenUnix(const std::string& directory, const std::string& name);

  // Begins to accept. `acceptor` must outlive this.
  void Start(grpc::experimental::ExternalConnectionAcceptor& acceptor);
  void Stop();

 private:
  struct Socket {
    Socket(boost::asio::io_context& io, int fd, bool is_unix)
        : descriptor(io, fd), is_unix(is_unix) {}
    boost::asio::posix::stream_descriptor descriptor;
    bool is_unix;
  };
  void Await(Socket& socket);
  void AcceptSome(Socket& socket);
  bool MayEnter(const Socket& socket, int fd);

  boost::asio::io_context& io_;
  obs::Logger& log_;
  grpc::experimental::ExternalConnectionAcceptor* acceptor_ = nullptr;
  std::vector<std::unique_ptr<Socket>> sockets_;
  boost::asio::steady_timer pause_timer_;
};

}  // namespace regroup::coordinator
