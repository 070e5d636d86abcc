#pragma once

// Logs of a job, from the agents that have them to the reader that asked, through the coordinator
// and under a bound: a reader's call becomes one open_logs per node that is a member of the job, or
// of a reader that follows becomes one, each answered by one SendLogs stream. No line is kept, only
// how far each stream has come: a stream that breaks under a follower is opened again there when
// its agent is back, and the reader is told which node it waits for. A stream is known by a random
// number, so that only the agent it was given to can feed it.

#include <atomic>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/rpc/log_marks.h"
#include "launcher/coordinator/shell/call_server.h"
#include "launcher/coordinator/shell/calls.h"
#include "launcher/coordinator/shell/core_loop.h"
#include "launcher/coordinator/shell/sessions.h"
#include "proto/coordinator.pb.h"

namespace regroup::coordinator {

inline constexpr std::size_t kMaxRelayBytes = 1u << 20;  // Per reader; beyond it agents wait.
inline constexpr std::size_t kMaxRelays = 256;

class LogRelay {
 public:
  LogRelay(CoreLoop& loop, Calls& calls, Sessions& sessions);
  ~LogRelay();

  // New calls, on the server's thread.
  std::unique_ptr<CallHandler> Logs(ServerCall& call);
  std::unique_ptr<CallHandler> SendLogs(ServerCall& call);

  // The rest on the loop's thread.
  void Happened(const JobId& job, const JobEvent& event);
  void OnAttached(const std::string& node);  // By name.
  void EndAll(const absl::Status& why, std::function<void()> done);

 private:
  class Reader;
  class Sender;
  using ReaderId = std::uint64_t;
  using SenderId = std::uint64_t;
  using StreamId = std::uint64_t;

  struct Source {         // A node that has yet to send its part, or more of it.
    StreamId stream = 0;  // 0: not asked for, its agent is away.
    SenderId sender = 0;  // 0: not opened.
    Instant asked{};      // When it was asked for `stream`.
    std::string problem;  // Not empty: it stands still, and why.
    Instant since{};      // When it was wanted, or came to stand still.
    bool told = false;    // The reader was told that it is waited for.
  };
  enum class Stage { kAsking, kReading, kFollowing, kDraining };
  struct Relay {
    explicit Relay(boost::asio::io_context& io) : timer(io) {}
    Reader* reader = nullptr;
    pb::LogSelection
        selection;  // `job` as asked for until the job is known, then its id. No marks.
    Stage stage = Stage::kAsking;  // kDraining: followed to the job's end, what is left is sent.
    bool launched = false;         // Its agents end with the job.
    CallId waiting;                // Of the read that tells the job's end; 0: none.
    std::map<std::string, Source> sources;  // By the node's name.
    LogMarks marks;                         // Of what was taken from them.
    std::deque<pb::LogsReply> queue;
    std::size_t queue_bytes = 0;
    bool write_in_flight = false, cancelled = false;
    std::optional<absl::Status> closing;
    std::vector<SenderId> held;      // Not read on until the reader has caught up.
    Instant limit = Instant::max();  // When sources that are left are given up.
    boost::asio::steady_timer timer;
  };
  struct Feed {
    Sender* sender = nullptr;
    ReaderId reader = 0;  // 0: it has not said its stream yet.
    std::string node;
    std::string problem;
  };
  using Relays = std::map<ReaderId, std::unique_ptr<Relay>>;

  void AddReader(Reader* reader, Instant received);
  void OnJobKnown(ReaderId id, const Reply& reply);
  void Want(ReaderId id, Relay& relay, const std::string& node);
  void Open(ReaderId id, Relay& relay, const std::string& node, Source& source);
  void Forget(Relay& relay, const std::string& node, Source& source);
  void StandStill(Relay& relay, const std::string& node, Source& source, const std::string& why);
  void ScheduleLook(ReaderId id, std::chrono::milliseconds after);
  void Look(ReaderId id);
  void OnJobOver(ReaderId id);
  void OnWritten(ReaderId id, bool ok);
  void OnReaderLeft(ReaderId id);

  void AddSender(Sender* sender);
  void OnFed(SenderId id, pb::SendLogsRequest request);
  void OnFeedEnded(SenderId id, bool broken);

  void Enqueue(Relay& relay, pb::LogsReply reply);
  void EndSource(Relay& relay, std::string node, const std::string& problem);
  void Pump(ReaderId id);
  void Close(ReaderId id, const absl::Status& status);
  void FinishReader(Relays::iterator at);
  void FinishSender(SenderId id, const absl::Status& status);
  void CheckAllEnded();

  CoreLoop& loop_;
  Calls& calls_;
  Sessions& sessions_;
  Relays relays_;
  std::map<SenderId, Feed> feeds_;
  std::map<StreamId, std::pair<ReaderId, std::string>> streams_;  // By node.
  std::atomic<std::uint64_t> last_id_ = 0;
  bool ended_ = false;
  std::function<void()> all_ended_;
};

}  // namespace regroup::coordinator
