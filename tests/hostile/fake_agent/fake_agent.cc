#include "tests/hostile/fake_agent/fake_agent.h"

#include <utility>

namespace regroup::testing {

FakeAgent::FakeAgent(Connection connection, std::chrono::milliseconds limit)
    : connection_(std::move(connection)), stub_(pb::Coordinator::NewStub(connection_.channel)) {
  context_.set_deadline(std::chrono::system_clock::now() + limit);
  context_.set_wait_for_ready(true);
  stream_ = stub_->Session(&context_);
}

FakeAgent::~FakeAgent() {
  if (stream_ != nullptr) Leave();
}

pb::AgentMessage FakeAgent::Hello(const std::string& name) {
  pb::AgentMessage message;
  pb::Hello& hello = *message.mutable_hello();
  hello.set_node("id-" + name);
  hello.set_incarnation(1);
  hello.set_boot("boot");
  hello.set_name(name);
  hello.set_slots(1);
  hello.set_address("127.0.0.1");
  hello.set_dialled("127.0.0.1");
  hello.mutable_version()->set_major(kProtocolMajor);
  hello.mutable_version()->set_minor(kProtocolMinor);
  hello.mutable_version()->set_build("fake");
  return message;
}

bool FakeAgent::Send(const pb::AgentMessage& message) { return stream_->Write(message); }

std::optional<pb::CoordinatorMessage> FakeAgent::Next() {
  pb::CoordinatorMessage message;
  if (!stream_->Read(&message)) return std::nullopt;
  return message;
}

std::optional<pb::CoordinatorMessage> FakeAgent::Until(
    const std::function<bool(const pb::CoordinatorMessage&)>& wanted) {
  while (std::optional<pb::CoordinatorMessage> message = Next()) {
    if (wanted(*message)) return message;
  }
  return std::nullopt;
}

bool FakeAgent::Join(const std::string& name) {
  if (!Send(Hello(name))) return false;
  const std::optional<pb::CoordinatorMessage> answer = Next();
  return answer && answer->has_welcome();
}

std::optional<pb::GroupReport> FakeAgent::TakeJob() {
  const auto asked = Until(
      [](const auto& message) { return message.has_order() && message.order().has_prepare(); });
  if (!asked) return std::nullopt;
  const pb::Prepare& prepare = asked->order().prepare();
  pb::AgentMessage message;
  pb::GroupReport& report = *message.mutable_report();
  report.set_number(++reports_);
  report.set_job(asked->order().job());
  report.set_generation(prepare.generation());
  report.set_phase(pb::PHASE_PREPARED);
  if (prepare.host_store()) {
    report.mutable_store()->set_host("127.0.0.1");
    report.mutable_store()->set_port(1);
  }
  Send(message);
  const auto run = Until([](const auto& m) { return m.has_order() && m.order().has_run(); });
  if (!run) return std::nullopt;
  report.set_number(++reports_);
  report.set_phase(pb::PHASE_RUNNING);
  for (const pb::RankAssignment& mine : run->order().run().mine()) {
    pb::RankStart& start = *report.add_started();
    start.set_local_rank(mine.local_rank());
    start.set_pid(1000 + mine.rank());
  }
  if (!Send(message)) return std::nullopt;
  report.set_number(++reports_);
  return report;
}

grpc::Status FakeAgent::Leave() {
  context_.TryCancel();
  const grpc::Status status = stream_->Finish();
  stream_ = nullptr;
  return status;
}

}  // namespace regroup::testing
