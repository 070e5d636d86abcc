#pragma once

// A whole cluster in one thread: the real core behind a modelled journal, modelled nodes and a
// modelled network, on virtual time. Everything that happens is a function of the calls made and of
// the seed.

#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/base/rng.h"
#include "launcher/coordinator/core/core.h"
#include "launcher/coordinator/core/standstill.h"
#include "tests/sim/checker.h"
#include "tests/sim/clock.h"
#include "tests/sim/node.h"

namespace regroup::sim {

class World : public NodeWorld {
 public:
  explicit World(coordinator::Config config = {}, std::uint64_t seed = 1);

  // ---- the coordinator -------------------------------------------------------------------------
  void StartCoordinator();  // From what is durable.
  void CrashCoordinator();
  void StallCoordinator(Duration gap);  // SIGSTOP; what arrives waits.
  bool coordinator_up() const { return core_.has_value(); }
  coordinator::Core& core() { return *core_; }
  std::map<coordinator::Key, coordinator::Value>& rows() { return rows_; }
  // The coordinator dies at the n-th point from now: before a commit, after it, before each action.
  void CrashAt(std::int64_t points) { crash_in_ = points; }
  std::int64_t points() const { return points_; }
  bool stepped_down() const { return stepped_down_.has_value(); }
  const std::optional<absl::Status>& why_stepped_down() const { return stepped_down_; }
  bool finished() const { return finished_; }

  // ---- nodes -----------------------------------------------------------------------------------
  Node& Add(const std::string& name, NodeOptions options = {}, Behaviour behaviour = {});
  Node& AddLauncher(const std::string& name, const JobSpec& spec, Duration age = {});
  Node& node(const std::string& name) { return *nodes_.at(name); }
  std::map<std::string, std::unique_ptr<Node>>& nodes() { return nodes_; }

  // ---- clients ---------------------------------------------------------------------------------
  CallId Submit(const JobSpec& spec, const std::string& key);
  CallId Cancel(const std::string& job, bool now = false);
  CallId CancelAgain();  // The last one, whose answer may be lost.
  CallId WaitFor(const std::string& job);
  void Drop(CallId call) { Post(coordinator::CallDropped{call}); }
  CallId Poll();  // One client that asks for all jobs, again and again.
  CallId Forget(const std::string& node);
  const coordinator::Reply* ReplyTo(CallId call) const;
  void Ask(coordinator::Event event) { Post(std::move(event)); }

  // ---- time ------------------------------------------------------------------------------------
  void RunFor(Duration duration);
  bool RunUntil(const std::function<bool()>& condition, Duration limit = std::chrono::seconds(30));
  Duration SinceStart() const { return clock_.now() - start_; }

  // ---- what people see -------------------------------------------------------------------------
  JobView View(const JobId& job);
  coordinator::NodeRow NodeRowOf(const std::string& name);
  std::string StateOf(const JobId& job);  // "" while the coordinator is down or the job unknown.
  int LiveRanks(const JobId& job) const;
  std::vector<std::int64_t> Pids(const JobId& job) const;

  Checker checker;
  Duration commit_delay{};  // Of the journal.
  Duration wall_skew{};     // The coordinator's calendar was set so much.
  std::uint64_t free_bytes = std::numeric_limits<std::uint64_t>::max();  // Where the journal lies.
  agent::Config agent_config;  // Of agents that start from now on, but for what their node says.
  // Planted bugs: changes what the core decided before it is journalled.
  std::function<void(coordinator::Effects&)> tamper;
  std::function<void(coordinator::Event&)> mishear;  // Likewise, what it hears.
  bool answers_before_commit = false;                // Planted bug.
  // Hears what each agent's core decided.
  std::function<void(const Node&, const agent::Effects&)> on_agent;
  bool enough = false;             // A random life goes no further.
  std::vector<std::string> trace;  // Notes, when asked for.
  bool tracing = false;
  std::string traced;  // A node: all that its agent hears, orders and reports goes there, too.
  std::uint64_t steps = 0;

  // NodeWorld.
  Clock& clock() override { return clock_; }
  bool CoordinatorAnswers() override { return core_.has_value() && !stalled_; }
  SessionId NewSession() override { return SessionId(++session_); }
  void ToCoordinator(Node& node, coordinator::Event event) override;
  void TooLate(coordinator::Event event) override { Post(std::move(event)); }
  const agent::Config& config() override { return agent_config; }
  Coverage& coverage() override { return checker.coverage; }
  void Decided(const Node& node, const agent::Event& event, const agent::Effects& effects) override;
  std::int64_t NewPid() override { return ++pid_; }
  void RankStarted(Node& node, const Group& group, const Rank& rank) override;
  void RankEnded(Node& node, const Group& group, const Rank& rank) override;
  void Struck(Node& node) override;
  void Disturbed(const Group& group) override;
  void Stopped(Node& node, const Group& group) override;
  void Violated(const std::string& what) override;

 private:
  void Trace(const std::string& what);
  void Post(coordinator::Event event);
  void TellStandstill();
  void Step(const coordinator::Event& event);
  void Journal(coordinator::Effects effects);
  void Flush();
  void CommitBatch();
  void CommitNext();
  bool IsHistory(const coordinator::Key& key) const;
  void Erase(const coordinator::Key& key);
  bool CarryOut(const coordinator::Action& action);
  bool CarryOutAll(const std::vector<coordinator::Action>& actions);
  bool Point();  // True: the coordinator has just died here.
  void Arm();
  void TickDue();
  void OnAnswer(const coordinator::Answer& answer);

  const coordinator::Config config_;
  Clock clock_;
  const Instant start_;
  std::map<coordinator::Key, coordinator::Value> rows_;
  std::map<std::string, std::unique_ptr<Node>> nodes_;
  std::optional<coordinator::Core> core_;
  std::uint64_t life_ = 0, session_ = 0, call_ = 0;
  std::int64_t pid_ = 1000;
  std::optional<Instant> armed_;
  std::optional<coordinator::Standstill> standstill_;  // Once a coordinator has started.
  Instant entered_{};                                  // Its loop, last.
  bool stalled_ = false;
  std::deque<coordinator::Event> waiting_;  // While stalled.
  std::deque<coordinator::Effects> journal_;
  bool committing_ = false;
  std::int64_t crash_in_ = -1, points_ = 0;
  std::optional<absl::Status> stepped_down_;
  bool finished_ = false;
  std::map<SessionId, std::string> owners_;
  std::map<CallId, coordinator::Reply> replies_;
  std::map<CallId, std::string> submit_keys_;
  std::map<CallId, coordinator::CancelAsked> cancels_;
  std::set<CallId> polls_;
};

// A job of `nodes` single-worker nodes.
JobSpec SpecOf(const std::string& name, int min_nodes, int max_nodes, int max_restarts = 0);
LaunchRequest LaunchOf(const std::string& key, const JobSpec& spec);

}  // namespace regroup::sim
