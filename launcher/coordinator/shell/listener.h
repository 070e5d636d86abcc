#pragma once

// The coordinator's sockets. They listen before anything is served (a connection waits in the
// backlog meanwhile); once started, connections are handed to gRPC. Those over TCP are accepted,
// heard and asked for their proof on a thread of their own, below all others, so that strangers
// keep nobody waiting who is there already. On the Unix socket only this user and root are let
// in. One TCP port serves several protocols, and the first byte says whose a connection is: a
// caller with a token opens with kProofMagic (proof.h) and reaches gRPC once it has proved that it
// knows ours; a client of gRPC opens with "PRI" and, unless everybody is taken, is told that it has
// to; one of PyTorch's TCPStore opens with an opcode and comes from a member's address. One that
// has not got so far within 10 s is closed, and the oldest such when there are 4096. Who has proved
// nothing, under --insecure, reaches gRPC through a gate that counts (tcp_gate.h), and an address
// whose connections were no good waits (repute.h).

#include <grpcpp/server_builder.h>

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "common/base/control.h"
#include "common/io/fd.h"
#include "common/obs/logger.h"
#include "common/rpc/proof.h"
#include "launcher/coordinator/shell/own_connections.h"
#include "launcher/coordinator/shell/repute.h"
#include "launcher/coordinator/shell/seldom.h"
#include "launcher/coordinator/shell/tcp_gate.h"

namespace regroup::coordinator {

// Who is let in over TCP.
struct Gate {
  std::string token;
  bool takes_everybody = false;  // --insecure.
  // Whether a node that showed the token said to be at this address.
  std::function<bool(const std::string& ip)> is_member;
};

class Listener {
 public:
  // `full`: whether this process holds so much memory that it takes no more from TCP. Called for
  // each connection, on any thread.
  Listener(boost::asio::io_context& io, obs::Logger& log, std::function<bool()> full);
  ~Listener();

  // Bound when it returns, and closed to all until ListenTcp. Port 0: the kernel chooses; `address`
  // is completed.
  absl::Status BindTcp(Address& address);
  // At all that are bound.
  absl::Status ListenTcp();
  // Bound and listening when it returns.
  absl::Status ListenUnix(const std::string& directory, const std::string& name);

  // Begins to accept. `acceptor` must outlive this. `take_store_client`: is given what speaks the
  // TCPStore protocol, unread.
  void Start(grpc::experimental::ExternalConnectionAcceptor& acceptor, Gate gate,
             std::function<void(io::UniqueFd)> take_store_client);
  void Stop();

  // Of one that came through the gate: what it does is no client's way.
  void CutOff(const std::string& peer, const char* excess) { counting_.CutOff(peer, excess); }
  // The caller at `grpc_peer` has not taken what it asked for. Any thread.
  void Untaken(const std::string& grpc_peer);
  // What it has accepted. Any thread.
  const OwnConnections& connections() const { return connections_; }

 private:
  struct Socket {
    Socket(boost::asio::io_context& io, int fd, bool is_unix)
        : descriptor(io, fd), pause(io), is_unix(is_unix) {}
    boost::asio::posix::stream_descriptor descriptor;
    // After a lack of descriptors, or of the loop's time. Only one wait is ever armed.
    boost::asio::steady_timer pause;
    Seldom told_lack;
    bool is_unix;
  };
  // Accepted, and nothing heard yet. Owned by unheard_; its handlers hold it, too.
  struct Unheard {
    Unheard(boost::asio::io_context& io, int listener_fd, std::string ip)
        : descriptor(io), limit(io), listener_fd(listener_fd), ip(std::move(ip)) {}
    boost::asio::posix::stream_descriptor descriptor;
    boost::asio::steady_timer limit;
    const int listener_fd;
    const std::string ip;
    bool owes = true;  // If it ended now. Not who gives up waiting for us.
    int tries = 0;     // To hand it over.
    std::string incoming, outgoing;
    Nonces nonces;
    std::list<std::shared_ptr<Unheard>>::iterator at;
  };
  void Await(Socket& socket);
  void Pause(Socket& socket, Duration time);
  void AcceptSome(Socket& socket);
  void AcceptAside();
  // Over TCP: whether it is heard at all.
  bool MayDial(const std::string& ip);
  void Listen(io::UniqueFd fd, int listener_fd, const std::string& ip);
  void AwaitWords(const std::shared_ptr<Unheard>& unheard);
  void Hear(const std::shared_ptr<Unheard>& unheard);
  void Limit(const std::shared_ptr<Unheard>& unheard, Duration time);
  template <class Then>
  auto IfHere(const std::shared_ptr<Unheard>& unheard, Then then);
  bool GaveUp(Unheard& unheard);
  void HandOverStore(const std::shared_ptr<Unheard>& unheard);
  void HearGreeting(const std::shared_ptr<Unheard>& unheard);
  void HearProof(const std::shared_ptr<Unheard>& unheard);
  void TurnAway(const std::shared_ptr<Unheard>& unheard, std::string words);
  void TellWhy(const std::shared_ptr<Unheard>& unheard);
  void TellTurnedAway(Seldom& told, const std::string& why, int fd);
  bool MayUseStore(int fd) const;  // On the loop.
  void Forget(Unheard& unheard);
  void HandOver(int fd, int listener_fd);
  // Through the gate that counts: it has shown nothing.
  void HandOverTcp(const std::shared_ptr<Unheard>& unheard);
  // To gRPC as it is: who has the token may run programs everywhere.
  void HandOverProved(const std::shared_ptr<Unheard>& unheard);
  bool MayEnter(const Socket& socket, int fd);

  boost::asio::io_context& io_;
  obs::Logger& log_;
  grpc::experimental::ExternalConnectionAcceptor* acceptor_ = nullptr;
  Gate gate_;
  std::function<void(io::UniqueFd)> take_store_client_;
  boost::asio::io_context aside_{1};  // Run by accepting_.
  std::vector<std::unique_ptr<Socket>> sockets_;
  OwnConnections connections_;
  std::function<bool()> full_;
  Seldom told_no_member_;         // Of the loop.
  std::atomic<int> for_loop_{0};  // Clients of the store that it has yet to take.
  // Of accepting_, while it runs.
  std::list<std::shared_ptr<Unheard>> unheard_;
  Seldom told_away_, told_full_, told_repute_;
  Repute repute_;
  TcpGate counting_;
  std::thread accepting_;  // Last: it uses all of the above.
};

}  // namespace regroup::coordinator
