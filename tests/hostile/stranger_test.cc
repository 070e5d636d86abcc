// Whoever reaches the port can neither end a cluster nor make anything durable by its word alone.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "launcher/coordinator/shell/sessions.h"
#include "tests/hostile/fake_agent/fake_agent.h"
#include "tests/launcher/coordinator/shell/daemon_fixture.h"

namespace regroup::coordinator {
namespace {

using testing::FakeAgent;

class Stranger : public DaemonFixture {
 protected:
  Stranger() { config_.lease = std::chrono::hours(1); }  // Fake agents send no heartbeats.
};

TEST_F(Stranger, OneMessageWithAHigherEpochEndsItsOwnSessionOnly) {
  Start();
  const std::string at = config_.listen.front();
  std::string cluster;
  for (const bool same_node : {false, true}) {
    SCOPED_TRACE(same_node);
    FakeAgent first(Dial(daemon_->addresses().front()));
    ASSERT_TRUE(first.Send(FakeAgent::Hello("first")));
    const auto welcome = first.Next();
    ASSERT_TRUE(welcome && welcome->has_welcome());
    cluster = welcome->welcome().cluster();
    FakeAgent second(Dial(daemon_->addresses().front()));
    pb::AgentMessage hello = FakeAgent::Hello(same_node ? "first" : "second");
    hello.mutable_hello()->set_cluster(cluster);
    hello.mutable_hello()->set_highest_epoch(kMaxEpoch);
    ASSERT_TRUE(second.Send(hello));
    const auto refused = second.Next();
    ASSERT_TRUE(refused && refused->has_refused());
    EXPECT_EQ(refused->refused().code(), static_cast<int>(absl::StatusCode::kFailedPrecondition));
    EXPECT_NE(refused->refused().because().find("its word alone"), std::string::npos)
        << refused->refused().because();
  }
  EXPECT_TRUE(OverUnix().Submit(SubmittedJob("still", 1, 1), "key").ok());
  EXPECT_EQ(Stop(), 0);
  Start();
  EXPECT_TRUE(OverUnix().ReadJob("still").ok());
}

// As it is: a node that this journal had when it was started proves that it is too old. The
// operator may vouch for it.
TEST_F(Stranger, AKnownNodesHigherEpochCountsUntilTheOperatorVouches) {
  Start();
  const auto hello = [](std::uint64_t incarnation, const std::string& cluster) {
    pb::AgentMessage message = FakeAgent::Hello("known");
    message.mutable_hello()->set_incarnation(incarnation);
    message.mutable_hello()->set_cluster(cluster);
    if (!cluster.empty()) message.mutable_hello()->set_highest_epoch(7);
    return message;
  };
  FakeAgent first(Dial(daemon_->addresses().front()));
  ASSERT_TRUE(first.Send(hello(1, "")));
  const auto welcome = first.Next();
  ASSERT_TRUE(welcome && welcome->has_welcome());
  EXPECT_EQ(Stop(), 0);
  Start();
  FakeAgent second(Dial(daemon_->addresses().front()));
  ASSERT_TRUE(second.Send(hello(2, welcome->welcome().cluster())));
  EXPECT_FALSE(second.Next().has_value());
  thread_.join();  // By itself.
  EXPECT_EQ(exit_status_, 125);
  daemon_ = nullptr;

  config_.accept_journal = true;
  Start();
  FakeAgent third(Dial(daemon_->addresses().front()));
  ASSERT_TRUE(third.Send(hello(3, welcome->welcome().cluster())));
  const auto again = third.Next();
  ASSERT_TRUE(again && again->has_welcome());
  EXPECT_EQ(again->welcome().epoch(), 8u);
  EXPECT_EQ(Stop(), 0);
  config_.accept_journal = false;  // Once is enough.
  Start();
  EXPECT_TRUE(OverUnix().Submit(SubmittedJob("after", 1, 1), "key").ok());
}

// What a node tells of its ranks' ages is believed up to the age of their generation.
// Empty groups are two bytes each on the wire.
TEST_F(Stranger, AMessageThatWouldTakeTooMuchIsNotParsed) {
  Start();
  FakeAgent agent(Dial(daemon_->addresses().front()));
  pb::AgentMessage hello = FakeAgent::Hello("fat");
  for (int i = 0; i < 70'000; ++i) hello.mutable_hello()->add_groups();
  ASSERT_LT(hello.ByteSizeLong(), 200'000u);
  ASSERT_TRUE(agent.Send(hello));
  const auto refused = agent.Next();
  ASSERT_TRUE(refused && refused->has_refused());
  EXPECT_NE(refused->refused().because().find("at most 16777216 are taken"), std::string::npos)
      << refused->refused().because();
  // What was looked at counts no more: one after another are heard, however many there are.
  hello.mutable_hello()->clear_groups();
  for (int i = 0; i < 4'000; ++i) hello.mutable_hello()->add_groups();
  for (int i = 0; i < 40; ++i) {
    FakeAgent next(Dial(daemon_->addresses().front()));
    ASSERT_TRUE(next.Send(hello));
    const auto answer = next.Next();
    ASSERT_TRUE(answer && answer->has_refused()) << i;
  }
}

TEST_F(Stranger, OneConnectionHasFourSessions) {
  Start();
  std::vector<std::unique_ptr<FakeAgent>> others;
  for (int i = 0; i < 8; ++i) {
    others.push_back(std::make_unique<FakeAgent>(Dial(daemon_->addresses().front())));
    ASSERT_TRUE(others.back()->Join("other" + std::to_string(i)));
  }
  const Connection connection = Dial(daemon_->addresses().front());
  std::vector<std::unique_ptr<FakeAgent>> agents;
  for (int i = 0; i < kMaxSessionsPerConnection; ++i) {
    agents.push_back(std::make_unique<FakeAgent>(connection));
    ASSERT_TRUE(agents.back()->Join("node" + std::to_string(i)));
  }
  FakeAgent fifth(connection);
  EXPECT_FALSE(fifth.Join("fifth"));
  EXPECT_FALSE(agents.front()->Next().has_value()) << "the connection goes on";
  // A job on all of those that have connections of their own.
  EXPECT_TRUE(OverUnix().Submit(SubmittedJob("wide", 8, 8), "key").ok());
  const auto asked = [](const pb::CoordinatorMessage& message) { return message.has_order(); };
  for (const auto& other : others)
    EXPECT_TRUE(other->Until(asked)) << "another connection does not go on";
  // Those that ended make room, once the coordinator has heard of their end.
  const Connection again = Dial(daemon_->addresses().front());
  pb::ReadRequest node;
  node.set_what(pb::ReadRequest::WHAT_NODES);
  node.set_selector("again");
  for (int i = 0; i < 2 * kMaxSessionsPerConnection; ++i) {
    FakeAgent agent(again);
    ASSERT_TRUE(agent.Join("again")) << i;
    agent.Leave();
    ASSERT_TRUE(Eventually([&] {
      const absl::StatusOr<pb::ReadReply> read = OverUnix().Read(node);
      return read.ok() && read->nodes_size() == 1 && read->nodes(0).state() != "ready";
    }));
  }
}

TEST_F(Stranger, AgesOfACenturyBlindNoReader) {
  Start();
  Client client = OverUnix();
  FakeAgent agent(Dial(daemon_->addresses().front()));
  ASSERT_TRUE(agent.Join("old"));
  ASSERT_TRUE(client.Submit(SubmittedJob("job", 1, 1), "key").ok());
  for (int failure = 1; failure <= 2; ++failure) {
    std::optional<pb::GroupReport> report = agent.TakeJob();
    ASSERT_TRUE(report.has_value());
    pb::AgentMessage message;
    message.mutable_report()->CopyFrom(*report);
    message.mutable_report()->set_phase(pb::PHASE_FREE);
    pb::RankExit& exit = *message.mutable_report()->add_exits();
    exit.set_kind(pb::EXIT_KIND_EXITED);
    exit.set_code(1);
    exit.set_age_ns(kMaxDuration.count());
    ASSERT_TRUE(agent.Send(message));
    ASSERT_TRUE(agent
                    .Until([&](const auto& m) {
                      return m.has_report_ack() &&
                             m.report_ack().number() == message.report().number();
                    })
                    .has_value());
  }
  const auto expect_shown = [&] {
    const absl::StatusOr<JobView> view = client.ReadJob("job-1");
    ASSERT_TRUE(view.ok()) << view.status();
    EXPECT_LT(view->time.detect, std::chrono::minutes(1));
  };
  expect_shown();
  EXPECT_EQ(Stop(), 0);
  Start();
  client = OverUnix();
  expect_shown();
}

}  // namespace
}  // namespace regroup::coordinator
