// Orders that are on their way to a node, said to a core as its shell would.

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "launcher/coordinator/core/core.h"
#include "tests/sim/world.h"

namespace regroup {
namespace {

using namespace std::chrono_literals;
using coordinator::SendOrder;

// One node of one slot that answers when the test does.
class Orders : public testing::Test {
 protected:
  Orders() : core_(ConfigOf(), Epoch(1), {}, now_) {
    Step(coordinator::Tick{});
    Hello hello;
    hello.node = NodeId("node");
    hello.name = "node";
    hello.incarnation = Incarnation(1);
    hello.boot = BootId("boot");
    hello.address = "10.0.0.1";
    hello.slots = 1;
    Step(coordinator::SessionOpened{kSession, hello});
    Pass(2s);
  }
  void Submit(const std::string& name) {
    coordinator::SubmitAsked asked;
    asked.call = CallId(++calls_);
    asked.spec = sim::SpecOf(name, 1, 1, /*max_restarts=*/3);
    asked.key = absl::StrCat("key", calls_);
    Step(asked);
  }
  void Cancel(const std::string& job) {
    Step(coordinator::CancelAsked{
        .call = CallId(++calls_), .job = job, .by = "me", .now = true, .key = "cancel"});
  }
  void Report(const std::string& job, int generation, Phase phase,
              std::optional<int> exit_code = std::nullopt) {
    GroupReport report;
    report.number = ReportNo(++reports_);
    report.job = JobId(job);
    report.generation = Generation(generation);
    report.phase = phase;
    if (phase == Phase::kPrepared) report.store = Address{"10.0.0.1", 4000};
    if (exit_code) {
      report.started.push_back({0, 7, 0s});
      RankExit exit;
      exit.pid = 7;
      exit.code = *exit_code;
      report.exits.push_back(exit);
    }
    Step(coordinator::Reported{kSession, report});
  }
  void Pass(Duration time) {
    for (const Instant end = now_ + time; now_ < end;)
      Step(coordinator::HeartbeatReceived{kSession, OrderNo()});
  }
  // The generation that the node was last asked to prepare; 0: it was not.
  int Asked(const std::string& job) const {
    const auto found = prepares_.find(job);
    return found == prepares_.end() ? 0 : static_cast<int>(found->second.value());
  }

 private:
  inline static const SessionId kSession{1};
  static coordinator::Config ConfigOf() {
    coordinator::Config config;
    config.journal.new_cluster = ClusterId("cluster");
    return config;
  }
  void Step(const coordinator::Event& event) {
    now_ += 1ms;
    Take(core_.Step(now_, WallTime(), event));
    while (core_.NextDeadline() && *core_.NextDeadline() <= now_)
      Take(core_.Step(now_, WallTime(), coordinator::Tick{}));
  }
  void Take(const coordinator::Effects& effects) {
    for (const coordinator::Action& action : effects.actions) {
      const auto* send = std::get_if<SendOrder>(&action);
      if (send == nullptr) continue;
      if (send->order.prepare) prepares_[send->order.job.value()] = send->order.prepare->generation;
    }
  }

  Instant now_{};
  std::uint64_t calls_ = 0, reports_ = 0;
  std::map<std::string, Generation> prepares_;
  coordinator::Core core_;
};

// A Prepare may take the slots until the node has said what became of it; what it says of the
// generation before is no answer, nor is a cancel of the job.
TEST_F(Orders, a_report_of_an_older_generation_answers_no_prepare) {
  Submit("first");
  ASSERT_EQ(Asked("first-1"), 1);
  Report("first-1", 1, Phase::kPrepared);
  Report("first-1", 1, Phase::kFree, /*exit_code=*/1);
  Pass(5s);
  ASSERT_EQ(Asked("first-1"), 2);
  Submit("second");
  Cancel("first-1");
  Report("first-1", 1, Phase::kFree, /*exit_code=*/1);
  Pass(100ms);
  EXPECT_EQ(Asked("second-2"), 0);
  Report("first-1", 2, Phase::kFree);
  Pass(100ms);
  EXPECT_EQ(Asked("second-2"), 1);
}

}  // namespace
}  // namespace regroup
