#include "tests/sim/chaos.h"

#include <algorithm>
#include <csignal>
#include <set>

namespace regroup::sim {
using namespace coordinator;           // NOLINT: rows are most of what this file reads.
using namespace std::chrono_literals;  // NOLINT

namespace {

constexpr int kFinalCode = 3;  // A job may say that this exit code is final.
constexpr int kSlots = 2;      // Of each node.

class Chaos {
 public:
  Chaos(std::uint64_t seed, const ChaosOptions& options)
      : seed_(seed), options_(options), rng_(seed), world_(ConfigOf(seed, options), seed) {}

  ChaosResult Run() {
    world_.tracing = options_.tracing;
    world_.traced = options_.traced;
    world_.agent_config = options_.agent;
    world_.commit_delay = Pick<Duration>({0ms, 0ms, 1ms, 8ms, seed_ % 3 == 1 ? 1500ms : 200ms});
    if (options_.plant) options_.plant(world_);
    if (IsLater() && IsLong()) FinishBeforeStops();
    const int nodes = 2 + static_cast<int>(rng_.Below(3));
    launched_ = seed_ % 5 == 0 || rng_.Below(3) == 0;
    Arrive(nodes);
    Advance();
    if (IsLong()) {
      LiveLong();
    } else {
      const int actions = 4 + static_cast<int>(rng_.Below(options_.actions - 3));
      for (int i = 0; i < actions && !Over(); ++i) {
        Act();
        Advance();
        if (i % 2 == 0) world_.Poll();
      }
    }
    const bool rests = options_.rest_every > 0 && seed_ % options_.rest_every == 0;
    if (rests && !Over()) Rest();
    world_.checker.AtEnd(world_.rows());
    TakeTrace();
    ChaosResult result;
    result.violations = world_.checker.violations;
    result.history = std::move(history_);
    result.steps = world_.steps;
    result.generations = world_.checker.formed;
    result.coverage = world_.checker.coverage;
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
  // Of a long life one by one, and sometimes later than a launch command's coordinator waits.
  void Arrive(int nodes) {
    if (IsLong() && seed_ % 5 == 0) world_.RunFor(3s);
    const Duration between = IsLong() && seed_ % 3 != 0 ? 150ms : 0ms;
    for (int i = 0; i < nodes; ++i) {
      AddNode();
      if (between > 0ms) world_.RunFor(between);
    }
  }
  bool IsLong() const { return options_.generations > 0; }
  bool Over() const { return world_.enough || !world_.checker.violations.empty(); }
  void TakeTrace() {
    for (std::string& line : world_.trace) history_.push_back("    " + std::move(line));
    world_.trace.clear();
  }
  void Note(const std::string& what) {
    TakeTrace();
    history_.push_back(std::to_string(Seconds(world_.SinceStart())) + " " + what);
  }
  void Advance() { world_.RunFor(Pick<Duration>({1ms, 3ms, 10ms, 50ms, 300ms, 1500ms, 6s})); }

  Duration Heartbeat() const { return IsLong() ? options_.config.leases.heartbeat : Duration(2s); }

  Behaviour RandomBehaviour() {
    Behaviour behaviour;
    behaviour.heartbeat = Heartbeat();
    behaviour.agent_restart = options_.config.leases.agent_restart;
    behaviour.net = Pick<Duration>({1ms, 1ms, 4ms});
    behaviour.witness = rng_.Below(4) != 0;
    behaviour.ignores_term = rng_.Below(6) == 0;
    behaviour.unkillable = rng_.Below(12) == 0;
    behaviour.never_prepares = rng_.Below(15) == 0;
    behaviour.never_starts = rng_.Below(15) == 0;
    behaviour.speaks = rng_.Below(3) == 0;
    behaviour.step = 400ms;
    if (rng_.Below(15) == 0) behaviour.refuses = "no room";
    if (rng_.Below(20) == 0) behaviour.exec_error = seed_ % 2 == 0 ? 2 : 11;  // ENOENT, EAGAIN
    behaviour.never_warms_up = seed_ % 7 == 3;
    if (IsLong()) {
      behaviour.check = Pick<Duration>({20ms, 300ms, 3s});
      behaviour.fails_check = rng_.Below(6) == 0;
      if (rng_.Below(10) == 0) behaviour.crashes = 300ms;
    }
    if (!StaysInPlace()) return behaviour;
    behaviour.in_place = rng_.Below(6) != 0;
    behaviour.speaks |= behaviour.in_place;
    behaviour.retires = Pick<Obeys>({Obeys::kYes, Obeys::kYes, Obeys::kYes, Obeys::kYes,
                                     Obeys::kYes, Obeys::kNever, Obeys::kRefuses, Obeys::kDies});
    behaviour.goes_on = Pick<Obeys>({Obeys::kYes, Obeys::kYes, Obeys::kYes, Obeys::kYes,
                                     Obeys::kYes, Obeys::kNever, Obeys::kRefuses, Obeys::kDies});
    behaviour.keeps_shim = rng_.Below(10) == 0;
    if (seed_ % 4 == 2) behaviour.joins = 300ms;
    return behaviour;
  }

  // What was thought of later is in these, so that seeds that are known for something keep it.
  bool IsLater() const {
    const std::uint64_t kind = seed_ % 20;
    return kind == 0 || kind == 5 || kind == 13 || kind == 16 || kind == 19;
  }

  bool HasGpus() const { return seed_ % 9 == 2; }  // Every other node; jobs want whole nodes.

  // Ranks of half of all lives.
  bool StaysInPlace() const { return seed_ % 2 == 0; }

  JobSpec RandomSpec(const std::string& name) {
    const int min = 1 + static_cast<int>(rng_.Below(2));
    const int max = min + static_cast<int>(rng_.Below(3));
    JobSpec spec = SpecOf(name, min, max, static_cast<int>(rng_.Below(4)));
    spec.workers_per_node = 1 + static_cast<int>(rng_.Below(2));
    if (HasGpus() && name == "job" && rng_.Below(2) == 0) spec.workers_per_node = kWorkerPerGpu;
    spec.scale_up =
        Pick<ScaleUp>({ScaleUp::kSettle, ScaleUp::kNow, ScaleUp::kNext, ScaleUp::kNever});
    spec.grace = Pick<Duration>({2s, 10s});
    if (rng_.Below(8) == 0) {
      spec.unit = 2;
      spec.max_nodes = std::max(spec.max_nodes, 2);
    }
    if (rng_.Below(8) == 0) spec.restart_window = 30s;
    if (seed_ % 5 == 0) spec.warm.emplace();
    spec.in_place = StaysInPlace();
    if (seed_ % 3 == 0) spec.max_preemptions = static_cast<int>(seed_ / 3 % 3);
    return spec;
  }

  void AddNode() {
    const std::string name = "n" + std::to_string(++names_);
    NodeOptions options;
    options.slots = kSlots;
    options.gpu_slots = HasGpus() && names_ % 2 == 0;
    options.version = options_.config.version;
    options.sigterm_is_notice = IsLong() && names_ % 3 == 0;
    options.walled = IsLater() && names_ % 3 == 1;
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

  // ---- long lives

  void LiveLong() {
    for (int i = 0; i < options_.actions && !Over(); ++i) {
      if (world_.checker.formed >= options_.generations && i >= 60) return;
      if (rng_.Below(4) == 0) Tend();
      const std::uint64_t what = rng_.Below(20);
      if (what < 6) {
        Act();
      } else if (what < 9) {
        HurtNetwork();
      } else if (what < 11) {
        HurtHost();
      } else if (what < 17) {
        Work();
      } else {
        Operate();
      }
      if (IsLater() && rng_.Below(8) == 0) HurtLater();
      world_.RunFor(Pick<Duration>({1ms, 3ms, 10ms, 50ms, 300ms, 300ms, 1500ms, 4s}));
      world_.Poll();
    }
  }

  // What an init system, an operator and a bit of luck do.
  void Tend() {
    Note("tend");
    if (rng_.Below(8) != 0) world_.CrashAt(-1);
    world_.StartCoordinator();
    const bool one_by_one = rng_.Below(4) == 0;
    for (auto& entry : world_.nodes()) {
      Node& node = *entry.second;
      if (rng_.Below(3) == 0) continue;
      const Behaviour before = node.behaviour();
      node.behaviour() = RandomBehaviour();
      node.behaviour().net = before.net;
      node.SetSilent(false);
      if (node.options().launched) continue;
      if (rng_.Below(4) == 0) node.SetVersion(Version{1, kProtocolMinor, ""});
      if (node.options().version.minor != kProtocolMinor && !node.attached()) node.KillAgent();
      if (rng_.Below(6) == 0) node.Reboot();
      node.StartAgent();
      if (one_by_one) world_.RunFor(150ms);
    }
    if (rng_.Below(2) == 0) SubmitAnother();
    if (rng_.Below(6) == 0 && names_ < 24) AddNode();
  }

  void SubmitAnother() {
    int open = 0;
    const JobStateRow* queued = nullptr;
    for (const auto& row : world_.rows()) {
      const auto* state = std::get_if<JobStateRow>(&row.second);
      if (state == nullptr || state->phase == JobPhase::kEnded) continue;
      ++open;
      if (state->phase == JobPhase::kQueued) queued = state;
    }
    // Else one that no fleet can run would hold up all jobs behind it for good.
    if (queued != nullptr && rng_.Below(4) == 0) {
      Note("cancel " + queued->job.value());
      world_.Cancel(queued->job.value());
      return;
    }
    if (open >= 3) return;
    JobSpec spec = RandomSpec("job");
    spec.grace = Pick<Duration>({1s, 3s});
    spec.start_timeout = 3s;
    if (rng_.Below(5) != 0) spec.max_restarts = 100;
    if (rng_.Below(5) == 0) spec.restart_window = 6s;
    if (IsLater() && rng_.Below(3) == 0) {
      spec.restart_window = 6s;
      spec.max_restarts = 1;
    }
    if (rng_.Below(3) != 0) spec.max_preemptions.reset();
    if (rng_.Below(20) == 0) spec.min_nodes = spec.max_nodes = 40;
    if (rng_.Below(5) == 0) spec.node_check = {"nvidia-smi", 1s};
    if (rng_.Below(3) == 0) spec.exit_codes[kFinalCode] = ExitAction::kFail;
    const std::string key = "another" + std::to_string(++submitted_);
    Note("submit " + std::to_string(spec.min_nodes) + ":" + std::to_string(spec.max_nodes));
    world_.Submit(spec, key);
  }

  void HurtNetwork() {
    Node& node = AnyNode();
    const std::uint64_t what = rng_.Below(9);
    Note("network " + std::to_string(what) + " " + node.name());
    switch (what) {
      case 0: return node.SetCut(true, false);
      case 1: return node.SetCut(false, true);
      case 2:
      case 3: {  // The coordinator's own: both ways, or one.
        const bool out = rng_.Below(3) != 0, in = rng_.Below(3) != 0;
        for (auto& entry : world_.nodes()) entry.second->SetCut(out, in);
        return;
      }
      case 4:
        for (auto& entry : world_.nodes()) entry.second->SetSilent(false);
        return;
      case 5: node.behaviour().net = Pick<Duration>({1ms, 5ms, 20ms}); return;
      case 6: node.behaviour().doubles = !node.behaviour().doubles; return;
      case 7:  // What is under way is lost with the session, or arrives after it.
        node.behaviour().late = rng_.Below(2) == 0;
        return node.ResetSession();
      default: return node.ResetSession();
    }
  }

  void HurtHost() {
    Node& node = AnyNode();
    const std::uint64_t what = rng_.Below(7);
    Note("host " + std::to_string(what) + " " + node.name());
    switch (what) {
      case 0: return node.StallAgent(Pick<Duration>({300ms, 1500ms, 5s}));
      case 1:
        node.behaviour().refuses = rng_.Below(2) == 0 ? "No space left on device" : "";
        return;
      case 2: node.behaviour().wedged = rng_.Below(3) == 0; return;
      case 3: node.behaviour().witness = !node.behaviour().witness; return;
      default: break;
    }
    if (node.options().launched) return;
    node.KillAgent();
    if (what == 4) node.DamageDirectories();
    if (what == 5)  // Up and down again.
      node.SetVersion(Version{1,
                              Pick<std::uint32_t>({kProtocolMinor - 1, kProtocolMinor,
                                                   kProtocolMinor + 1, kProtocolMinor + 2}),
                              ""});
    if (rng_.Below(3) != 0) node.StartAgent();
  }

  // What workers do, mostly well.
  void Work() {
    Node& node = AnyNode();
    const JobId job = AnyJob(node);
    const std::uint64_t what = rng_.Below(12);
    Note("work " + std::to_string(what) + " " + job.value() + " on " + node.name());
    if (what < 3) return node.ExitRank(job, 0, Pick<int>({1, 1, 1, kFinalCode}));
    if (what < 5) return node.SignalRank(job, 0, SIGSEGV);
    if (what == 5) {
      const bool silent = rng_.Below(2) == 0;
      if (silent) node.SetSilent(true);  // The others are done; of it no news comes for a while.
      FinishJob(job);
      if (silent) world_.RunFor(6s);
      return;
    }
    if (what == 6) {
      const Group* group = node.Live(job);
      if (group != nullptr && group->noticed) node.EndRankByNotice(job, 0);
      return;
    }
    if (what == 7) return node.LoseStore(job);
    if (what == 8) return node.LoseSupervisor(job);
    if (what == 9) {
      node.HangUp(job);
      if (rng_.Below(2) == 0) AnyNode().ExitRank(job, 0, 1);
      return;
    }
    if (what == 10) return node.TellWords(job, "ValueError: boom");
    node.ExitRank(job, 0, 0);
  }

  // Ranks may be done while the order to stop them for a growth is on its way.
  void FinishBeforeStops() {
    world_.tamper = [this](Effects& effects) {
      for (const Action& action : effects.actions) {
        const auto* send = std::get_if<SendOrder>(&action);
        if (send == nullptr || !send->order.stop || rng_.Below(4) != 0) continue;
        if (send->order.stop->reason == StopReason::kElective)
          world_.clock().After(0ms, [this, job = send->order.job] { FinishJob(job); });
      }
    };
  }

  void HurtLater() {
    const std::uint64_t what = rng_.Below(8);
    Note("later " + std::to_string(what));
    switch (what) {
      case 0: return ReturnBehindWalls();
      case 1: world_.CancelAgain(); return;
      case 2: return ReplaceAgent();
      case 3: return NoticeTwice();
      case 4: return FailAcrossCrashes();
      case 5: return LeaveAtOnce();
      default: return FailTwice();
    }
  }

  // Nobody's word proves anything of nodes whose witnesses cannot be asked.
  void ReturnBehindWalls() {
    for (auto& entry : world_.nodes())
      if (entry.second->options().walled && !entry.second->options().launched)
        entry.second->KillAgent();
    world_.CrashCoordinator();
    world_.RunFor(100ms);
    world_.StartCoordinator();
    world_.RunFor(2s);
    for (auto& entry : world_.nodes())
      if (entry.second->options().walled && !entry.second->options().launched)
        entry.second->StartAgent();
  }

  // The Hello of the one before arrives after that of the next.
  void ReplaceAgent() {
    Node& node = AnyNode();
    if (node.options().launched) return;
    node.behaviour().late_hello = true;
    node.KillAgent();
    node.StartAgent();
    world_.RunFor(0ms);
    node.KillAgent();
    node.StartAgent();
    world_.RunFor(3s);
    node.behaviour().late_hello = false;
  }

  void NoticeTwice() {
    Node& node = AnyNode();
    if (node.options().launched) return;
    node.Notice(2s);
    world_.RunFor(200ms);
    node.Notice(10s);
  }

  // What has been charged is remembered.
  void FailAcrossCrashes() {
    Node& node = AnyNode();
    const JobId job = AnyJob(node);
    for (int i = 0; i < 3; ++i) {
      node.ExitRank(job, 0, 1);
      world_.RunFor(600ms);
      world_.CrashCoordinator();
      world_.StartCoordinator();
      world_.RunFor(900ms);
    }
  }

  // All launch commands are told to leave, and their hosts are gone before they have.
  void LeaveAtOnce() {
    for (auto& entry : world_.nodes())
      if (entry.second->options().launched) entry.second->Signal(SIGTERM);
    world_.RunFor(300ms);
    for (auto& entry : world_.nodes())
      if (entry.second->options().launched) entry.second->KillNode();
  }

  // Two ranks of a job, the second before anybody tells it to stop for the first.
  void FailTwice() {
    std::vector<std::pair<Node*, JobId>> running;
    for (auto& entry : world_.nodes())
      for (const auto& job : entry.second->groups())
        if (entry.second->Live(job.first) != nullptr)
          running.emplace_back(entry.second.get(), job.first);
    if (running.empty()) return;
    const auto [first, job] = Pick(running);
    first->ExitRank(job, 0, 1);
    world_.RunFor(100ms);
    for (const auto& [node, of] : running)
      if (of == job && node != first) node->ExitRank(job, 0, 1);
  }

  void FinishJob(const JobId& job) {
    for (auto& entry : world_.nodes())
      for (int rank = 0; rank < 2; ++rank) entry.second->ExitRank(job, rank, 0);
  }

  void Operate() {
    Node& node = AnyNode();
    const JobId job = AnyJob(node);
    const std::uint64_t what = rng_.Below(12);
    Note("operator " + std::to_string(what) + " " + node.name() + " " + job.value());
    switch (what) {
      case 0: world_.Forget(node.name()); return;
      case 1: world_.Cancel(job.value(), rng_.Below(2) == 0); return;
      case 2: world_.free_bytes = Pick<std::uint64_t>({1, 100u << 20, ~std::uint64_t{0}}); return;
      case 3: world_.wall_skew += Pick<Duration>({-3600s, -1s, 1s, 86400s}); return;
      case 4: return world_.Drop(world_.WaitFor(job.value()));
      case 5:  // Each of two callers.
        world_.WaitFor(job.value());
        world_.WaitFor(job.value());
        return;
      case 6:
        if (!node.options().launched) return node.Notice(Pick<Duration>({500ms, 2s, 10s}));
        if (rng_.Below(3) != 0) node.behaviour().unkillable = true;
        return node.Signal(Pick<int>({SIGINT, SIGTERM, SIGHUP}), rng_.Below(3) == 0);
      case 8: return world_.CrashCoordinator();
      case 9: return world_.StallCoordinator(Pick<Duration>({300ms, 1500ms, 5s}));
      case 10:
        if (names_ >= 24 || rng_.Below(2) == 0) return;
        launched_ = true;
        return AddNode();
      default: SubmitAnother();
    }
  }

  // ---- the end

  Behaviour Calm() const {
    Behaviour calm;
    calm.heartbeat = Heartbeat();
    calm.agent_restart = options_.config.leases.agent_restart;
    return calm;
  }

  // The faults stop. Every job must run, wait for a reason, or be over, and once all workers
  // finish, be over.
  void Rest() {
    Note("rest");
    world_.free_bytes = ~std::uint64_t{0};
    world_.commit_delay = std::min<Duration>(world_.commit_delay, 200ms);
    world_.CrashAt(-1);
    world_.StartCoordinator();
    for (auto& entry : world_.nodes()) {
      Node& node = *entry.second;
      node.behaviour() = Calm();
      if (!node.options().launched) node.SetVersion(options_.config.version);
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
    for (auto& entry : world_.nodes()) entry.second->behaviour() = Calm();
    CheckAllRun();
    const Instant until = world_.clock().now() + 1500s;
    while (world_.clock().now() < until) {
      world_.RunFor(5s);
      FinishRanks();
      if (AllOver() || world_.enough) break;
    }
    CheckRest();
  }

  // Nothing holds a job longer than this once the faults have stopped.
  Duration LongestTimer() const {
    const Config& config = options_.config;
    return std::max({config.leases.agent_restart,
                     config.leases.lease * config.leases.awaited_leases, config.brake.lasts,
                     config.ending.verdict_limit, config.holds.finish, config.holds.unreachable,
                     config.holds.nodes, config.retries.backoff_limit,
                     config.retries.free_backoff_limit, config.forming.member_backoff_limit});
  }

  // Every job that can run runs within 60 s of the longest timer.
  void CheckAllRun() {
    const Instant until = world_.clock().now() + LongestTimer() + 60s;
    while (world_.clock().now() < until && !Over() && !IdleJob().empty()) world_.RunFor(1s);
    const std::string idle = IdleJob();
    world_.checker.Expect(idle.empty(), "L4: " + idle);
  }

  // The first submitted job that could run and does not.
  std::string IdleJob() {
    std::map<std::uint64_t, const JobStateRow*> jobs;
    for (const auto& row : world_.rows()) {
      const auto* state = std::get_if<JobStateRow>(&row.second);
      if (state == nullptr || state->phase == JobPhase::kEnded) continue;
      const auto& spec = std::get<JobSpecRow>(world_.rows().at(JobSpecKey(state->job)));
      if (spec.spec.origin != JobOrigin::kLaunched) jobs[spec.sequence] = state;
    }
    for (const auto& [sequence, state] : jobs) {
      const JobSpec& spec = std::get<JobSpecRow>(world_.rows().at(JobSpecKey(state->job))).spec;
      const int need = (spec.min_nodes + spec.unit - 1) / spec.unit * spec.unit;
      const bool gpus = spec.workers_per_node == kWorkerPerGpu;
      const int each = gpus ? kSlots : spec.workers_per_node;
      if (world_.LiveRanks(state->job) >= need * each) continue;
      int could = 0;
      for (const auto& entry : world_.nodes())
        could += CouldTake(*entry.second, *state, each, gpus) ? 1 : 0;
      if (could >= need)
        return state->job.value() + " is " + world_.StateOf(state->job) + WhyOf(state->job) +
               ", and " + std::to_string(could) + " nodes are free for it";
      return "";  // First in, first out: whoever is behind waits for it.
    }
    return "";
  }

  static bool CouldTake(const Node& node, const JobStateRow& state, int workers, bool gpus) {
    const sim::NodeOptions& options = node.options();
    if (!node.attached() || options.launched || options.gpu_slots < gpus) return false;
    for (const ExcludedNode& excluded : state.excluded)
      if (excluded.node == node.id()) return false;
    return options.slots - node.LiveRanks() >= workers;
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
          spec.spec.origin == JobOrigin::kLaunched
              ? launchers > 0 && launchers <= need
              : need > static_cast<int>(world_.nodes().size());  // No fleet could run it.
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
    if (world_.StateOf(job).empty()) return ", which is being purged";
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

ChaosOptions LongLife(std::uint64_t seed) {
  Rng rng(seed ^ 0x10119);
  const auto small = [&](auto little, auto much) { return rng.Below(2) == 0 ? little : much; };
  ChaosOptions options;
  options.actions = 900;
  options.generations = 20;
  options.rest_every = 3;
  Config& config = options.config;
  config.version = Version{1, kProtocolMinor, ""};
  config.leases.heartbeat = 400ms;
  config.leases.lease = 2s;
  config.leases.agent_restart = 15s;
  config.brake.lasts = 8s;
  config.forming.last_call_quiet = 200ms;
  config.forming.last_call_limit = small(Duration(300ms), Duration(4s));
  config.forming.join_batch = 100ms;
  config.forming.ack = 1s;
  config.forming.warm_up = options.agent.waits.warm_up = 2s;
  config.forming.settle = 1s;
  config.forming.newcomer_trial = 20s;
  config.forming.member_backoff_first = 500ms;
  config.forming.member_backoff_limit = 4s;
  config.ending.failure_grace = 1s;
  config.ending.stop_margin = 500ms;
  config.ending.notice_margin = 500ms;
  config.ending.verdict_limit = 6s;
  config.holds.finish = 5s;
  config.holds.unreachable = 12s;
  config.holds.nodes = 4s;
  config.retries.backoff_first = 500ms;
  config.retries.backoff_limit = 4s;
  config.retries.free_backoff_limit = 8s;
  config.retries.crash_loop = small(3, 6);
  config.retries.silent_progress = 3s;
  config.limits.ended_jobs = small(1, 10'000);
  config.limits.lost_nodes = small(1, 4'096);
  config.limits.away_nodes = small(1, 1'024);
  config.limits.events_per_job = small(8, 1'000);
  config.limits.generations_per_job = small(12, 100);
  config.retention.ended_jobs = small(Duration(10s), Duration(24h));
  config.retention.lost_nodes = small(Duration(15s), Duration(24h));
  config.retention.sweep = 3s;
  config.holds.finish = small(Duration(1s), Duration(5s));
  config.retries.backoff_limit = small(Duration(600ms), Duration(4s));
  config.retries.free_backoff_limit = small(Duration(600ms), Duration(8s));
  config.limits.pending_submits = small(2, 10'000);
  config.limits.waiting_reads = small(1, 10'000);
  config.ad_hoc.idle_exit = small(Duration(1s), Duration(10s));
  options.agent.grace = small(Duration(1s), Duration(4s));
  options.agent.waits.nursery = 1s;
  options.agent.waits.redial = 300ms;
  options.agent.waits.adopt = 2s;
  options.agent.waits.slack = 300ms;
  options.agent.waits.kill = 500ms;
  if (rng.Below(2) == 0) options.agent.join_timeout = 5s;
  return options;
}

ChaosResult RunChaos(std::uint64_t seed, const ChaosOptions& options) {
  return Chaos(seed, options).Run();
}

}  // namespace regroup::sim
