#pragma once

// What stands between gRPC and a TCP connection that has proved no token: a thread that passes the
// bytes on and counts frames (http2_meter.h), because gRPC 1.51 lets one connection queue calls
// without bound. gRPC gets one end of a pair of Unix sockets; the other end is named after the
// peer, so that neither its log line nor a check of who calls takes it for one of this host's Unix
// socket.

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <list>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/time.h"
#include "common/io/fd.h"
#include "launcher/coordinator/shell/repute.h"
#include "launcher/coordinator/shell/seldom.h"

namespace regroup::coordinator {

// Connections that have no call open. Beyond it the one that has had none for longest goes: gRPC
// keeps some 40 KiB for each, and half of that when it is over.
inline constexpr std::size_t kMaxQuietConnections = 256;

class TcpGate {
 public:
  // `cut`: told, on the gate's thread, whose connection was cut and because of what, but not of
  // each; `untold`: how many it was not told of before.
  using Cut = std::function<void(const std::string& peer, const std::string& excess, int untold)>;
  // `repute`, which outlives this: is told what each connection was good for. `linger`: how long
  // one side has to take what is left once the other has gone.
  TcpGate(Cut cut, Repute& repute, Duration linger = std::chrono::seconds(10));
  // What a server that has ended before still said is passed on; a peer that does not take it
  // within a second is cut.
  ~TcpGate();

  // The end for gRPC of a connection that was just accepted, which is taken unless this fails. Any
  // thread.
  absl::StatusOr<io::UniqueFd> Admit(io::UniqueFd& connection);
  // Ends the connection of this peer (PeerText), if there is one. Any thread.
  void CutOff(const std::string& peer, const char* excess);

 private:
  class Passage;
  struct Direction;
  void Forget(const std::shared_ptr<Passage>& passage);
  void LimitQuiet();
  void Tell(const Passage& passage, const char* excess);

  // Of the thread, all of it.
  Cut cut_;
  Repute& repute_;
  const Duration linger_;
  Seldom told_;
  boost::asio::io_context io_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  boost::asio::steady_timer end_{io_};
  std::vector<char> piece_;                      // What a passage has just read.
  std::set<std::shared_ptr<Passage>> passages_;  // Shared with their handlers.
  std::list<Passage*> quiet_;                    // Of them, the longest quiet first.
  std::thread thread_;                           // Last: it uses all of the above.
};

// "10.0.0.4:5123" of a peer as gRPC names it, whether it came through the gate or not.
std::string PeerText(const std::string& grpc_peer);

}  // namespace regroup::coordinator
