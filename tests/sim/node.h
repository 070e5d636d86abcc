#pragma once

// One node as PROTOCOL §5 describes it: an agent with its run directories, shims and workers. A
// model, not the agent's code: it obeys orders, reports, redials, and can be made to misbehave.

#include <csignal>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/base/control.h"
#include "launcher/coordinator/core/actions.h"
#include "launcher/coordinator/core/events.h"
#include "tests/sim/clock.h"

namespace regroup::sim {

struct Behaviour {
  Duration net = std::chrono::milliseconds(1);
  Duration prepare = std::chrono::milliseconds(2);
  Duration start = std::chrono::milliseconds(3);
  Duration die = std::chrono::milliseconds(5);  // From SIGTERM to the exit.
  Duration heartbeat = std::chrono::seconds(1);
  bool ignores_term = false;  // Dies at the stop's deadline.
  bool unkillable = false;    // Does not even die then.
  bool wedged = false;        // Its shim neither ends a stop nor says why.
  bool never_prepares = false;
  bool dies_in_prepare = false;  // The whole node, and its host answers.
  bool never_starts = false;
  bool witness = true;
  std::string refuses;          // Why every Prepare is refused.
  int exec_error = 0;           // errno of every start.
  bool speaks = false;          // Its workers report steps and save on a notice.
  bool ends_on_notice = false;  // They take none: they get SIGTERM instead, and end with 0.
  Duration step = std::chrono::milliseconds(100);
  Duration save = std::chrono::milliseconds(50);
};

struct NodeOptions {
  int slots = 1;
  bool launched = false;
  bool explicit_name = false;
  std::string address;  // Empty: one of its own.
  std::string dialled = "10.0.0.1";
  std::optional<LaunchRequest> launch;
  Duration launch_age{};
};

struct Rank {
  std::int64_t pid = 0;
  int rank = 0;
  bool alive = false;
  Instant started{}, ended{};
  std::optional<RankExit> exit;
};
struct Group {
  JobId job;
  Generation generation;
  Phase phase = Phase::kPreparing;
  int workers = 1;
  bool host_store = false;
  std::optional<Run> run;  // Once obeyed.
  std::vector<Rank> ranks;
  std::optional<Instant> stop_deadline;
  std::optional<Address> store, witness;
  bool supervisor_lost = false, store_lost = false;
  std::string refused;
  bool saved = false;  // Waits to be stopped.
  std::int64_t first_step = 0;
};

class Node;
// What the rest of the simulated world does for a node.
class NodeWorld {
 public:
  virtual ~NodeWorld() = default;
  virtual Clock& clock() = 0;
  virtual bool CoordinatorAnswers() = 0;
  virtual SessionId NewSession() = 0;
  virtual void ToCoordinator(Node& node, coordinator::Event event) = 0;
  virtual std::int64_t NewPid() = 0;
  virtual void RankStarted(Node& node, const Group& group, const Rank& rank) = 0;
  virtual void Disturbed(const Group& group) = 0;            // By what is no order.
  virtual void Stopped(Node& node, const Group& group) = 0;  // By an order; ranks of it live.
};

class Node {
 public:
  Node(NodeWorld& world, std::string name, NodeOptions options, Behaviour behaviour);

  // Faults. `Kill…` = SIGKILL.
  void StartAgent();
  // Another launch command on this node, which finds the folder of the one before.
  void StartCommand(LaunchRequest launch) {
    options_.launch = std::move(launch);
    StartAgent();
  }
  void KillAgent();  // The session breaks; workers run on (a launched agent's lifeline closes).
  void KillNode();   // Agent, shims and workers; the host answers for them.
  void CutPower();   // The same, and the host is silent.
  void Reboot();     // Run directories are gone, a new boot id; the agent is started.
  void SetSilent(bool silent);  // Packets are held back both ways.
  void ResetSession();
  void ExitRank(const JobId& job, int local_rank, int code);
  void EndRankByNotice(const JobId& job, int local_rank);  // It speaks not, so it had SIGTERM.
  void SignalRank(const JobId& job, int local_rank, int signal);
  // What an ended rank left behind has been read.
  void TellWords(const JobId& job, Generation generation, int local_rank, std::string words,
                 ErrorEvidence evidence);
  void LoseSupervisor(const JobId& job);
  void LoseStore(const JobId& job);
  // Whatever it is.
  void AskCommit(const JobId& job, Generation generation, std::int64_t step,
                 std::string manifest_hash = "hash");
  void Notice(Duration left);                 // From a cloud.
  void Signal(int signal, bool now = false);  // To a launch command.

  // From the coordinator, after the network.
  void Deliver(SessionId session, const coordinator::Action& action);
  void OnCoordinatorGone();  // Its socket was reset.
  coordinator::ProbeResult Witness(const JobId& job, Generation generation,
                                   const Address& address) const;

  const std::string& name() const { return name_; }
  const NodeId& id() const { return id_; }
  const NodeOptions& options() const { return options_; }
  Behaviour& behaviour() { return behaviour_; }
  bool running() const { return agent_up_; }
  bool attached() const { return welcomed_; }
  bool silent() const { return silent_; }
  const std::optional<Instant>& silent_until() const { return silent_until_; }  // Its last end.
  bool leaving() const { return left_with_.has_value(); }
  std::optional<SessionId> session() const { return session_; }
  const std::string& given_name() const { return given_name_; }
  const std::map<JobId, std::map<Generation, Group>>& groups() const { return groups_; }
  Group* Find(const JobId& job, Generation generation);
  const Group* Live(const JobId& job) const;  // The newest group that has live ranks.
  int LiveRanks() const;
  std::vector<std::int64_t> Pids(const JobId& job) const;  // Of live ranks.

  std::optional<JobId> launched_job;
  std::optional<JobView> result;
  std::optional<absl::Status> refused;  // Its launch, or its session.
  std::vector<JobEvent> news;
  std::vector<CommitAnswer> commit_answers;
  std::vector<std::string> log;  // Orders, for tests that ask what was said.
  Epoch highest_epoch;           // May be set by tests.
  ClusterId cluster;
  std::int64_t training_step = 0;
  bool done = false;  // A launched agent that has left.

 private:
  void Redial(Duration delay);
  void Dial();
  Hello MakeHello() const;
  void Beat();
  void Say(coordinator::Event event);
  void BreakSession();
  void OnWelcome(const Welcome& welcome);
  void Obey(const Order& order);
  void ObeyStop(const Stop& stop, const JobId& job);
  void StartPrepare(const JobId& job, const Prepare& prepare);
  void Prepared(const JobId& job, Generation generation);
  void StartRanks(Group& group, const Run& run);
  void StopGroup(Group& group, Duration grace);
  void EndStop(const JobId& job, Generation generation);
  void EndRank(Group& group, Rank& rank, ExitKind kind, int code, bool after_stop);
  void Settle(Group& group);  // Free once no rank lives.
  void TellProgress(const JobId& job, Generation generation);
  void OnWorkerNotice(const JobId& job, const WorkerNotice& notice);
  void Report(const Group& group);
  GroupReport ReportOf(const Group& group) const;
  void TryPending(const JobId& job);
  void LeaveIfFree();
  void DropEverything();

  NodeWorld& world_;
  const std::string name_;
  const NodeId id_;
  NodeOptions options_;
  Behaviour behaviour_;

  // Survives the agent.
  std::map<JobId, std::map<Generation, Group>> groups_;
  std::map<JobId, Generation> stopped_;
  std::map<JobId, Generation> highest_;
  std::uint64_t incarnation_ = 0, boot_ = 1;
  bool powered_ = true, silent_ = false;

  // Of this agent's life.
  std::uint64_t life_ = 0;
  bool agent_up_ = false, welcomed_ = false;
  std::optional<SessionId> session_;
  std::string given_name_;
  OrderNo obeyed_;
  mutable std::uint64_t report_ = 0;
  std::map<JobId, Prepare> pending_;
  Duration backoff_{};
  Instant born_{};
  std::vector<std::pair<JobId, Generation>> unsaid_;  // Changed between Hello and Welcome.
  std::optional<Instant> silent_until_;
  std::optional<int> left_with_;
  bool leave_now_ = false;
  std::optional<std::pair<Instant, regroup::Notice>> notice_;
  std::uint16_t next_port_ = 40000;
  std::deque<std::function<void()>> held_;  // While silent: what the network holds back.
};

}  // namespace regroup::sim
