#include "launcher/coordinator/shell/tcp_gate.h"

#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/status_macros.h"
#include "common/io/address.h"
#include "common/io/files.h"
#include "common/io/proc.h"
#include "launcher/coordinator/shell/http2_meter.h"

namespace regroup::coordinator {
namespace {

constexpr std::size_t kPieceBytes = 64 << 10;
constexpr int kPiecesPerTurn = 8;  // Then others have theirs.
constexpr auto kFarewell = std::chrono::seconds(1);
constexpr char kPeerPrefix[] = "tcp/";

// Gives `fd` a name in the abstract namespace. Its socket does not listen, so nothing can connect
// to it. The name is drawn, because another process could take one that it foresees.
absl::Status NameAfter(const std::string& peer, int fd) {
  const std::string name = absl::StrCat(kPeerPrefix, peer, "/", io::RandomHex(8));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (name.size() + 1 > sizeof address.sun_path)
    return absl::InvalidArgumentError(absl::StrCat("a peer named ", peer));
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (::bind(fd, reinterpret_cast<const sockaddr*>(&address), size) < 0)
    return io::ErrnoStatus(errno, absl::StrCat("name ", name));
  return absl::OkStatus();
}

}  // namespace

struct TcpGate::Direction {
  Direction(boost::asio::posix::stream_descriptor& from, boost::asio::posix::stream_descriptor& to,
            Http2Meter::From side)
      : from(from), to(to), meter(side) {}
  boost::asio::posix::stream_descriptor& from;
  boost::asio::posix::stream_descriptor& to;
  Http2Meter meter;
  std::string rest;  // Read, and not yet taken by `to`: at most one piece.
};

// One connection, from accept to the end of either side.
class TcpGate::Passage : public std::enable_shared_from_this<Passage> {
 public:
  Passage(TcpGate& gate, const Address& peer)
      : gate_(gate), ip_(peer.host), peer_(io::FormatAddress(peer)) {}

  // False: the kernel watches no more descriptors, and both are closed.
  bool Open(io::UniqueFd outer, io::UniqueFd inner) {
    boost::system::error_code failed;
    outer_.assign(outer.get(), failed);
    if (failed) return false;
    outer.release();
    inner_.assign(inner.get(), failed);
    if (failed) return false;
    inner.release();
    return true;
  }
  void Start() {
    Hear(/*quiet=*/true);
    Pass(in_);
    Pass(out_);
    for (boost::asio::posix::stream_descriptor* side : {&outer_, &inner_}) {
      if (outer_.is_open()) WatchEnd(*side);
    }
  }
  // For others: that is hardly its fault.
  void MakeRoom() {
    owes_ = kDebtOfNoWord;
    Close();
  }
  const std::string& ip() const { return ip_; }
  const std::string& peer() const { return peer_; }
  void Close() {
    if (!outer_.is_open()) return;
    if (!counts_.called) gate_.repute_.Owes(ip_, owes_, io::MonotonicNow());
    Hear(/*quiet=*/false);
    boost::system::error_code ignored;
    outer_.close(ignored);
    inner_.close(ignored);
    linger_.cancel();
    gate_.Forget(shared_from_this());
  }

 private:
  void Pass(Direction& way) {
    std::vector<char>& piece = gate_.piece_;
    for (int pieces = 0; outer_.is_open(); ++pieces) {
      if (!way.rest.empty()) {
        if (!Send(way, way.rest, &way.rest)) return;
      }
      if (pieces == kPiecesPerTurn) {
        return boost::asio::post(gate_.io_, [self = shared_from_this(), &way] { self->Pass(way); });
      }
      const ssize_t got =
          ::recv(way.from.native_handle(), piece.data(), piece.size(), MSG_DONTWAIT);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && errno == EAGAIN) return Await(way, way.from, Wait::wait_read);
      // All that came before is sent. With a call open gRPC ends none that speaks HTTP/2; one that
      // is idle, or late, it does.
      if (got <= 0 && &way.from == &inner_ && !counts_.open.empty())
        gate_.repute_.WasCut(ip_, io::MonotonicNow());
      if (got <= 0) return Close();
      const std::string_view bytes(piece.data(), static_cast<std::size_t>(got));
      if (const char* excess = way.meter.Take(bytes, io::MonotonicNow(), counts_)) {
        gate_.Tell(*this, excess);
        return Close();
      }
      if (counts_.called && !std::exchange(paid_, true))
        gate_.repute_.Pays(ip_, io::MonotonicNow());
      Hear(counts_.open.empty());
      if (!outer_.is_open()) return;
      if (!Send(way, bytes, &way.rest)) return;
    }
  }

  void Hear(bool quiet) {
    if (quiet == quiet_at_.has_value()) return;
    if (!quiet) {
      gate_.quiet_.erase(*quiet_at_);
      quiet_at_.reset();
      return;
    }
    quiet_at_ = gate_.quiet_.insert(gate_.quiet_.end(), this);
    gate_.LimitQuiet();
  }

  // False: `to` takes no more for now, or is gone; what is left is in `rest`.
  bool Send(Direction& way, std::string_view bytes, std::string* rest) {
    while (!bytes.empty()) {
      const ssize_t sent =
          ::send(way.to.native_handle(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0 && errno != EAGAIN) {
        Close();
        return false;
      }
      if (sent < 0) {
        *rest = std::string(bytes);
        Await(way, way.to, Wait::wait_write);
        return false;
      }
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
    rest->clear();
    return true;
  }

  using Wait = boost::asio::posix::stream_descriptor;
  void Await(Direction& way, boost::asio::posix::stream_descriptor& side, Wait::wait_type what) {
    side.async_wait(what,
                    [self = shared_from_this(), &way](const boost::system::error_code& error) {
                      if (!error) self->Pass(way);
                    });
  }

  // A side that has gone is not heard of by one that waits until the other takes more. Who is left
  // has a while for that; a reader that does not read would keep its descriptors for good.
  void WatchEnd(boost::asio::posix::stream_descriptor& side) {
    side.async_wait(Wait::wait_error,
                    [self = shared_from_this()](const boost::system::error_code& error) {
                      if (error || !self->outer_.is_open()) return;
                      self->linger_.expires_after(self->gate_.linger_);
                      self->linger_.async_wait([self](const boost::system::error_code& again) {
                        if (!again) self->Close();
                      });
                    });
  }

  TcpGate& gate_;
  const std::string ip_, peer_;
  boost::asio::posix::stream_descriptor outer_{gate_.io_}, inner_{gate_.io_};
  boost::asio::steady_timer linger_{gate_.io_};
  Http2Counts counts_;
  bool paid_ = false;
  Duration owes_ = kDebtOfNoCall;
  std::optional<std::list<Passage*>::iterator> quiet_at_;
  Direction in_{outer_, inner_, Http2Meter::From::kClient};
  Direction out_{inner_, outer_, Http2Meter::From::kServer};
};

TcpGate::TcpGate(Cut cut, Repute& repute, Duration linger)
    : cut_(std::move(cut)),
      repute_(repute),
      linger_(linger),
      work_(boost::asio::make_work_guard(io_)),
      piece_(kPieceBytes),
      thread_([this] {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_BLOCK, &all, nullptr);
        io_.run();
      }) {}

TcpGate::~TcpGate() {
  boost::asio::post(io_, [this] {
    work_.reset();
    if (passages_.empty()) return;
    end_.expires_after(kFarewell);
    end_.async_wait([this](const boost::system::error_code&) {
      for (const auto& passage : std::set(passages_)) passage->Close();
    });
  });
  thread_.join();
}

void TcpGate::Forget(const std::shared_ptr<Passage>& passage) {
  passages_.erase(passage);
  if (passages_.empty()) end_.cancel();
}

void TcpGate::LimitQuiet() {
  if (quiet_.size() > kMaxQuietConnections) quiet_.front()->shared_from_this()->MakeRoom();
}

void TcpGate::Tell(const Passage& passage, const char* excess) {
  const Instant now = io::MonotonicNow();
  repute_.WasCut(passage.ip(), now);
  if (const std::optional<int> untold = told_.Due(now)) cut_(passage.peer(), excess, *untold);
}

absl::StatusOr<io::UniqueFd> TcpGate::Admit(io::UniqueFd& connection) {
  ASSIGN_OR_RETURN(const Address address, io::PeerAddressOf(connection.get()));
  const std::string peer = io::FormatAddress(address);
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) < 0)
    return io::ErrnoStatus(errno, "make a pair of sockets");
  io::UniqueFd ours(ends[0]), theirs(ends[1]);
  // Without a name it would look like a client of the Unix socket, which may do everything.
  if (absl::Status named = NameAfter(peer, ours.get()); !named.ok()) return named;
  boost::asio::post(io_, [this, address, outer = connection.release(), inner = ours.release()] {
    auto passage = std::make_shared<Passage>(*this, address);
    if (!passage->Open(io::UniqueFd(outer), io::UniqueFd(inner))) return;
    passages_.insert(passage);
    passage->Start();
  });
  return theirs;
}

void TcpGate::CutOff(const std::string& peer, const char* excess) {
  boost::asio::post(io_, [this, peer, excess] {
    for (const auto& passage : passages_) {
      if (passage->peer() != peer) continue;
      Tell(*passage, excess);
      return passage->Close();
    }
  });
}

std::string PeerText(const std::string& grpc_peer) {
  std::string text = absl::StrReplaceAll(
      grpc_peer, {{"%2F", "/"}, {"%3A", ":"}, {"%5B", "["}, {"%5D", "]"}, {"%25", "%"}});
  // Not through the gate.
  if (absl::StartsWith(text, "ipv4:") || absl::StartsWith(text, "ipv6:"))
    return text.substr(text.find(':') + 1);
  const std::size_t from = text.find(kPeerPrefix);
  if (!absl::StartsWith(text, "unix-abstract:") || from == std::string::npos) return text;
  text.erase(0, from + sizeof kPeerPrefix - 1);
  return text.substr(0, text.rfind('/'));
}

}  // namespace regroup::coordinator
