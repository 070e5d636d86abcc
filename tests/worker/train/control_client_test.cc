#include "worker/train/control_client.h"

#include <gtest/gtest.h>

#include "tests/worker/checkpoint/testing.h"
#include "tests/worker/train/fake_agent.h"

namespace regroup::worker {
namespace {

class ControlClientTest : public testing::Test {
 protected:
  std::unique_ptr<ControlClient> Start() {
    return ControlClient::Start({agent_.path(), "gpt-3", 5, 2, 1, "3f"});
  }
  static bool Never() { return false; }

  TemporaryDirectory directory_;
  FakeAgent agent_{directory_ / "worker.sock"};
};

TEST_F(ControlClientTest, SaysHelloThenReportsTheNewest) {
  auto client = Start();
  WorkerReport report;
  report.step = 7;
  report.samples = 56;
  report.tokens = 57344;
  report.loss = 2.5;
  report.restored_step = 0;
  client->Report(report);
  agent_.AwaitStep(2, 7);
  const auto said = agent_.said();
  ASSERT_TRUE(said[0].line.has_hello());
  EXPECT_EQ(said[0].line.hello().job(), "gpt-3");
  EXPECT_EQ(said[0].line.hello().generation(), 5u);
  EXPECT_EQ(said[0].line.hello().local_rank(), 1);
  EXPECT_EQ(said[0].line.hello().token(), "3f");
  EXPECT_TRUE(said[0].line.hello().takes_notice());
  EXPECT_EQ(said[1].line.progress().loss(), 2.5);
  EXPECT_EQ(said[1].line.progress().tokens(), 57344);
  EXPECT_TRUE(said[1].line.progress().has_restored_step());
  EXPECT_FALSE(said[1].line.progress().has_first_step_s());
}

TEST_F(ControlClientTest, AFloodOfReportsIsThinnedButItsLastOneArrives) {
  auto client = Start();
  for (int step = 1; step <= 5000; ++step) {
    WorkerReport report;
    report.step = step;
    client->Report(report);
  }
  agent_.AwaitStep(2, 5000);
  EXPECT_LT(agent_.said().size(), 500u);
}

TEST_F(ControlClientTest, FlushDeliversBeforeTheEnd) {
  auto client = Start();
  WorkerReport report;
  report.step = 99;
  agent_.Await([](const auto& said) { return !said.empty(); });
  client->Report(report);
  client->CommunicatorFailed("rank 1 is gone");
  client->Flush();
  client.reset();
  agent_.AwaitStep(2, 99);
  EXPECT_EQ(agent_.Count([](const local::WorkerLine& l) {
    return l.communicator_failed().text() == "rank 1 is gone";
  }),
            1u);
}

TEST_F(ControlClientTest, CommitsAreAcceptedOrRefusedWithTheReason) {
  auto client = Start();
  CommitQuestion question{3, 120, "abc", "/ckpt/step-120/5-3", true};
  EXPECT_TRUE(client->Ask(question, Never).ok());
  agent_.SetJudge(&FakeAgent::Refuse);
  question.attempt = 4;
  const absl::Status refused = client->Ask(question, Never);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(std::string(refused.message()).find("no reason"), std::string::npos);
  const auto said = agent_.said();
  EXPECT_EQ(said[1].line.commit().manifest_hash(), "abc");
  EXPECT_TRUE(said[1].line.commit().for_notice());
}

TEST_F(ControlClientTest, AnAnswerToAnotherAttemptIsNotTaken) {
  agent_.SetJudge([](const local::CommitRequest& request) {
    auto answer = FakeAgent::Accept(request);
    answer->set_attempt(request.attempt() - 1);
    return answer;
  });
  auto client = Start();
  int looks = 0;
  EXPECT_EQ(client->Ask({2, 10, "", "", false}, [&] { return ++looks > 3; }).code(),
            absl::StatusCode::kUnavailable);
}

TEST_F(ControlClientTest, AfterTheAgentRestartsItSaysHelloAndRepeatsWhatCounts) {
  agent_.SetJudge(&FakeAgent::KeepSilent);
  auto client = Start();
  WorkerReport report;
  report.step = 5;
  client->Report(report);
  agent_.AwaitStep(2, 5);
  absl::Status answer;
  std::thread asker([&] { answer = client->Ask({1, 5, "h", "p", false}, Never); });
  agent_.Await([](const auto& said) { return said.back().line.has_commit(); });
  agent_.Close();
  const std::size_t before = agent_.said().size();
  agent_.SetJudge(&FakeAgent::Accept);
  agent_.Open();
  asker.join();
  EXPECT_TRUE(answer.ok()) << answer;
  agent_.Await([&](const auto& said) { return said.size() >= before + 3; });
  const auto said = agent_.said();
  EXPECT_TRUE(said[before].line.has_hello());
  EXPECT_TRUE(said[before + 1].line.has_commit());
  EXPECT_EQ(said[before + 2].line.progress().step(), 5);
}

TEST_F(ControlClientTest, NoticesArriveAlsoAfterAReconnect) {
  auto client = Start();
  agent_.Await([](const auto& said) { return !said.empty(); });
  EXPECT_FALSE(client->notice().has_value());
  agent_.Close();
  agent_.Notice(2, 12.5);
  agent_.Open();
  while (!client->notice()) std::this_thread::yield();
  EXPECT_EQ(Seconds(*client->notice()), 12.5);
}

TEST_F(ControlClientTest, WithoutAnAgentNothingWaits) {
  auto client = ControlClient::Start({directory_ / "nobody.sock", "gpt-3", 1, 0, 0});
  client->Report({});
  int looks = 0;
  EXPECT_FALSE(client->Ask({1, 1, "", "", false}, [&] { return ++looks > 1; }).ok());
  client->CommunicatorFailed("x");
  client->Flush();
}

}  // namespace
}  // namespace regroup::worker
