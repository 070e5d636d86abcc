#pragma once

// The agents' streams. Their handlers only decode and post; this table, on the loop's thread, alone
// reads, writes and finishes, and forgets a stream when it finishes it. Per session: one write in
// flight, one pending order per job (the newest), a bound on everything else, beyond which the
// session is cut.

#include <atomic>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/rpc/convert.h"
#include "launcher/coordinator/core/events.h"
#include "launcher/coordinator/shell/agent_messages.h"
#include "launcher/coordinator/shell/call_server.h"
#include "launcher/coordinator/shell/core_loop.h"
#include "launcher/coordinator/shell/outbox.h"
#include "proto/coordinator.pb.h"

namespace regroup::coordinator {

inline constexpr std::size_t kMaxSessions = 16'384;
// Of messages that were read and not obeyed yet, of all sessions. A fat one that goes beyond costs
// its session, and its agent dials again.
inline constexpr std::size_t kMaxUnheardBytes = 16u << 20, kFatBytes = 16u << 10;
// Of one connection. An agent has one, and one that dials again has a connection of its own.
inline constexpr int kMaxSessionsPerConnection = 4;

class Sessions {
 public:
  // `free_bytes` tells the room where the journal lies; called on the server's thread, so it must
  // not wait for a disk (free_space.h). Heartbeats are answered at most each third of `lease`: an
  // agent that hears nothing for a lease breaks off.
  Sessions(CoreLoop& loop, obs::Logger& log, Duration lease,
           std::function<std::uint64_t()> free_bytes);
  ~Sessions();

  // A new stream, on the server's thread. What a message would take is counted before it is parsed.
  std::unique_ptr<CallHandler> Open(ServerCall& call);

  // The rest on the loop's thread. A session that is gone swallows what is sent to it.
  void SendAnswer(SessionId session, pb::CoordinatorMessage message);
  void SendNews(SessionId session, pb::CoordinatorMessage message);
  void AnswerHeartbeat(SessionId session, Instant received);
  void SendOrder(SessionId session, const Order& order);
  // Asks for a stream of logs. False: too many such wait to be sent, or the session is gone.
  [[nodiscard]] bool SendOpening(SessionId session, std::uint64_t stream,
                                 pb::CoordinatorMessage message);
  void DropOpening(SessionId session, std::uint64_t stream);
  // Finishes the stream with this status; where it means that the agent must stay away, a refusal
  // goes before it.
  void Close(SessionId session, const absl::Status& why);
  // Every session; then `done` once all are finished.
  void CloseAll(const absl::Status& why, std::function<void()> done);

  // The session of this name's node that was welcomed.
  std::optional<SessionId> Find(const std::string& name) const;
  // The node of such a session.
  NodeId NodeOf(SessionId session) const;
  // Whether a node that was welcomed is at this address.
  bool HasMemberAt(const std::string& ip) const;
  // Called with the peer that opened too many on one connection. Any thread.
  void OnTooMany(std::function<void(const std::string&)> hook) { too_many_hook_ = std::move(hook); }
  // Called with its name whenever a node's session was welcomed.
  void OnAttached(std::function<void(const std::string&)> hook) {
    attached_hook_ = std::move(hook);
  }

 private:
  class Stream;
  struct Session {
    explicit Session(boost::asio::io_context& io) : timer(io) {}
    Stream* stream = nullptr;
    NodeId node;          // Empty before Hello.
    std::string name;     // Empty before the welcome.
    std::string address;  // As its Hello said.
    bool write_in_flight = false;
    Instant next_answer{};                // To a heartbeat: not before.
    bool cancelled = false;               // The stream is dead: nothing can be written.
    std::optional<absl::Status> closing;  // Finishes with it once the last message is out.
    Outbox outbox;
    boost::asio::steady_timer timer;  // Until Hello; later until the last message is out.
  };
  using Table = std::unordered_map<SessionId, std::unique_ptr<Session>>;

  void Left(const std::string& connection);
  void Add(Stream* stream);
  // `free_bytes`: when it came; of a launch's request only.
  void OnRead(SessionId id, Instant received, absl::StatusOr<AgentSaid> message,
              std::uint64_t free_bytes);
  void OnEnded(SessionId id);  // The agent half-closed or the stream broke.
  void OnWritten(SessionId id, bool ok);
  void Obey(SessionId id, Session& session, Instant received, AgentSaid message,
            std::uint64_t free_bytes);
  Session* Writable(SessionId id);     // Null: gone, or being closed.
  void Send(SessionId id, bool fits);  // What its outbox was given just now, or its end.
  void Pump(Table::iterator at);
  void BeginClose(Table::iterator at, const absl::Status& why);
  void Broken(SessionId id, Session& session);
  void Finish(Table::iterator at, const absl::Status& status);

  CoreLoop& loop_;
  obs::Logger& log_;
  const Duration answer_every_;
  const std::function<std::uint64_t()> free_bytes_;
  std::function<void(const std::string&)> attached_hook_, too_many_hook_;
  Table sessions_;
  std::map<std::string, SessionId> by_name_;
  std::atomic<std::size_t> unheard_bytes_ = 0;
  // Of the server's thread: the newest session, and streams by gRPC's name of their peer.
  std::uint64_t last_id_ = 0;
  std::map<std::string, int> by_connection_;
  bool closed_ = false;
  std::function<void()> all_closed_;
};

}  // namespace regroup::coordinator
