// Logs of a job on their way from agents that only speak to readers, through a real coordinator.

#include "launcher/coordinator/shell/log_relay.h"

#include <gtest/gtest.h>

#include <future>

#include "common/base/user_error.h"
#include "tests/launcher/coordinator/shell/daemon_fixture.h"

namespace regroup::coordinator {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class LogRelayTest : public DaemonFixture {};

// An agent that answers open_logs with these lines, by hand.
class LogAgent {
 public:
  LogAgent(Client& client, const std::string& node) : client_(client) {
    context_.set_deadline(std::chrono::system_clock::now() + seconds(60));
    stream_ = client.stub().Session(&context_);
    stream_->Write(SomeHello(node));
    pb::CoordinatorMessage answer;
    EXPECT_TRUE(stream_->Read(&answer) && answer.has_welcome());
  }
  void Send(const pb::AgentMessage& message) { stream_->Write(message); }
  pb::CoordinatorMessage Await(pb::CoordinatorMessage::BodyCase body) {
    pb::CoordinatorMessage answer;
    while (stream_->Read(&answer)) {
      if (answer.body_case() == body) return answer;
    }
    ADD_FAILURE() << "the session ended";
    return answer;
  }
  absl::Status SendLines(std::uint64_t stream_id, const std::vector<std::string>& lines) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + seconds(30));
    pb::SendLogsReply reply;
    auto writer = client_.stub().SendLogs(&context, &reply);
    pb::SendLogsRequest request;
    request.set_stream_id(stream_id);
    writer->Write(request);
    for (const std::string& line : lines) {
      request.mutable_chunk()->set_node("node0");
      request.mutable_chunk()->set_data(line);
      if (!writer->Write(request)) break;
    }
    writer->WritesDone();
    return FromGrpcStatus(writer->Finish());
  }
  absl::Status SendChunk(std::uint64_t stream_id, const pb::LogChunk& chunk) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + seconds(30));
    pb::SendLogsReply reply;
    auto writer = client_.stub().SendLogs(&context, &reply);
    pb::SendLogsRequest request;
    request.set_stream_id(stream_id);
    *request.mutable_chunk() = chunk;
    writer->Write(request);
    writer->WritesDone();
    return FromGrpcStatus(writer->Finish());
  }
  void End() { context_.TryCancel(); }
  // Half-closes; then what it was asked for logs in all its life.
  void EndReading() { stream_->WritesDone(); }
  int Read() {
    int asked = 0;
    for (pb::CoordinatorMessage answer; stream_->Read(&answer);) asked += answer.has_open_logs();
    return asked;
  }

 private:
  Client& client_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<pb::AgentMessage, pb::CoordinatorMessage>> stream_;
};

// Takes the job through prepared to running on that agent.
JobId RunJob(Client& client, LogAgent& agent) {
  const JobId job = *client.Submit(SubmittedJob("train", 1, 1), "key");
  GroupReport report;
  report.job = job;
  for (Phase phase : {Phase::kPrepared, Phase::kRunning}) {
    const pb::Order order = agent.Await(pb::CoordinatorMessage::kOrder).order();
    report.number = report.number.Next();
    report.generation = Generation(1);
    report.phase = phase;
    if (order.has_prepare() && order.prepare().host_store())
      report.store = Address{"127.0.0.1", 20'000};
    if (phase == Phase::kRunning) report.started = {{0, 4121, {}}};
    pb::AgentMessage message;
    *message.mutable_report() = ToProto(report);
    agent.Send(message);
  }
  EXPECT_TRUE(Eventually([&] { return client.ReadJob(job.value())->state == "running"; }));
  return job;
}

TEST_F(LogRelayTest, LogsAreRelayedFromTheAgentThatHasThem) {
  Start();
  Client client = OverTcp();
  LogAgent agent(client, "node0");
  const JobId job = RunJob(client, agent);
  // More than the relay may hold, to a reader that waits first.
  const std::vector<std::string> lines(100, std::string(60'000, 'x'));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + seconds(30));
  pb::LogSelection selection;
  selection.set_job("train");
  selection.set_tail(5);
  auto reader = client.stub().Logs(&context, selection);
  const pb::OpenLogs open = agent.Await(pb::CoordinatorMessage::kOpenLogs).open_logs();
  EXPECT_EQ(open.selection().job(), job.value());
  EXPECT_EQ(open.selection().tail(), 5);
  auto sent =
      std::async(std::launch::async, [&] { return agent.SendLines(open.stream_id(), lines); });
  EXPECT_EQ(sent.wait_for(milliseconds(200)), std::future_status::timeout);
  std::size_t bytes = 0, ended = 0;
  pb::LogsReply reply;
  ASSERT_TRUE(reader->Read(&reply));
  EXPECT_EQ(reply.job(), job.value());
  while (reader->Read(&reply)) {
    bytes += reply.chunk().data().size();
    ended += reply.has_ended() ? 1 : 0;
    if (reply.has_ended()) {
      EXPECT_EQ(reply.ended().problem(), "");
    }
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_TRUE(sent.get().ok());
  EXPECT_EQ(bytes, 100u * 60'000u);
  EXPECT_EQ(ended, 1u);
  agent.End();
}

TEST_F(LogRelayTest, NobodyFeedsAStreamThatWasNotAskedFor) {
  Start();
  Client client = OverTcp();
  LogAgent agent(client, "node0");
  EXPECT_TRUE(absl::IsNotFound(agent.SendLines(4711, {"forged"})));
  agent.End();
}

TEST_F(LogRelayTest, LogsOfANodeThatIsAwaySayso) {
  Start();
  Client client = OverTcp();
  {
    LogAgent agent(client, "node0");
    RunJob(client, agent);
    agent.End();
  }
  ASSERT_TRUE(Eventually([&] {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + seconds(10));
    pb::LogSelection selection;
    selection.set_job("train-1");
    auto reader = client.stub().Logs(&context, selection);
    pb::LogsReply reply;
    std::string problem;
    while (reader->Read(&reply)) {
      if (reply.has_ended()) problem = reply.ended().problem();
    }
    return reader->Finish().ok() && problem == "its agent is not connected";
  }));
}

// A reader that follows the job, from its first reply on.
class Follower {
 public:
  Follower(Client& client, const JobId& job) {
    context_.set_deadline(std::chrono::system_clock::now() + seconds(60));
    pb::LogSelection selection;
    selection.set_job(job.value());
    selection.set_follow(true);
    stream_ = client.stub().Logs(&context_, selection);
    pb::LogsReply reply;
    EXPECT_TRUE(stream_->Read(&reply) && reply.has_job());
  }
  ~Follower() {
    context_.TryCancel();
    for (pb::LogsReply reply; stream_->Read(&reply);) {
    }
    stream_->Finish().ok();
  }
  // The next reply that is not an event.
  pb::LogsReply Next() {
    pb::LogsReply reply;
    while (stream_->Read(&reply)) {
      if (!reply.has_event()) return reply;
    }
    ADD_FAILURE() << "the call ended";
    return reply;
  }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<pb::LogsReply>> stream_;
};

// M9: 200 readers, of whom every one is asked for in one turn whenever a member comes, and 50 nodes
// that have nothing to do with the job.
TEST_F(LogRelayTest, ManyFollowersAndJoinsCutNoSessionAndAskMembersOnly) {
  constexpr int kFollowers = 200, kJoins = 50;
  Start();
  Client client = OverTcp();
  auto agent = std::make_unique<LogAgent>(client, "node0");
  const JobId job = RunJob(client, *agent);
  std::vector<std::unique_ptr<Follower>> followers;
  for (int i = 0; i < kFollowers; ++i) followers.push_back(std::make_unique<Follower>(client, job));
  // It comes back, and does not read its session while all of them are asked for.
  agent->End();
  agent = std::make_unique<LogAgent>(client, "node0");
  std::vector<Client> hosts;
  for (int i = 0; i < kJoins; ++i) hosts.push_back(OverTcp());
  std::vector<std::unique_ptr<LogAgent>> others;
  for (int i = 0; i < kJoins; ++i)
    others.push_back(std::make_unique<LogAgent>(hosts[i], "other" + std::to_string(i)));
  pb::LogChunk chunk;
  chunk.set_node("node0");
  chunk.set_generation(1);
  chunk.set_data("line\n");
  chunk.mutable_mark()->set_generation(1);
  for (int served = 0; served < kFollowers;) {
    const pb::OpenLogs open = agent->Await(pb::CoordinatorMessage::kOpenLogs).open_logs();
    // With marks it is of one that was served, and is asked whether there is more.
    if (open.selection().marks_size() == 0)
      served += agent->SendChunk(open.stream_id(), chunk).ok() ? 1 : 0;
  }
  for (const auto& follower : followers) {
    pb::LogsReply reply = follower->Next();
    while (reply.has_waiting()) reply = follower->Next();
    EXPECT_EQ(reply.chunk().data(), "line\n");
  }
  for (const auto& other : others) {
    other->EndReading();
    EXPECT_EQ(other->Read(), 0) << "it was asked, though it is no member";
  }
  agent->End();
}

TEST_F(LogRelayTest, AFollowerGoesOnAtTheByteWhereItsAgentLeftAndIsToldMeanwhile) {
  Start();
  Client client = OverTcp();
  auto agent = std::make_unique<LogAgent>(client, "node0");
  const JobId job = RunJob(client, *agent);
  Follower follower(client, job);
  pb::LogChunk chunk;
  chunk.set_node("node0");
  chunk.set_generation(1);
  chunk.set_data("first\n");
  chunk.mutable_mark()->set_generation(1);
  chunk.mutable_mark()->set_segment(2);
  chunk.mutable_mark()->set_offset(4711);
  const pb::OpenLogs open = agent->Await(pb::CoordinatorMessage::kOpenLogs).open_logs();
  EXPECT_EQ(open.selection().marks_size(), 0);
  EXPECT_TRUE(agent->SendChunk(open.stream_id(), chunk).ok());
  EXPECT_EQ(follower.Next().chunk().data(), "first\n");
  agent->End();
  const pb::LogsReply waiting = follower.Next();
  EXPECT_EQ(waiting.waiting().node(), "node0");
  EXPECT_NE(waiting.waiting().problem(), "");
  agent = std::make_unique<LogAgent>(client, "node0");
  const pb::OpenLogs again = agent->Await(pb::CoordinatorMessage::kOpenLogs).open_logs();
  EXPECT_NE(again.stream_id(), open.stream_id());
  ASSERT_EQ(again.selection().marks_size(), 2);
  EXPECT_EQ(again.selection().marks(0).rank(), -1);
  EXPECT_EQ(again.selection().marks(1).segment(), 2);
  EXPECT_EQ(again.selection().marks(1).offset(), 4711u);
  EXPECT_TRUE(agent->SendLines(again.stream_id(), {"second\n"}).ok());
  const pb::LogsReply back = follower.Next();
  EXPECT_EQ(back.waiting().node(), "node0");
  EXPECT_EQ(back.waiting().problem(), "");
  EXPECT_EQ(follower.Next().chunk().data(), "second\n");
  agent->End();
}

TEST_F(LogRelayTest, OneReaderOfLogsTooManyIsTold) {
  Start();
  Client client = OverTcp();
  LogAgent agent(client, "node0");
  const JobId job = RunJob(client, agent);
  std::vector<std::unique_ptr<Follower>> followers;
  for (std::size_t i = 0; i < kMaxRelays; ++i)
    followers.push_back(std::make_unique<Follower>(client, job));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + seconds(10));
  pb::LogSelection selection;
  selection.set_job(job.value());
  Client another = OverUnix();  // One connection has no more than 256 calls.
  auto reader = another.stub().Logs(&context, selection);
  pb::LogsReply reply;
  EXPECT_FALSE(reader->Read(&reply));
  const absl::Status refused = FromGrpcStatus(reader->Finish());
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(PartsOf(refused).because, "this coordinator serves at most 256 readers");
  agent.End();
}

}  // namespace
}  // namespace regroup::coordinator
