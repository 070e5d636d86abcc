#pragma once

// The unary calls of the command line. Each is checked on gRPC's thread, posted as one event of the
// core, found again by its Answer and finished once, on the loop's thread.

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "common/rpc/convert.h"
#include "launcher/coordinator/core/actions.h"
#include "launcher/coordinator/core/events.h"
#include "launcher/coordinator/shell/core_loop.h"
#include "proto/coordinator.pb.h"

namespace regroup::coordinator {

inline constexpr int kMaxPendingSubmits = 10'000;
inline constexpr int kMaxPendingCalls = 20'000;

// What every reader's reply carries.
struct Identity {
  ClusterId cluster;
  Epoch epoch;
  Version version;
};

class Calls {
 public:
  using Respond = std::function<absl::Status(const Reply&)>;  // Fills the call's reply.
  using Internal = std::function<void(const Reply&)>;

  Calls(CoreLoop& loop, std::function<std::uint64_t()> free_bytes);
  ~Calls();

  // From gRPC's threads.
  grpc::ServerUnaryReactor* Submit(grpc::CallbackServerContext* context,
                                   const pb::SubmitRequest* request, pb::SubmitReply* reply);
  grpc::ServerUnaryReactor* Cancel(grpc::CallbackServerContext* context,
                                   const pb::CancelRequest* request, pb::CancelReply* reply);
  grpc::ServerUnaryReactor* Read(grpc::CallbackServerContext* context,
                                 const pb::ReadRequest* request, pb::ReadReply* reply);
  grpc::ServerUnaryReactor* ForgetNode(grpc::CallbackServerContext* context,
                                       const pb::ForgetNodeRequest* request,
                                       pb::ForgetNodeReply* reply);

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
  struct Pending {
    UnaryCall* reactor = nullptr;  // Null: internal.
    Respond respond;
    Internal internal;
    bool is_submit = false;
    std::unique_ptr<boost::asio::steady_timer> timer;  // Of a waiting read.
  };

  // One call that was checked.
  struct Plan {
    Respond respond;
    std::function<Event(CallId)> event;
    bool is_submit = false;
    // A waiting read: asked again without waiting when its deadline comes close.
    std::optional<ReadFilter> fallback;
    std::chrono::system_clock::time_point fallback_at{};
  };

  grpc::ServerUnaryReactor* Refuse(grpc::CallbackServerContext* context, const absl::Status& why);
  grpc::ServerUnaryReactor* Begin(grpc::CallbackServerContext* context, std::size_t request_bytes,
                                  Plan plan);
  void Add(UnaryCall* reactor, Instant received, Plan plan);
  void AskAgain(Instant received, CallId call, const ReadFilter& filter);
  void Finish(std::map<CallId, Pending>::iterator at, const absl::Status& status);

  CoreLoop& loop_;
  const std::function<std::uint64_t()> free_bytes_;
  Identity identity_;
  std::map<CallId, Pending> pending_;
  std::atomic<std::uint64_t> last_id_ = 0;
  std::atomic<int> calls_ = 0, submits_ = 0;
  std::optional<absl::Status> ended_;
  std::function<void()> all_ended_;
};

// Whether whoever calls may (authority.h). Without `insecure` only callers who have shown the token
// reach gRPC over TCP (listener.h).
absl::Status CheckCaller(grpc::CallbackServerContext& context, std::string_view call,
                         bool insecure);
// The same of a call that needs a deadline: every one but the streams of agents.
absl::Status CheckUnaryCaller(grpc::CallbackServerContext& context, std::string_view call,
                              bool insecure);

}  // namespace regroup::coordinator
