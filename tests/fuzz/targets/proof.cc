// Both ends of the proof that comes before gRPC on a TCP connection: a listener with a token, which
// nothing may pass without it, and a caller that meets what is no coordinator.

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <cerrno>
#include <chrono>
#include <string>

#include "common/base/check.h"
#include "common/io/address.h"
#include "common/io/proc.h"
#include "common/rpc/proof.h"
#include "launcher/coordinator/shell/listener.h"
#include "tests/fuzz/targets/targets.h"

namespace regroup::fuzz {
namespace {

constexpr std::string_view kToken = "0123456789abcdef0123456789abcdef";

class Silent : public obs::Logger {
 public:
  void Log(obs::Level, std::string_view, const obs::Fields&) override {}
  void Flush() override {}
};

// In place of gRPC: counts what has passed. Of the listener's thread.
class Passed : public grpc::experimental::ExternalConnectionAcceptor {
 public:
  void HandleNewConnection(NewConnectionParameters* connection) override {
    ++count;
    io::UniqueFd(connection->fd).reset();
  }
  std::atomic<int> count{0};
};

// One listener for all inputs, as one coordinator has for all callers.
class Door {
 public:
  Door() {
    io::RaiseDescriptorLimit();  // Who is turned away has half a second to hear why.
    // What OpenSSL keeps for the listener's thread has to outlive that.
    CallerProof(kToken, {NewNonce(), NewNonce()});
    CHECK(listener_.BindTcp(address_).ok());
    CHECK(listener_.ListenTcp().ok());
    coordinator::Gate gate;
    gate.token = kToken;
    gate.is_member = [](const std::string&) { return false; };
    listener_.Start(passed_, std::move(gate), [this](io::UniqueFd) { ++store_clients_; });
  }

  // `proves`: after a greeting of its own, with the true proof, changed by the first bytes of
  // `bytes`.
  bool Call(std::string_view bytes, bool proves) {
    const int before = passed_.count, stores = store_clients_;
    const io::UniqueFd caller = Connect();
    bool right = false;
    if (proves) {
      Nonces nonces{NewNonce(), ""};
      Say(caller, std::string(kProofMagic) + nonces.caller);
      const std::string greeting = Hear(caller, 1 + kNonceBytes);
      CHECK(greeting.size() == 1 + kNonceBytes && greeting[0] == kAsks);
      nonces.coordinator = greeting.substr(1);
      std::string proof = CallerProof(kToken, nonces);
      right = true;
      for (std::size_t i = 0; i < std::min(proof.size(), bytes.size()); ++i) {
        right = right && bytes[i] == 0;
        proof[i] = static_cast<char>(proof[i] ^ bytes[i]);
      }
      Say(caller, proof);
      bytes.remove_prefix(std::min(proof.size(), bytes.size()));
    }
    if (right) AwaitPassed(before + 1);  // Who leaves before has given up.
    const std::size_t half = bytes.size() / 2;
    Say(caller, bytes.substr(0, half));
    Say(caller, bytes.substr(half));
    ::shutdown(caller.get(), SHUT_WR);
    Hear(caller, 64 << 10);  // To the end: whatever it said, it is closed.
    CHECK(passed_.count - before == (right ? 1 : 0));
    CHECK(store_clients_ - stores <= (proves ? 0 : 1));
    return right;
  }

 private:
  io::UniqueFd Connect() {
    const absl::StatusOr<io::SocketAddress> at = io::ToSocketAddress(address_);
    CHECK(at.ok());
    io::UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    // The port of a connection waits for a minute after it: one address has not enough for as many.
    sockaddr_in from{};
    from.sin_family = AF_INET;
    from.sin_addr.s_addr = htonl(INADDR_LOOPBACK + (++calls_ & 0xFFFF));
    const int on = 1;
    ::setsockopt(fd.get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
    ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    CHECK(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&from), sizeof from) == 0);
    CHECK(::connect(fd.get(), at->get(), at->size) == 0);
    return fd;
  }
  void Say(const io::UniqueFd& fd, std::string_view bytes) {
    // An end that has closed does not hear.
    if (!bytes.empty()) (void)!::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    Run();
  }
  // So many bytes, or all until the end, which comes.
  std::string Hear(const io::UniqueFd& fd, std::size_t size) {
    std::string heard;
    const Instant limit = io::MonotonicNow() + std::chrono::seconds(5);
    while (heard.size() < size) {
      char bytes[4'096];
      const ssize_t got =
          ::recv(fd.get(), bytes, std::min(sizeof bytes, size - heard.size()), MSG_DONTWAIT);
      if (got > 0) heard.append(bytes, static_cast<std::size_t>(got));
      if (got == 0 || (got < 0 && errno != EAGAIN)) break;
      CHECK(io::MonotonicNow() < limit);
      pollfd more{fd.get(), POLLIN, 0};
      if (got < 0 && ::poll(&more, 1, 1) == 0) Run();
    }
    return heard;
  }
  void AwaitPassed(int count) {
    const Instant limit = io::MonotonicNow() + std::chrono::seconds(5);
    while (passed_.count < count) {
      CHECK(io::MonotonicNow() < limit);
      loop_.run_one_for(std::chrono::milliseconds(1));
    }
  }
  void Run() {
    while (loop_.poll() > 0) {
    }
  }

  boost::asio::io_context loop_{1};
  const boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_{
      boost::asio::make_work_guard(loop_)};
  Silent log_;
  Passed passed_;
  int store_clients_ = 0;
  unsigned calls_ = 0;
  Address address_{"127.0.0.1", 0};
  coordinator::Listener listener_{loop_, log_, [] { return false; }};
};

// What answers a caller is all there before the caller begins.
void MeetNoCoordinator(std::string_view bytes, bool asks) {
  int ends[2];
  CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  const io::UniqueFd caller(ends[0]), other(ends[1]);
  CHECK(::send(other.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL) ==
        static_cast<ssize_t>(bytes.size()));
  ::shutdown(other.get(), SHUT_WR);
  const Duration limit = std::chrono::seconds(1);
  if (asks) {
    const std::optional<char> taken = AskWhoIsTaken(caller.get(), limit);
    CHECK(!taken || *taken == kAsks || *taken == kTakesEverybody);
  } else {
    CHECK(!ProveTo(caller.get(), kToken, "there", io::MonotonicNow() + limit).ok());
  }
}

}  // namespace

bool Proof(std::string_view bytes) {
  static Door door;
  Input input(bytes);
  const unsigned mode = input.Byte() % 8;
  const std::string_view rest = input.Piece(2'048);
  switch (mode) {
    case 0: return door.Call(rest, false);
    case 1: return door.Call(rest, true);
    case 2: coordinator::PeerText(std::string(rest)); return false;
    case 3: IsTurnedAway(rest); return false;
    default: MeetNoCoordinator(rest, mode % 2 == 0); return false;
  }
}

}  // namespace regroup::fuzz
