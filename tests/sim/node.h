#pragma once

// One node: the real core of an agent, and around it as models what its shell deals with: run
// directories, shims, stores, workers and the network. Between the two cores the same values
// travel as in the product. Everything modelled can be made to misbehave.

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent/core/core.h"
#include "common/base/control.h"
#include "launcher/coordinator/core/actions.h"
#include "launcher/coordinator/core/events.h"
#include "tests/agent/promises/promises.h"
#include "tests/sim/clock.h"
#include "tests/sim/coverage.h"

namespace regroup::sim {

// What a worker makes of a word of its agent.
enum class Obeys { kYes, kNever, kRefuses, kDies };

struct Behaviour {
  Duration net = std::chrono::milliseconds(1);
  Duration warm_up = std::chrono::milliseconds(20);
  Duration prepare = std::chrono::milliseconds(2);
  Duration start = std::chrono::milliseconds(3);
  Duration die = std::chrono::milliseconds(5);  // From SIGTERM to the exit.
  Duration heartbeat = std::chrono::seconds(1);
  bool ignores_term = false;  // Dies at the stop's deadline.
  bool unkillable = false;    // Does not even die then.
  bool wedged = false;        // Neither its shim nor its ranks end, and nothing says why.
  bool never_warms_up = false;
  bool never_prepares = false;
  bool dies_in_prepare = false;  // The whole node, and its host answers.
  bool never_starts = false;
  bool witness = true;
  std::string refuses;                             // Why every Prepare is refused.
  Duration check = std::chrono::milliseconds(20);  // How long a node check runs.
  bool fails_check = false;
  int exec_error = 0;           // errno of every start.
  Duration crashes{};           // From a rank's start to its exit with 1; zero: it has none.
  bool speaks = false;          // Its workers report steps and save on a notice.
  bool ends_on_notice = false;  // They take none: they get SIGTERM instead, and end with 0.
  bool in_place = false;        // Those that speak can retire, if they were started so.
  Obeys retires = Obeys::kYes, goes_on = Obeys::kYes;
  Duration retire = std::chrono::milliseconds(5);
  Duration joins{};         // From a rank's start until its worker can retire.
  bool keeps_shim = false;  // It refuses to be handed over.
  Duration step = std::chrono::milliseconds(100);
  Duration save = std::chrono::milliseconds(50);
  // The coordinator's --agent-restart: so long a shim waits to be released.
  Duration agent_restart = std::chrono::minutes(2);
  bool doubles = false;     // Each report is said twice.
  bool late = false;        // What a broken session still held arrives after its end.
  bool late_hello = false;  // That of an agent that has died, once another one has said its own.
};

struct NodeOptions {
  int slots = 1;
  bool gpu_slots = false;
  bool launched = false;
  bool explicit_name = false;
  bool walled = false;  // Its network refuses whoever would ask a witness.
  std::string address;  // Empty: one of its own.
  std::string dialled = "10.0.0.1";
  std::optional<LaunchRequest> launch;
  Duration launch_age{};
  std::optional<Duration> join_timeout;
  bool sigterm_is_notice = false;  // Its agent tells a notice; else its host's helper does.
  Version version;
};

struct Rank {
  std::int64_t pid = 0;
  int rank = 0;
  bool alive = false;
  Instant started{};
  std::optional<agent::RankEnded> exit;
  bool in_place = false;  // Its worker can retire.
  bool kept = false;      // It is older than the generation that its group is of.
  Generation told;        // The last one that its worker was told of.
  Generation generation;  // That its worker takes itself to be of.
};
enum class ShimState { kNone, kStarting, kAlive, kDead };
// A run directory, the shim and the store of it, and what they started: what is there, whether an
// agent lives or not.
struct Group {
  JobId job;
  Generation generation;
  Phase phase = Phase::kPreparing;  // As the last agent saw it.
  int workers = 1;
  std::vector<int> slots;    // By number.
  bool checking = false;     // Its node check runs.
  std::string check_failed;  // How; empty: it has not.
  bool host_store = false;
  ShimState shim = ShimState::kNone;
  std::optional<Run> run;  // The started mark.
  std::vector<Rank> ranks;
  std::optional<Instant> stop_deadline;
  std::optional<Address> store, witness;
  bool store_alive = false, store_closed = false;
  bool noticed = false;   // Workers that do not speak were signalled.
  bool empty = false;     // The shim saw the last process end.
  bool killed = false;    // The mark: what a lost shim left is gone.
  bool stuck = false;     // Killed, and not gone.
  bool damaged = false;   // Its run directory cannot be read.
  bool saved = false;     // Its workers wait to be stopped.
  bool retiring = false;  // They were told to leave it.
  // Its shim, its ranks and its witness are that one's by now.
  std::optional<Generation> handed_to;
  std::set<int> signalled;  // The mark: those ranks were, alone.
  int taken_over = 0;       // Ranks that were taken from another one, dead ones too.
  // Taken from that one, of which no agent has been told yet.
  std::optional<Generation> answers_for;
  std::int64_t first_step = 0;
  Instant begun{};  // Its ranks, with that step.

  agent::GroupKey key() const { return {job, generation}; }
  bool lives() const;  // A rank of it does.
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
  virtual void TooLate(coordinator::Event event) = 0;  // Of a session that is over.
  virtual const agent::Config& config() = 0;
  virtual Coverage& coverage() = 0;
  virtual void Decided(const Node& node, const agent::Event& event,
                       const agent::Effects& effects) = 0;
  virtual std::int64_t NewPid() = 0;
  virtual void RankStarted(Node& node, const Group& group, const Rank& rank) = 0;
  virtual void RankEnded(Node& node, const Group& group, const Rank& rank) = 0;
  virtual void Struck(Node& node) = 0;  // Nothing of it lives, or is remembered, any more.
  virtual void Disturbed(const Group& group) = 0;            // By what is no order.
  virtual void Stopped(Node& node, const Group& group) = 0;  // By an order; ranks of it live.
  virtual void Violated(const std::string& what) = 0;
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
  void SetSilent(bool silent) { SetCut(silent, silent); }  // Packets are held back both ways.
  void SetCut(bool out, bool in);  // What it says is held back, what it is told.
  void ResetSession();
  void StallAgent(Duration gap);  // SIGSTOP: what happens to it waits.
  void SetVersion(const Version& version) { options_.version = version; }  // Of its next agent.
  void DamageDirectories();  // The next agent cannot read them.
  void ExitRank(const JobId& job, int local_rank, int code);
  void EndRankByNotice(const JobId& job, int local_rank);  // It speaks not, so it had SIGTERM.
  void SignalRank(const JobId& job, int local_rank, int signal);
  // What an ended rank left behind has been read.
  void TellWords(const JobId& job, Generation generation, int local_rank, std::string words,
                 ErrorEvidence evidence);
  void TellWords(const JobId& job, std::string words);  // Of the newest group that has an exit.
  void HangUp(const JobId& job);  // A worker closes its connection, and goes on.
  void LoseSupervisor(const JobId& job);
  void LoseStore(const JobId& job);
  // Whatever it is.
  void AskCommit(const JobId& job, Generation generation, std::int64_t step,
                 std::string manifest_hash = "hash");
  void Notice(Duration left);  // Of a service: its host goes away, whatever its agent does.
  void Signal(int signal, bool now = false);  // To a launch command.

  // From the coordinator, after the network.
  void Deliver(SessionId session, const coordinator::Action& action);
  void AnswerHeartbeat(SessionId session);
  // When a word that the coordinator says now is there.
  Instant Told() { return told_ = std::max(told_, world_.clock().now() + behaviour_.net); }
  void OnCoordinatorGone();  // Its socket was reset.
  coordinator::ProbeResult Witness(const JobId& job, Generation generation,
                                   const Address& address) const;

  const std::string& name() const { return name_; }
  const NodeId& id() const { return id_; }
  const NodeOptions& options() const { return options_; }
  Behaviour& behaviour() { return behaviour_; }
  bool running() const { return agent_up_; }
  bool attached() const { return core_ && core_->attached(); }
  bool silent() const { return cut_out_ || cut_in_; }
  bool only_told_is_cut() const { return cut_in_ && !cut_out_; }  // It is heard, and hears nothing.
  const BootId& boot_id() const { return boot_id_; }
  bool stalled() const { return stalled_; }
  bool steady() const { return steady_; }  // Nothing has ever kept it from saying what it knows.
  const std::optional<Instant>& silent_until() const { return silent_until_; }  // Its last end.
  bool leaving() const { return left_with_.has_value(); }
  std::optional<SessionId> session() const { return session_; }
  const std::string& given_name() const { return given_name_; }
  const std::map<JobId, std::map<Generation, Group>>& groups() const { return groups_; }
  Group* Find(const JobId& job, Generation generation);
  const Group* Find(const JobId& job, Generation generation) const;
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
  // ---- the agent
  agent::Config AgentConfig() const;
  std::vector<agent::RunRecord> Records() const;
  agent::RunRecord RecordOf(const Group& group) const;
  void See(const Group& group);   // Its agent sees what it is.
  void Post(agent::Event event);  // Dropped where no agent lives.
  void StepAll();
  void Arm();
  void EndAgent();
  void Carry(const agent::WriteRunDirectory& action);
  void Carry(const agent::WarmUp& action);
  void Carry(const agent::SpawnShim& action);
  void Carry(const agent::HandOver& action);
  void Carry(const agent::SpawnStore& action);
  void Carry(const agent::StartRanks& action);
  void Carry(const agent::StopRanks& action);
  void Carry(const agent::SignalRank& action);
  void Carry(const agent::KillRank& action);
  void Carry(const agent::KillGroup& action);
  void Carry(const agent::MarkKilled& action);
  void Carry(const agent::ShowLateOutput&) {}  // For people.
  void Carry(const agent::KillShim& action);
  void Carry(const agent::ReleaseShim& action);
  void Carry(const agent::CloseStore& action);
  void Carry(const agent::RemoveRunDirectory& action);
  void Carry(const agent::EndNursery& action) { settled_.erase(action.job); }
  void Carry(const agent::SendHello& action);
  void Carry(const agent::RememberCoordinator& action);
  void Carry(const agent::RefuseCoordinator& action);
  void Carry(const agent::BreakSession& action);
  void Carry(const agent::SendLaunch& action);
  void Carry(const agent::SendReport& action);
  void Carry(const agent::SendProgress& action);
  void Carry(const agent::SendCommit& action);
  void Carry(const agent::SendNotice& action);
  void Carry(const agent::SendLeave& action);
  void Carry(const agent::ShowLeaving& action);
  void Carry(const agent::SendHeartbeat& action);
  void Carry(const agent::TellNotice& action);
  void Carry(const agent::TellRetire& action);
  void Carry(const agent::TellCommit& action);
  void Carry(const agent::StartCoordinator& action);
  void Carry(const agent::Leave& action);

  // ---- the network
  void Reboots();
  void LoseDirectories();
  void Redial(Duration delay);
  void Dial();
  void Say(coordinator::Event event);
  void CloseSocket();

  // ---- shims and workers, which need no agent
  Group* Find(const agent::GroupKey& key) { return Find(key.job, key.generation); }
  // What is due later, as long as the host is not booted anew.
  void Later(const agent::GroupKey& key, Duration delay, std::function<void(Group&)> what);
  void CheckNode(Group& group);
  void TakeOver(Group& last, Group& next);
  Group& Owner(Group& group);  // The group that its shim is of by now.
  void StartNow(Group& group);
  void StopNow(Group& group, Instant deadline);
  void EndStop(Group& group);
  void EndRank(Group& group, Rank& rank, ExitKind kind, int code, bool after_stop);
  void EmptyIfSo(Group& group);
  void AwaitAgent(const Group& group);
  void EndShim(Group& group);  // Its ranks die with it, unless nothing kills them.
  void Speak(Group& group);    // A worker says hello.
  void TellProgress(Group& group);
  void SaveOnNotice(Group& group);
  void Retire(Group& group, Rank& rank);
  void BeginRetiring(const agent::GroupKey& key);
  void CrashLater(const Group& group);
  void ComeToItsLoop(Group& group, Rank& newcomer);
  void TellNewGeneration(Group& group, int local_rank);
  void GoOn(Group& group, Rank& rank);

  NodeWorld& world_;
  const std::string name_;
  const NodeId id_;
  NodeOptions options_;
  Behaviour behaviour_;

  // Survives the agent.
  std::map<JobId, std::map<Generation, Group>> groups_;
  std::uint64_t incarnation_ = 0, boot_ = 1;
  BootId boot_id_;
  bool powered_ = true, cut_out_ = false, cut_in_ = false, steady_ = true;

  // Of this agent's life.
  std::uint64_t life_ = 0;
  bool agent_up_ = false;
  std::optional<agent::Core> core_;
  std::optional<agent::testing::Promises> promises_;
  std::deque<agent::Event> events_;
  bool stepping_ = false, stalled_ = false;
  std::set<JobId> settled_;  // Whose imports are done, or given up; the agent's own.
  std::optional<Instant> armed_;
  std::optional<SessionId> session_;
  std::string given_name_;
  Duration backoff_{};
  bool hurries_ = false;  // After a silence.
  Instant born_{};
  std::optional<Instant> silent_until_;
  std::optional<int> left_with_;
  std::optional<std::pair<Instant, regroup::Notice>> notice_;
  std::uint16_t next_port_ = 40000;
  // What the network holds back while it is cut, and whether that was said or told.
  struct Held {
    bool out = false;
    std::function<void()> arrive;
  };
  std::deque<Held> held_;
  Instant said_{}, told_{};  // When the last word arrives: none overtakes another.
};

}  // namespace regroup::sim
