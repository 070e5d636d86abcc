#include "tests/sim/chaos.h"

#include <csignal>
#include <set>

namespace regroup::sim {
using namespace coordinator;           // NOLINT: rows are most of what this file reads.
using namespace std::chrono_literals;  // NOLINT

namespace {

class Chaos {
 public:
  Chaos(std::uint64_t seed, const ChaosOptions& options)
      : seed_(seed), options_(options), rng_(seed), world_(ConfigOf(seed, options), seed) {}

  ChaosResult Run() {
    world_.tracing = options_.tracing;
    world_.commit_delay = Pick<Duration>({0ms, 0ms, 1ms, 8ms, 300ms});
    if (options_.plant) options_.plant(world_);
    const int nodes = 2 + static_cast<int>(rng_.Below(3));
    launched_ = seed_ % 5 == 0 || rng_.Below(3) == 0;
    for (int i = 0; i < nodes; ++i) AddNode();
    Advance();
    const int actions = 4 + static_cast<int>(rng_.Below(options_.actions - 3));
    for (int i = 0; i < actions && world_.checker.violations.empty(); ++i) {
      Act();
      Advance();
      if (i % 2 == 0) world_.Poll();
    }
    const bool rests = options_.rest_every > 0 && seed_ % options_.rest_every == 0;
    if (rests && world_.checker.violations.empty()) Rest();
    world_.checker.AtEnd(world_.rows());
    TakeTrace();
    ChaosResult result;
    result.violations = world_.checker.violations;
    result.history = std::move(history_);
    result.steps = world_.steps;
    for (const auto& row : world_.rows()) {
      const auto* generation = std::get_if<GenerationRow>(&row.second);
      if (generation && generation->formed_at) ++result.generations;
    }
    return result;
  }

 private:
  // Every fifth life is that of a coordinator which `regroup run` started.
  static Config ConfigOf(std::uint64_t seed, const ChaosOptions& options) {
    Config config = options.config;
    config.ad_hoc.on = config.ad_hoc.on || seed % 5 == 0;
    return config;
  }
  template <class T>
  T Pick(std::vector<T> from) {
    return from[rng_.Below(from.size())];
  }
  void TakeTrace() {
    for (std::string& line : world_.trace) history_.push_back("    " + std::move(line));
    world_.trace.clear();
  }
  void Note(const std::string& what) {
    TakeTrace();
    history_.push_back(std::to_string(Seconds(world_.SinceStart())) + " " + what);
  }
  void Advance() { world_.RunFor(Pick<Duration>({1ms, 3ms, 10ms, 50ms, 300ms, 1500ms, 6s})); }

  Behaviour RandomBehaviour() {
    Behaviour behaviour;
    behaviour.heartbeat = 2s;
    behaviour.net = Pick<Duration>({1ms, 1ms, 4ms});
    behaviour.witness = rng_.Below(4) != 0;
    behaviour.ignores_term = rng_.Below(6) == 0;
    behaviour.unkillable = rng_.Below(12) == 0;
    behaviour.never_prepares = rng_.Below(15) == 0;
    behaviour.never_starts = rng_.Below(15) == 0;
    behaviour.speaks = rng_.Below(3) == 0;
    behaviour.step = 400ms;
    if (rng_.Below(15) == 0) behaviour.refuses = "no room";
    if (rng_.Below(20) == 0) behaviour.exec_error = 2;
    return behaviour;
  }

  JobSpec RandomSpec(const std::string& name) {
    const int min = 1 + static_cast<int>(rng_.Below(2));
    const int max = min + static_cast<int>(rng_.Below(3));
    JobSpec spec = SpecOf(name, min, max, static_cast<int>(rng_.Below(4)));
    spec.workers_per_node = 1 + static_cast<int>(rng_.Below(2));
    spec.scale_up =
        Pick<ScaleUp>({ScaleUp::kSettle, ScaleUp::kNow, ScaleUp::kNext, ScaleUp::kNever});
    spec.grace = Pick<Duration>({2s, 10s});
    if (rng_.Below(8) == 0) {
      spec.unit = 2;
      spec.max_nodes = std::max(spec.max_nodes, 2);
    }
    if (rng_.Below(8) == 0) spec.restart_window = 30s;
    if (seed_ % 3 == 0) spec.max_preemptions = static_cast<int>(seed_ / 3 % 3);
    return spec;
  }

  void AddNode() {
    const std::string name = "n" + std::to_string(++names_);
    NodeOptions options;
    options.slots = 2;
    if (launched_ && rng_.Below(3) != 0) {
      if (!launch_spec_) launch_spec_ = RandomSpec("launch");
      options.launched = true;
      options.launch = LaunchOf("key-" + name, *launch_spec_);
      options.launch->standalone = launch_spec_->max_nodes == 1;
    }
    world_.Add(name, options, RandomBehaviour());
    Note("add " + name);
  }

  Node& AnyNode() {
    auto at = world_.nodes().begin();
    std::advance(at, rng_.Below(world_.nodes().size()));
    return *at->second;
  }
  JobId AnyJob(const Node& node) {
    std::vector<JobId> jobs;
    for (const auto& entry : node.groups()) jobs.push_back(entry.first);
    return jobs.empty() ? JobId("none") : Pick(jobs);
  }

  void Act() {
    const std::uint64_t what = rng_.Below(28);
    if (what < 3) return Submit();
    if (what == 27) return CutOff();
    if (what >= 25) return Commit();
    if (what < 9) return HurtJob(what);
    if (what < 18) return HurtNode(what);
    HurtCoordinator(what);
  }

  void Submit() {
    if (submitted_ >= 3) return;
    const std::string key = "key" + std::to_string(++submitted_);
    const JobSpec spec = RandomSpec("job");
    Note("submit " + std::to_string(spec.min_nodes) + ":" + std::to_string(spec.max_nodes));
    world_.Submit(spec, key);
    specs_[key] = spec;
    if (rng_.Below(3) == 0) world_.Submit(spec, key);  // A retry.
  }

  void HurtJob(std::uint64_t what) {
    Node& node = AnyNode();
    const JobId job = AnyJob(node);
    Note("job " + std::to_string(what) + " " + job.value() + " on " + node.name());
    const int rank = static_cast<int>(rng_.Below(2));
    switch (what) {
      case 3: return node.ExitRank(job, rank, 0);
      case 4: return node.ExitRank(job, rank, 1);
      case 5: return node.SignalRank(job, rank, SIGKILL);
      case 6: return node.LoseSupervisor(job);
      case 7: return node.LoseStore(job);
      default: world_.Cancel(job.value(), rng_.Below(2) == 0);
    }
  }

  // Of any generation and step: what a partitioned or slow worker might still ask for.
  void Commit() {
    Node& node = AnyNode();
    const JobId job = AnyJob(node);
    const Generation generation(1 + rng_.Below(3));
    const auto step = static_cast<std::int64_t>(rng_.Below(20));
    Note("commit " + job.value() + " " + std::to_string(generation.value()) + " step " +
         std::to_string(step));
    node.AskCommit(job, generation, step, Pick<std::string>({"a", "a", "b"}));
    if (rng_.Below(3) == 0)  // Again, or another one in its place.
      node.AskCommit(job, generation, step, Pick<std::string>({"a", "b"}));
  }

  void HurtNode(std::uint64_t what) {
    Node& node = AnyNode();
    Note("node " + std::to_string(what) + " " + node.name());
    switch (what) {
      case 9: return node.KillAgent();
      case 10:
      case 11: return Revive(node);
      case 12: return node.KillNode();
      case 13: return node.options().launched ? node.CutPower() : node.Reboot();
      case 14: return node.SetSilent(!node.silent());
      case 15: return node.ResetSession();
      case 16:
        if (node.options().launched)
          return node.Signal(Pick<int>({SIGINT, SIGTERM, SIGHUP, 0}), rng_.Below(3) == 0);
        return node.Notice(Pick<Duration>({1s, 10s}));
      default:
        if (rng_.Below(3) == 0 && names_ < 6) AddNode();
        if (rng_.Below(3) == 0) world_.Forget(node.name());
    }
  }

  void HurtCoordinator(std::uint64_t what) {
    Note("coordinator " + std::to_string(what));
    if (what == 18) return world_.CrashCoordinator();
    if (what < 22) return world_.CrashAt(static_cast<std::int64_t>(rng_.Below(30)));
    if (what == 22) return world_.StallCoordinator(Pick<Duration>({1500ms, 8s}));
    world_.CrashAt(-1);
    world_.StartCoordinator();
  }

  // The coordinator's own network: all nodes at once.
  void CutOff() {
    const bool silent = !AnyNode().silent();
    Note(silent ? "cut off" : "not cut off");
    for (auto& entry : world_.nodes()) entry.second->SetSilent(silent);
  }

  void Revive(Node& node) {
    if (!node.options().launched) return node.StartAgent();
    // A launch command does not come back; another one may be typed on the same host.
  }

  // The faults stop. Every job must run, wait for a reason, or be over, and once all workers
  // finish, be over.
  void Rest() {
    Note("rest");
    world_.CrashAt(-1);
    world_.StartCoordinator();
    for (auto& entry : world_.nodes()) {
      Node& node = *entry.second;
      Behaviour calm;
      calm.heartbeat = 2s;
      node.behaviour() = calm;
      if (node.options().launched) {
        if (node.silent()) node.SetSilent(false);
        continue;
      }
      if (node.silent()) node.SetSilent(false);
      node.Reboot();
    }
    // Also what was below its minimum: fresh nodes, and a launch command that was typed again.
    launched_ = false;
    for (int i = 0; i < 4; ++i) AddNode();
    for (auto& entry : world_.nodes()) {
      Behaviour calm;
      calm.heartbeat = 2s;
      entry.second->behaviour() = calm;
    }
    const Instant until = world_.clock().now() + 1500s;
    while (world_.clock().now() < until) {
      world_.RunFor(5s);
      FinishRanks();
      if (AllOver()) break;
    }
    CheckRest();
  }

  void FinishRanks() {
    for (auto& entry : world_.nodes()) {
      std::vector<JobId> jobs;
      for (const auto& job : entry.second->groups()) jobs.push_back(job.first);
      for (const JobId& job : jobs)
        for (int rank = 0; rank < 2; ++rank) entry.second->ExitRank(job, rank, 0);
    }
  }

  bool AllOver() {
    for (const auto& row : world_.rows()) {
      const auto* state = std::get_if<JobStateRow>(&row.second);
      if (state && state->phase != JobPhase::kEnded && state->phase != JobPhase::kPreempted)
        return false;
    }
    return true;
  }

  void CheckRest() {
    Checker& checker = world_.checker;
    if (world_.finished()) world_.StartCoordinator();  // It was right to leave; now it tells.
    checker.Expect(world_.coordinator_up(), "L6: the coordinator did not stay up");
    if (!world_.coordinator_up()) return;
    for (const auto& row : world_.rows()) {
      const auto* state = std::get_if<JobStateRow>(&row.second);
      if (state == nullptr) continue;
      const bool over = state->phase == JobPhase::kEnded || state->phase == JobPhase::kPreempted;
      // A launched job whose launch commands are too few waits for more of them.
      const auto& spec = std::get<JobSpecRow>(world_.rows().at(JobSpecKey(state->job)));
      int launchers = 0;
      for (auto& entry : world_.nodes())
        launchers += entry.second->options().launched && entry.second->running() ? 1 : 0;
      const int unit = spec.spec.unit, need = (spec.spec.min_nodes + unit - 1) / unit * unit;
      const bool may_wait =
          spec.spec.origin == JobOrigin::kLaunched && launchers > 0 && launchers <= need;
      checker.Expect(over || may_wait, "L1: " + state->job.value() + " is " +
                                           world_.StateOf(state->job) + WhyOf(state->job));
      if (over)
        checker.Expect(world_.LiveRanks(state->job) == 0,
                       "16: processes of " + state->job.value() + " are left");
    }
    CheckLaunchers();
  }

  // Nobody waits for a job that is over: a launch command has its result, leaves, or goes on.
  void CheckLaunchers() {
    for (auto& entry : world_.nodes()) {
      const Node& node = *entry.second;
      if (!node.attached() || !node.launched_job || node.result || node.leaving()) continue;
      const std::string state = world_.StateOf(*node.launched_job);
      world_.checker.Expect(
          state != "preempted" && state != "succeeded" && state != "failed" && state != "cancelled",
          "L2: " + node.name() + " waits for a job that is " + state);
    }
  }

  std::string WhyOf(const JobId& job) {
    const JobView view = world_.View(job);
    return view.why ? " because of reason " + std::to_string(view.why->index())
                    : " without a reason";
  }

  const std::uint64_t seed_;
  const ChaosOptions& options_;
  Rng rng_;
  World world_;
  std::vector<std::string> history_;
  std::map<std::string, JobSpec> specs_;
  std::optional<JobSpec> launch_spec_;
  int names_ = 0, submitted_ = 0;
  bool launched_ = false;
};

}  // namespace

ChaosResult RunChaos(std::uint64_t seed, const ChaosOptions& options) {
  return Chaos(seed, options).Run();
}

}  // namespace regroup::sim
