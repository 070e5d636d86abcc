#include "agent/shim/control_socket.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "common/base/status_macros.h"
#include "common/io/unix_socket.h"

namespace regroup::shim {
namespace {

constexpr std::size_t kMaxClients =
    8;  // More push the oldest out: a broken agent must not lock a working one out.
constexpr std::size_t kCommandBytes = 16 << 10;

// As recv(); `fds` are those that came with the last one of the bytes.
ssize_t ReceiveWithFds(int socket, char* buffer, std::size_t size, std::vector<io::UniqueFd>& fds) {
  alignas(cmsghdr) char control[CMSG_SPACE(io::kMaxSentFds * sizeof(int))];
  iovec data{buffer, size};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t n = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  if (n < 0) return n;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      fds.emplace_back(fd);
    }
  }
  return n;
}

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

std::vector<ControlSocket::Received> ControlSocket::OnAll() {
  AcceptAll();
  std::vector<Received> commands;
  for (auto it = clients_.begin(); it != clients_.end();)
    it = Read(it->second, commands) ? std::next(it) : clients_.erase(it);
  return commands;
}

std::vector<ControlSocket::Received> ControlSocket::OnEvent(int fd, std::uint32_t events) {
  std::vector<Received> commands;
  if (fd == listener_.get()) {
    AcceptAll();
    return commands;
  }
  auto found = clients_.find(fd);
  if (found == clients_.end()) return commands;
  Client& client = found->second;
  if ((events & EPOLLOUT) != 0) Flush(client);
  const bool readable = (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0;
  if (readable && !Read(client, commands)) clients_.erase(found);
  return commands;
}

bool ControlSocket::Read(Client& client, std::vector<Received>& commands) {
  for (;;) {
    char buffer[kCommandBytes];
    std::vector<io::UniqueFd> fds;
    ssize_t n = ReceiveWithFds(client.fd.get(), buffer, sizeof(buffer), fds);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
    if (n == 0) return false;
    client.incoming.append(buffer, static_cast<std::size_t>(n));
    if (!TakeCommands(client, std::move(fds), commands)) return false;
  }
}

// The kernel ends a read behind bytes that came with descriptors, so that these belong to the frame
// that the last byte lies in.
bool ControlSocket::TakeCommands(Client& client, std::vector<io::UniqueFd> fds,
                                 std::vector<Received>& commands) {
  absl::StatusOr<std::vector<std::string>> bodies = TakeFrames(client.incoming);
  if (!bodies.ok()) return false;
  for (const std::string& body : *bodies) {
    std::vector<io::UniqueFd> brought = std::exchange(client.fds, {});  // Of the first one, if any.
    const bool last = client.incoming.empty() && &body == &bodies->back();
    if (last) std::move(fds.begin(), fds.end(), std::back_inserter(brought));
    if (last) fds.clear();
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
      if (!std::holds_alternative<Adopt>(*command)) brought.clear();
      commands.push_back({*std::move(command), std::move(brought)});
    }
  }
  std::move(fds.begin(), fds.end(), std::back_inserter(client.fds));
  return client.fds.size() <= io::kMaxSentFds;
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
  for (auto& [fd, client] : clients_) {
    const bool wanted =
        to == To::kAll || client.asks || (to == To::kOutputWanting && client.wants_output);
    if (!client.greeted || !wanted) continue;
    client.asks = false;
    client.next = frame;
    Flush(client);
  }
}

void ControlSocket::Flush(Client& client) {
  while (!client.sending.empty() || !client.next.empty()) {
    if (client.sending.empty()) client.sending = std::exchange(client.next, {});
    ssize_t n = ::send(client.fd.get(), client.sending.data(), client.sending.size(), MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK) return EndAfterReading(client);
    if (n < 0) break;
    client.sending.erase(0, static_cast<std::size_t>(n));
  }
  const bool waits = !client.sending.empty();
  if (waits == client.watched_for_write) return;
  epoll_event event{};
  event.events = EPOLLIN | (waits ? static_cast<std::uint32_t>(EPOLLOUT) : 0u);
  event.data.fd = client.fd.get();
  client.watched_for_write = waits;
  if (::epoll_ctl(epoll_fd_, EPOLL_CTL_MOD, client.fd.get(), &event) < 0) EndAfterReading(client);
}

// One that has closed may have said something before: reading comes to that, and then to the end.
void ControlSocket::EndAfterReading(Client& client) { ::shutdown(client.fd.get(), SHUT_RDWR); }

}  // namespace regroup::shim
