#include "launcher/coordinator/shell/log_relay.h"

#include <sys/random.h>

#include <algorithm>
#include <utility>
#include <variant>

#include "common/base/check.h"
#include "common/base/user_error.h"
#include "common/io/proc.h"

namespace regroup::coordinator {
namespace {

constexpr auto kOpenLimit = std::chrono::seconds(5);    // For an agent to open its stream.
constexpr auto kDrainLimit = std::chrono::seconds(10);  // After the job's end, for what is left.
constexpr auto kLookEvery = std::chrono::seconds(1);    // At nodes that stand still.
constexpr auto kToldAfter = std::chrono::milliseconds(900);  // A shorter stand is not worth a line.
constexpr std::size_t kMaxChunkBytes = 128u << 10;

std::uint64_t RandomStream() {
  std::uint64_t number = 0;
  CHECK(getrandom(&number, sizeof number, 0) == sizeof number);
  return std::max<std::uint64_t>(number, 1);
}

bool Wanted(const pb::LogSelection& selection, Generation generation) {
  return selection.generation() == 0 || selection.generation() == generation.value();
}

bool Wanted(const pb::LogSelection& selection, const GenerationView& generation,
            const MemberView& member) {
  if (!Wanted(selection, generation.generation)) return false;
  if (!selection.node().empty() && selection.node() != member.name &&
      selection.node() != member.node.value()) {
    return false;
  }
  if (selection.ranks().empty()) return true;
  return std::any_of(member.ranks.begin(), member.ranks.end(), [&](int rank) {
    return std::find(selection.ranks().begin(), selection.ranks().end(), rank) !=
           selection.ranks().end();
  });
}

bool IsOver(const std::string& state) {
  return state == "succeeded" || state == "failed" || state == "cancelled" || state == "preempted";
}

}  // namespace

class LogRelay::Reader final : public CallHandler {
 public:
  Reader(LogRelay& relay, ServerCall& call) : relay_(relay), id_(++relay.last_id_), call_(call) {
    call_.Watch();
    call_.Read();
  }
  void OnRead(std::optional<std::string_view> request) override {
    if (!request || !Parse(*request, selection_)) {
      return call_.Refuse(
          absl::InvalidArgumentError("logs: the request is no message of this kind"));
    }
    relay_.loop_.Post([this](Instant received) { relay_.AddReader(this, received); });
  }
  void OnWritten(bool ok) override {
    relay_.loop_.Post([relay = &relay_, id = id_, ok](Instant) { relay->OnWritten(id, ok); });
  }
  void OnCancelled() override {
    relay_.loop_.Post([relay = &relay_, id = id_](Instant) { relay->OnReaderLeft(id); });
  }
  ServerCall& call() { return call_; }
  ReaderId id() const { return id_; }
  const pb::LogSelection& selection() const { return selection_; }

 private:
  LogRelay& relay_;
  const ReaderId id_;
  ServerCall& call_;
  pb::LogSelection selection_;
};

class LogRelay::Sender final : public CallHandler {
 public:
  Sender(LogRelay& relay, ServerCall& call) : relay_(relay), id_(++relay.last_id_), call_(call) {
    call_.Watch();
    relay_.loop_.Post([this](Instant) { relay_.AddSender(this); });
  }
  void OnRead(std::optional<std::string_view> message) override {
    pb::SendLogsRequest request;
    const bool ended = !message;
    if (ended || !Parse(*message, request)) {
      relay_.loop_.Post(
          [relay = &relay_, id = id_, ended](Instant) { relay->OnFeedEnded(id, !ended); });
      return;
    }
    relay_.loop_.Post([relay = &relay_, id = id_, request = std::move(request)](Instant) mutable {
      relay->OnFed(id, std::move(request));
    });
  }
  void OnCancelled() override {
    relay_.loop_.Post([relay = &relay_, id = id_](Instant) { relay->OnFeedEnded(id, true); });
  }
  ServerCall& call() { return call_; }
  SenderId id() const { return id_; }

 private:
  LogRelay& relay_;
  const SenderId id_;
  ServerCall& call_;
};

LogRelay::LogRelay(CoreLoop& loop, Calls& calls, Sessions& sessions)
    : loop_(loop), calls_(calls), sessions_(sessions) {}

LogRelay::~LogRelay() = default;

std::unique_ptr<CallHandler> LogRelay::Logs(ServerCall& call) {
  return std::make_unique<Reader>(*this, call);
}

std::unique_ptr<CallHandler> LogRelay::SendLogs(ServerCall& call) {
  return std::make_unique<Sender>(*this, call);
}

// ---- readers

void LogRelay::AddReader(Reader* reader, Instant received) {
  const ReaderId id = reader->id();
  auto relay = std::make_unique<Relay>(loop_.io());
  relay->reader = reader;
  relay->selection = reader->selection();
  relay->selection.clear_marks();
  for (const pb::LogMark& mark : reader->selection().marks()) relay->marks.Take(mark);
  relays_.emplace(id, std::move(relay));
  if (ended_ || !loop_.started())
    return Close(id, absl::UnavailableError("the coordinator does not serve now"));
  if (relays_.size() > kMaxRelays) {
    return Close(
        id, UserError(absl::StatusCode::kResourceExhausted, "too many people read logs",
                      "this coordinator serves at most " + std::to_string(kMaxRelays) + " readers",
                      "again when one has left, or look at the files on the node itself"));
  }
  if (reader->selection().ranks_size() > kMaxRanks || reader->selection().job().size() > 256 ||
      reader->selection().marks_size() > static_cast<int>(kMaxLogMarks)) {
    return Close(id, absl::InvalidArgumentError("ranks, job or marks: is too long"));
  }
  ReadFilter filter;
  filter.job = reader->selection().job();
  filter.detail = true;
  calls_.ReadFor(received, std::move(filter), false,
                 [this, id](const Reply& reply) { OnJobKnown(id, reply); });
}

void LogRelay::OnJobKnown(ReaderId id, const Reply& reply) {
  const auto at = relays_.find(id);
  if (at == relays_.end() || at->second->closing) return;
  if (const auto* refused = std::get_if<absl::Status>(&reply)) return Close(id, *refused);
  const auto* read = std::get_if<ReadReply>(&reply);
  if (read == nullptr || read->jobs.empty()) return Close(id, absl::NotFoundError("no such job"));
  const JobView& job = read->jobs.front();
  Relay& relay = *at->second;
  relay.selection.set_job(job.id.value());
  relay.launched = job.spec.origin == JobOrigin::kLaunched;
  pb::LogsReply first;
  first.set_job(job.id.value());
  Enqueue(relay, std::move(first));
  const bool following = relay.selection.follow() && !IsOver(job.state);
  // Of a job that ended while its reader was away, the rest is as at any end of a followed one.
  const bool goes_on = relay.selection.follow() && !following && !at->second->marks.empty();
  relay.stage = following ? Stage::kFollowing : goes_on ? Stage::kDraining : Stage::kReading;
  relay.selection.set_follow(following);
  if (goes_on) relay.limit = io::MonotonicNow() + kDrainLimit;
  for (const GenerationView& generation : job.generations) {
    for (const MemberView& member : generation.members) {
      if (Wanted(relay.selection, generation, member)) Want(id, relay, member.name);
    }
  }
  if (following) {
    loop_.Post([this, id, job = job.id.value()](Instant now) {
      const auto again = relays_.find(id);
      if (again == relays_.end() || again->second->closing) return;
      ReadFilter filter;
      filter.job = job;
      again->second->waiting =
          calls_.ReadFor(now, std::move(filter), true, [this, id](const Reply&) { OnJobOver(id); });
    });
  }
  ScheduleLook(id, kLookEvery);
  Pump(id);
}

// ---- sources

void LogRelay::Want(ReaderId id, Relay& relay, const std::string& node) {
  const auto [at, fresh] = relay.sources.try_emplace(node);
  if (!fresh) return;
  at->second.since = io::MonotonicNow();
  Open(id, relay, node, at->second);
}

// Asks the node's agent for what follows the marks, if it is there. A stream that it sends already
// is let go of: what of it is still on its way is sent again.
void LogRelay::Open(ReaderId id, Relay& relay, const std::string& node, Source& source) {
  Forget(relay, node, source);
  const std::optional<SessionId> session = sessions_.Find(node);
  if (!session) {
    if (relay.stage == Stage::kReading || (relay.stage == Stage::kDraining && relay.launched))
      return EndSource(relay, node, "its agent is not connected");
    source.problem = "its agent is not connected";
    return;
  }
  const StreamId stream = RandomStream();
  pb::CoordinatorMessage message;
  message.mutable_open_logs()->set_stream_id(stream);
  pb::LogSelection& selection = *message.mutable_open_logs()->mutable_selection();
  selection = relay.selection;
  relay.marks.AddTo(selection, node);
  if (!sessions_.SendOpening(*session, stream, std::move(message))) {
    source.problem = "its agent is asked for too many logs";
    return;
  }
  source.stream = stream;
  source.asked = io::MonotonicNow();
  streams_[stream] = {id, node};
}

// Lets go of its stream, wherever that is.
void LogRelay::Forget(Relay& relay, const std::string& node, Source& source) {
  const StreamId stream = std::exchange(source.stream, 0);
  const SenderId sender = std::exchange(source.sender, 0);
  if (stream == 0) return;
  streams_.erase(stream);
  std::erase(relay.held, sender);
  if (sender != 0) return FinishSender(sender, absl::OkStatus());
  if (const std::optional<SessionId> session = sessions_.Find(node))
    sessions_.DropOpening(*session, stream);
}

void LogRelay::StandStill(Relay& relay, const std::string& node, Source& source,
                          const std::string& why) {
  Forget(relay, node, source);
  if (source.problem.empty()) source.since = io::MonotonicNow();
  source.problem = why;
}

void LogRelay::OnAttached(const std::string& node) {
  for (auto& [id, relay] : relays_) {
    if (relay->stage == Stage::kAsking || relay->closing) continue;
    const auto source = relay->sources.find(node);
    if (source == relay->sources.end()) continue;
    // Who reads once takes what the agent sends that left; nothing of it goes on later.
    if (relay->stage == Stage::kReading && source->second.sender != 0) continue;
    Open(id, *relay, node, source->second);
  }
}

void LogRelay::OnJobOver(ReaderId id) {
  const auto at = relays_.find(id);
  if (at == relays_.end() || at->second->closing) return;
  Relay& relay = *at->second;
  relay.waiting = CallId();
  relay.stage = Stage::kDraining;
  const Instant now = io::MonotonicNow();
  relay.limit = now + kDrainLimit;
  relay.selection.set_follow(false);
  std::vector<std::string> away, lost;
  for (auto& [node, source] : relay.sources) {
    const std::optional<SessionId> session = sessions_.Find(node);
    // A node that has been away for long will not come back for this.
    if (!session && !source.problem.empty() && now - source.since > kDrainLimit) {
      lost.push_back(node);
      continue;
    }
    if (source.stream == 0 || !session) {
      away.push_back(node);
      continue;
    }
    // The same stream, asked for again without `follow`: the agent sends what is left and ends it.
    pb::CoordinatorMessage message;
    message.mutable_open_logs()->set_stream_id(source.stream);
    pb::LogSelection& selection = *message.mutable_open_logs()->mutable_selection();
    selection = relay.selection;
    relay.marks.AddTo(selection, node);
    if (!sessions_.SendOpening(*session, source.stream, std::move(message))) away.push_back(node);
  }
  for (const std::string& node : away) Open(id, relay, node, relay.sources.at(node));
  for (const std::string& node : lost) EndSource(relay, node, relay.sources.at(node).problem);
  Pump(id);
}

void LogRelay::ScheduleLook(ReaderId id, std::chrono::milliseconds after) {
  Relay& relay = *relays_.at(id);
  relay.timer.expires_after(after);
  relay.timer.async_wait([this, id](const boost::system::error_code& error) {
    if (!error && relays_.contains(id)) Look(id);
  });
}

// At what stands still, while the reader waits.
void LogRelay::Look(ReaderId id) {
  Relay& relay = *relays_.at(id);
  if (relay.closing) return;
  const Instant now = io::MonotonicNow();
  const bool over = now >= relay.limit && relay.queue.empty();  // A slow reader gives nobody up.
  std::map<std::string, std::string> given_up;
  for (auto& [node, source] : relay.sources) {
    const bool unopened =
        source.stream != 0 && source.sender == 0 && now - source.asked > kOpenLimit;
    if (unopened) StandStill(relay, node, source, "its agent did not send its logs");
    if (over || (unopened && relay.stage == Stage::kReading)) {
      given_up[node] = source.problem.empty() ? "did not end its logs" : source.problem;
    }
  }
  for (const auto& [node, problem] : given_up) EndSource(relay, node, problem);
  std::vector<std::string> still;
  for (auto& [node, source] : relay.sources) {
    if (source.sender != 0) continue;
    if (source.stream == 0) still.push_back(node);
    if (source.told || now - source.since < kToldAfter || source.problem.empty()) continue;
    source.told = true;
    pb::LogsReply reply;
    reply.mutable_waiting()->set_node(node);
    reply.mutable_waiting()->set_problem(source.problem);
    Enqueue(relay, std::move(reply));
  }
  for (const std::string& node : still) Open(id, relay, node, relay.sources.at(node));
  ScheduleLook(id, kLookEvery);
  Pump(id);
}

// ---- what the reader is sent

void LogRelay::Happened(const JobId& job, const JobEvent& event) {
  std::vector<ReaderId> told;
  for (auto& [id, relay] : relays_) {
    if (relay->stage != Stage::kFollowing || relay->closing ||
        relay->selection.job() != job.value())
      continue;
    pb::LogsReply reply;
    *reply.mutable_event() = ToProto(event);
    Enqueue(*relay, std::move(reply));
    told.push_back(id);
    const auto* formed = std::get_if<GenerationFormed>(&event.body);
    if (formed == nullptr || !Wanted(relay->selection, formed->generation)) continue;
    for (const std::string& node : formed->members) {
      // All that it writes from here on is new, also what it wrote before it is asked.
      pb::LogMark from;
      from.set_node(node);
      from.set_rank(-1);
      from.set_generation(formed->generation.value());
      const std::string& only = relay->selection.node();
      const std::optional<SessionId> session = sessions_.Find(node);
      if (!only.empty() && only != node && (!session || only != sessions_.NodeOf(*session).value()))
        continue;
      if (!relay->sources.contains(node) && !relay->marks.Knows(node)) relay->marks.Take(from);
      Want(id, *relay, node);
    }
  }
  for (ReaderId id : told) Pump(id);
}

void LogRelay::Enqueue(Relay& relay, pb::LogsReply reply) {
  if (relay.closing) return;
  relay.queue_bytes += reply.ByteSizeLong();
  relay.queue.push_back(std::move(reply));
}

void LogRelay::Pump(ReaderId id) {
  const auto at = relays_.find(id);
  if (at == relays_.end()) return;
  Relay& relay = *at->second;
  if (relay.write_in_flight) return;
  if (!relay.queue.empty()) {
    const pb::LogsReply next = std::move(relay.queue.front());
    relay.queue.pop_front();
    relay.queue_bytes -= std::min(relay.queue_bytes, next.ByteSizeLong());
    relay.write_in_flight = true;
    relay.reader->call().Write(Serialised(next));
    if (relay.queue_bytes <= kMaxRelayBytes / 2) {
      for (SenderId held : std::exchange(relay.held, {})) {
        if (const auto feed = feeds_.find(held); feed != feeds_.end())
          feed->second.sender->call().Read();
      }
    }
    return;
  }
  const bool at_end = relay.stage == Stage::kReading || relay.stage == Stage::kDraining;
  if (at_end && relay.sources.empty() && !relay.closing) relay.closing = absl::OkStatus();
  if (relay.closing) FinishReader(at);
}

void LogRelay::OnWritten(ReaderId id, bool ok) {
  const auto at = relays_.find(id);
  if (at == relays_.end()) return;
  at->second->write_in_flight = false;
  if (!ok) return OnReaderLeft(id);
  Pump(id);
}

void LogRelay::OnReaderLeft(ReaderId id) { Close(id, absl::CancelledError("the reader left")); }

void LogRelay::Close(ReaderId id, const absl::Status& status) {
  const auto at = relays_.find(id);
  if (at == relays_.end()) return;
  Relay& relay = *at->second;
  if (!relay.closing) relay.closing = status;
  relay.queue.clear();
  relay.queue_bytes = 0;
  for (auto& [node, source] : relay.sources) Forget(relay, node, source);
  relay.sources.clear();
  if (!relay.write_in_flight) FinishReader(relays_.find(id));
}

void LogRelay::FinishReader(Relays::iterator at) {
  ServerCall& call = at->second->reader->call();
  const absl::Status status = *at->second->closing;
  const CallId waiting = at->second->waiting;
  relays_.erase(at);
  if (waiting != CallId()) loop_.Post([this, waiting](Instant now) { calls_.Drop(now, waiting); });
  call.Finish(ToGrpcStatus(status));
  CheckAllEnded();
}

// ---- senders

void LogRelay::AddSender(Sender* sender) {
  feeds_[sender->id()].sender = sender;
  if (ended_ || feeds_.size() > kMaxSessions) {
    return FinishSender(sender->id(), absl::UnavailableError("the coordinator relays no logs now"));
  }
  sender->call().Read();
}

void LogRelay::OnFed(SenderId id, pb::SendLogsRequest request) {
  const auto at = feeds_.find(id);
  if (at == feeds_.end()) return;
  Feed& feed = at->second;
  if (feed.reader == 0) {
    const auto stream = streams_.find(request.stream_id());
    const auto relay =
        stream == streams_.end() ? relays_.end() : relays_.find(stream->second.first);
    if (relay == relays_.end() || relay->second->sources.at(stream->second.second).sender != 0) {
      return FinishSender(id, absl::NotFoundError("nobody asked for this stream"));
    }
    feed.reader = relay->first;
    feed.node = stream->second.second;
    Source& source = relay->second->sources.at(feed.node);
    source.sender = id;
    if (request.problem().empty()) source.problem.clear();
    if (request.problem().empty() && std::exchange(source.told, false)) {
      pb::LogsReply reply;
      reply.mutable_waiting()->set_node(feed.node);
      Enqueue(*relay->second, std::move(reply));
    }
  }
  const ReaderId reader = feed.reader;
  Relay& relay = *relays_.at(reader);
  if (request.has_chunk()) {
    if (request.chunk().ByteSizeLong() > kMaxChunkBytes) {
      EndSource(relay, feed.node, "sent a chunk that is too large");
      return Pump(reader);
    }
    // Whatever it says: no node speaks for another.
    request.mutable_chunk()->set_node(feed.node);
    relay.marks.Take(request.chunk());
    if (relay.stage == Stage::kDraining) relay.limit = io::MonotonicNow() + kDrainLimit;
    pb::LogsReply reply;
    *reply.mutable_chunk() = std::move(*request.mutable_chunk());
    Enqueue(relay, std::move(reply));
  }
  if (!request.problem().empty()) feed.problem = request.problem().substr(0, kMaxTextBytes);
  if (relay.queue_bytes > kMaxRelayBytes) {
    relay.held.push_back(id);
  } else {
    feed.sender->call().Read();
  }
  Pump(reader);
}

// A stream that a follower reads is opened again, from where it broke; that its agent ended it says
// that it has no more to send only after the job's end.
void LogRelay::OnFeedEnded(SenderId id, bool broken) {
  const auto at = feeds_.find(id);
  if (at == feeds_.end()) return;
  const Feed feed = at->second;
  const auto relay = feed.reader == 0 ? relays_.end() : relays_.find(feed.reader);
  if (relay != relays_.end()) {
    const Stage stage = relay->second->stage;
    const bool again = stage == Stage::kFollowing ||
                       (stage == Stage::kDraining && broken && !relay->second->launched);
    const std::string left = "its agent left while sending; lines may be missing";
    if (again) {
      StandStill(*relay->second, feed.node, relay->second->sources.at(feed.node),
                 !feed.problem.empty() ? feed.problem : "its agent left");
    } else {
      EndSource(*relay->second, feed.node, broken ? left : feed.problem);
    }
  }
  FinishSender(id, absl::OkStatus());
  if (feed.reader != 0) Pump(feed.reader);
}

void LogRelay::EndSource(Relay& relay, std::string node, const std::string& problem) {
  const auto source = relay.sources.find(node);
  if (source == relay.sources.end()) return;
  Forget(relay, node, source->second);
  relay.sources.erase(source);
  pb::LogsReply reply;
  reply.mutable_ended()->set_node(node);
  reply.mutable_ended()->set_problem(problem);
  Enqueue(relay, std::move(reply));
}

void LogRelay::FinishSender(SenderId id, const absl::Status& status) {
  const auto at = feeds_.find(id);
  if (at == feeds_.end()) return;
  ServerCall& call = at->second.sender->call();
  feeds_.erase(at);
  status.ok() ? call.Reply(Serialised(pb::SendLogsReply())) : call.Finish(ToGrpcStatus(status));
  CheckAllEnded();
}

// ---- the end

void LogRelay::EndAll(const absl::Status& why, std::function<void()> done) {
  ended_ = true;
  all_ended_ = std::move(done);
  std::vector<ReaderId> readers;
  for (const auto& [id, relay] : relays_) readers.push_back(id);
  for (ReaderId id : readers) Close(id, why);
  std::vector<SenderId> senders;
  for (const auto& [id, feed] : feeds_) senders.push_back(id);
  for (SenderId id : senders) FinishSender(id, why);
  CheckAllEnded();
}

void LogRelay::CheckAllEnded() {
  if (ended_ && relays_.empty() && feeds_.empty() && all_ended_)
    std::exchange(all_ended_, nullptr)();
}

}  // namespace regroup::coordinator
