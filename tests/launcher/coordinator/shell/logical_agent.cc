#include "tests/launcher/coordinator/shell/logical_agent.h"

#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <deque>
#include <utility>

#include "common/base/check.h"
#include "common/rpc/channel.h"
#include "common/rpc/convert.h"
#include "common/rpc/proof.h"
#include "proto/coordinator.grpc.pb.h"

namespace regroup::testing {
namespace {

using boost::asio::ip::tcp;

constexpr auto kRedial = std::chrono::milliseconds(50);

std::int64_t NextPid() {
  static std::atomic<std::int64_t> last = 100'000;
  return ++last;
}

}  // namespace

class LogicalAgent::Impl : public std::enable_shared_from_this<Impl> {
 public:
  Impl(boost::asio::io_context& io, boost::asio::thread_pool& proving,
       const LogicalAgentOptions& options)
      : io_(io), proving_(proving), options_(options), redial_timer_(io), heartbeat_timer_(io) {
    incarnation_ = options.incarnation;
  }

  void Post(std::function<void(Impl&)> work) {
    boost::asio::post(io_, [self = shared_from_this(), work = std::move(work)] { work(*self); });
  }

  void Dial();
  void OnDialled(absl::StatusOr<Connection> connection);
  void DialSoon();
  void StopForGood();
  void BreakSession();
  void Die();
  void Revive(std::uint64_t incarnation, const std::string& boot);
  void Exit(const JobId& job, int local_rank, ExitKind kind, int code);
  void Send(pb::AgentMessage message);
  void SetLaunch(const LaunchRequest& request);

  LogicalAgentState Snapshot() const {
    std::lock_guard lock(mutex_);
    return state_;
  }
  bool WaitFor(const std::function<bool(const LogicalAgentState&)>& condition,
               std::chrono::milliseconds limit) const {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, limit, [&] { return condition(state_); });
  }

 private:
  // One stream. Owners: the agent until it ends, and itself until gRPC is done with it.
  class Stream;
  struct Witness {
    explicit Witness(boost::asio::io_context& io)
        : acceptor(io, tcp::endpoint(boost::asio::ip::make_address("127.0.0.1"), 0)) {}
    tcp::acceptor acceptor;
  };

  template <class Change>
  void Update(const Change& change) {
    {
      std::lock_guard lock(mutex_);
      change(state_);
    }
    changed_.notify_all();
  }

  pb::AgentMessage HelloMessage();
  void OnMessage(std::uint64_t stream, const pb::CoordinatorMessage& message);
  void OnEnded(std::uint64_t stream);
  void OnWelcome(const pb::Welcome& welcome);
  void Obey(const Order& order);
  void ObeyStop(const Order& order, GroupReport& group);
  void ObeyPrepare(const Order& order);
  void ObeyRun(const Order& order);
  void Report(const JobId& job);
  void Heartbeat();
  void AcceptWitness(const std::shared_ptr<Witness>& witness);

  boost::asio::io_context& io_;
  boost::asio::thread_pool& proving_;
  const LogicalAgentOptions options_;
  std::uint64_t incarnation_ = 1;
  std::string boot_ = "boot-1";
  bool stopped_ = false;
  bool proves_ = false;  // On proving_, now.
  Connection connection_;
  std::unique_ptr<pb::Coordinator::Stub> stub_;
  std::shared_ptr<Stream> stream_;
  std::uint64_t last_stream_ = 0, last_report_ = 0;
  OrderNo obeyed_;
  Duration heartbeat_ = std::chrono::seconds(1);
  boost::asio::steady_timer redial_timer_, heartbeat_timer_;
  std::map<JobId, std::shared_ptr<Witness>> witnesses_;
  std::optional<LaunchRequest> launch_;

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  LogicalAgentState state_;  // Guarded by mutex_; written on the fleet's thread only.
};

class LogicalAgent::Impl::Stream final
    : public grpc::ClientBidiReactor<pb::AgentMessage, pb::CoordinatorMessage>,
      public std::enable_shared_from_this<Stream> {
 public:
  Stream(std::shared_ptr<Impl> agent, std::uint64_t number)
      : work_(boost::asio::make_work_guard(agent->io_)),
        agent_(std::move(agent)),
        number_(number) {}

  void Begin(pb::Coordinator::Stub& stub) {
    keep_ = shared_from_this();
    stub.async()->Session(&context_, this);
    AddHold();  // Writes come from the agent's thread.
    StartRead(&incoming_);
    StartCall();
  }
  void Send(pb::AgentMessage message) {
    queue_.push_back(std::move(message));
    Pump();
  }
  void End() {
    if (std::exchange(ended_, true)) return;
    queue_.clear();
    context_.TryCancel();
    RemoveHold();
  }
  std::uint64_t number() const { return number_; }

  void OnReadDone(bool ok) override {
    if (!ok) return agent_->Post([number = number_](Impl& agent) { agent.OnEnded(number); });
    agent_->Post([number = number_, message = std::move(incoming_)](Impl& agent) {
      agent.OnMessage(number, message);
    });
    incoming_.Clear();
    StartRead(&incoming_);
  }
  void OnWriteDone(bool ok) override {
    agent_->Post([self = keep_, ok](Impl&) {
      self->writing_ = false;
      if (ok) self->Pump();
    });
  }
  void OnDone(const grpc::Status&) override {
    std::shared_ptr<Stream> last = std::move(keep_);  // Comes after End: the hold was removed.
  }

 private:
  void Pump() {
    if (writing_ || ended_ || queue_.empty()) return;
    outgoing_ = std::move(queue_.front());
    queue_.pop_front();
    writing_ = true;
    StartWrite(&outgoing_);
  }

  // First, so that it goes last: the loop outlives gRPC's part and the agent's timers.
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  const std::shared_ptr<Impl> agent_;
  const std::uint64_t number_;
  std::shared_ptr<Stream> keep_;
  grpc::ClientContext context_;
  pb::CoordinatorMessage incoming_;
  pb::AgentMessage outgoing_;
  std::deque<pb::AgentMessage> queue_;
  bool writing_ = false, ended_ = false;
};

// ---- session

void LogicalAgent::Impl::Dial() {
  if (stopped_ || stream_ != nullptr) return;
  // A fresh channel each time: what is measured is one dial, not gRPC's memory of an earlier
  // failure.
  DialOptions dial;
  dial.max_receive_bytes = kMaxSessionMessageBytes;
  if (!options_.socket_path.empty()) return OnDialled(DialUnix(options_.socket_path, dial));
  if (options_.token.empty()) return OnDialled(regroup::Dial(options_.coordinator, dial));
  if (std::exchange(proves_, true)) return;
  boost::asio::post(proving_, [self = shared_from_this(), dial] {
    absl::StatusOr<Connection> proved =
        DialProved(self->options_.coordinator, self->options_.token, dial);
    boost::asio::post(self->io_, [self, proved = std::move(proved)]() mutable {
      self->proves_ = false;
      self->OnDialled(std::move(proved));
    });
  });
}

void LogicalAgent::Impl::OnDialled(absl::StatusOr<Connection> connection) {
  if (stopped_) return;
  if (!connection.ok()) return DialSoon();
  connection_ = *std::move(connection);
  stub_ = pb::Coordinator::NewStub(connection_.channel);
  stream_ = std::make_shared<Stream>(shared_from_this(), ++last_stream_);
  stream_->Begin(*stub_);
  stream_->Send(HelloMessage());
}

pb::AgentMessage LogicalAgent::Impl::HelloMessage() {
  Hello hello;
  hello.cluster = state_.cluster;
  hello.highest_epoch = state_.epoch;
  hello.node = NodeId(options_.id.empty() ? "id-" + options_.name : options_.id);
  hello.incarnation = Incarnation(incarnation_);
  hello.boot = BootId(boot_);
  hello.name = options_.name;
  hello.slots = options_.slots;
  hello.version = {kProtocolMajor, kProtocolMinor, "logical"};
  hello.address = options_.address;
  hello.dialled = options_.coordinator.host;
  hello.launched = options_.launched;
  for (const auto& [job, group] : state_.groups) hello.groups.push_back(group);
  pb::AgentMessage message;
  *message.mutable_hello() = ToProto(hello);
  return message;
}

void LogicalAgent::Impl::Send(pb::AgentMessage message) {
  if (stream_ != nullptr) stream_->Send(std::move(message));
}

void LogicalAgent::Impl::OnMessage(std::uint64_t stream, const pb::CoordinatorMessage& message) {
  if (stream_ == nullptr || stream_->number() != stream) return;
  switch (message.body_case()) {
    case pb::CoordinatorMessage::kWelcome: return OnWelcome(message.welcome());
    case pb::CoordinatorMessage::kRefused:
      stopped_ = true;
      return Update([&](auto& state) { state.refused = StatusFrom(message.refused()); });
    case pb::CoordinatorMessage::kOrder: {
      absl::StatusOr<Order> order = FromProto(message.order());
      CHECK(order.ok());
      return Obey(*order);
    }
    case pb::CoordinatorMessage::kCommitAnswer: {
      absl::StatusOr<CommitAnswer> answer = FromProto(message.commit_answer());
      CHECK(answer.ok());
      return Update([&](auto& state) { state.commit_answer = *answer; });
    }
    case pb::CoordinatorMessage::kLaunchAnswer:
      return Update([&](auto& state) {
        if (message.launch_answer().has_refused()) {
          state.launch_refused = StatusFrom(message.launch_answer().refused());
        } else {
          state.launch_job = JobId(message.launch_answer().job());
        }
      });
    case pb::CoordinatorMessage::kNews: {
      absl::StatusOr<JobEvent> event = FromProto(message.news().event());
      CHECK(event.ok());
      return Update([&](auto& state) { state.news.push_back(*event); });
    }
    case pb::CoordinatorMessage::kResult: {
      absl::StatusOr<JobView> job = FromProto(message.result().job());
      CHECK(job.ok());
      pb::AgentMessage read;
      read.mutable_leave();
      Send(std::move(read));
      return Update([&](auto& state) { state.result = *job; });
    }
    default: return;
  }
}

void LogicalAgent::Impl::OnWelcome(const pb::Welcome& welcome) {
  absl::StatusOr<Welcome> value = FromProto(welcome);
  CHECK(value.ok());
  heartbeat_ = value->heartbeat;
  Update([&](auto& state) {
    state.attached = true;
    ++state.welcomes;
    state.name = value->name;
    state.cluster = value->cluster;
    state.epoch = value->epoch;
  });
  if (launch_) {
    pb::AgentMessage message;
    *message.mutable_launch() = ToProto(*launch_);
    Send(std::move(message));
  }
  Heartbeat();
}

void LogicalAgent::Impl::Heartbeat() {
  heartbeat_timer_.expires_after(heartbeat_);
  heartbeat_timer_.async_wait([self = shared_from_this()](const auto& error) {
    if (error || self->stream_ == nullptr) return;
    pb::AgentMessage message;
    message.mutable_heartbeat()->set_obeyed(self->obeyed_.value());
    self->Send(std::move(message));
    self->Heartbeat();
  });
}

void LogicalAgent::Impl::OnEnded(std::uint64_t stream) {
  if (stream_ == nullptr || stream_->number() != stream) return;
  BreakSession();
}

void LogicalAgent::Impl::BreakSession() {
  heartbeat_timer_.cancel();
  if (stream_ != nullptr) {
    stream_->End();
    stream_.reset();
    Update([](auto& state) {
      state.breaks += state.attached ? 1 : 0;
      state.attached = false;
    });
  }
  if (!stopped_) DialSoon();
}

void LogicalAgent::Impl::DialSoon() {
  redial_timer_.expires_after(kRedial);
  redial_timer_.async_wait([self = shared_from_this()](const auto& error) {
    if (!error) self->Dial();
  });
}

void LogicalAgent::Impl::StopForGood() {
  stopped_ = true;
  redial_timer_.cancel();
  BreakSession();
  for (const auto& [job, witness] : witnesses_) witness->acceptor.close();
  witnesses_.clear();
}

void LogicalAgent::Impl::Die() { StopForGood(); }

void LogicalAgent::Impl::Revive(std::uint64_t incarnation, const std::string& boot) {
  incarnation_ = incarnation;
  boot_ = boot;
  stopped_ = false;
  Update([](auto& state) { state.groups.clear(); });
  Dial();
}

void LogicalAgent::Impl::SetLaunch(const LaunchRequest& request) {
  launch_ = request;
  if (!state_.attached) return;
  pb::AgentMessage message;
  *message.mutable_launch() = ToProto(request);
  Send(std::move(message));
}

// ---- orders

void LogicalAgent::Impl::Obey(const Order& order) {
  obeyed_ = order.number;
  Update([](auto& state) { ++state.orders; });
  if (order.forget) {
    const auto group = state_.groups.find(order.job);
    if (group != state_.groups.end() && group->second.generation <= order.forget->up_to) {
      Update([&](auto& state) { state.groups.erase(order.job); });
    }
  }
  if (order.stop) {
    const auto group = state_.groups.find(order.job);
    if (group != state_.groups.end() && group->second.generation <= order.stop->up_to)
      ObeyStop(order, group->second);
  }
  if (order.prepare) ObeyPrepare(order);
  if (order.run) ObeyRun(order);
}

void LogicalAgent::Impl::ObeyStop(const Order& order, GroupReport& group) {
  if (group.phase == Phase::kFree) return Report(order.job);
  Update([&](auto&) {
    for (const RankStart& start : group.started) {
      const bool exited =
          std::any_of(group.exits.begin(), group.exits.end(),
                      [&](const RankExit& exit) { return exit.local_rank == start.local_rank; });
      if (exited) continue;
      RankExit exit;
      exit.local_rank = start.local_rank;
      exit.kind = ExitKind::kSignaled;
      exit.code = 15;
      exit.pid = start.pid;
      exit.after_stop = true;
      group.exits.push_back(exit);
    }
    group.phase = Phase::kFree;
  });
  if (const auto witness = witnesses_.find(order.job); witness != witnesses_.end()) {
    witness->second->acceptor.close();
    witnesses_.erase(witness);
  }
  Report(order.job);
}

void LogicalAgent::Impl::ObeyPrepare(const Order& order) {
  const auto known = state_.groups.find(order.job);
  if (known != state_.groups.end() && known->second.generation >= order.prepare->generation) return;
  if (known != state_.groups.end() && known->second.phase != Phase::kFree) return;
  GroupReport group;
  group.job = order.job;
  group.generation = order.prepare->generation;
  group.phase = Phase::kPrepared;
  if (order.prepare->host_store) group.store = Address{options_.address, 20'000};
  if (options_.witness) {
    auto witness = std::make_shared<Witness>(io_);
    group.witness = Address{"127.0.0.1", witness->acceptor.local_endpoint().port()};
    witnesses_[order.job] = witness;
    AcceptWitness(witness);
  }
  Update([&](auto& state) { state.groups[order.job] = group; });
  Report(order.job);
}

void LogicalAgent::Impl::AcceptWitness(const std::shared_ptr<Witness>& witness) {
  witness->acceptor.async_accept(
      [self = shared_from_this(), witness](const auto& error, tcp::socket) {
        if (!error) self->AcceptWitness(witness);  // The socket closes here: that is the answer.
      });
}

void LogicalAgent::Impl::ObeyRun(const Order& order) {
  const auto known = state_.groups.find(order.job);
  if (known == state_.groups.end() || known->second.generation != order.run->generation) return;
  if (known->second.phase != Phase::kPrepared) return;  // Once, ever.
  Update([&](auto& state) {
    GroupReport& group = state.groups[order.job];
    group.phase = Phase::kRunning;
    for (const RankAssignment& rank : order.run->mine)
      group.started.push_back({rank.local_rank, NextPid(), {}});
    state.runs[order.job] = *order.run;
    ++state.times_started[order.job];
  });
  Report(order.job);
}

void LogicalAgent::Impl::Exit(const JobId& job, int local_rank, ExitKind kind, int code) {
  const auto known = state_.groups.find(job);
  if (known == state_.groups.end()) return;
  Update([&](auto& state) {
    GroupReport& group = state.groups[job];
    for (const RankStart& start : group.started) {
      const bool exited =
          std::any_of(group.exits.begin(), group.exits.end(),
                      [&](const RankExit& exit) { return exit.local_rank == start.local_rank; });
      if (exited || (local_rank >= 0 && start.local_rank != local_rank)) continue;
      RankExit exit;
      exit.local_rank = start.local_rank;
      exit.kind = kind;
      exit.code = code;
      exit.pid = start.pid;
      group.exits.push_back(exit);
    }
    if (group.exits.size() == group.started.size()) group.phase = Phase::kFree;
  });
  Report(job);
}

void LogicalAgent::Impl::Report(const JobId& job) {
  Update([&](auto& state) { state.groups[job].number = ReportNo(++last_report_); });
  pb::AgentMessage message;
  *message.mutable_report() = ToProto(state_.groups[job]);
  Send(std::move(message));
}

// ---- the public face

LogicalAgent::~LogicalAgent() = default;

void LogicalAgent::Exit(const JobId& job, int local_rank, ExitKind kind, int code) {
  impl_->Post([=](Impl& impl) { impl.Exit(job, local_rank, kind, code); });
}
void LogicalAgent::ExitAll(const JobId& job, ExitKind kind, int code) { Exit(job, -1, kind, code); }
void LogicalAgent::Progress(const JobId& job, std::int64_t step) {
  impl_->Post([=](Impl& impl) {
    const LogicalAgentState state = impl.Snapshot();
    const auto run = state.runs.find(job);
    if (run == state.runs.end() || run->second.mine.empty()) return;
    WorkerProgress progress;
    progress.job = job;
    progress.generation = run->second.generation;
    progress.rank = run->second.mine.front().rank;
    progress.step = step;
    pb::AgentMessage message;
    *message.mutable_progress() = ToProto(progress);
    impl.Send(std::move(message));
  });
}
void LogicalAgent::AskCommit(const CommitRequest& request) {
  impl_->Post([=](Impl& impl) {
    pb::AgentMessage message;
    *message.mutable_commit() = ToProto(request);
    impl.Send(std::move(message));
  });
}
void LogicalAgent::SendNotice(const Notice& notice) {
  impl_->Post([=](Impl& impl) {
    pb::AgentMessage message;
    *message.mutable_notice() = ToProto(notice);
    impl.Send(std::move(message));
  });
}
void LogicalAgent::Launch(const LaunchRequest& request) {
  impl_->Post([=](Impl& impl) { impl.SetLaunch(request); });
}
void LogicalAgent::Leave(int signal, bool now) {
  impl_->Post([=](Impl& impl) {
    pb::AgentMessage message;
    message.mutable_leave()->set_signal(signal);
    message.mutable_leave()->set_now(now);
    impl.Send(std::move(message));
  });
}
void LogicalAgent::Break() {
  impl_->Post([](Impl& impl) { impl.BreakSession(); });
}
void LogicalAgent::Kill() {
  impl_->Post([](Impl& impl) { impl.Die(); });
}
void LogicalAgent::Revive(std::uint64_t incarnation, const std::string& boot) {
  impl_->Post([=](Impl& impl) { impl.Revive(incarnation, boot); });
}
LogicalAgentState LogicalAgent::state() const { return impl_->Snapshot(); }
bool LogicalAgent::WaitFor(const std::function<bool(const LogicalAgentState&)>& condition,
                           std::chrono::milliseconds limit) const {
  return impl_->WaitFor(condition, limit);
}

LogicalFleet::LogicalFleet()
    : work_(boost::asio::make_work_guard(io_)), thread_([this] { io_.run(); }) {}

LogicalFleet::~LogicalFleet() {
  for (const auto& agent : agents_) {
    agent->impl_->Post([](LogicalAgent::Impl& impl) { impl.StopForGood(); });
  }
  proving_.stop();
  proving_.join();
  work_.reset();
  thread_.join();
}

LogicalAgent& LogicalFleet::Add(const LogicalAgentOptions& options) {
  auto impl = std::make_shared<LogicalAgent::Impl>(io_, proving_, options);
  agents_.push_back(std::unique_ptr<LogicalAgent>(new LogicalAgent(impl)));
  impl->Post([](LogicalAgent::Impl& agent) { agent.Dial(); });
  return *agents_.back();
}

}  // namespace regroup::testing
