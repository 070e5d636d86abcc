// The coordinator's core alone, fed with what a fleet of thousands would say: CPU seconds of one
// core from an event until all that follows from it is decided, and the longest single step. Hosts,
// network, journal and workers are modelled by an agent that obeys at once. One JSON line.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <deque>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "launcher/coordinator/core/core.h"

namespace regroup::bench {
namespace {

using namespace std::chrono_literals;
using namespace coordinator;  // NOLINT: most names here are its.

double CpuSeconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

struct Cost {
  double cpu = 0;      // Seconds.
  double longest = 0;  // Of one step.
  int steps = 0;
};

Config ConfigOf() {
  Config config;
  config.journal.new_cluster = ClusterId("bench");
  return config;
}

class Fleet {
 public:
  Fleet() : core_(ConfigOf(), Epoch(1), {}, now_) {
    Feed(Tick{});
    Run();
  }

  void Add(int nodes, int slots = 1) {
    for (int i = 0; i < nodes; ++i) {
      const int number = static_cast<int>(agents_.size());
      Agent agent;
      agent.node = NodeId("id" + std::to_string(number));
      agent.name = "node" + std::to_string(number);
      agent.slots = slots;
      agents_.push_back(std::move(agent));
      Attach(agents_.back());
    }
    Run();
  }
  // The first `count` lose their connections and, `away` later, dial again.
  void Blink(int count, Duration away) {
    for (int i = 0; i < count; ++i) Feed(SessionBroken{agents_.at(i).session});
    Run(away);
    for (int i = 0; i < count; ++i) Attach(agents_.at(i));
  }
  // The coordinator dies, and its next life hears of all again.
  void Recover() {
    const std::vector<Row> rows = core_.Rows();
    core_ = Core(ConfigOf(), Epoch(core_.epoch().value() + 1), rows, now_);
    Feed(Tick{});
    for (Agent& agent : agents_)
      if (agent.lives) Attach(agent);
  }
  void Launch(int nodes) {
    for (int i = 0; i < nodes; ++i) {
      LaunchRequest request;
      request.key = std::to_string(++calls_);
      request.rdzv_id = "job";
      request.spec.origin = JobOrigin::kLaunched;
      request.spec.name = "job";
      request.spec.min_nodes = request.spec.max_nodes = nodes;
      request.spec.command = {"train"};
      Feed(LaunchAsked{agents_.at(i).session, request});
    }
    ++jobs_;
  }
  void Notify(int count) {
    for (int i = 0; i < count; ++i)
      Feed(Noticed{agents_.at(i).session, Notice{NoticeSource::kSignal, 15, 30s}});
  }
  // The ranks of the first `count` exit with this code.
  void Exit(const JobId& job, int count, int code) {
    for (int i = 0; i < count; ++i) {
      GroupReport& group = agents_.at(i).groups.at(job);
      for (const RankStart& start : group.started) {
        RankExit exit;
        exit.local_rank = start.local_rank;
        exit.pid = start.pid;
        exit.code = code;
        group.exits.push_back(exit);
      }
      group.phase = Phase::kFree;
      Report(agents_.at(i), group);
    }
  }
  JobId Submit(int min, int max) {
    JobSpec spec;
    spec.name = "job";
    spec.min_nodes = min;
    spec.max_nodes = max;
    spec.command = {"train"};
    Feed(SubmitAsked{CallId(++calls_), spec, std::to_string(calls_)});
    return JobId("job-" + std::to_string(++jobs_));
  }
  void Cancel(const JobId& job) {
    CancelAsked cancel;
    cancel.call = CallId(++calls_);
    cancel.job = job.value();
    cancel.by = "bench";
    cancel.key = std::to_string(calls_);
    Feed(cancel);
  }
  // The last agent of each of the first `count` jobs, or so, loses its connection and its life.
  void Kill(int agent) {
    Agent& dead = agents_.at(static_cast<std::size_t>(agent));
    dead.lives = false;
    Feed(SessionBroken{dead.session});
  }
  // It beats, and hears no order to prepare.
  void Deafen(int agent) { agents_.at(static_cast<std::size_t>(agent)).prepares = false; }

  // Everything that follows, with no time passing but for deadlines up to `span`.
  Cost Run(Duration span = 0s) {
    Cost cost;
    const Instant until = now_ + span;
    for (;;) {
      while (!events_.empty()) {
        const Event event = std::move(events_.front());
        events_.pop_front();
        StepOnce(event, cost);
      }
      const std::optional<Instant> next = core_.NextDeadline();
      if (!next || *next > until) break;
      now_ = std::max(now_, *next);
      Beat();
      StepOnce(Tick{}, cost);
    }
    now_ = std::max(now_, until);
    return cost;
  }

  int Running() const {
    const auto reply = core_.Read(ReadFilter{}, now_, WallTime{});
    CHECK(reply.ok());
    return static_cast<int>(
        std::count_if(reply->jobs.begin(), reply->jobs.end(), [](const JobView& job) {
          return job.state == "running" && job.generation > Generation();
        }));
  }
  int Members(const JobId& id) const {
    ReadFilter filter;
    filter.job = id.value();
    filter.detail = true;
    const auto reply = core_.Read(filter, now_, WallTime{});
    CHECK(reply.ok() && reply->jobs.size() == 1 && !reply->jobs[0].generations.empty());
    return static_cast<int>(reply->jobs[0].generations.back().members.size());
  }

 private:
  struct Agent {
    NodeId node;
    std::string name;
    int slots = 1;
    SessionId session;
    std::map<JobId, GroupReport> groups;
    std::uint64_t reports = 0;
    bool lives = true;
    bool prepares = true;
  };

  void Attach(Agent& agent) {
    Hello hello;
    hello.cluster = core_.cluster();
    hello.highest_epoch = core_.epoch();
    hello.node = agent.node;
    hello.incarnation = Incarnation(1);
    hello.boot = BootId("boot");
    hello.name = agent.name;
    hello.slots = agent.slots;
    hello.address = "10.1.0.1";
    hello.dialled = "10.1.0.2";
    for (const auto& [job, group] : agent.groups) hello.groups.push_back(group);
    if (agent.session != SessionId()) of_session_.erase(agent.session);
    agent.session = SessionId(++sessions_);
    of_session_[agent.session] = &agent - agents_.data();
    Feed(SessionOpened{agent.session, hello});
  }
  void Feed(Event event) { events_.push_back(std::move(event)); }

  void StepOnce(const Event& event, Cost& cost) {
    const double begun = CpuSeconds();
    const Effects effects = core_.Step(now_, WallTime{}, event);
    const double took = CpuSeconds() - begun;
    cost.cpu += took;
    cost.longest = std::max(cost.longest, took);
    ++cost.steps;
    for (const Action& action : effects.actions) {
      if (const auto* order = std::get_if<SendOrder>(&action)) Obey(*order);
      if (const auto* probe = std::get_if<coordinator::Probe>(&action))
        Feed(Probed{probe->node, probe->job, probe->generation, ProbeResult::kRefused});
      CHECK(!std::holds_alternative<CloseSession>(action));
    }
  }

  // Agents beat once a second, outside of what is measured.
  void Beat() {
    if (now_ < beat_at_) return;
    beat_at_ = now_ + 1s;
    for (const Agent& agent : agents_)
      if (agent.lives) core_.Step(now_, WallTime{}, HeartbeatReceived{agent.session, OrderNo()});
  }

  void Obey(const SendOrder& sent) {
    Agent& agent = agents_.at(of_session_.at(sent.session));
    if (!agent.lives) return;
    const Order& order = sent.order;
    auto group = agent.groups.find(order.job);
    if (order.stop && group != agent.groups.end() && group->second.phase != Phase::kFree &&
        group->second.generation <= order.stop->up_to) {
      group->second.phase = Phase::kFree;
      Report(agent, group->second);
    }
    if (order.forget && group != agent.groups.end() &&
        group->second.generation <= order.forget->up_to)
      agent.groups.erase(group);
    if (order.prepare && agent.prepares) {
      GroupReport& made = agent.groups[order.job];
      if (made.generation < order.prepare->generation) {
        made = {};
        made.job = order.job;
        made.generation = order.prepare->generation;
        made.phase = Phase::kPrepared;
        made.witness = Address{"10.1.0.1", 30'000};
        if (order.prepare->host_store) made.store = Address{"10.1.0.1", 29'500};
        Report(agent, made);
      }
    }
    group = agent.groups.find(order.job);
    if (order.run && group != agent.groups.end() && group->second.phase == Phase::kPrepared &&
        group->second.generation == order.run->generation) {
      group->second.phase = Phase::kRunning;
      for (const RankAssignment& rank : order.run->mine)
        group->second.started.push_back({rank.local_rank, 1000 + rank.rank, 0s});
      Report(agent, group->second);
    }
  }
  void Report(Agent& agent, GroupReport& report) {
    report.number = ReportNo(++agent.reports);
    Feed(Reported{agent.session, report});
  }

  Instant now_ = Instant(1h);
  Instant beat_at_ = now_;
  Core core_;
  std::vector<Agent> agents_;
  std::deque<Event> events_;
  std::map<SessionId, std::size_t> of_session_;
  std::uint64_t calls_ = 0, jobs_ = 0, sessions_ = 0;
};

// `jobs` of `each` nodes, and what happens next is up to the caller.
void Fill(Fleet& fleet, int jobs, int each, int max) {
  for (int i = 0; i < jobs; ++i) {
    fleet.Add(each);
    fleet.Submit(each > max ? max : 1, max);
    fleet.Run(2s);
  }
  CHECK(fleet.Running() == jobs);
}

Cost QueuedBehindFull() {
  Fleet fleet;
  fleet.Add(10'000);
  fleet.Run(20s);
  std::vector<JobId> jobs;
  for (int i = 0; i < 10; ++i) {
    jobs.push_back(fleet.Submit(1'000, 1'000));
    fleet.Run(1s);
  }
  CHECK(fleet.Running() == 10);
  const JobId waits = fleet.Submit(1'000, 1'000);
  fleet.Run(1s);
  fleet.Cancel(jobs[3]);
  const Cost cost = fleet.Run(1s);
  CHECK(fleet.Members(waits) == 1'000);
  return cost;
}

Cost ElasticBelowMax() {
  Fleet fleet;
  Fill(fleet, 399, 10, 16);
  fleet.Add(4);
  const JobId small = fleet.Submit(4, 4);
  fleet.Run(120s);  // Whoever may grow by now has looked.
  CHECK(fleet.Running() == 400);
  fleet.Cancel(small);
  const Cost cost = fleet.Run(100ms);
  return cost;
}

Cost LostTogether() {
  Fleet fleet;
  Fill(fleet, 400, 10, 10);
  fleet.Run(20s);
  for (int i = 0; i < 400; ++i) fleet.Kill(i * 10 + 3);
  const Cost cost = fleet.Run(20s);
  CHECK(fleet.Running() == 400);
  CHECK(fleet.Members(JobId("job-1")) == 9);
  return cost;
}

Cost Admission() {
  Fleet fleet;
  fleet.Add(4'000);
  fleet.Run(20s);
  for (int i = 0; i < 1'000; ++i) fleet.Submit(1, 4);
  const Cost cost = fleet.Run(100ms);
  CHECK(fleet.Running() == 1'000);
  return cost;
}

Cost Gang() {
  Fleet fleet;
  fleet.Add(10'000);
  fleet.Run(20s);
  const JobId job = fleet.Submit(1'000, 1'000);
  const Cost cost = fleet.Run(100ms);
  CHECK(fleet.Members(job) == 1'000);
  return cost;
}

// ---- a job of 4,096 ----------------------------------------------------------------------------

constexpr int kLarge = 4'096;

JobId RunLarge(Fleet& fleet, int spare = 4) {
  fleet.Add(kLarge + spare);
  fleet.Run(20s);
  const JobId job = fleet.Submit(kLarge, kLarge);
  fleet.Run(1s);
  CHECK(fleet.Running() == 1);
  return job;
}

Cost Restarted() {
  Fleet fleet;
  const JobId job = RunLarge(fleet);
  fleet.Kill(17);
  const Cost cost = fleet.Run(20s);
  CHECK(fleet.Running() == 1 && fleet.Members(job) == kLarge);
  return cost;
}

// The others have prepared, stop, and are free again one by one while their job gathers.
Cost Voided() {
  Fleet fleet;
  fleet.Add(kLarge + 4);
  fleet.Run(20s);
  fleet.Deafen(17);
  const JobId job = fleet.Submit(kLarge, kLarge);
  const Cost cost = fleet.Run(20s);
  CHECK(fleet.Running() == 1 && fleet.Members(job) == kLarge);
  return cost;
}

Cost Returned() {
  Fleet fleet;
  const JobId job = RunLarge(fleet);
  fleet.Blink(kLarge, 100ms);
  const Cost cost = fleet.Run(20s);
  CHECK(fleet.Running() == 1 && fleet.Members(job) == kLarge);
  return cost;
}

Cost Recovered() {
  Fleet fleet;
  RunLarge(fleet, 5'904);
  for (int i = 0; i < 20; ++i) fleet.Submit(6'000, 6'000);
  fleet.Run(1s);
  fleet.Recover();
  const Cost cost = fleet.Run(20s);
  CHECK(fleet.Running() == 1);
  return cost;
}

Cost Ended(int code) {
  Fleet fleet;
  fleet.Exit(RunLarge(fleet), kLarge, code);
  const Cost cost = fleet.Run(20s);
  CHECK(fleet.Running() == 0);
  return cost;
}

Cost Cancelled() {
  Fleet fleet;
  fleet.Cancel(RunLarge(fleet));
  const Cost cost = fleet.Run(20s);
  CHECK(fleet.Running() == 0);
  return cost;
}

Cost Reclaimed() {
  Fleet fleet;
  const JobId job = RunLarge(fleet, 0);
  fleet.Notify(kLarge);
  const Cost cost = fleet.Run(20s);
  CHECK(fleet.Running() == 0);
  return cost;
}

Cost Launched() {
  Fleet fleet;
  fleet.Add(kLarge);
  fleet.Run(20s);
  fleet.Launch(kLarge);
  const Cost cost = fleet.Run(20s);
  CHECK(fleet.Running() == 1);
  return cost;
}

Cost Grown() {
  Fleet fleet;
  fleet.Add(kLarge / 2);
  fleet.Run(20s);
  const JobId job = fleet.Submit(1, kLarge);
  fleet.Run(1s);
  fleet.Add(kLarge / 2);
  const Cost cost = fleet.Run(60s);
  CHECK(fleet.Members(job) == kLarge);
  return cost;
}

int Main(int argc, char** argv) {
  const std::map<std::string, std::pair<Cost (*)(), const char*>> cases = {
      {"queued",
       {QueuedBehindFull, "10,000 nodes run ten jobs of 1,000, another waits; one is cancelled"}},
      {"elastic", {ElasticBelowMax, "400 elastic jobs on 4,000 nodes; one of four nodes ends"}},
      {"lost", {LostTogether, "400 of 4,000 nodes die at once, one of each of 400 jobs"}},
      {"admission", {Admission, "1,000 jobs of 1:4 are submitted to 4,000 free nodes"}},
      {"restarted", {Restarted, "a job of 4,096 of 4,100 nodes loses one of them"}},
      {"voided", {Voided, "of a job of 4,096 on 4,100 nodes one does not prepare"}},
      {"returned", {Returned, "the members of a job of 4,096 dial again"}},
      {"recovered",
       {Recovered, "10,000 nodes dial the next coordinator: a job of 4,096, twenty that wait"}},
      {"finished", {[] { return Ended(0); }, "the ranks of a job of 4,096 are done one by one"}},
      {"failed", {[] { return Ended(1); }, "the ranks of a job of 4,096 fail one by one"}},
      {"cancelled", {Cancelled, "a job of 4,096 is cancelled"}},
      {"reclaimed", {Reclaimed, "all nodes of a job of 4,096 are told to go"}},
      {"launched", {Launched, "4,096 nodes launch one job"}},
      {"grown", {Grown, "2,048 nodes join a job of 2,048"}},
      {"gang", {Gang, "a job of 1,000 is submitted to 10,000 free nodes"}},
  };
  std::string name;
  bool longest = false;
  int repeats = 3;
  CLI::App app{"decisions of the coordinator's core for a large fleet"};
  app.add_option("--case", name)->required();
  app.add_flag("--longest", longest, "judge the longest step instead");
  app.add_option("--repeats", repeats);
  CLI11_PARSE(app, argc, argv);
  const auto found = cases.find(name);
  if (found == cases.end()) return 2;
  nlohmann::json samples = nlohmann::json::array();
  Cost worst;
  for (int i = 0; i < repeats; ++i) {
    const Cost cost = found->second.first();
    samples.push_back(longest ? cost.longest : cost.cpu);
    worst.cpu = std::max(worst.cpu, cost.cpu);
    worst.longest = std::max(worst.longest, cost.longest);
    worst.steps = cost.steps;
  }
  char setup[300];
  std::snprintf(setup, sizeof setup, "%s: CPU of the core %.4f s in %d steps, the longest %.2f ms",
                found->second.second, worst.cpu, worst.steps, worst.longest * 1e3);
  std::printf("%s\n", nlohmann::json{{"samples", samples}, {"setup", setup}}.dump().c_str());
  return 0;
}

}  // namespace
}  // namespace regroup::bench

int main(int argc, char** argv) { return regroup::bench::Main(argc, argv); }
