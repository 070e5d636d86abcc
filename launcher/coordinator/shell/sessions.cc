#include "launcher/coordinator/shell/sessions.h"

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/user_error.h"
#include "common/config/job_limits.h"
#include "common/rpc/channel.h"
#include "common/rpc/checker.h"
#include "launcher/coordinator/shell/tcp_gate.h"

namespace regroup::coordinator {
namespace {

constexpr auto kHelloLimit = std::chrono::seconds(10);
constexpr auto kLastMessageLimit = std::chrono::seconds(2);

absl::Status TooLarge(std::size_t parsed) {
  return absl::InvalidArgumentError(
      absl::StrCat("message: takes ", parsed, " bytes, at most ", kMaxUnheardBytes, " are taken"));
}

absl::Status TooMuch() {
  return UserError(absl::StatusCode::kResourceExhausted, "the coordinator has too much to do",
                   absl::StrCat("agents have sent more than ", kMaxUnheardBytes,
                                " bytes that it has yet to look at"),
                   "");
}

absl::Status Protocol(std::string_view what, std::string_view because) {
  return UserError(absl::StatusCode::kInvalidArgument, what, because,
                   "use regroup-agent of the same version as the coordinator");
}

}  // namespace

// Lives as long as its call. Members are the loop's between OnRead/OnWritten and the next Read or
// Write.
class Sessions::Stream final : public CallHandler {
 public:
  Stream(Sessions& sessions, ServerCall& call, std::string connection)
      : id_(++sessions.last_id_),
        sessions_(sessions),
        call_(call),
        connection_(std::move(connection)) {
    sessions_.loop_.Post([this](Instant) { sessions_.Add(this); });
  }
  ~Stream() override { sessions_.Left(connection_); }

  void OnRead(std::optional<std::string_view> message) override {
    if (!message) {
      return sessions_.loop_.Post(
          [sessions = &sessions_, id = id_](Instant) { sessions->OnEnded(id); });
    }
    const std::size_t bytes = BytesWhenParsed({message->data(), message->size()});
    const bool fits = (sessions_.unheard_bytes_ += bytes) <= kMaxUnheardBytes || bytes < kFatBytes;
    absl::StatusOr<AgentSaid> said = bytes > kMaxUnheardBytes ? TooLarge(bytes)
                                     : fits                   ? Decode(*message)
                                                              : TooMuch();
    const bool launch = said.ok() && std::holds_alternative<LaunchRequest>(*said);
    const bool beat = said.ok() && std::holds_alternative<HeartbeatMessage>(*said);
    const std::uint64_t free_bytes = launch ? sessions_.free_bytes_() : 0;
    CoreLoop::Work obey = [sessions = &sessions_, id = id_, bytes, said = std::move(said),
                           free_bytes](Instant received) mutable {
      sessions->unheard_bytes_ -= bytes;
      sessions->OnRead(id, received, std::move(said), free_bytes);
    };
    beat ? sessions_.loop_.PostSoon(std::move(obey)) : sessions_.loop_.Post(std::move(obey));
  }
  void OnWritten(bool ok) override {
    sessions_.loop_.Post(
        [sessions = &sessions_, id = id_, ok](Instant) { sessions->OnWritten(id, ok); });
  }

  ServerCall& call() { return call_; }
  std::string peer() const { return PeerText(call_.peer()); }
  SessionId id() const { return id_; }

 private:
  static absl::StatusOr<AgentSaid> Decode(std::string_view bytes) {
    pb::AgentMessage message;
    if (!Parse(bytes, message)) return absl::InvalidArgumentError("message: is not whole");
    return DecodeAgentMessage(message);
  }

  const SessionId id_;
  Sessions& sessions_;
  ServerCall& call_;
  const std::string connection_;
};

Sessions::Sessions(CoreLoop& loop, obs::Logger& log, Duration lease,
                   std::function<std::uint64_t()> free_bytes)
    : loop_(loop), log_(log), answer_every_(lease / 3), free_bytes_(std::move(free_bytes)) {}

Sessions::~Sessions() = default;

std::unique_ptr<CallHandler> Sessions::Open(ServerCall& call) {
  std::string connection = call.peer();
  // Those of the Unix socket have no names of their own; they are of this user.
  const std::string peer = PeerText(connection);
  if (peer == connection) return std::make_unique<Stream>(*this, call, "");
  int& streams = by_connection_[connection];
  if (streams < kMaxSessionsPerConnection) {
    ++streams;
    return std::make_unique<Stream>(*this, call, std::move(connection));
  }
  if (too_many_hook_) too_many_hook_(peer);
  call.Refuse(UserError(absl::StatusCode::kResourceExhausted, "too many sessions on one connection",
                        absl::StrCat("at most ", kMaxSessionsPerConnection, " are served"),
                        "a connection for each agent"));
  return nullptr;
}

void Sessions::Left(const std::string& connection) {
  const auto at = by_connection_.find(connection);
  if (at != by_connection_.end() && --at->second == 0) by_connection_.erase(at);
}

void Sessions::Add(Stream* stream) {
  const SessionId id = stream->id();
  auto session = std::make_unique<Session>(loop_.io());
  session->stream = stream;
  const auto at = sessions_.emplace(id, std::move(session)).first;
  stream->call().Read();
  if (closed_) {
    return BeginClose(
        at, UserError(absl::StatusCode::kUnavailable, "the coordinator is shutting down", "", ""));
  }
  if (sessions_.size() > kMaxSessions) {
    return BeginClose(at, UserError(absl::StatusCode::kResourceExhausted, "too many sessions",
                                    std::to_string(sessions_.size()) + ", at most " +
                                        std::to_string(kMaxSessions) + " are served",
                                    ""));
  }
  at->second->timer.expires_after(kHelloLimit);
  at->second->timer.async_wait([this, id](const boost::system::error_code& error) {
    const auto late = sessions_.find(id);
    if (error || late == sessions_.end() || !late->second->node.empty()) return;
    BeginClose(late, absl::DeadlineExceededError("the session did not say hello within 10 s"));
  });
}

void Sessions::OnRead(SessionId id, Instant received, absl::StatusOr<AgentSaid> message,
                      std::uint64_t free_bytes) {
  const auto at = sessions_.find(id);
  if (at == sessions_.end() || at->second->closing) return;
  Session& session = *at->second;
  if (absl::IsResourceExhausted(message.status())) return BeginClose(at, message.status());
  if (!message.ok()) {
    log_.Warning(
        "an agent sent a message that cannot be used",
        {{"peer", session.stream->peer()}, {"because", std::string(message.status().message())}});
    return BeginClose(at, Protocol("a message of this agent cannot be used",
                                   std::string(message.status().message())));
  }
  Obey(id, session, received, *std::move(message), free_bytes);
  const auto still = sessions_.find(id);
  if (still != sessions_.end() && !still->second->closing) still->second->stream->call().Read();
}

void Sessions::Obey(SessionId id, Session& session, Instant received, AgentSaid message,
                    std::uint64_t free_bytes) {
  const bool is_hello = std::holds_alternative<Hello>(message);
  if (is_hello != session.node.empty()) {
    const auto at = sessions_.find(id);
    return BeginClose(at, is_hello ? Protocol("this session said hello twice", "")
                                   : Protocol("this session did not begin with hello", ""));
  }
  const auto step = [&](const Event& event) { loop_.Step(received, event); };
  std::visit(wire::Overloaded{
                 [&](Hello& hello) {
                   session.timer.cancel();
                   session.node = hello.node;
                   session.address = hello.address;
                   step(SessionOpened{id, std::move(hello)});
                 },
                 [&](LaunchRequest& request) {
                   if (absl::Status valid = ValidateJobSpec(request.spec); !valid.ok()) {
                     pb::CoordinatorMessage answer;
                     *answer.mutable_launch_answer()->mutable_refused() = RefusedFrom(valid);
                     return SendAnswer(id, std::move(answer));
                   }
                   step(LaunchAsked{id, std::move(request), free_bytes});
                 },
                 [&](HeartbeatMessage& heartbeat) {
                   step(HeartbeatReceived{id, heartbeat.obeyed, heartbeat.warm_bytes,
                                          std::move(heartbeat.gpus)});
                   AnswerHeartbeat(id, received);
                 },
                 [&](GroupReport& report) {
                   step(Reported{id, std::move(report)});
                 },
                 [&](WorkerProgress& progress) {
                   step(Progressed{id, std::move(progress)});
                 },
                 [&](CommitRequest& request) {
                   step(CommitAsked{id, std::move(request)});
                 },
                 [&](Notice& notice) {
                   step(Noticed{id, notice});
                 },
                 [&](LeaveRequest& leave) {
                   step(LeaveAsked{id, leave.signal, leave.now});
                 },
             },
             message);
}

void Sessions::OnEnded(SessionId id) {
  const auto at = sessions_.find(id);
  if (at == sessions_.end()) return;
  Session& session = *at->second;
  Broken(id, session);
  session.cancelled = true;
  session.outbox.Clear();
  if (!session.closing) session.closing = absl::OkStatus();
  if (session.write_in_flight) {
    session.stream->call().Cancel();  // A peer that stopped reading would hold it.
  } else {
    Finish(at, *session.closing);
  }
}

void Sessions::OnWritten(SessionId id, bool ok) {
  const auto at = sessions_.find(id);
  if (at == sessions_.end()) return;
  Session& session = *at->second;
  session.write_in_flight = false;
  if (!ok) {
    Broken(id, session);
    session.cancelled = true;
    session.outbox.Clear();
    if (!session.closing) session.closing = absl::OkStatus();
  }
  Pump(at);
}

void Sessions::Pump(Table::iterator at) {
  Session& session = *at->second;
  if (session.write_in_flight) return;
  if (session.outbox.empty()) {
    if (session.closing) Finish(at, *session.closing);
    return;
  }
  session.write_in_flight = true;
  session.stream->call().Write(Serialised(session.outbox.Next()));
}

Sessions::Session* Sessions::Writable(SessionId id) {
  const auto at = sessions_.find(id);
  return at == sessions_.end() || at->second->closing ? nullptr : at->second.get();
}

void Sessions::Send(SessionId id, bool fits) {
  const auto at = sessions_.find(id);
  if (fits) return Pump(at);
  const Session& session = *at->second;
  log_.Warning("an agent does not read: its session is cut",
               {{"node", session.node.value()}, {"peer", session.stream->peer()}});
  BeginClose(at,
             UserError(absl::StatusCode::kResourceExhausted, "this agent does not read its session",
                       std::to_string(session.outbox.size()) + " messages wait", ""));
}

void Sessions::SendAnswer(SessionId id, pb::CoordinatorMessage message) {
  Session* session = Writable(id);
  if (session == nullptr) return;
  const bool welcome = message.has_welcome();
  if (welcome) session->name = message.welcome().name();
  const std::string name = session->name;
  if (welcome) by_name_[name] = id;
  Send(id, session->outbox.AddAnswer(std::move(message)));
  if (welcome && attached_hook_) attached_hook_(name);
}

// Not behind the disk: it says that this process is there, not that anything is durable. What is
// on its way already says as much.
void Sessions::AnswerHeartbeat(SessionId id, Instant received) {
  Session* session = Writable(id);
  if (session == nullptr || session->write_in_flight || received < session->next_answer) return;
  session->next_answer = received + answer_every_;
  SendAnswer(id, pb::CoordinatorMessage());  // Nothing in it.
}

void Sessions::SendNews(SessionId id, pb::CoordinatorMessage message) {
  if (Session* session = Writable(id)) Send(id, session->outbox.AddNews(std::move(message)));
}

void Sessions::SendOrder(SessionId id, const Order& order) {
  Session* session = Writable(id);
  if (session == nullptr) return;
  pb::CoordinatorMessage message;
  *message.mutable_order() = ToProto(order);
  session->outbox.AddOrder(order.job, std::move(message));
  Send(id, true);
}

bool Sessions::SendOpening(SessionId id, std::uint64_t stream, pb::CoordinatorMessage message) {
  Session* session = Writable(id);
  if (session == nullptr || !session->outbox.AddOpening(stream, std::move(message))) return false;
  Send(id, true);
  return true;
}

void Sessions::DropOpening(SessionId id, std::uint64_t stream) {
  if (Session* session = Writable(id)) session->outbox.DropOpening(stream);
}

void Sessions::Close(SessionId session, const absl::Status& why) {
  const auto at = sessions_.find(session);
  if (at != sessions_.end()) BeginClose(at, why);
}

void Sessions::BeginClose(Table::iterator at, const absl::Status& why) {
  Session& session = *at->second;
  if (session.closing) return;
  Broken(at->first, session);
  session.closing = why;
  session.outbox.Clear();
  if (TellsToStayAway(why.code()) && !session.cancelled) {
    pb::CoordinatorMessage last;
    *last.mutable_refused() = RefusedFrom(why);
    CHECK(session.outbox.AddAnswer(std::move(last)));
  }
  session.timer.expires_after(kLastMessageLimit);
  session.timer.async_wait([this, id = at->first](const boost::system::error_code& error) {
    const auto late = sessions_.find(id);
    if (!error && late != sessions_.end()) late->second->stream->call().Cancel();
  });
  Pump(at);
}

void Sessions::Broken(SessionId id, Session& session) {
  if (session.node.empty()) return;
  const auto current = by_name_.find(session.name);
  if (current != by_name_.end() && current->second == id) by_name_.erase(current);
  if (session.closing || session.cancelled) return;  // The core knows.
  loop_.Post([this, id](Instant received) { loop_.Step(received, SessionBroken{id}); });
}

void Sessions::Finish(Table::iterator at, const absl::Status& status) {
  ServerCall& call = at->second->stream->call();
  const grpc::Status last = ToGrpcStatus(status);  // `status` may lie in what is erased.
  sessions_.erase(at);
  call.Finish(last);
  if (sessions_.empty() && all_closed_) std::exchange(all_closed_, nullptr)();
}

void Sessions::CloseAll(const absl::Status& why, std::function<void()> done) {
  closed_ = true;
  if (sessions_.empty()) return done();
  all_closed_ = std::move(done);
  std::vector<SessionId> ids;
  for (const auto& [id, session] : sessions_) ids.push_back(id);
  for (SessionId id : ids) Close(id, why);
}

std::optional<SessionId> Sessions::Find(const std::string& name) const {
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) return std::nullopt;
  return found->second;
}

NodeId Sessions::NodeOf(SessionId session) const {
  const auto found = sessions_.find(session);
  return found == sessions_.end() ? NodeId() : found->second->node;
}

bool Sessions::HasMemberAt(const std::string& ip) const {
  return std::any_of(sessions_.begin(), sessions_.end(), [&](const auto& entry) {
    return !entry.second->name.empty() && entry.second->address == ip;
  });
}

}  // namespace regroup::coordinator
