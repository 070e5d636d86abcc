#include "launcher/coordinator/shell/calls.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/user_error.h"
#include "common/config/job_limits.h"
#include "common/config/values.h"
#include "common/io/proc.h"
#include "common/report/text_style.h"
#include "common/rpc/channel.h"
#include "common/rpc/checker.h"
#include "launcher/coordinator/core/authority.h"

namespace regroup::coordinator {
namespace {

constexpr auto kAnswerBeforeDeadline = std::chrono::milliseconds(200);
constexpr Duration kFresh = std::chrono::seconds(1);  // For ages, which change without a row.
constexpr std::size_t kMaxReadRequestBytes = 4 << 10;
constexpr std::size_t kMaxMemberBytes = 24u << 20;  // Of all generations of one job.
constexpr char kNoMessage[] = "it is no message of this kind";
constexpr int kPage = 128;  // Of a list in one turn of the loop: some milliseconds.

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

// A hundred generations of thousands of members would not fit into one reply: the oldest are shown
// without theirs.
void TrimMembers(pb::JobView& shown) {
  std::size_t bytes = 0;
  for (int i = shown.generations_size() - 1; i >= 0; --i) {
    bytes += shown.generations(i).ByteSizeLong();
    if (bytes > kMaxMemberBytes) shown.mutable_generations(i)->clear_members();
  }
}

pb::JobView Shown(const JobView& job, bool detail) {
  pb::JobView shown = ToProto(job);
  TrimMembers(shown);
  // A submitter's environment may hold secrets, and a list needs no command lines of 64 KiB.
  shown.mutable_spec()->clear_environment();
  if (!detail && shown.spec().command_size() > 16)
    shown.mutable_spec()->mutable_command()->DeleteSubrange(16, shown.spec().command_size() - 16);
  return shown;
}

absl::Status AddPart(pb::ReadReply& part, std::string& bytes) {
  part.AppendPartialToString(&bytes);
  part.Clear();
  if (bytes.size() <= static_cast<std::size_t>(kMaxReplyBytes)) return absl::OkStatus();
  return UserError(absl::StatusCode::kOutOfRange, "the answer is too large",
                   absl::StrCat("at most ", kMaxReplyBytes, " bytes are sent"), "name one job");
}

// Joins one page to the bytes of a serialised pb::ReadReply, part by part: such messages are joined
// by joining their bytes, and as a whole it would be there twice.
absl::Status AddPage(const ReadReply& read, bool detail, std::string& bytes) {
  pb::ReadReply part;
  for (const JobView& job : read.jobs) {
    *part.add_jobs() = Shown(job, detail);
    RETURN_IF_ERROR(AddPart(part, bytes));
  }
  for (const NodeView& node : read.nodes) {
    *part.add_nodes() = ToProto(node);
    RETURN_IF_ERROR(AddPart(part, bytes));
  }
  return absl::OkStatus();
}

// What stands in a reply once.
absl::Status AddHead(const Identity& identity, const MemoryUse& memory, const ReadReply& read,
                     const std::vector<std::string>& more_warnings, std::string& bytes) {
  pb::ReadReply part;
  for (const std::string& warning : read.warnings) part.add_warnings(warning);
  for (const std::string& warning : more_warnings) part.add_warnings(warning);
  if (memory.resident_bytes > memory.limit_bytes)
    part.add_warnings(absl::StrCat("this coordinator takes ", FormatBytes(memory.resident_bytes),
                                   " of memory, more than its --memory-limit of ",
                                   FormatBytes(memory.limit_bytes), ": it has refused ",
                                   memory.refused_connections, " connections over TCP"));
  *part.mutable_memory() = ToProto(memory);
  part.set_cluster(identity.cluster.value());
  part.set_epoch(identity.epoch.value());
  *part.mutable_version() = ToProto(identity.version);
  return AddPart(part, bytes);
}

// As gRPC names where a call came from. Unset: none of the ways that the listener opens.
std::optional<Caller> CallerOf(const std::string& peer, bool insecure) {
  if (absl::StartsWith(peer, "unix:")) return Caller::kHost;
  // The counting gate, for those who have proved nothing, names its ends after the peers
  // (tcp_gate.h); who has proved the token comes as he is.
  if (absl::StartsWith(peer, "unix-abstract:") && insecure) return Caller::kAnyone;
  const bool direct = absl::StartsWith(peer, "ipv4:") || absl::StartsWith(peer, "ipv6:");
  if (direct && !insecure) return Caller::kToken;
  return std::nullopt;
}

}  // namespace

absl::Status CheckCaller(const ServerCall& call, std::string_view method, bool insecure) {
  const std::optional<Caller> caller = CallerOf(call.peer(), insecure);
  if (caller && MayCall(*caller, method)) return absl::OkStatus();
  return UserError(absl::StatusCode::kPermissionDenied,
                   absl::StrCat("this caller may not call ", std::string(method)),
                   "the coordinator's table has no right for it", "regroup authz");
}

absl::Status CheckUnaryCaller(const ServerCall& call, std::string_view method, bool insecure) {
  const absl::Status caller = CheckCaller(call, method, insecure);
  if (!caller.ok()) return caller;
  if (call.deadline() == std::chrono::system_clock::time_point::max()) {
    return Invalid("this call has no deadline", "every call but a session needs one");
  }
  return absl::OkStatus();
}

// Lives as long as its call. Counted from its request on.
class Calls::UnaryCall final : public CallHandler {
 public:
  UnaryCall(Calls& calls, ServerCall& call, PlanOf plan_of)
      : calls_(calls), id_(++calls.last_id_), call_(call), plan_of_(plan_of) {
    call_.Watch();
    call_.Read();
  }
  ~UnaryCall() override {
    calls_.replies_.Sent(id_);
    if (counted_) Uncount();
  }

  void OnRead(std::optional<std::string_view> request) override {
    absl::StatusOr<Plan> plan = request ? PlanFor(*request) : NoRequest();
    if (plan.ok() && !plan->answered) plan = Counted(*std::move(plan));
    if (!plan.ok()) return call_.Refuse(plan.status());
    if (plan->answered) return call_.Reply(Serialised(pb::SubmitReply()));
    calls_.loop_.Post([this, plan = *std::move(plan)](Instant received) mutable {
      calls_.Add(this, received, std::move(plan));
    });
  }
  void OnCancelled() override {
    left_ = true;
    const std::optional<std::string> left = calls_.replies_.LeftBy(id_, io::MonotonicNow());
    if (left && calls_.untaken_) calls_.untaken_(*left);
    calls_.loop_.Post([calls = &calls_, id = id_](Instant received) { calls->Drop(received, id); });
  }

  CallId id() const { return id_; }
  ServerCall& call() { return call_; }

 private:
  static absl::Status NoRequest() {
    return Invalid("this call has no request", "its caller ended it before one came");
  }
  absl::StatusOr<Plan> PlanFor(std::string_view request) {
    // Two threads of gRPC may tell the end before the request, and then nobody would drop it.
    if (left_) return absl::CancelledError("the caller left");
    request_bytes_ = request.size();
    return (calls_.*plan_of_)(call_, request);
  }
  // Or why no more of its kind may be pending.
  absl::StatusOr<Plan> Counted(Plan plan) {
    is_submit_ = plan.is_submit;
    counted_ = true;
    std::string excess;
    if (++calls_.calls_ > kMaxPendingCalls) excess = absl::StrCat(kMaxPendingCalls, " calls");
    if (is_submit_ && ++calls_.submits_ > kMaxPendingSubmits)
      excess = absl::StrCat(kMaxPendingSubmits, " submits");
    if ((calls_.request_bytes_ += request_bytes_) > kMaxPendingRequestBytes)
      excess = absl::StrCat("requests of ", kMaxPendingRequestBytes, " bytes");
    if (excess.empty()) return plan;
    Uncount();
    return UserError(absl::StatusCode::kResourceExhausted, "the coordinator has too much to do",
                     absl::StrCat("at most ", excess, " may be pending"), "try again in a second");
  }
  void Uncount() {
    counted_ = false;
    calls_.request_bytes_ -= request_bytes_;
    --calls_.calls_;
    if (is_submit_) --calls_.submits_;
  }

  Calls& calls_;
  const CallId id_;
  ServerCall& call_;
  const PlanOf plan_of_;
  std::size_t request_bytes_ = 0;
  bool is_submit_ = false, counted_ = false, left_ = false;
};

Calls::Calls(CoreLoop& loop, obs::Logger& log, std::function<std::uint64_t()> free_bytes,
             std::function<MemoryUse()> memory)
    : loop_(loop), log_(log), free_bytes_(std::move(free_bytes)), memory_(std::move(memory)) {}

Calls::~Calls() = default;

void Calls::Add(UnaryCall* caller, Instant received, Plan plan) {
  if (ended_ || !loop_.started()) {
    const absl::Status why =
        ended_ ? *ended_ : absl::UnavailableError("the coordinator is starting");
    return caller->call().Finish(ToGrpcStatus(why));
  }
  const CallId id = caller->id();
  const PendingAt at = pending_.try_emplace(id).first;
  Pending& pending = at->second;
  pending.caller = caller;
  pending.respond = std::move(plan.respond);
  pending.question = std::move(plan.question);
  if (!pending.question) return loop_.Step(received, plan.event(id));
  if (pending.question->wait) {
    if (!IsJobId(pending.question->filter.job)) pending.question->alone = id;
    pending.timer = std::make_unique<boost::asio::steady_timer>(loop_.io());
    pending.timer->expires_after(std::max(plan.fallback_at - std::chrono::system_clock::now(),
                                          std::chrono::system_clock::duration(0)));
    pending.timer->async_wait([this, id](const boost::system::error_code& error) {
      if (!error) loop_.Post([this, id](Instant now) { AskAgain(now, id); });
    });
  }
  Ask(received, at);
}

void Calls::AskAgain(Instant received, CallId call) {
  const auto at = pending_.find(call);
  if (at == pending_.end()) return;
  Question& question = *at->second.question;
  Unask(received, call, question);
  question.wait = false;
  question.alone = CallId();
  Ask(received, at);
}

// ---- reads

// Who joins a question that has no answer yet gets one that is new enough: effects leave the loop
// in order, so nothing that happened after the question was seen by anybody before its answer. Once
// a list has its first page that is so no more.
void Calls::Ask(Instant received, PendingAt reader) {
  const Question& question = *reader->second.question;
  const auto same = asked_.find(question);
  if (same != asked_.end() && same->second.bytes.empty() && !same->second.said) {
    same->second.readers.insert(reader->first);
    return;
  }
  if (same != asked_.end() && !question.IsList()) {
    same->second.again.push_back(reader->first);
    return;
  }
  if (!question.wait && newest_.question == question && newest_.rows == loop_.rows() &&
      received < newest_.at + kFresh) {
    if (const auto reply = newest_.reply.lock()) return FinishRead(reader->first, reply);
  }
  if (const absl::Status busy = Busy(received, question); !busy.ok()) return Finish(reader, busy);
  if (question.IsList() && list_asked_) {
    later_.push_back(reader->first);
    return;
  }
  const CallId call(++last_id_);
  if (question.IsList()) list_asked_ = call;
  if (question.alone != CallId()) ++waits_by_word_;
  asked_[question] = Asked{call, received, loop_.rows(), {reader->first}, {}, false, {}, {}};
  questions_[call] = question;
  if (question.IsList()) return AskNext(call, "");
  loop_.Step(received, ReadAsked{call, question.filter, question.wait});
}

// The next page in a later turn of the loop, which has others to answer. Only the last one waits
// for the disk, and with it what the others show.
void Calls::AskNext(CallId call, const std::string& after) {
  loop_.Post([this, call, after](Instant received) {
    const auto found = questions_.find(call);
    if (found == questions_.end()) return;
    ReadFilter filter = found->second.filter;
    filter.limit = filter.detail ? 1 : kPage;
    filter.after = after;
    Asked& asked = asked_.at(found->second);
    const auto page = loop_.Read(filter);
    const bool here =
        page.ok() && std::none_of(page->jobs.begin(), page->jobs.end(),
                                  [](const JobView& job) { return job.history_away; });
    if (here && !page->next.empty() && !asked.readers.empty() &&
        AddPage(*page, filter.detail, asked.bytes).ok())
      return AskNext(call, page->next);
    loop_.Step(received, ReadAsked{call, std::move(filter), false});
  });
}

absl::Status Calls::Busy(Instant received, const Question& question) {
  if (question.alone != CallId() && waits_by_word_ >= kMaxWaitsByWord) {
    return UserError(absl::StatusCode::kResourceExhausted,
                     "too many callers wait for jobs by other words than their ids",
                     absl::StrCat("at most ", kMaxWaitsByWord, " may"), "the job's id");
  }
  if (question.wait || !replies_.Full()) return absl::OkStatus();
  auto [cut, stuck] = replies_.CutSlow(received);
  if (!stuck.empty() && stuck_) stuck_(std::move(stuck));
  const std::optional<int> untold = told_busy_.Due(received);
  if (untold || cut > 0) {
    log_.Warning("a reader has to wait: others have not taken their answers",
                 {{"bytes", std::to_string(kMaxReplyBytesInFlight)},
                  {"cut", std::to_string(cut)},
                  {"untold", std::to_string(untold.value_or(0))}});
  }
  return UserError(absl::StatusCode::kResourceExhausted, "too many answers are on their way",
                   absl::StrCat("readers have yet to take ", kMaxReplyBytesInFlight,
                                " bytes, no more is read for others meanwhile"),
                   "again in a second; a reader that takes more than 5 s is cut then");
}

void Calls::Unask(Instant received, CallId reader, const Question& question) {
  const auto asked = asked_.find(question);
  if (asked == asked_.end()) return;
  asked->second.readers.erase(reader);
  // What does not wait is being answered.
  if (!question.wait || asked->second.said || !asked->second.readers.empty()) return;
  const CallId call = asked->second.call;
  if (question.alone != CallId()) --waits_by_word_;
  asked_.erase(asked);
  questions_.erase(call);
  loop_.Step(received, CallDropped{call});
}

void Calls::AnswerReaders(CallId call, const Reply& answer) {
  const auto found = questions_.find(call);
  if (found == questions_.end()) return;
  absl::StatusOr<const ReadReply*> read = Expect<ReadReply>(answer);
  absl::Status failed = read.status();
  Asked& asking = asked_.at(found->second);
  if (read.ok()) failed = AddPage(**read, found->second.filter.detail, asking.bytes);
  if (failed.ok() && !(*read)->next.empty() && !asking.readers.empty())
    return AskNext(call, (*read)->next);
  if (failed.ok()) failed = AddHead(identity_, memory_(), **read, asking.warnings, asking.bytes);
  const Question question = std::move(found->second);
  questions_.erase(found);
  Asked asked = std::move(asked_.extract(question).mapped());
  if (question.alone != CallId()) --waits_by_word_;
  if (list_asked_ == call) AskLater();
  if (!asked.again.empty()) AskSoon(std::move(asked.again));
  if (asked.readers.empty()) return;
  if (!failed.ok()) {
    for (const CallId reader : asked.readers) {
      if (const auto at = pending_.find(reader); at != pending_.end()) Finish(at, failed);
    }
    return;
  }
  const std::shared_ptr<ReadReplies::Reply> reply = replies_.Add(std::move(asked.bytes));
  if (!question.wait) newest_ = {question, asked.at, asked.rows, reply};
  for (const CallId reader : asked.readers) FinishRead(reader, reply);
}

void Calls::AskLater() {
  list_asked_.reset();
  if (!later_.empty()) AskSoon(std::exchange(later_, {}));
}

// Nothing may be stepped while an answer is carried out.
void Calls::AskSoon(std::vector<CallId> readers) {
  loop_.Post([this, readers = std::move(readers)](Instant received) {
    for (const CallId reader : readers) {
      if (const auto at = pending_.find(reader); at != pending_.end()) Ask(received, at);
    }
  });
}

void Calls::FinishRead(CallId reader, const std::shared_ptr<ReadReplies::Reply>& reply) {
  const auto at = pending_.find(reader);
  if (at == pending_.end()) return;
  replies_.Sending(reader, at->second.caller->call(), io::MonotonicNow());
  Finish(at, ReadReplies::SliceOf(reply));
}

// What was said of the job stays as it was said: it has ended, and does not change.
void Calls::AnswerWithHistory(CallId call, const ReadReply& reply, std::size_t job) {
  if (histories_.size() >= kMaxHistories)
    return Answer(call,
                  UserError(absl::StatusCode::kResourceExhausted,
                            "too many histories of ended jobs are being read",
                            absl::StrCat("at most ", kMaxHistories, " may"), "again in a second"));
  if (const auto found = questions_.find(call); found != questions_.end())
    asked_.at(found->second).said = true;
  histories_.push_back({call, reply, job});
  histories_.back().reply.jobs[job].generations.clear();
  if (histories_.size() == 1) ReadNextHistory();
}

void Calls::ReadNextHistory() {
  const Awaiting& first = histories_.front();
  history_(first.reply.jobs[first.job].id,
           [this](absl::StatusOr<JobView> whole) { OnHistory(std::move(whole)); });
}

void Calls::OnHistory(absl::StatusOr<JobView> whole) {
  Awaiting awaiting = std::move(histories_.front());
  histories_.pop_front();
  if (!histories_.empty()) ReadNextHistory();
  JobView& view = awaiting.reply.jobs[awaiting.job];
  view.history_away = false;
  const auto found = questions_.find(awaiting.call);
  if (whole.ok()) {
    view.generations = std::move(whole->generations);
    view.events = std::move(whole->events);
    view.last_failure = std::move(whole->last_failure);
  } else if (!absl::IsNotFound(whole.status())) {  // Else it was purged a moment ago.
    if (found != questions_.end())
      asked_.at(found->second)
          .warnings.push_back(absl::StrCat("the history of ", view.id.value(),
                                           " cannot be read: ", PartsOf(whole.status()).because));
    // What is in memory of it is shown.
    ReadFilter filter;
    filter.job = view.id.value();
    filter.detail = true;
    absl::StatusOr<ReadReply> known = loop_.Read(filter);
    if (known.ok()) view.generations = std::move(known->jobs.front().generations);
  }
  Answer(awaiting.call, std::move(awaiting.reply));
}

void Calls::Answer(CallId call, const Reply& reply) {
  if (const auto* read = std::get_if<ReadReply>(&reply)) {
    const auto away = std::find_if(read->jobs.begin(), read->jobs.end(),
                                   [](const JobView& job) { return job.history_away; });
    if (away != read->jobs.end())
      return AnswerWithHistory(call, *read, static_cast<std::size_t>(away - read->jobs.begin()));
  }
  const auto at = pending_.find(call);
  if (at == pending_.end()) return AnswerReaders(call, reply);
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
  if (at->second.question) {
    Unask(received, call, *at->second.question);
  } else {
    loop_.Step(received, CallDropped{call});
  }
  if (at->second.internal) {
    pending_.erase(at);
    return;
  }
  Finish(at, absl::CancelledError("the caller left"));
}

void Calls::Finish(PendingAt at, absl::StatusOr<grpc::Slice> reply) {
  ServerCall& call = at->second.caller->call();
  pending_.erase(at);
  reply.ok() ? call.Reply(*std::move(reply)) : call.Finish(ToGrpcStatus(reply.status()));
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

std::unique_ptr<CallHandler> Calls::Submit(ServerCall& call) {
  return std::make_unique<UnaryCall>(*this, call, &Calls::PlanSubmit);
}

std::unique_ptr<CallHandler> Calls::Cancel(ServerCall& call) {
  return std::make_unique<UnaryCall>(*this, call, &Calls::PlanCancel);
}

std::unique_ptr<CallHandler> Calls::Read(ServerCall& call) {
  return std::make_unique<UnaryCall>(*this, call, &Calls::PlanRead);
}

std::unique_ptr<CallHandler> Calls::ForgetNode(ServerCall& call) {
  return std::make_unique<UnaryCall>(*this, call, &Calls::PlanForgetNode);
}

absl::StatusOr<Calls::Plan> Calls::PlanSubmit(const ServerCall& /*call*/, std::string_view bytes) {
  pb::SubmitRequest request;
  if (!Parse(bytes, request)) return Invalid("this submit cannot be taken", kNoMessage);
  if (!request.dry_run() && !IsToken(request.key())) {
    return Invalid("this submit cannot be taken",
                   "key: is not 1 to 128 letters, digits or . _ - :");
  }
  absl::StatusOr<JobSpec> spec = FromProto(request.spec());
  if (!spec.ok()) return Invalid("this job cannot be taken", std::string(spec.status().message()));
  RETURN_IF_ERROR(ValidateJobSpec(*spec));
  Plan plan;
  plan.answered = request.dry_run();
  plan.is_submit = true;
  plan.event = [spec = *std::move(spec), key = request.key(),
                room = plan.answered ? 0 : free_bytes_(),
                now_or_never = request.now_or_never()](CallId id) -> Event {
    return SubmitAsked{id, spec, key, room, now_or_never};
  };
  plan.respond = [](const Reply& answer) -> absl::StatusOr<grpc::Slice> {
    ASSIGN_OR_RETURN(const SubmitReply* submitted, Expect<SubmitReply>(answer));
    pb::SubmitReply reply;
    reply.set_job(submitted->job.value());
    if (submitted->waits) *reply.mutable_waits() = ToProto(*submitted->waits);
    return Serialised(reply);
  };
  return plan;
}

absl::StatusOr<Calls::Plan> Calls::PlanCancel(const ServerCall& /*call*/, std::string_view bytes) {
  pb::CancelRequest request;
  wire::Checker check;
  if (!Parse(bytes, request)) check.Fail(kNoMessage);
  CancelAsked asked;
  asked.job = check.Token("job", request.job());
  asked.by = check.Text("who", request.who(), 256);
  // It is shown to whoever looks at that job, for as long as there is one.
  if (EscapeControls(asked.by) != asked.by) check.Fail("who: has control characters");
  asked.key = check.Token("key", request.key());
  asked.now = request.now();
  if (!check.status().ok())
    return Invalid("this cancel cannot be taken", std::string(check.status().message()));
  Plan plan;
  plan.event = [asked](CallId id) mutable -> Event {
    asked.call = id;
    return asked;
  };
  plan.respond = [](const Reply& answer) -> absl::StatusOr<grpc::Slice> {
    ASSIGN_OR_RETURN(const CancelReply* cancelled, Expect<CancelReply>(answer));
    pb::CancelReply reply;
    reply.set_job(cancelled->job.value());
    return Serialised(reply);
  };
  return plan;
}

absl::StatusOr<Calls::Plan> Calls::PlanRead(const ServerCall& call, std::string_view bytes) {
  pb::ReadRequest request;
  wire::Checker check;
  if (bytes.size() > kMaxReadRequestBytes) {
    check.Fail(absl::StrCat(bytes.size(), " bytes, at most ", kMaxReadRequestBytes, " are taken"));
  } else if (!Parse(bytes, request)) {
    check.Fail(kNoMessage);
  }
  const bool jobs = request.what() == pb::ReadRequest::WHAT_JOBS;
  const bool nodes = request.what() == pb::ReadRequest::WHAT_NODES;
  if (!jobs && !nodes)
    check.Fail(absl::StrCat("what: ", static_cast<int>(request.what()), " is not a known value"));
  const std::string selector = check.Text("selector", request.selector(), 256);
  if (request.wait_for_end() && (!jobs || selector.empty()))
    check.Fail("wait_for_end: needs one job");
  if (!check.status().ok())
    return Invalid("this read cannot be taken", std::string(check.status().message()));
  Plan plan;
  // Clang 14 takes a nested struct with defaults for not constructible here without an argument.
  Question& question = plan.question.emplace(Question());
  question.filter.jobs = jobs;
  question.filter.nodes = nodes;
  (jobs ? question.filter.job : question.filter.node) = selector;
  question.filter.ended = request.ended();
  question.filter.detail = request.detail();
  question.wait = request.wait_for_end();
  if (question.wait) plan.fallback_at = call.deadline() - kAnswerBeforeDeadline;
  return plan;
}

absl::StatusOr<Calls::Plan> Calls::PlanForgetNode(const ServerCall& /*call*/,
                                                  std::string_view bytes) {
  pb::ForgetNodeRequest request;
  wire::Checker check;
  if (!Parse(bytes, request)) check.Fail(kNoMessage);
  const std::string node = check.Token("node", request.node());
  if (!check.status().ok())
    return Invalid("no node can be forgotten", std::string(check.status().message()));
  Plan plan;
  plan.event = [node](CallId id) -> Event { return ForgetNodeAsked{id, node}; };
  plan.respond = [node](const Reply& answer) -> absl::StatusOr<grpc::Slice> {
    RETURN_IF_ERROR(Expect<ForgetNodeReply>(answer).status());
    pb::ForgetNodeReply reply;
    reply.set_node(node);
    return Serialised(reply);
  };
  return plan;
}

}  // namespace regroup::coordinator
