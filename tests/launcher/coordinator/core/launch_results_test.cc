// What launch commands are told when their job is over, said to a core as its shell would.

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "launcher/coordinator/core/core.h"
#include "tests/sim/world.h"

namespace regroup {
namespace {

using namespace std::chrono_literals;
using coordinator::SendResult;

// Two launch commands of one job, which obey and never leave by themselves.
class LaunchResults : public testing::Test {
 protected:
  LaunchResults() : core_(ConfigOf(), Epoch(1), {}, now_) {
    Step(coordinator::Tick{});
    for (const int node : {1, 2}) Open(node);
    for (const int node : {1, 2}) Launch(node);
  }
  void Open(int node) {
    Hello hello;
    hello.node = NodeId(absl::StrCat("node", node));
    hello.name = hello.node.value();
    hello.incarnation = Incarnation(1);
    hello.boot = BootId("boot");
    hello.address = absl::StrCat("10.0.0.", node);
    hello.slots = 1;
    hello.launched = true;
    Step(coordinator::SessionOpened{SessionId(node), hello});
  }
  void Launch(int node) {
    LaunchRequest request;
    request.key = absl::StrCat("key", node);
    request.rdzv_id = "train";
    request.spec = sim::SpecOf("train", 2, 2);
    request.spec.origin = JobOrigin::kLaunched;
    Step(coordinator::LaunchAsked{SessionId(node), request});
  }
  void Pass(Duration time) {
    for (const Instant end = now_ + time; now_ < end && !ended_;)
      for (const int node : {1, 2})
        Step(coordinator::HeartbeatReceived{SessionId(node), OrderNo()});
  }

  std::map<SessionId, std::vector<std::shared_ptr<const JobView>>> results_;
  bool ended_ = false;

 private:
  static coordinator::Config ConfigOf() {
    coordinator::Config config;
    config.journal.new_cluster = ClusterId("cluster");
    config.ad_hoc.on = true;
    config.ad_hoc.exit_delay = 1s;
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
      if (const auto* result = std::get_if<SendResult>(&action))
        results_[result->session].push_back(result->job);
      if (std::holds_alternative<coordinator::Quit>(action)) ended_ = true;
      const auto* send = std::get_if<coordinator::SendOrder>(&action);
      if (send != nullptr) Obey(send->session, send->order);
    }
  }
  void Obey(SessionId session, const Order& order) {
    GroupReport report;
    report.number = ReportNo(++reports_);
    report.job = order.job;
    if (order.prepare) {
      report.generation = order.prepare->generation;
      report.phase = Phase::kPrepared;
      report.store = Address{"10.0.0.1", 4000};
    } else if (order.run) {
      report.generation = order.run->generation;
      report.phase = Phase::kFree;
      report.started.push_back({0, 7, 0s});
      RankExit exit;
      exit.pid = 7;
      report.exits.push_back(exit);
    } else {
      return;
    }
    Step(coordinator::Reported{session, report});
  }

  Instant now_{};
  std::uint64_t reports_ = 0;
  coordinator::Core core_;
};

TEST_F(LaunchResults, each_is_told_once_and_all_are_told_the_same) {
  Pass(900ms);
  ASSERT_EQ(results_.size(), 2u);
  ASSERT_EQ(results_[SessionId(1)].size(), 1u);
  EXPECT_EQ(results_[SessionId(1)][0]->state, "succeeded");
  EXPECT_EQ(results_[SessionId(1)], results_[SessionId(2)]) << "made once for all of them";
  Launch(1);  // As after a reconnect; on the same session nothing is new.
  EXPECT_EQ(results_[SessionId(1)].size(), 1u);
  Open(1);
  Launch(1);
  EXPECT_EQ(results_[SessionId(1)].size(), 2u) << "on a new session it may not know";
}

// One that hangs with its result in hand would keep the coordinator that it has for itself.
TEST_F(LaunchResults, who_was_told_is_not_waited_for) {
  Pass(5s);
  ASSERT_EQ(results_[SessionId(2)].size(), 1u);
  EXPECT_TRUE(ended_);
}

}  // namespace
}  // namespace regroup
