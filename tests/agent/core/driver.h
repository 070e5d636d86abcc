#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "agent/core/core.h"
#include "tests/agent/sights.h"

namespace regroup::agent::testing {

using namespace std::chrono_literals;

inline Instant At(Duration since_start) { return Instant(1000s) + since_start; }

inline GroupKey Key(std::string job, std::uint64_t generation) {
  return {JobId(std::move(job)), Generation(generation)};
}

inline Config ServiceConfig(int slots = 2) {
  Config config;
  config.node = NodeId("node");
  config.incarnation = Incarnation(1);
  config.boot = BootId("boot");
  config.name = "a";
  config.slots = slots;
  return config;
}
inline Config LaunchedConfig(int slots = 2) {
  Config config = ServiceConfig(slots);
  config.launched = true;
  return config;
}

// A core, its clock, and what it said last.
class Driver {
 public:
  explicit Driver(Config config, std::vector<RunRecord> records = {})
      : core_(std::move(config), At(0s)) {
    for (const RunRecord& record : records) sights_.Begin(record);
    Do(Scanned{std::move(records)});
  }

  Effects& Do(const Event& event) {
    effects_ = core_.Step(now_, event);
    for (const Action& action : effects_.actions) history_.push_back(action);
    return effects_;
  }
  // Of what is told one thing at a time.
  template <class Happened>
  requires std::is_invocable_v<Sights&, const Happened&> Effects& Do(const Happened& happened) {
    return Do(Event(sights_(happened)));
  }
  // Moves the clock to `at`, ticking at every deadline on the way.
  void AdvanceTo(Duration at) {
    effects_ = {};
    while (core_.NextDeadline() && *core_.NextDeadline() <= At(at)) {
      now_ = std::max(now_, *core_.NextDeadline());
      Effects step = core_.Step(now_, Tick{});
      for (Action& action : step.actions) {
        history_.push_back(action);
        effects_.actions.push_back(std::move(action));
      }
    }
    now_ = std::max(now_, At(at));
  }

  // The process stood still so long: no Tick came.
  Effects& StandStill(Duration time) {
    now_ += time;
    return Do(Tick{});
  }

  Effects& Attach(std::string cluster = "c", std::uint64_t epoch = 1) {
    Do(CoordinatorFound{"10.0.0.2", "10.0.0.1"});
    return Do(Welcomed{WelcomeOf(std::move(cluster), epoch)});
  }
  static Welcome WelcomeOf(std::string cluster = "c", std::uint64_t epoch = 1) {
    return {.cluster = ClusterId(std::move(cluster)),
            .epoch = Epoch(epoch),
            .name = "a",
            .version = {},
            .heartbeat = 1s,
            .lease = 5s};
  }

  // The last action of that type in the last step.
  template <class T>
  const T* Last() const {
    const T* found = nullptr;
    for (const Action& action : effects_.actions) {
      if (const T* a = std::get_if<T>(&action)) found = a;
    }
    return found;
  }
  template <class T>
  int CountEver() const {
    int count = 0;
    for (const Action& action : history_) count += std::holds_alternative<T>(action);
    return count;
  }

  Core& core() { return core_; }
  Instant now() const { return now_; }
  const Effects& effects() const { return effects_; }

 private:
  Core core_;
  Sights sights_;
  Instant now_ = At(0s);
  Effects effects_;
  std::vector<Action> history_;
};

inline Order OrderOf(std::uint64_t number, std::string job = "a-1") {
  Order order;
  order.number = OrderNo(number);
  order.job = JobId(std::move(job));
  return order;
}
inline Order PrepareOrder(std::uint64_t number, std::uint64_t generation, int workers = 1,
                          bool host_store = false, std::string job = "a-1") {
  Order order = OrderOf(number, std::move(job));
  Prepare prepare;
  prepare.generation = Generation(generation);
  prepare.spec.workers = workers;
  prepare.host_store = host_store;
  order.prepare = prepare;
  return order;
}
inline Order RunOrder(std::uint64_t number, std::uint64_t generation, int workers = 1,
                      std::string job = "a-1") {
  Order order = OrderOf(number, std::move(job));
  Run run;
  run.generation = Generation(generation);
  run.store = {"10.0.0.2", 4000};
  for (int i = 0; i < workers; ++i) run.mine.push_back({i, i});
  run.world_size = workers;
  order.run = run;
  return order;
}
inline Order StopOrder(std::uint64_t number, std::uint64_t up_to, Duration grace = 2s,
                       StopReason reason = StopReason::kFailure, std::string job = "a-1") {
  Order order = OrderOf(number, std::move(job));
  order.stop = Stop{Generation(up_to), grace, reason};
  return order;
}
inline Order RetireOrder(std::uint64_t number, std::uint64_t up_to, Duration grace = 2s,
                         std::string job = "a-1") {
  Order order = StopOrder(number, up_to, grace, StopReason::kFailure, std::move(job));
  order.stop->in_place = true;
  return order;
}
inline Order ForgetOrder(std::uint64_t number, std::uint64_t up_to, std::string job = "a-1") {
  Order order = StopOrder(number, up_to, 2s, StopReason::kFailure, std::move(job));
  order.forget = Forget{Generation(up_to)};
  return order;
}

inline RunRecord LiveRecord(std::string job, std::uint64_t generation, int workers = 1) {
  RunRecord record;
  record.key = Key(std::move(job), generation);
  record.boot = BootId("boot");
  record.workers = workers;
  record.shim_alive = true;
  return record;
}
inline RunRecord RunningRecord(std::string job, std::uint64_t generation, int workers = 1) {
  RunRecord record = LiveRecord(std::move(job), generation, workers);
  record.started = true;
  for (int i = 0; i < workers; ++i) record.starts.push_back({i, 100 + i, Instant(10s)});
  return record;
}

// Through prepare and run to running, `workers` ranks.
inline void BringUp(Driver& agent, std::uint64_t generation, int workers,
                    std::uint64_t first_order = 1, const std::string& job = "a-1") {
  const GroupKey key = Key(job, generation);
  agent.Do(Ordered{PrepareOrder(first_order, generation, workers, false, job)});
  agent.Do(RunDirectoryWritten{key});
  agent.Do(ShimReady{key, Address{"10.0.0.2", 5000}});
  agent.Do(Ordered{RunOrder(first_order + 1, generation, workers, job)});
  RanksStarted started{key, {}};
  for (int i = 0; i < workers; ++i) started.starts.push_back({i, 100 + i, agent.now()});
  agent.Do(started);
}

}  // namespace regroup::agent::testing
