#include "agent/store/server.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/io/address.h"

namespace regroup::store {
namespace {

constexpr ConnectionId kListenerId = 0;
constexpr std::size_t kReadBytes = 64 << 10;
constexpr std::size_t kPauseReadingAt =
    1u << 20;  // Unsent bytes: who does not take answers may not ask for more.
constexpr int kEvents = 256, kAcceptsPerTurn = 256, kReadsPerTurn = 16;

// A host that lost its power says no goodbye: without this its connection, and the keys of its job,
// would stay for good. Ten minutes, since a client whose network was away for less goes on, and
// could not dial again.
void NoticeItsEnd(int fd) {
  const int on = 1, every_s = 60, times = 10;
  ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &every_s, sizeof every_s);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every_s, sizeof every_s);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &times, sizeof times);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Create(io::UniqueFd listener,
                                                       ServerOptions options) {
  CHECK(options.log);
  std::unique_ptr<Server> server(new Server(std::move(listener), std::move(options)));
  server->epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
  if (!server->epoll_) return io::ErrnoStatus(errno, "set up store");
  if (!server->listener_) return server;
  RETURN_IF_ERROR(io::SetNonBlocking(server->listener_.get(), true));
  ASSIGN_OR_RETURN(Address own, io::LocalAddressOf(server->listener_.get()));
  server->allowed_.insert(
      own.host);  // This host's own workers come from the address they connect to.
  for (const std::string& member : server->options_.members) {
    ASSIGN_OR_RETURN(std::string ip, io::CanonicalIp(member));
    server->allowed_.insert(ip);
  }
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kListenerId;
  if (::epoll_ctl(server->epoll_.get(), EPOLL_CTL_ADD, server->listener_.get(), &event) < 0) {
    return io::ErrnoStatus(errno, "set up store");
  }
  return server;
}

void Server::CloseListener() { listener_.reset(); }

void Server::Log(const std::string& line) {
  if (lines_left_ <= 0) return;
  --lines_left_;
  options_.log(lines_left_ > 0 ? line : absl::StrCat(line, " (further lines are left out)"));
}

void Server::HandleReady() {
  epoll_event events[kEvents];
  int n = ::epoll_wait(epoll_.get(), events, kEvents, 0);
  for (int i = 0; i < n; ++i) {
    const ConnectionId id = events[i].data.u64;
    if (id == kListenerId) {
      if (listener_) AcceptSome();
      continue;
    }
    auto found = connections_.find(id);
    if (found == connections_.end() || found->second.broken) continue;
    if ((events[i].events & EPOLLOUT) != 0) Flush(found->second, id);
    if ((events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0 && !found->second.broken)
      Read(id, found->second);
  }
  SweepBroken();
}

void Server::AcceptSome() {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    io::SocketAddress peer;
    peer.size = sizeof(peer.storage);
    io::UniqueFd fd(
        ::accept4(listener_.get(), peer.get(), &peer.size, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd) return;
    absl::StatusOr<Address> address = io::FromSocketAddress(peer);
    if (!address.ok()) continue;
    if (!allowed_.contains(address->host)) {
      Log(absl::StrCat("store: refused ", io::FormatAddress(*address),
                       ": not a member of this generation"));
      continue;
    }
    Take(std::move(fd), *address);
  }
}

void Server::Adopt(io::UniqueFd connection) {
  const absl::StatusOr<Address> peer = io::PeerAddressOf(connection.get());
  if (!peer.ok() || !io::SetNonBlocking(connection.get(), true).ok()) return;
  Take(std::move(connection), *peer);
}

void Server::Take(io::UniqueFd fd, const Address& peer) {
  if (connections_.size() >= options_.max_connections) {
    return Log(absl::StrCat("store: refused ", io::FormatAddress(peer), ": ", connections_.size(),
                            " connections are open"));
  }
  const int on = 1;
  ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  NoticeItsEnd(fd.get());
  const ConnectionId id = next_id_++;
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = id;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd.get(), &event) < 0) return;
  Connection connection;
  connection.fd = std::move(fd);
  connection.peer = io::FormatAddress(peer);
  connection.watched = EPOLLIN;
  connections_.emplace(id, std::move(connection));
  engine_.Open(id);
}

void Server::Read(ConnectionId id, Connection& connection) {
  char buffer[kReadBytes];
  for (int i = 0; i < kReadsPerTurn && !connection.broken; ++i) {
    if (connection.unsent.size() - connection.sent > kPauseReadingAt) return;
    ssize_t n = ::recv(connection.fd.get(), buffer, sizeof(buffer), 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (n <= 0) return Break(id, connection);
    std::vector<Reply> replies;
    absl::Status obeyed = engine_.OnBytes(id, {buffer, static_cast<std::size_t>(n)}, replies);
    Deliver(replies);  // Also those before a violation.
    if (!obeyed.ok()) {
      const std::string line =
          absl::StrCat("store: closed ", connection.peer, ": it ", obeyed.message());
      Log(line);
      if (absl::IsUnimplemented(obeyed) && options_.on_old_client) options_.on_old_client(line);
      return Break(id, connection);
    }
    if (static_cast<std::size_t>(n) < sizeof(buffer)) return;
  }
}

void Server::Deliver(const std::vector<Reply>& replies) {
  for (const Reply& reply : replies) {
    auto found = connections_.find(reply.connection);
    if (found == connections_.end() || found->second.broken) continue;
    found->second.unsent += reply.bytes;
    Flush(found->second, reply.connection);
  }
}

void Server::Flush(Connection& connection, ConnectionId id) {
  while (connection.sent < connection.unsent.size()) {
    ssize_t n = ::send(connection.fd.get(), connection.unsent.data() + connection.sent,
                       connection.unsent.size() - connection.sent, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (n < 0) return Break(id, connection);
    connection.sent += static_cast<std::size_t>(n);
  }
  if (connection.sent == connection.unsent.size()) {
    connection.unsent.clear();
    connection.sent = 0;
  }
  const std::size_t waiting = connection.unsent.size() - connection.sent;
  if (waiting > options_.max_unsent_bytes) {
    Log(absl::StrCat("store: closed ", connection.peer, ": it leaves ", waiting,
                     " bytes of answers unread"));
    return Break(id, connection);
  }
  const std::uint32_t wanted =
      (waiting > kPauseReadingAt ? 0u : static_cast<std::uint32_t>(EPOLLIN)) |
      (waiting > 0 ? static_cast<std::uint32_t>(EPOLLOUT) : 0u);
  if (wanted == connection.watched) return;
  epoll_event event{};
  event.events = wanted;
  event.data.u64 = id;
  connection.watched = wanted;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, connection.fd.get(), &event) < 0)
    Break(id, connection);
}

// Closed at the end of the turn: somebody up the stack may still hold the connection.
void Server::Break(ConnectionId id, Connection& connection) {
  if (connection.broken) return;
  connection.broken = true;
  broken_.push_back(id);
}

void Server::SweepBroken() {
  for (ConnectionId id : broken_) {
    engine_.Close(id);
    connections_.erase(id);
  }
  broken_.clear();
}

}  // namespace regroup::store
