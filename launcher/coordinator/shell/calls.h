#pragma once

// The unary calls of the command line. Each is checked on the server's thread, posted as one event
// of the core, found again by its Answer and finished once, on the loop's thread.

#include <atomic>
#include <boost/asio/steady_timer.hpp>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/obs/logger.h"
#include "common/rpc/convert.h"
#include "launcher/coordinator/core/actions.h"
#include "launcher/coordinator/core/events.h"
#include "launcher/coordinator/shell/call_server.h"
#include "launcher/coordinator/shell/core_loop.h"
#include "launcher/coordinator/shell/read_replies.h"
#include "launcher/coordinator/shell/seldom.h"
#include "proto/coordinator.pb.h"

namespace regroup::coordinator {

inline constexpr int kMaxPendingSubmits = 10'000;
inline constexpr int kMaxPendingCalls = 20'000;
// Of the requests of pending calls, together.
inline constexpr std::size_t kMaxPendingRequestBytes = 16u << 20;
// Reads that wait for the history of a job that has ended.
inline constexpr std::size_t kMaxHistories = 64;
// Reads that wait for the end of a job which another word than its id names.
inline constexpr std::size_t kMaxWaitsByWord = 256;

// What every reader's reply carries.
struct Identity {
  ClusterId cluster;
  Epoch epoch;
  Version version;
};

class Calls {
 public:
  using Respond = std::function<absl::StatusOr<grpc::Slice>(const Reply&)>;
  using Internal = std::function<void(const Reply&)>;

  // `free_bytes`: where the journal lies; called on the server's thread, so it must not wait for a
  // disk (free_space.h). `memory`: on the loop's.
  Calls(CoreLoop& loop, obs::Logger& log, std::function<std::uint64_t()> free_bytes,
        std::function<MemoryUse()> memory);
  ~Calls();

  // Before the first call. Reads all that is durable of a job that has ended, and then calls `done`
  // on the loop's thread, never at once; not at all when the coordinator ends first. One at a time.
  using History =
      std::function<void(const JobId& job, std::function<void(absl::StatusOr<JobView>)> done)>;
  void OnHistory(History history) { history_ = std::move(history); }
  // Likewise. `untaken`: told, on any thread, of which connection a reader has left,
  // or was cut, without its reply.
  void OnUntaken(std::function<void(const std::string& grpc_peer)> untaken) {
    untaken_ = std::move(untaken);
  }
  // Likewise. `stuck`: told, on the loop's thread, whose readers were cut and may keep their
  // replies from being freed.
  void OnStuck(std::function<void(std::set<std::string> grpc_peers)> stuck) {
    stuck_ = std::move(stuck);
  }

  // New calls, on the server's thread.
  std::unique_ptr<CallHandler> Submit(ServerCall& call);
  std::unique_ptr<CallHandler> Cancel(ServerCall& call);
  std::unique_ptr<CallHandler> Read(ServerCall& call);
  std::unique_ptr<CallHandler> ForgetNode(ServerCall& call);

  // The rest on the loop's thread.
  void SetIdentity(Identity identity) { identity_ = std::move(identity); }
  void Answer(CallId call, const Reply& reply);
  // A read of our own, answered like a client's.
  CallId ReadFor(Instant received, ReadFilter filter, bool wait_for_end, Internal answered);
  void Drop(Instant received, CallId call);
  // Every call ends with `why`; then `done` once all are finished. Later ones end at once.
  void EndAll(const absl::Status& why, std::function<void()> done);

 private:
  class UnaryCall;
  // What the core is asked once for all readers of it. A waiting read is shared where its word is
  // an id: another word may mean another job by the time that the next reader uses it.
  struct Question {
    ReadFilter filter;
    bool wait = false;
    CallId alone;
    bool IsList() const { return filter.job.empty() && filter.node.empty(); }
    friend auto operator<=>(const Question&, const Question&) = default;
  };
  struct Asked {
    CallId call;  // The core's.
    Instant at{};
    std::uint64_t rows = 0;  // CoreLoop::rows() then.
    std::set<CallId> readers;
    std::string bytes;  // Of the pages that were answered.
    // Said by the core, but a history is still being read: who asks from now on may have seen what
    // happened since, and is answered anew.
    bool said = false;
    std::vector<CallId> again;
    std::vector<std::string> warnings;  // Of histories that could not be read.
  };
  struct Pending {
    UnaryCall* caller = nullptr;  // Null: internal.
    Respond respond;
    Internal internal;
    std::optional<Question> question;                  // Of a read.
    std::unique_ptr<boost::asio::steady_timer> timer;  // Of a waiting read.
  };
  using PendingAt = std::map<CallId, Pending>::iterator;

  // One call that was checked.
  struct Plan {
    bool answered = false;  // There is nothing to ask, and nothing in the reply.
    Respond respond;
    std::function<Event(CallId)> event;
    bool is_submit = false;
    std::optional<Question> question;  // Of a read, in place of the above.
    // A waiting read: asked again without waiting when its deadline comes close.
    std::chrono::system_clock::time_point fallback_at{};
  };

  // What these requests ask for. On the server's thread.
  using PlanOf = absl::StatusOr<Plan> (Calls::*)(const ServerCall& call, std::string_view request);
  absl::StatusOr<Plan> PlanSubmit(const ServerCall& call, std::string_view request);
  absl::StatusOr<Plan> PlanCancel(const ServerCall& call, std::string_view request);
  absl::StatusOr<Plan> PlanRead(const ServerCall& call, std::string_view request);
  absl::StatusOr<Plan> PlanForgetNode(const ServerCall& call, std::string_view request);
  void Add(UnaryCall* caller, Instant received, Plan plan);
  void AskAgain(Instant received, CallId call);
  void Finish(PendingAt at, absl::StatusOr<grpc::Slice> reply);

  void Ask(Instant received, PendingAt reader);
  // Why this one may not be asked now.
  absl::Status Busy(Instant received, const Question& question);
  void Unask(Instant received, CallId reader, const Question& question);
  void AnswerReaders(CallId call, const Reply& answer);
  void AnswerWithHistory(CallId call, const ReadReply& reply, std::size_t job);
  void ReadNextHistory();
  void OnHistory(absl::StatusOr<JobView> whole);
  void AskNext(CallId call, const std::string& after);
  void AskLater();
  void AskSoon(std::vector<CallId> readers);
  void FinishRead(CallId reader, const std::shared_ptr<ReadReplies::Reply>& reply);

  CoreLoop& loop_;
  obs::Logger& log_;
  const std::function<std::uint64_t()> free_bytes_;
  const std::function<MemoryUse()> memory_;
  std::function<void(const std::string& grpc_peer)> untaken_;
  std::function<void(std::set<std::string> grpc_peers)> stuck_;
  History history_;
  struct Awaiting {  // The first one's history is being read.
    CallId call;
    ReadReply reply;
    std::size_t job = 0;  // Of reply.jobs.
  };
  std::deque<Awaiting> histories_;
  Identity identity_;
  std::map<CallId, Pending> pending_;
  std::atomic<std::uint64_t> last_id_ = 0;
  std::atomic<int> calls_ = 0, submits_ = 0;
  std::atomic<std::size_t> request_bytes_ = 0;  // Of calls_.

  // A list is read page by page, one list at a time; who asks for another meanwhile is in later_.
  // Its readers may have left.
  std::map<Question, Asked> asked_;
  std::map<CallId, Question> questions_;  // By the core's call.
  std::size_t waits_by_word_ = 0;         // Of asked_.
  std::optional<CallId> list_asked_;
  std::vector<CallId> later_;
  // The newest reply while somebody still takes it: it is as good as a new one as long as no row
  // was written since.
  struct {
    Question question;
    Instant at{};
    std::uint64_t rows = 0;
    std::weak_ptr<ReadReplies::Reply> reply;
  } newest_;
  ReadReplies replies_;
  Seldom told_busy_;

  std::optional<absl::Status> ended_;
  std::function<void()> all_ended_;
};

// Whether whoever calls may (authority.h). Without `insecure` only callers who have shown the token
// reach gRPC over TCP (listener.h).
absl::Status CheckCaller(const ServerCall& call, std::string_view method, bool insecure);
// The same of a call that needs a deadline: every one but the streams of agents.
absl::Status CheckUnaryCaller(const ServerCall& call, std::string_view method, bool insecure);

}  // namespace regroup::coordinator
