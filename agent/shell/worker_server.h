#pragma once

// The Unix socket that workers of this node speak to their agent on: JSON lines of
// proto/local.proto, at most 64 KiB each. What is not such a line closes its own connection and
// nothing else; a flood of them is read at 1,000 lines a second. A connection is that of a rank
// once it has shown that rank's token; a rank that lives on shows another one in each generation.
// Loop thread only.

#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/steady_timer.hpp>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "agent/core/events.h"
#include "agent/shell/worker_environment.h"
#include "common/io/fd.h"

namespace regroup::local {
class AgentLine;
class WorkerLine;
}  // namespace regroup::local

namespace regroup::agent {

inline constexpr std::size_t kMaxLineBytes = 64 << 10;
inline constexpr std::size_t kMaxRefusalsTold = 16;

class WorkerServer {
 public:
  // WorkerSaid and WorkerHungUp.
  using Post = std::function<void(Event)>;
  using Warn = std::function<void(std::string)>;
  // Whether that token is that rank's.
  using IsRank =
      std::function<bool(const GroupKey&, int rank, int local_rank, const std::string& token)>;
  // The newest generation in which that local rank of that group lives on, if one runs.
  using NewerThan = std::function<std::optional<NewGeneration>(const GroupKey&, int local_rank)>;
  // REQUIRES: `listener` is a listening Unix socket.
  WorkerServer(boost::asio::io_context& loop, io::UniqueFd listener, int max_connections,
               IsRank is_rank, Post post, Warn warn, NewerThan newer_than = {});
  ~WorkerServer();

  // To the connection of that rank; nothing when it has none.
  void TellNotice(const GroupKey& key, int local_rank, Duration left);
  void TellCommit(const GroupKey& key, const CommitAnswer& answer);
  void TellRetire(const GroupKey& key, int local_rank, Duration left);
  // To the connection of that rank as it was in an earlier generation. A rank that has none now is
  // told when it comes back, as long as NewerThan says so.
  void TellNewGeneration(const NewGeneration& next);

 private:
  struct Peer;
  void Accept();
  void AcceptLater(boost::system::error_code why);
  bool MakeRoom();
  void Read(const std::shared_ptr<Peer>& peer);
  void Write(const std::shared_ptr<Peer>& peer);
  void Take(const std::shared_ptr<Peer>& peer);
  // As many as its share allows. False: close it.
  bool TakeLines(Peer& peer);
  bool Handle(Peer& peer, const std::string& line);
  bool Greet(Peer& peer, const local::WorkerLine& line);
  bool OnRetired(Peer& peer, Generation generation);
  bool OnCannotGoOn(Peer& peer, Generation generation, const std::string& why);
  std::optional<NewGeneration> NewerFor(const Peer& peer) const;
  void Refused(const std::string& why);
  std::vector<std::shared_ptr<Peer>> PeersOf(const std::function<bool(const Peer&)>& wanted) const;
  void Send(Peer& peer, const local::AgentLine& line);
  void SendNewGeneration(Peer& peer, const NewGeneration& next);
  void Close(const std::shared_ptr<Peer>& peer);

  boost::asio::local::stream_protocol::acceptor acceptor_;
  boost::asio::steady_timer pause_;  // No descriptors: until some may be free.
  const int max_connections_;
  const IsRank is_rank_;
  const NewerThan newer_than_;
  Post post_;
  Warn warn_;
  // Owned by this list and by the handlers in flight of each.
  std::list<std::shared_ptr<Peer>> peers_;
  boost::system::error_code told_;  // The last reason that was warned of.
  std::set<std::string> refused_;   // Reasons that were warned of, kMaxRefusalsTold at most.
};

}  // namespace regroup::agent
