#include "agent/shim/c10d_host.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <cstdio>

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/io/files.h"
#include "common/io/unix_socket.h"

namespace regroup::shim {
namespace {

constexpr std::string_view kPrefix = "/torch.rendezvous.";
constexpr int kLingerMs = 1000;
constexpr std::size_t kHanders = 256;

bool IsNumber(std::string_view text) {
  for (const char c : text)
    if (std::isdigit(static_cast<unsigned char>(c)) == 0) return false;
  return !text.empty();
}

}  // namespace

std::string RendezvousOf(std::string_view key) {
  if (key.substr(0, kPrefix.size()) != kPrefix) return "";
  key.remove_prefix(kPrefix.size());
  // An id may have dots and slashes of its own; a round is a number before a slash.
  for (std::size_t slash = key.find('/'); slash != std::string_view::npos;
       slash = key.find('/', slash + 1)) {
    const std::size_t dot = key.substr(0, slash).rfind('.');
    if (dot != std::string_view::npos && IsNumber(key.substr(dot + 1, slash - dot - 1)))
      return std::string(key.substr(0, dot));
  }
  return std::string(key);
}

absl::StatusOr<std::unique_ptr<C10dHost>> C10dHost::Create(io::UniqueFd listener) {
  std::unique_ptr<C10dHost> host(new C10dHost(std::move(listener)));
  RETURN_IF_ERROR(host->SetUp());
  return host;
}

absl::Status C10dHost::SetUp() {
  epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_) return io::ErrnoStatus(errno, "set up c10d host");
  store::ServerOptions options;
  options.FitInto(io::RaiseDescriptorLimit(), kHanders + 64);
  options.owner_of = RendezvousOf;
  options.log = [](const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); };
  ASSIGN_OR_RETURN(server_, store::Server::Create({}, std::move(options)));
  RETURN_IF_ERROR(io::Watch(epoll_.get(), server_->epoll_fd(), EPOLLIN));
  return io::Watch(epoll_.get(), listener_.get(), EPOLLIN);
}

void C10dHost::Run() {
  for (;;) {
    const bool idle = server_->connection_count() == 0 && handers_.empty();
    epoll_event events[64];
    const int n = ::epoll_wait(epoll_.get(), events, 64, idle ? kLingerMs : -1);
    CHECK(n >= 0 || errno == EINTR);
    if (n == 0 && idle) return;
    for (int i = 0; i < n; ++i) {
      const int fd = events[i].data.fd;
      if (fd == server_->epoll_fd()) {
        server_->HandleReady();
      } else if (fd == listener_.get()) {
        AcceptHander();
      } else {
        TakeFrom(fd);
      }
    }
  }
}

void C10dHost::AcceptHander() {
  io::UniqueFd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!fd || handers_.size() >= kHanders) return;
  const absl::StatusOr<io::PeerCredentials> peer = io::PeerCredentialsOf(fd.get());
  if (!peer.ok() || (peer->uid != ::geteuid() && peer->uid != 0)) return;
  const int number = fd.get();
  if (io::Watch(epoll_.get(), number, EPOLLIN).ok()) handers_.emplace(number, std::move(fd));
}

void C10dHost::TakeFrom(int hander) {
  const auto found = handers_.find(hander);
  if (found == handers_.end()) return;
  absl::StatusOr<io::UniqueFd> client = io::ReceiveFd(hander);
  if (absl::IsUnavailable(client.status())) return;  // Nothing has arrived yet.
  handers_.erase(found);
  if (!client.ok()) return;
  server_->Adopt(*std::move(client));
}

}  // namespace regroup::shim
