#include "launcher/coordinator/shell/listener.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
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
constexpr auto kMoment = std::chrono::milliseconds(1);  // Until the loop has taken some.
constexpr int kBelow = 5;                               // By so much nicer than the loop.
constexpr auto kSilence = std::chrono::seconds(10);
constexpr int kMostTries = kSilence / kPause;  // To hand one over while descriptors lack.
// The kernel ends a connection whose peer has acknowledged, or read, nothing for so long: its host
// may have lost power. Longer than the brake: a network that is cut for a minute ends none.
constexpr int kUntakenMs = 120'000;
constexpr auto kRefrain = std::chrono::milliseconds(100);
constexpr auto kFarewell = std::chrono::milliseconds(500);
constexpr std::size_t kUnheard = 4096;     // Connections that have not come as far as gRPC.
constexpr unsigned char kLastOpcode = 18;  // Of a TCPStore (facts: torchelastic.md §4.3).

// Those who have shown nothing never get more than a quarter of the descriptors: others need some.
std::size_t MostUnheard() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return kUnheard;
  return std::min<std::size_t>(kUnheard, limit.rlim_cur / 4);
}

bool HasHungUp(int fd) {
  pollfd peer{fd, POLLRDHUP, 0};
  return ::poll(&peer, 1, 0) == 1;
}

}  // namespace

Listener::Listener(boost::asio::io_context& io, obs::Logger& log, std::function<bool()> full)
    : io_(io),
      log_(log),
      full_(std::move(full)),
      counting_(
          [&log](const std::string& peer, const std::string& excess, int untold) {
            log.Warning("a connection was cut: too much of it in one second",
                        {{"peer", peer}, {"of", excess}, {"untold", std::to_string(untold)}});
          },
          repute_) {}

absl::Status Listener::BindTcp(Address& address) {
  ASSIGN_OR_RETURN(io::UniqueFd fd, io::BindTcp(address));
  ASSIGN_OR_RETURN(address, io::LocalAddressOf(fd.get()));
  connections_.Add(fd.get());
  sockets_.push_back(std::make_unique<Socket>(aside_, fd.release(), false));
  return absl::OkStatus();
}

absl::Status Listener::ListenTcp() {
  for (const auto& socket : sockets_) {
    if (!socket->is_unix) RETURN_IF_ERROR(io::ListenAt(socket->descriptor.native_handle()));
  }
  return absl::OkStatus();
}

absl::Status Listener::ListenUnix(const std::string& directory, const std::string& name) {
  ASSIGN_OR_RETURN(const io::UniqueFd opened, io::OpenDirectory(directory));
  ASSIGN_OR_RETURN(io::UniqueFd fd, io::ListenUnix(opened.get(), name, 4096));
  connections_.Add(fd.get());
  sockets_.push_back(std::make_unique<Socket>(io_, fd.release(), true));
  return absl::OkStatus();
}

void Listener::Start(grpc::experimental::ExternalConnectionAcceptor& acceptor, Gate gate,
                     std::function<void(io::UniqueFd)> take_store_client) {
  acceptor_ = &acceptor;
  gate_ = std::move(gate);
  take_store_client_ = std::move(take_store_client);
  for (const auto& socket : sockets_) Await(*socket);
  accepting_ = std::thread([this] { AcceptAside(); });
}

void Listener::AcceptAside() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  // Of Linux: one thread's. It fails for no reason that matters here.
  setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), getpriority(PRIO_PROCESS, 0) + kBelow);
  aside_.run();
}

Listener::~Listener() { Stop(); }

void Listener::Stop() {
  aside_.stop();
  if (accepting_.joinable()) accepting_.join();
  sockets_.clear();
  for (const std::shared_ptr<Unheard>& unheard : unheard_) {
    boost::system::error_code ignored;
    unheard->descriptor.close(ignored);
  }
  unheard_.clear();
  acceptor_ = nullptr;
}

void Listener::Await(Socket& socket) {
  socket.descriptor.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                               [this, &socket](const boost::system::error_code& error) {
                                 if (!error) AcceptSome(socket);
                               });
}

void Listener::Pause(Socket& socket, Duration time) {
  socket.pause.expires_after(time);
  socket.pause.async_wait([this, &socket](const boost::system::error_code& error) {
    if (!error) Await(socket);
  });
}

void Listener::AcceptSome(Socket& socket) {
  // Those of one turn are heard before the next: they make no room for each other.
  const int turn = std::min(kAcceptsPerTurn, 1 + static_cast<int>(MostUnheard() / 4));
  for (int i = 0; i < turn; ++i) {
    if (!socket.is_unix && for_loop_ >= kAcceptsPerTurn) return Pause(socket, kMoment);
    io::SocketAddress from;
    from.size = sizeof from.storage;
    io::UniqueFd fd(accept4(socket.descriptor.native_handle(), from.get(), &from.size,
                            SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) break;
      // No descriptors or memory now: what waits stays in the backlog.
      const int lack = errno;
      if (const std::optional<int> untold = socket.told_lack.Due(io::MonotonicNow())) {
        log_.Warning("connections cannot be accepted",
                     {{"because", std::strerror(lack)}, {"untold", std::to_string(*untold)}});
      }
      return Pause(socket, kPause);
    }
    if (!MayEnter(socket, fd.get())) continue;
    const int listener_fd = socket.descriptor.native_handle();
    if (socket.is_unix) {
      HandOver(fd.release(), listener_fd);
      continue;
    }
    const absl::StatusOr<Address> peer = io::FromSocketAddress(from);
    if (!peer.ok() || !MayDial(peer->host)) continue;
    const int on = 1, untaken = kUntakenMs;
    setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &untaken, sizeof untaken);
    Listen(std::move(fd), listener_fd, peer->host);
  }
  Await(socket);
}

bool Listener::MayDial(const std::string& ip) {
  const Instant now = io::MonotonicNow();
  if (full_()) {
    if (const std::optional<int> untold = told_full_.Due(now)) {
      log_.Warning("the memory limit is reached: connections over TCP are closed",
                   {{"untold", std::to_string(*untold)}});
    }
    return false;
  }
  if (!repute_.Refuses(ip, now)) return true;
  if (const std::optional<int> untold = told_repute_.Due(now)) {
    log_.Warning(
        "an address is not heard for up to a minute: its connections were cut, made no call or "
        "left their replies",
        {{"address", ip}, {"untold", std::to_string(*untold)}});
  }
  return false;
}

void Listener::Listen(io::UniqueFd fd, int listener_fd, const std::string& ip) {
  // Who has said nothing for longest goes: one that means to speak has done so long ago.
  if (!unheard_.empty() && unheard_.size() >= MostUnheard())
    Forget(*std::shared_ptr(unheard_.front()));
  auto unheard = std::make_shared<Unheard>(aside_, listener_fd, ip);
  boost::system::error_code failed;
  unheard->descriptor.assign(fd.get(), failed);
  if (failed) return;  // The kernel watches no more descriptors; the peer dials again.
  fd.release();
  unheard->at = unheard_.insert(unheard_.end(), unheard);
  Limit(unheard, kSilence);
  AwaitWords(unheard);
}

void Listener::AwaitWords(const std::shared_ptr<Unheard>& unheard) {
  unheard->descriptor.async_wait(
      boost::asio::posix::stream_descriptor::wait_read,
      [this, weak = std::weak_ptr(unheard)](const boost::system::error_code& error) {
        const std::shared_ptr<Unheard> spoke = weak.lock();
        if (!error && spoke && spoke->descriptor.is_open()) Hear(spoke);
      });
}

void Listener::Limit(const std::shared_ptr<Unheard>& unheard, Duration time) {
  unheard->limit.expires_after(time);
  unheard->limit.async_wait(
      [this, weak = std::weak_ptr(unheard)](const boost::system::error_code& error) {
        const std::shared_ptr<Unheard> late = weak.lock();
        if (!error && late && late->descriptor.is_open()) Forget(*late);
      });
}

void Listener::Hear(const std::shared_ptr<Unheard>& unheard) {
  unsigned char first = 0;
  const int fd = unheard->descriptor.native_handle();
  const ssize_t heard = recv(fd, &first, 1, MSG_PEEK);
  // A wait may end early, by the event of a descriptor that was closed in the same turn.
  if (heard < 0 && (errno == EAGAIN || errno == EINTR)) return AwaitWords(unheard);
  if (heard != 1) return Forget(*unheard);
  if (first == static_cast<unsigned char>(kProofMagic.front())) return HearGreeting(unheard);
  if (first <= kLastOpcode) return HandOverStore(unheard);
  // A browser, a probe: gRPC would take it for a client of its own that errs.
  if (gate_.takes_everybody && first != 'P') return Forget(*unheard);
  if (!gate_.takes_everybody) {
    TellTurnedAway(told_away_, "it shows no token", fd);
    return TurnAway(unheard, TurnedAway());
  }
  if (GaveUp(*unheard)) return Forget(*unheard);
  HandOverTcp(unheard);
}

// After a stop of ours the backlog is full of them: they waited as long as they would, and owe
// nothing.
bool Listener::GaveUp(Unheard& unheard) {
  if (!HasHungUp(unheard.descriptor.native_handle())) return false;
  unheard.owes = false;
  return true;
}

// Who is a member is known on the loop.
void Listener::HandOverStore(const std::shared_ptr<Unheard>& unheard) {
  ++for_loop_;
  boost::asio::post(
      io_, [this, fd = io::UniqueFd(unheard->descriptor.release()), ip = unheard->ip]() mutable {
        --for_loop_;
        if (acceptor_ == nullptr) return;
        if (MayUseStore(fd.get())) return take_store_client_(std::move(fd));
        TellTurnedAway(told_no_member_, "its address is no member's", fd.get());
        repute_.Owes(ip, kDebtOfNoWord, io::MonotonicNow());
      });
  Forget(*unheard);
}

// Each of its operations holds it: one of several steps goes on after it was forgotten, to hear
// that the descriptor is closed.
template <class Then>
auto Listener::IfHere(const std::shared_ptr<Unheard>& unheard, Then then) {
  return [this, here = unheard, then](const boost::system::error_code& error, std::size_t) {
    if (!here->descriptor.is_open()) return;
    if (error) return Forget(*here);
    then(here);
  };
}

void Listener::HearGreeting(const std::shared_ptr<Unheard>& unheard) {
  unheard->incoming.resize(kProofMagic.size() + kNonceBytes);
  boost::asio::async_read(
      unheard->descriptor, boost::asio::buffer(unheard->incoming),
      IfHere(unheard, [this](const std::shared_ptr<Unheard>& spoke) {
        if (!spoke->incoming.starts_with(kProofMagic)) return Forget(*spoke);
        if (GaveUp(*spoke)) return Forget(*spoke);
        spoke->nonces = {spoke->incoming.substr(kProofMagic.size()), NewNonce()};
        spoke->outgoing =
            (gate_.takes_everybody ? kTakesEverybody : kAsks) + spoke->nonces.coordinator;
        boost::asio::async_write(
            spoke->descriptor, boost::asio::buffer(spoke->outgoing),
            IfHere(spoke, [this](const std::shared_ptr<Unheard>& told) { HearProof(told); }));
      }));
}

void Listener::HearProof(const std::shared_ptr<Unheard>& unheard) {
  unheard->incoming.assign(kProofBytes, '\0');
  boost::asio::async_read(
      unheard->descriptor, boost::asio::buffer(unheard->incoming),
      IfHere(unheard, [this](const std::shared_ptr<Unheard>& spoke) {
        const bool proved = SameSecret(spoke->incoming, CallerProof(gate_.token, spoke->nonces));
        if (!proved) {
          TellTurnedAway(told_away_, "it has another token", spoke->descriptor.native_handle());
          return TurnAway(spoke, std::string(1, kNotProved));
        }
        spoke->outgoing = kProved + CoordinatorProof(gate_.token, spoke->nonces);
        boost::asio::async_write(spoke->descriptor, boost::asio::buffer(spoke->outgoing),
                                 IfHere(spoke, [this](const std::shared_ptr<Unheard>& told) {
                                   if (GaveUp(*told)) return Forget(*told);
                                   // Nobody has to show a token there, nor may have one.
                                   if (gate_.takes_everybody) return HandOverTcp(told);
                                   HandOverProved(told);
                                 }));
      }));
}

// Not at once: a client of gRPC that was answered dials again without any back-off.
void Listener::TurnAway(const std::shared_ptr<Unheard>& unheard, std::string words) {
  unheard->outgoing = std::move(words);
  unheard->limit.expires_after(kRefrain);
  unheard->limit.async_wait(
      [this, weak = std::weak_ptr(unheard)](const boost::system::error_code& error) {
        const std::shared_ptr<Unheard> late = weak.lock();
        if (!error && late && late->descriptor.is_open()) TellWhy(late);
      });
}

// It has a moment to hear why.
void Listener::TellWhy(const std::shared_ptr<Unheard>& unheard) {
  boost::asio::async_write(unheard->descriptor, boost::asio::buffer(unheard->outgoing),
                           IfHere(unheard, [this](const std::shared_ptr<Unheard>& told) {
                             shutdown(told->descriptor.native_handle(), SHUT_WR);
                             Limit(told, kFarewell);
                           }));
}

void Listener::TellTurnedAway(Seldom& told, const std::string& why, int fd) {
  const std::optional<int> untold = told.Due(io::MonotonicNow());
  if (!untold) return;
  const absl::StatusOr<Address> peer = io::PeerAddressOf(fd);
  log_.Warning("a caller was turned away",
               {{"peer", peer.ok() ? io::FormatAddress(*peer) : "?"},
                {"because", why},
                {"untold", std::to_string(*untold)},
                {"try", "regroup token prints it, for its REGROUP_TOKEN or --token-file"}});
}

// A client of the store protocol cannot show a token: it is on this host, or where a member is.
bool Listener::MayUseStore(int fd) const {
  if (gate_.takes_everybody) return true;
  const absl::StatusOr<Address> peer = io::PeerAddressOf(fd), own = io::LocalAddressOf(fd);
  if (!peer.ok() || !own.ok()) return false;
  return io::IsLoopback(peer->host) || peer->host == own->host || gate_.is_member(peer->host);
}

void Listener::Forget(Unheard& unheard) {
  unheard.limit.cancel();
  if (unheard.owes && unheard.descriptor.is_open())
    repute_.Owes(unheard.ip, kDebtOfNoWord, io::MonotonicNow());
  boost::system::error_code ignored;
  unheard.descriptor.close(ignored);
  unheard_.erase(unheard.at);
}

void Listener::HandOverTcp(const std::shared_ptr<Unheard>& unheard) {
  io::UniqueFd connection(unheard->descriptor.release());
  absl::StatusOr<io::UniqueFd> counted = counting_.Admit(connection);
  if (counted.ok()) {
    Forget(*unheard);
    return HandOver(counted->release(), unheard->listener_fd);
  }
  const int why = io::ErrnoOf(counted.status());
  // Its peer is gone already.
  if (why != EMFILE && why != ENFILE && why != ENOBUFS && why != ENOMEM) return Forget(*unheard);
  boost::system::error_code failed;
  unheard->descriptor.assign(connection.get(), failed);
  if (failed) return Forget(*unheard);
  connection.release();
  unheard->owes = false;
  if (++unheard->tries == kMostTries || GaveUp(*unheard)) return Forget(*unheard);
  unheard->limit.expires_after(kPause);
  unheard->limit.async_wait(
      [this, weak = std::weak_ptr(unheard)](const boost::system::error_code& error) {
        const std::shared_ptr<Unheard> here = weak.lock();
        if (!error && here && here->descriptor.is_open()) HandOverTcp(here);
      });
}

void Listener::HandOverProved(const std::shared_ptr<Unheard>& unheard) {
  repute_.Pays(unheard->ip, io::MonotonicNow());
  const int fd = unheard->descriptor.release();
  Forget(*unheard);
  HandOver(fd, unheard->listener_fd);
}

void Listener::HandOver(int fd, int listener_fd) {
  grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
  connection.listener_fd = listener_fd;
  connection.fd = fd;
  acceptor_->HandleNewConnection(&connection);
}

void Listener::Untaken(const std::string& grpc_peer) {
  const absl::StatusOr<Address> peer = io::ParseAddress(PeerText(grpc_peer));
  if (peer.ok()) repute_.Owes(peer->host, kDebtOfUntaken, io::MonotonicNow());
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
