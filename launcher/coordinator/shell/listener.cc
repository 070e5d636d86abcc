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
#include "common/io/proc.h"
#include "common/io/unix_socket.h"

namespace regroup::coordinator {
namespace {

constexpr int kAcceptsPerTurn = 64;
constexpr auto kPause = std::chrono::milliseconds(100);
constexpr auto kSilence = std::chrono::seconds(10);
constexpr std::size_t kUnheard = 4096;     // Beyond it gRPC may wait for their first byte.
constexpr unsigned char kLastOpcode = 18;  // Of a TCPStore (facts: torchelastic.md §4.3).

}  // namespace

Listener::Listener(boost::asio::io_context& io, obs::Logger& log, std::function<bool()> full)
    : io_(io),
      log_(log),
      full_(std::move(full)),
      counting_([&log](const std::string& peer, const std::string& excess, int untold) {
        log.Warning("a connection was cut: too much of it in one second",
                    {{"peer", peer}, {"of", excess}, {"untold", std::to_string(untold)}});
      }) {}

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

void Listener::Start(grpc::experimental::ExternalConnectionAcceptor& acceptor,
                     std::function<void(io::UniqueFd)> take_store_client) {
  acceptor_ = &acceptor;
  take_store_client_ = std::move(take_store_client);
  for (const auto& socket : sockets_) Await(*socket);
}

void Listener::Stop() {
  sockets_.clear();
  unheard_.clear();
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
      log_.Warning("connections cannot be accepted", {{"because", std::strerror(errno)}});
      socket.pause.expires_after(kPause);
      socket.pause.async_wait([this, &socket](const boost::system::error_code& error) {
        if (!error) Await(socket);
      });
      return;
    }
    if (!MayEnter(socket, fd.get())) continue;
    const int listener_fd = socket.descriptor.native_handle();
    if (socket.is_unix) {
      HandOver(fd.release(), listener_fd);
      continue;
    }
    if (full_()) {
      if (const std::optional<int> untold = told_full_.Due(io::MonotonicNow())) {
        log_.Warning("the memory limit is reached: connections over TCP are closed",
                     {{"untold", std::to_string(*untold)}});
      }
      continue;
    }
    const int on = 1;
    setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    Listen(std::move(fd), listener_fd);
  }
  Await(socket);
}

void Listener::Listen(io::UniqueFd fd, int listener_fd) {
  if (unheard_.size() >= kUnheard) return HandOverTcp(std::move(fd), listener_fd);
  auto unheard = std::make_shared<Unheard>(io_, listener_fd);
  boost::system::error_code failed;
  unheard->descriptor.assign(fd.get(), failed);
  if (failed) return;  // The kernel watches no more descriptors; the peer dials again.
  fd.release();
  unheard->at = unheard_.insert(unheard_.end(), unheard);
  unheard->limit.expires_after(kSilence);
  unheard->limit.async_wait(
      [this, weak = std::weak_ptr(unheard)](const boost::system::error_code& error) {
        const std::shared_ptr<Unheard> late = weak.lock();
        if (!error && late && late->descriptor.is_open()) Forget(*late);
      });
  unheard->descriptor.async_wait(
      boost::asio::posix::stream_descriptor::wait_read,
      [this, weak = std::weak_ptr(unheard)](const boost::system::error_code& error) {
        const std::shared_ptr<Unheard> spoke = weak.lock();
        if (!error && spoke && spoke->descriptor.is_open()) Hear(spoke);
      });
}

void Listener::Hear(const std::shared_ptr<Unheard>& unheard) {
  unsigned char first = 0;
  const ssize_t got = recv(unheard->descriptor.native_handle(), &first, 1, MSG_PEEK);
  if (got == 1) {
    io::UniqueFd fd(unheard->descriptor.release());
    if (first <= kLastOpcode) {
      take_store_client_(std::move(fd));
    } else {
      HandOverTcp(std::move(fd), unheard->listener_fd);
    }
  }
  Forget(*unheard);
}

void Listener::Forget(Unheard& unheard) {
  unheard.limit.cancel();
  boost::system::error_code ignored;
  unheard.descriptor.close(ignored);
  unheard_.erase(unheard.at);
}

void Listener::HandOverTcp(io::UniqueFd fd, int listener_fd) {
  absl::StatusOr<io::UniqueFd> counted = counting_.Admit(std::move(fd));
  if (counted.ok()) return HandOver(counted->release(), listener_fd);
  // Its peer is gone already, or there are no descriptors; it dials again.
  if (const std::optional<int> untold = told_closed_.Due(io::MonotonicNow())) {
    log_.Warning("a connection was closed", {{"because", std::string(counted.status().message())},
                                             {"untold", std::to_string(*untold)}});
  }
}

void Listener::HandOver(int fd, int listener_fd) {
  grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
  connection.listener_fd = listener_fd;
  connection.fd = fd;
  acceptor_->HandleNewConnection(&connection);
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
