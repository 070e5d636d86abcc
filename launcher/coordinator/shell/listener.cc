#include "launcher/coordinator/shell/listener.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "common/base/status_macros.h"
#include "common/io/address.h"
#include "common/io/files.h"
#include "common/io/unix_socket.h"

namespace regroup::coordinator {
namespace {

constexpr int kAcceptsPerTurn = 64;
constexpr auto kPause = std::chrono::milliseconds(100);

}  // namespace

absl::Status Listener::ListenTcp(Address& address) {
  ASSIGN_OR_RETURN(io::UniqueFd fd, io::ListenTcp(address));
  ASSIGN_OR_RETURN(address, io::LocalAddressOf(fd.get()));
  sockets_.push_back(std::make_unique<Socket>(io_, fd.release(), false));
  return absl::OkStatus();
}

absl::Status Listener::ListenUnix(const std::string& directory, const std::string& name) {
  ASSIGN_OR_RETURN(const io::UniqueFd opened, io::OpenDirectory(directory));
  ASSIGN_OR_RETURN(io::UniqueFd fd, io::ListenUnix(opened.get(), name, 4096));
  sockets_.push_back(std::make_unique<Socket>(io_, fd.release(), true));
  return absl::OkStatus();
}

void Listener::Start(grpc::experimental::ExternalConnectionAcceptor& acceptor) {
  acceptor_ = &acceptor;
  for (const auto& socket : sockets_) Await(*socket);
}

void Listener::Stop() {
  pause_timer_.cancel();
  sockets_.clear();
  acceptor_ = nullptr;
}

void Listener::Await(Socket& socket) {
  socket.descriptor.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                               [this, &socket](const boost::system::error_code& error) {
                                 if (!error) AcceptSome(socket);
                               });
}

void Listener::AcceptSome(Socket& socket) {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    io::UniqueFd fd(
        accept4(socket.descriptor.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) break;
      // No descriptors or memory now: what waits stays in the backlog.
      log_.Warning("connections can't be accepted", {{"because", std::strerror(errno)}});
      pause_timer_.expires_after(kPause);
      pause_timer_.async_wait([this](const boost::system::error_code& error) {
        if (error) return;
        for (const auto& each : sockets_) Await(*each);
      });
      return;
    }
    if (!MayEnter(socket, fd.get())) continue;
    if (!socket.is_unix) {
      const int on = 1;
      setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    }
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
    connection.listener_fd = socket.descriptor.native_handle();
    connection.fd = fd.release();
    acceptor_->HandleNewConnection(&connection);
  }
  Await(socket);
}

bool Listener::MayEnter(const Socket& socket, int fd) {
  if (!socket.is_unix) return true;
  const absl::StatusOr<io::PeerCredentials> peer = io::PeerCredentialsOf(fd);
  if (peer.ok() && (peer->uid == geteuid() || peer->uid == 0)) return true;
  log_.Warning("a process of another user was turned away",
               {{"uid", peer.ok() ? std::to_string(peer->uid) : "?"},
                {"pid", peer.ok() ? std::to_string(peer->pid) : "?"}});
  return false;
}

}  // namespace regroup::coordinator
