#pragma once

// A core without a cluster: told of what happens as its shell would tell it, a millisecond apart,
// and nodes of one slot each that do what a test says.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "launcher/coordinator/core/core.h"

namespace regroup {

class ToldCore {
 public:
  virtual ~ToldCore() = default;

 protected:
  explicit ToldCore(coordinator::Config config = {})
      : core_(WithCluster(std::move(config)), Epoch(1), {}, now_) {}

  // Each action of a step, in order.
  virtual void Take(const coordinator::Action& action) = 0;

  void Step(const coordinator::Event& event) {
    now_ += std::chrono::milliseconds(1);
    TakeAll(core_.Step(now_, WallTime(), event));
    while (core_.NextDeadline() && *core_.NextDeadline() <= now_)
      TakeAll(core_.Step(now_, WallTime(), coordinator::Tick{}));
  }
  void Pass(Duration time) {
    for (const Instant end = now_ + time; now_ < end;)
      for (int node = 1; node <= nodes_; ++node)
        Step(node == cut_off_
                 ? coordinator::Event(coordinator::Tick{})
                 : coordinator::Event(coordinator::HeartbeatReceived{SessionId(node), OrderNo()}));
  }
  void CutOff(int node) { cut_off_ = node; }
  // Nothing could be told for so long, up to now.
  void WaitForDisk(Duration gap) { Step(coordinator::Stalled{gap, now_, true}); }
  // Nodes count from 1, and so do their sessions. Again: it has dialled anew.
  void Open(int node, bool launched = false) {
    nodes_ = std::max(nodes_, node);
    if (cut_off_ == node) cut_off_ = 0;
    Hello hello;
    hello.node = NodeId(absl::StrCat("node", node));
    hello.name = hello.node.value();
    hello.incarnation = Incarnation(1);
    hello.boot = BootId("boot");
    hello.address = absl::StrCat("10.0.0.", node);
    hello.slots = 1;
    hello.launched = launched;
    Step(coordinator::SessionOpened{SessionId(node), hello});
  }
  void Submit(const JobSpec& spec) {
    coordinator::SubmitAsked asked;
    asked.call = NextCall();
    asked.spec = spec;
    asked.key = absl::StrCat("key", calls_);
    Step(asked);
  }
  // With `exit_code`, if any, of its one rank.
  void Report(SessionId session, const JobId& job, Generation generation, Phase phase,
              std::optional<int> exit_code = std::nullopt) {
    GroupReport report;
    report.number = ReportNo(++reports_);
    report.job = job;
    report.generation = generation;
    report.phase = phase;
    if (phase == Phase::kPrepared) report.store = Address{"10.0.0.1", 4000};
    if (exit_code) {
      report.started.push_back({0, 7, Duration{}});
      RankExit exit;
      exit.pid = 7;
      exit.code = *exit_code;
      report.exits.push_back(exit);
    }
    Step(coordinator::Reported{session, report});
  }
  // Prepares, and runs to its end within no time.
  void Obey(const coordinator::SendOrder& sent) {
    const Order& order = sent.order;
    if (order.prepare) {
      Report(sent.session, order.job, order.prepare->generation, Phase::kPrepared);
    } else if (order.run) {
      Report(sent.session, order.job, order.run->generation, Phase::kFree, /*exit_code=*/0);
    }
  }
  CallId NextCall() { return CallId(++calls_); }

 private:
  static coordinator::Config WithCluster(coordinator::Config config) {
    config.journal.new_cluster = ClusterId("cluster");
    return config;
  }
  void TakeAll(const coordinator::Effects& effects) {
    for (const coordinator::Action& action : effects.actions) Take(action);
  }

  Instant now_{};
  int nodes_ = 0, cut_off_ = 0;
  std::uint64_t calls_ = 0, reports_ = 0;
  coordinator::Core core_;
};

}  // namespace regroup
