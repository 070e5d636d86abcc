#include "launcher/coordinator/shell/log_relay.h"

#include <sys/random.h>

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/user_error.h"

namespace regroup::coordinator {
namespace {

constexpr auto kOpenLimit = std::chrono::seconds(5);    // For an agent to open its stream.
constexpr auto kDrainLimit = std::chrono::seconds(10);  // After the job's end, for what is left.
constexpr std::size_t kMaxChunkBytes = 128u << 10;

std::uint64_t RandomStream() {
  std::uint64_t number = 0;
  CHECK(getrandom(&number, sizeof number, 0) == sizeof number);
  return std::max<std::uint64_t>(number, 1);
}

bool Wanted(const pb::LogSelection& selection, const GenerationView& generation,
            const MemberView& member) {
  if (selection.generation() != 0 && selection.generation() != generation.generation.value())
    return false;
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

class LogRelay::Reader final : public grpc::ServerWriteReactor<pb::LogsReply> {
 public:
  Reader(LogRelay& relay, const pb::LogSelection& selection)
      : relay_(relay), id_(++relay.last_id_), selection_(selection) {
    relay_.loop_.Post([this](Instant received) { relay_.AddReader(this, received); });
  }
  void OnWriteDone(bool ok) override {
    relay_.loop_.Post([relay = &relay_, id = id_, ok](Instant) { relay->OnWritten(id, ok); });
  }
  void OnCancel() override {
    relay_.loop_.Post([relay = &relay_, id = id_](Instant) { relay->OnReaderLeft(id); });
  }
  void OnDone() override { delete this; }
  void Write(pb::LogsReply reply) {
    outgoing_ = std::move(reply);
    StartWrite(&outgoing_);
  }
  ReaderId id() const { return id_; }
  const pb::LogSelection& selection() const { return selection_; }

 private:
  LogRelay& relay_;
  const ReaderId id_;
  const pb::LogSelection selection_;
  pb::LogsReply outgoing_;
};

class LogRelay::Sender final : public grpc::ServerReadReactor<pb::SendLogsRequest> {
 public:
  explicit Sender(LogRelay& relay) : relay_(relay), id_(++relay.last_id_) {
    relay_.loop_.Post([this](Instant) { relay_.AddSender(this); });
  }
  void OnReadDone(bool ok) override {
    if (!ok) {
      relay_.loop_.Post([relay = &relay_, id = id_](Instant) { relay->OnFeedEnded(id, false); });
      return;
    }
    relay_.loop_.Post([relay = &relay_, id = id_, request = std::move(incoming_)](Instant) mutable {
      relay->OnFed(id, std::move(request));
    });
  }
  void OnCancel() override {
    relay_.loop_.Post([relay = &relay_, id = id_](Instant) { relay->OnFeedEnded(id, true); });
  }
  void OnDone() override { delete this; }
  void Read() {
    incoming_.Clear();
    StartRead(&incoming_);
  }
  SenderId id() const { return id_; }

 private:
  LogRelay& relay_;
  const SenderId id_;
  pb::SendLogsRequest incoming_;
};

LogRelay::LogRelay(CoreLoop& loop, Calls& calls, Sessions& sessions)
    : loop_(loop), calls_(calls), sessions_(sessions) {}

LogRelay::~LogRelay() = default;

grpc::ServerWriteReactor<pb::LogsReply>* LogRelay::Logs(const pb::LogSelection* selection) {
  return new Reader(*this, *selection);
}

grpc::ServerReadReactor<pb::SendLogsRequest>* LogRelay::SendLogs() { return new Sender(*this); }

// ---- readers

void LogRelay::AddReader(Reader* reader, Instant received) {
  const ReaderId id = reader->id();
  auto relay = std::make_unique<Relay>(loop_.io());
  relay->reader = reader;
  relay->selection = reader->selection();
  relays_.emplace(id, std::move(relay));
  if (ended_ || !loop_.started())
    return Close(id, absl::UnavailableError("the coordinator does not serve now"));
  if (relays_.size() > kMaxRelays) {
    return Close(
        id, UserError(absl::StatusCode::kResourceExhausted, "too many readers of logs",
                      "at most " + std::to_string(kMaxRelays) + " are served", "try again later"));
  }
  if (reader->selection().ranks_size() > kMaxRanks || reader->selection().job().size() > 256) {
    return Close(id, absl::InvalidArgumentError("ranks or job: is too long"));
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
  relay.known = true;
  relay.selection.set_job(job.id.value());
  pb::LogsReply first;
  first.set_job(job.id.value());
  Enqueue(relay, std::move(first));
  relay.following = relay.selection.follow() && !IsOver(job.state);
  relay.selection.set_follow(relay.following);
  AskSources(id, relay, job);
  if (relay.following) {
    loop_.Post([this, id, job = job.id.value()](Instant now) {
      const auto again = relays_.find(id);
      if (again == relays_.end() || again->second->closing) return;
      ReadFilter filter;
      filter.job = job;
      again->second->waiting =
          calls_.ReadFor(now, std::move(filter), true, [this, id](const Reply&) { OnJobOver(id); });
    });
  } else {
    LimitSources(id, kOpenLimit, "did not send its logs");
  }
  Pump(id);
}

void LogRelay::AskSources(ReaderId id, Relay& relay, const JobView& job) {
  std::map<NodeId, std::string> nodes;
  for (const GenerationView& generation : job.generations) {
    for (const MemberView& member : generation.members) {
      if (Wanted(relay.selection, generation, member)) nodes[member.node] = member.name;
    }
  }
  // A follower also hears the nodes that come later; who has nothing of this job sends nothing.
  if (relay.following) {
    for (const auto& [node, session] : sessions_.Attached()) nodes.emplace(node, "");
  }
  for (const auto& [node, name] : nodes) Ask(relay, node, name, relay.selection);
  for (const auto& [stream, source] : relay.sources) streams_[stream] = id;
}

void LogRelay::Ask(Relay& relay, const NodeId& node, const std::string& name,
                   const pb::LogSelection& selection) {
  relay.asked.insert(node);
  const std::optional<SessionId> session = sessions_.Find(node);
  if (!session) {
    pb::LogsReply reply;
    reply.mutable_ended()->set_node(name);
    reply.mutable_ended()->set_problem("its agent is not connected");
    return Enqueue(relay, std::move(reply));
  }
  const StreamId stream = RandomStream();
  relay.sources[stream] = {node, name, 0};
  pb::CoordinatorMessage message;
  message.mutable_open_logs()->set_stream_id(stream);
  *message.mutable_open_logs()->mutable_selection() = selection;
  sessions_.SendAnswer(*session, std::move(message));
}

void LogRelay::OnAttached(const NodeId& node, SessionId) {
  for (auto& [id, relay] : relays_) {
    if (!relay->known || !relay->following || relay->closing) continue;
    const bool has_stream =
        std::any_of(relay->sources.begin(), relay->sources.end(),
                    [&](const auto& entry) { return entry.second.node == node; });
    if (has_stream) continue;
    // A node that was read before goes on with what is new; what it wrote meanwhile was told as a
    // problem.
    pb::LogSelection selection = relay->selection;
    selection.clear_since_ns();
    selection.clear_tail();
    if (relay->asked.count(node) > 0) selection.set_tail(0);
    Ask(*relay, node, "", selection);
    for (const auto& [stream, source] : relay->sources) streams_[stream] = id;
  }
}

void LogRelay::OnJobOver(ReaderId id) {
  const auto at = relays_.find(id);
  if (at == relays_.end() || at->second->closing) return;
  Relay& relay = *at->second;
  relay.waiting = CallId();
  relay.following = false;
  relay.selection.set_follow(false);
  // The same stream, asked for again without `follow`: the agent sends what is left and ends it.
  for (const auto& [stream, source] : relay.sources) {
    const std::optional<SessionId> session = sessions_.Find(source.node);
    if (!session) continue;
    pb::CoordinatorMessage message;
    message.mutable_open_logs()->set_stream_id(stream);
    *message.mutable_open_logs()->mutable_selection() = relay.selection;
    sessions_.SendAnswer(*session, std::move(message));
  }
  LimitSources(id, kDrainLimit, "did not end its logs");
  Pump(id);
}

// Sources that have not opened their stream (or, after the end of a followed job, not ended it) are
// given up.
void LogRelay::LimitSources(ReaderId id, std::chrono::seconds limit, const std::string& problem) {
  Relay& relay = *relays_.at(id);
  const bool opened_too = limit == kDrainLimit;
  relay.timer.expires_after(limit);
  relay.timer.async_wait([this, id, problem, opened_too](const boost::system::error_code& error) {
    const auto at = relays_.find(id);
    if (error || at == relays_.end()) return;
    std::map<StreamId, std::string> late;
    for (const auto& [stream, source] : at->second->sources) {
      if (!opened_too && source.sender != 0) continue;
      // An agent that was asked only because it is there, and never opened its stream, has nothing
      // of this job.
      late[stream] = source.sender == 0 && source.name.empty() ? "" : problem;
    }
    for (const auto& [stream, text] : late) EndSource(id, stream, text);
    Pump(id);
  });
}

void LogRelay::Happened(const JobId& job, const JobEvent& event) {
  std::vector<ReaderId> told;
  for (auto& [id, relay] : relays_) {
    if (!relay->known || !relay->following || relay->closing ||
        relay->selection.job() != job.value())
      continue;
    pb::LogsReply reply;
    *reply.mutable_event() = ToProto(event);
    Enqueue(*relay, std::move(reply));
    told.push_back(id);
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
    pb::LogsReply next = std::move(relay.queue.front());
    relay.queue.pop_front();
    relay.queue_bytes -= std::min(relay.queue_bytes, next.ByteSizeLong());
    relay.write_in_flight = true;
    relay.reader->Write(std::move(next));
    if (relay.queue_bytes <= kMaxRelayBytes / 2) {
      for (SenderId held : std::exchange(relay.held, {})) {
        if (const auto feed = feeds_.find(held); feed != feeds_.end()) feed->second.sender->Read();
      }
    }
    return;
  }
  if (relay.known && !relay.following && relay.sources.empty() && !relay.closing)
    relay.closing = absl::OkStatus();
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
  std::vector<SenderId> senders;
  for (const auto& [stream, source] : relay.sources) {
    streams_.erase(stream);
    if (source.sender != 0) senders.push_back(source.sender);
  }
  relay.sources.clear();
  for (SenderId sender : senders)
    FinishSender(sender, absl::CancelledError("nobody reads this stream any more"));
  if (!relay.write_in_flight) FinishReader(relays_.find(id));
}

void LogRelay::FinishReader(Relays::iterator at) {
  Reader* reader = at->second->reader;
  const absl::Status status = *at->second->closing;
  const CallId waiting = at->second->waiting;
  relays_.erase(at);
  if (waiting != CallId()) loop_.Post([this, waiting](Instant now) { calls_.Drop(now, waiting); });
  reader->Finish(ToGrpcStatus(status));
  CheckAllEnded();
}

// ---- senders

void LogRelay::AddSender(Sender* sender) {
  feeds_[sender->id()].sender = sender;
  if (ended_ || feeds_.size() > kMaxSessions) {
    return FinishSender(sender->id(), absl::UnavailableError("the coordinator relays no logs now"));
  }
  sender->Read();
}

void LogRelay::OnFed(SenderId id, pb::SendLogsRequest request) {
  const auto at = feeds_.find(id);
  if (at == feeds_.end()) return;
  Feed& feed = at->second;
  if (feed.reader == 0) {
    const auto stream = streams_.find(request.stream_id());
    const auto relay = stream == streams_.end() ? relays_.end() : relays_.find(stream->second);
    if (relay == relays_.end() || relay->second->sources.at(stream->first).sender != 0) {
      return FinishSender(id, absl::NotFoundError("nobody asked for this stream"));
    }
    feed.reader = relay->first;
    feed.stream = stream->first;
    relay->second->sources.at(feed.stream).sender = id;
  }
  Relay& relay = *relays_.at(feed.reader);
  if (request.has_chunk()) {
    if (request.chunk().ByteSizeLong() > kMaxChunkBytes) {
      const ReaderId reader = feed.reader;
      EndSource(reader, feed.stream, "sent a chunk that is too large");
      return Pump(reader);
    }
    pb::LogsReply reply;
    *reply.mutable_chunk() = std::move(*request.mutable_chunk());
    Enqueue(relay, std::move(reply));
  }
  if (!request.problem().empty()) feed.problem = request.problem().substr(0, kMaxTextBytes);
  if (relay.queue_bytes > kMaxRelayBytes) {
    relay.held.push_back(id);
  } else {
    feed.sender->Read();
  }
  Pump(feed.reader);
}

void LogRelay::OnFeedEnded(SenderId id, bool broken) {
  const auto at = feeds_.find(id);
  if (at == feeds_.end()) return;
  const Feed feed = at->second;
  const bool has_reader = feed.reader != 0 && relays_.count(feed.reader) > 0;
  if (has_reader) {
    EndSource(feed.reader, feed.stream,
              broken ? "its agent left while sending; lines may be missing" : feed.problem);
  }
  FinishSender(id, absl::OkStatus());
  if (has_reader) Pump(feed.reader);
}

void LogRelay::EndSource(ReaderId id, StreamId stream, const std::string& problem) {
  Relay& relay = *relays_.at(id);
  const auto source = relay.sources.find(stream);
  if (source == relay.sources.end()) return;
  // Nodes whose name is not known were asked only because they are there; their silence is no news.
  if (!source->second.name.empty() || !problem.empty()) {
    pb::LogsReply reply;
    reply.mutable_ended()->set_node(source->second.name.empty() ? source->second.node.value()
                                                                : source->second.name);
    reply.mutable_ended()->set_problem(problem);
    Enqueue(relay, std::move(reply));
  }
  const SenderId sender = source->second.sender;
  relay.sources.erase(source);
  streams_.erase(stream);
  if (sender != 0) FinishSender(sender, absl::OkStatus());
}

void LogRelay::FinishSender(SenderId id, const absl::Status& status) {
  const auto at = feeds_.find(id);
  if (at == feeds_.end()) return;
  Sender* sender = at->second.sender;
  feeds_.erase(at);
  sender->Finish(ToGrpcStatus(status));
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
