#include "launcher/coordinator/shell/calls.h"

#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/user_error.h"
#include "common/config/job_limits.h"
#include "common/report/text_style.h"
#include "common/rpc/channel.h"
#include "common/rpc/checker.h"
#include "launcher/coordinator/core/authority.h"

namespace regroup::coordinator {
namespace {

constexpr auto kAnswerBeforeDeadline = std::chrono::milliseconds(200);

absl::Status Invalid(std::string_view what, std::string_view because) {
  return UserError(absl::StatusCode::kInvalidArgument, what, because, "");
}

// The refusal that an answer may be instead.
template <class T>
absl::StatusOr<const T*> Expect(const Reply& reply) {
  if (const auto* refused = std::get_if<absl::Status>(&reply)) return *refused;
  const T* value = std::get_if<T>(&reply);
  if (value == nullptr) return absl::InternalError("the answer is of another call's kind");
  return value;
}

absl::Status FillRead(const Identity& identity, bool detail, const Reply& reply,
                      pb::ReadReply& out) {
  absl::StatusOr<const ReadReply*> read = Expect<ReadReply>(reply);
  if (!read.ok()) return read.status();
  for (const JobView& job : (*read)->jobs) {
    pb::JobView* added = out.add_jobs();
    *added = ToProto(job);
    // A submitter's environment may hold secrets, and a list needs no command lines of 64 KiB.
    added->mutable_spec()->clear_environment();
    if (!detail && added->spec().command_size() > 16) {
      added->mutable_spec()->mutable_command()->DeleteSubrange(16,
                                                               added->spec().command_size() - 16);
    }
  }
  for (const NodeView& node : (*read)->nodes) *out.add_nodes() = ToProto(node);
  for (const std::string& warning : (*read)->warnings) out.add_warnings(warning);
  out.set_cluster(identity.cluster.value());
  out.set_epoch(identity.epoch.value());
  *out.mutable_version() = ToProto(identity.version);
  if (out.ByteSizeLong() > static_cast<std::size_t>(kMaxReplyBytes)) {
    return UserError(
        absl::StatusCode::kResourceExhausted, "the answer is too large",
        absl::StrCat(out.ByteSizeLong(), " bytes, at most ", kMaxReplyBytes, " are sent"),
        "name one job");
  }
  return absl::OkStatus();
}

// As gRPC names where a call came from. Unset: none of the ways that the listener opens.
std::optional<Caller> CallerOf(const std::string& peer, bool insecure) {
  if (absl::StartsWith(peer, "unix:")) return Caller::kHost;
  // The counting gate names its ends after the peers (tcp_gate.h).
  if (absl::StartsWith(peer, "unix-abstract:")) return insecure ? Caller::kAnyone : Caller::kToken;
  return std::nullopt;
}

}  // namespace

absl::Status CheckCaller(grpc::CallbackServerContext& context, std::string_view call,
                         bool insecure) {
  const std::optional<Caller> caller = CallerOf(context.peer(), insecure);
  if (caller && MayCall(*caller, call)) return absl::OkStatus();
  return UserError(absl::StatusCode::kPermissionDenied,
                   absl::StrCat("this caller may not call ", std::string(call)),
                   "the coordinator's table has no right for it", "regroup authz");
}

absl::Status CheckUnaryCaller(grpc::CallbackServerContext& context, std::string_view call,
                              bool insecure) {
  const absl::Status caller = CheckCaller(context, call, insecure);
  if (!caller.ok()) return caller;
  if (context.deadline() == std::chrono::system_clock::time_point::max()) {
    return Invalid("this call has no deadline", "every call but a session needs one");
  }
  return absl::OkStatus();
}

// Lives from the call's start to OnDone.
class Calls::UnaryCall final : public grpc::ServerUnaryReactor {
 public:
  UnaryCall(Calls& calls, Plan plan)
      : calls_(calls), id_(++calls.last_id_), is_submit_(plan.is_submit) {
    calls_.loop_.Post([this, plan = std::move(plan)](Instant received) mutable {
      calls_.Add(this, received, std::move(plan));
    });
  }
  void OnCancel() override {
    calls_.loop_.Post([calls = &calls_, id = id_](Instant received) { calls->Drop(received, id); });
  }
  void OnDone() override {
    --calls_.calls_;
    if (is_submit_) --calls_.submits_;
    delete this;
  }
  CallId id() const { return id_; }

 private:
  Calls& calls_;
  const CallId id_;
  const bool is_submit_;
};

Calls::Calls(CoreLoop& loop, std::function<std::uint64_t()> free_bytes)
    : loop_(loop), free_bytes_(std::move(free_bytes)) {}

Calls::~Calls() = default;

grpc::ServerUnaryReactor* Calls::Refuse(grpc::CallbackServerContext* context,
                                        const absl::Status& why) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(why));
  return reactor;
}

grpc::ServerUnaryReactor* Calls::Begin(grpc::CallbackServerContext* context,
                                       std::size_t request_bytes, Plan plan) {
  if (request_bytes > static_cast<std::size_t>(kMaxCallMessageBytes)) {
    return Refuse(context, Invalid("this request is too large",
                                   absl::StrCat(request_bytes, " bytes, at most ",
                                                kMaxCallMessageBytes, " are taken")));
  }
  const bool too_many_calls = ++calls_ > kMaxPendingCalls;
  const bool too_many_submits = plan.is_submit && ++submits_ > kMaxPendingSubmits;
  if (too_many_calls || too_many_submits) {
    --calls_;
    if (plan.is_submit) --submits_;
    return Refuse(
        context,
        UserError(absl::StatusCode::kResourceExhausted, "the coordinator has too much to do",
                  too_many_submits ? absl::StrCat(kMaxPendingSubmits, " submits are pending")
                                   : absl::StrCat(kMaxPendingCalls, " calls are pending"),
                  "try again in a second"));
  }
  return new UnaryCall(*this, std::move(plan));
}

void Calls::Add(UnaryCall* reactor, Instant received, Plan plan) {
  if (ended_ || !loop_.started()) {
    const absl::Status why =
        ended_ ? *ended_ : absl::UnavailableError("the coordinator is starting");
    reactor->Finish(ToGrpcStatus(why));
    return;
  }
  const CallId id = reactor->id();
  Pending& pending = pending_[id];
  pending.reactor = reactor;
  pending.respond = std::move(plan.respond);
  if (plan.fallback) {
    pending.timer = std::make_unique<boost::asio::steady_timer>(loop_.io());
    pending.timer->expires_after(std::max(plan.fallback_at - std::chrono::system_clock::now(),
                                          std::chrono::system_clock::duration(0)));
    pending.timer->async_wait(
        [this, id, filter = *plan.fallback](const boost::system::error_code& error) {
          if (!error) loop_.Post([this, id, filter](Instant now) { AskAgain(now, id, filter); });
        });
  }
  loop_.Step(received, plan.event(id));
}

void Calls::AskAgain(Instant received, CallId call, const ReadFilter& filter) {
  const auto at = pending_.find(call);
  if (at == pending_.end()) return;
  loop_.Step(received, CallDropped{call});
  loop_.Step(received, ReadAsked{call, filter, false});
}

void Calls::Answer(CallId call, const Reply& reply) {
  const auto at = pending_.find(call);
  if (at == pending_.end()) return;
  if (at->second.internal) {
    const Internal answered = std::move(at->second.internal);
    pending_.erase(at);
    return answered(reply);
  }
  Finish(at, at->second.respond(reply));
}

CallId Calls::ReadFor(Instant received, ReadFilter filter, bool wait_for_end, Internal answered) {
  const CallId id(++last_id_);
  pending_[id].internal = std::move(answered);
  loop_.Step(received, ReadAsked{id, std::move(filter), wait_for_end});
  return id;
}

void Calls::Drop(Instant received, CallId call) {
  const auto at = pending_.find(call);
  if (at == pending_.end()) return;
  loop_.Step(received, CallDropped{call});
  if (at->second.internal) {
    pending_.erase(at);
    return;
  }
  Finish(at, absl::CancelledError("the caller left"));
}

void Calls::Finish(std::map<CallId, Pending>::iterator at, const absl::Status& status) {
  UnaryCall* reactor = at->second.reactor;
  pending_.erase(at);
  reactor->Finish(ToGrpcStatus(status));
  if (pending_.empty() && all_ended_) std::exchange(all_ended_, nullptr)();
}

void Calls::EndAll(const absl::Status& why, std::function<void()> done) {
  ended_ = why;
  std::erase_if(pending_,
                [](const auto& entry) { return static_cast<bool>(entry.second.internal); });
  if (pending_.empty()) return done();
  all_ended_ = std::move(done);
  while (!pending_.empty()) Finish(pending_.begin(), why);
}

// ---- the calls

grpc::ServerUnaryReactor* Calls::Submit(grpc::CallbackServerContext* context,
                                        const pb::SubmitRequest* request, pb::SubmitReply* reply) {
  if (!request->dry_run() && !IsToken(request->key())) {
    return Refuse(context, Invalid("this submit cannot be taken",
                                   "key: is not 1 to 128 letters, digits or . _ - :"));
  }
  absl::StatusOr<JobSpec> spec = FromProto(request->spec());
  if (!spec.ok())
    return Refuse(context,
                  Invalid("this job cannot be taken", std::string(spec.status().message())));
  if (absl::Status valid = ValidateJobSpec(*spec); !valid.ok()) return Refuse(context, valid);
  if (request->dry_run()) return Refuse(context, absl::OkStatus());
  Plan plan;
  plan.is_submit = true;
  plan.event = [this, spec = *std::move(spec), key = request->key(),
                now_or_never = request->now_or_never()](CallId call) -> Event {
    return SubmitAsked{call, spec, key, free_bytes_(), now_or_never};
  };
  plan.respond = [reply](const Reply& answer) {
    absl::StatusOr<const SubmitReply*> submitted = Expect<SubmitReply>(answer);
    if (!submitted.ok()) return submitted.status();
    reply->set_job((*submitted)->job.value());
    if ((*submitted)->waits) *reply->mutable_waits() = ToProto(*(*submitted)->waits);
    return submitted.status();
  };
  return Begin(context, request->ByteSizeLong(), std::move(plan));
}

grpc::ServerUnaryReactor* Calls::Cancel(grpc::CallbackServerContext* context,
                                        const pb::CancelRequest* request, pb::CancelReply* reply) {
  wire::Checker check;
  CancelAsked asked;
  asked.job = check.Token("job", request->job());
  asked.by = check.Text("who", request->who(), 256);
  // It is shown to whoever looks at that job, for as long as there is one.
  if (EscapeControls(asked.by) != asked.by) check.Fail("who: has control characters");
  asked.key = check.Token("key", request->key());
  asked.now = request->now();
  if (!check.status().ok())
    return Refuse(context,
                  Invalid("this cancel cannot be taken", std::string(check.status().message())));
  Plan plan;
  plan.event = [asked](CallId call) mutable -> Event {
    asked.call = call;
    return asked;
  };
  plan.respond = [reply](const Reply& answer) {
    absl::StatusOr<const CancelReply*> cancelled = Expect<CancelReply>(answer);
    if (cancelled.ok()) reply->set_job((*cancelled)->job.value());
    return cancelled.status();
  };
  return Begin(context, request->ByteSizeLong(), std::move(plan));
}

grpc::ServerUnaryReactor* Calls::Read(grpc::CallbackServerContext* context,
                                      const pb::ReadRequest* request, pb::ReadReply* reply) {
  wire::Checker check;
  const bool jobs = request->what() == pb::ReadRequest::WHAT_JOBS;
  const bool nodes = request->what() == pb::ReadRequest::WHAT_NODES;
  if (!jobs && !nodes)
    check.Fail(absl::StrCat("what: ", static_cast<int>(request->what()), " is not a known value"));
  const std::string selector = check.Text("selector", request->selector(), 256);
  if (request->wait_for_end() && (!jobs || selector.empty()))
    check.Fail("wait_for_end: needs one job");
  if (!check.status().ok())
    return Refuse(context,
                  Invalid("this read cannot be taken", std::string(check.status().message())));
  ReadFilter filter;
  filter.jobs = jobs;
  filter.nodes = nodes;
  (jobs ? filter.job : filter.node) = selector;
  filter.ended = request->ended();
  filter.detail = request->detail();
  Plan plan;
  if (request->wait_for_end()) {
    plan.fallback = filter;
    plan.fallback_at = context->deadline() - kAnswerBeforeDeadline;
  }
  plan.event = [filter, wait = request->wait_for_end()](CallId call) -> Event {
    return ReadAsked{call, filter, wait};
  };
  plan.respond = [this, reply, detail = request->detail()](const Reply& answer) {
    return FillRead(identity_, detail, answer, *reply);
  };
  return Begin(context, request->ByteSizeLong(), std::move(plan));
}

grpc::ServerUnaryReactor* Calls::ForgetNode(grpc::CallbackServerContext* context,
                                            const pb::ForgetNodeRequest* request,
                                            pb::ForgetNodeReply* reply) {
  wire::Checker check;
  const std::string node = check.Token("node", request->node());
  if (!check.status().ok())
    return Refuse(context,
                  Invalid("no node can be forgotten", std::string(check.status().message())));
  Plan plan;
  plan.event = [node](CallId call) -> Event { return ForgetNodeAsked{call, node}; };
  plan.respond = [reply, node](const Reply& answer) {
    absl::StatusOr<const ForgetNodeReply*> forgotten = Expect<ForgetNodeReply>(answer);
    if (forgotten.ok()) reply->set_node(node);
    return forgotten.status();
  };
  return Begin(context, request->ByteSizeLong(), std::move(plan));
}

}  // namespace regroup::coordinator
