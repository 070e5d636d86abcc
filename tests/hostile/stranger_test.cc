// Whoever reaches the port can neither end a cluster nor make anything durable by its word alone.

#include <gtest/gtest.h>

#include "tests/hostile/fake_agent/fake_agent.h"
#include "tests/launcher/coordinator/shell/daemon_fixture.h"

namespace regroup::coordinator {
namespace {

using testing::FakeAgent;

class Stranger : public DaemonFixture {};

// What a node tells of its ranks' ages is believed up to the age of their generation.
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
