// Looks at jobs of many nodes: none of them for each node that has something to tell.

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <string>

#include "launcher/coordinator/core/core.h"
#include "launcher/coordinator/core/step.h"
#include "tests/scenario/testing.h"

namespace regroup {
namespace {

using namespace coordinator;  // NOLINT: most names here are its.

// Obeys at once; no time passes but by hand.
class ManyNodes : public ::testing::Test {
 protected:
  static constexpr int kNodes = 80;
  static constexpr Duration kRest = kNodes * 10us;

  ManyNodes() : core_(ConfigOf(), Epoch(1), {}, now_) {}
  // A job of so many nodes, and a spare one.
  void Submit(int nodes) {
    nodes_ = nodes;
    Happens(Tick{});
    for (int i = 1; i <= nodes + 1; ++i) {
      Hello hello;
      hello.node = NodeId("id" + std::to_string(i));
      hello.name = "node" + std::to_string(i);
      hello.incarnation = Incarnation(1);
      hello.boot = BootId("boot");
      hello.address = "10.0.0.1";
      Happens(SessionOpened{SessionId(static_cast<std::uint64_t>(i)), hello});
    }
    Pass(10s);
    SubmitAsked asked;
    asked.call = CallId(1);
    asked.spec = SpecOf("job", nodes, nodes);
    asked.key = "key";
    Happens(asked);
  }
  void Happens(const Event& event) {
    events_.push_back(event);
    while (!events_.empty()) {
      const Event next = std::move(events_.front());
      events_.pop_front();
      for (const Action& action : core_.Step(now_, WallTime(), next).actions)
        if (const auto* order = std::get_if<SendOrder>(&action)) Obey(*order);
    }
  }
  // With what is due meanwhile.
  void Pass(Duration time) {
    const Instant until = now_ + time;
    for (std::optional<Instant> next; (next = core_.NextDeadline()) && *next <= until;) {
      now_ = std::max(now_, *next);
      for (int i = 1; i <= nodes_ + 1; ++i)
        Happens(HeartbeatReceived{SessionId(static_cast<std::uint64_t>(i)), OrderNo()});
      Happens(Tick{});
    }
    now_ = until;
  }
  std::string State() {
    ReadFilter filter;
    filter.job = "job-1";
    return core_.Read(filter, now_, WallTime())->jobs.at(0).state;
  }

  void Cancel() {
    CancelAsked cancel;
    cancel.call = CallId(2);
    cancel.job = "job-1";
    cancel.key = "cancel";
    Happens(cancel);
  }

  SessionId deaf_;  // Of a node that does not prepare.
  std::optional<Instant> voided_at_, formed_at_;
  Instant now_ = Instant(1h);
  Core core_;

 private:
  static Config ConfigOf() {
    Config config;
    config.journal.new_cluster = ClusterId("cluster");
    return config;
  }
  void Obey(const SendOrder& sent) {
    const Order& order = sent.order;
    auto group = groups_.find(sent.session);
    if (order.stop && group != groups_.end() && group->second.phase != Phase::kFree &&
        order.stop->up_to >= group->second.generation) {
      if (!voided_at_) voided_at_ = now_;
      Tell(sent.session, Phase::kFree);
    }
    if (order.run) formed_at_ = now_;
    if (order.prepare && sent.session != deaf_) {
      GroupReport& made = groups_[sent.session];
      made.job = order.job;
      made.generation = order.prepare->generation;
      made.witness = Address{"10.0.0.1", 30'000};
      if (order.prepare->host_store) made.store = Address{"10.0.0.1", 29'500};
      Tell(sent.session, Phase::kPrepared);
    }
  }
  void Tell(SessionId session, Phase phase) {
    GroupReport& report = groups_[session];
    report.phase = phase;
    report.number = ReportNo(++reports_);
    events_.push_back(Reported{session, report});
  }

  std::map<SessionId, GroupReport> groups_;
  std::deque<Event> events_;
  std::uint64_t reports_ = 0;
  int nodes_ = 0;
};

TEST_F(ManyNodes, AreNotLookedAtForEachThatIsFreeAgain) {
  Submit(kNodes);
  Pass(1s);
  ASSERT_TRUE(formed_at_);
  Cancel();
  EXPECT_EQ(State(), "ending") << "all are free; nobody has looked since the first was";
  EXPECT_EQ(core_.NextDeadline(), now_ + kRest);
  Pass(kRest);
  EXPECT_EQ(State(), "cancelled");
}

TEST_F(ManyNodes, OfFewEachThatIsFreeIsLookedAt) {
  Submit(kManyNodes - 1);
  Pass(1s);
  ASSERT_TRUE(formed_at_);
  Cancel();
  EXPECT_EQ(State(), "cancelled");
}

TEST_F(ManyNodes, AreGatheredAgainWithoutALookForEach) {
  deaf_ = SessionId(7);
  Submit(kNodes);
  Pass(1s);
  ASSERT_FALSE(formed_at_);
  Pass(4s);
  ASSERT_TRUE(voided_at_);
  EXPECT_EQ(formed_at_, *voided_at_ + kRest + 10us) << "the spare node is looked at, too";
}

}  // namespace
}  // namespace regroup
