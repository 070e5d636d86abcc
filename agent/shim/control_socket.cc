#include "agent/shim/control_socket.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "common/base/status_macros.h"
#include "common/io/unix_socket.h"

namespace regroup::shim {
namespace {

constexpr std::size_t kMaxClients =
    8;  // More push the oldest out: a broken agent must not lock a working one out.
constexpr std::size_t kCommandBytes = 16 << 10;

}  // namespace

absl::StatusOr<ControlSocket> ControlSocket::Open(int epoll_fd, io::UniqueFd listener,
                                                  std::string nonce) {
  RETURN_IF_ERROR(io::SetNonBlocking(listener.get(), true));
  if (::listen(listener.get(), 128) < 0) return io::ErrnoStatus(errno, "listen at shim socket");
  RETURN_IF_ERROR(io::Watch(epoll_fd, listener.get(), EPOLLIN));
  return ControlSocket(epoll_fd, std::move(listener), std::move(nonce));
}

void ControlSocket::AcceptAll() {
  for (;;) {
    io::UniqueFd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd && errno == EINTR) continue;
    if (!fd) return;
    absl::StatusOr<io::PeerCredentials> peer = io::PeerCredentialsOf(fd.get());
    if (!peer.ok() || (peer->uid != ::geteuid() && peer->uid != 0)) continue;
    if (clients_.size() >= kMaxClients) {
      auto older = [](const auto& a, const auto& b) { return a.second.number < b.second.number; };
      clients_.erase(std::min_element(clients_.begin(), clients_.end(), older));
    }
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = fd.get();
    if (::epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd.get(), &event) < 0) continue;
    const int key = fd.get();
    Client client;
    client.fd = std::move(fd);
    client.number = next_number_++;
    clients_.emplace(key, std::move(client));
  }
}

std::vector<Command> ControlSocket::OnEvent(int fd, std::uint32_t events) {
  std::vector<Command> commands;
  if (fd == listener_.get()) {
    AcceptAll();
    return commands;
  }
  auto found = clients_.find(fd);
  if (found == clients_.end()) return commands;
  Client& client = found->second;
  bool alive = true;
  if ((events & EPOLLOUT) != 0) alive = Flush(client);
  if (alive && (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) alive = Read(client, commands);
  if (!alive) clients_.erase(found);
  return commands;
}

bool ControlSocket::Read(Client& client, std::vector<Command>& commands) {
  for (;;) {
    char buffer[kCommandBytes];
    ssize_t n = ::recv(client.fd.get(), buffer, sizeof(buffer), 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
    if (n == 0) return false;
    client.incoming.append(buffer, static_cast<std::size_t>(n));
    if (!TakeCommands(client, commands)) return false;
  }
}

bool ControlSocket::TakeCommands(Client& client, std::vector<Command>& commands) {
  absl::StatusOr<std::vector<std::string>> bodies = TakeFrames(client.incoming);
  if (!bodies.ok()) return false;
  for (const std::string& body : *bodies) {
    absl::StatusOr<Command> command = DecodeCommand(body);
    // A newer agent may know commands that came later; it sees from the version that they do
    // nothing here.
    if (absl::IsUnimplemented(command.status()) && client.greeted) continue;
    if (!command.ok()) return false;
    if (const auto* hello = std::get_if<Hello>(&*command)) {
      if (hello->nonce != nonce_) return false;
      client.greeted = client.asks = true;
      client.wants_output = hello->wants_output;
    } else if (!client.greeted) {
      return false;
    } else if (std::holds_alternative<Query>(*command)) {
      client.asks = true;
    } else {
      commands.push_back(*std::move(command));
    }
  }
  return true;
}

bool ControlSocket::Asked() const {
  return std::any_of(clients_.begin(), clients_.end(),
                     [](const auto& entry) { return entry.second.asks; });
}

bool ControlSocket::OutputWanted() const {
  return std::any_of(clients_.begin(), clients_.end(),
                     [](const auto& entry) { return entry.second.wants_output; });
}

bool ControlSocket::HasAgent() const {
  return std::any_of(clients_.begin(), clients_.end(),
                     [](const auto& entry) { return entry.second.greeted; });
}

void ControlSocket::Send(const State& state, To to) {
  const std::string frame = Frame(Encode(state));
  for (auto it = clients_.begin(); it != clients_.end();) {
    Client& client = it->second;
    const bool wanted =
        to == To::kAll || client.asks || (to == To::kOutputWanting && client.wants_output);
    bool alive = true;
    if (client.greeted && wanted) {
      client.asks = false;
      client.next = frame;
      alive = Flush(client);
    }
    it = alive ? std::next(it) : clients_.erase(it);
  }
}

bool ControlSocket::Flush(Client& client) {
  while (!client.sending.empty() || !client.next.empty()) {
    if (client.sending.empty()) client.sending = std::exchange(client.next, {});
    ssize_t n = ::send(client.fd.get(), client.sending.data(), client.sending.size(), MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK) return false;
    if (n < 0) break;
    client.sending.erase(0, static_cast<std::size_t>(n));
  }
  const bool waits = !client.sending.empty();
  if (waits == client.watched_for_write) return true;
  epoll_event event{};
  event.events = EPOLLIN | (waits ? static_cast<std::uint32_t>(EPOLLOUT) : 0u);
  event.data.fd = client.fd.get();
  client.watched_for_write = waits;
  return ::epoll_ctl(epoll_fd_, EPOLL_CTL_MOD, client.fd.get(), &event) == 0;
}

}  // namespace regroup::shim
