#pragma once

// What must hold in every run, whatever fails: the invariants of facts/reliability §4.5 that
// concern the coordinator. It sees what reaches the core, what is durable, what is answered, and
// every process that starts or is stopped; never the core's memory.
//
// Beyond that list (truths.cc has what the world knows better than the coordinator):
//   42  an unheard generation is held;
//   43  no verdict outlives its job;
//   44  preemptions are counted, each once, and one too many ends the job;
//   45  a loss that is called proved was one;
//   46  ranks that are all done never run again, unless what they left was lost;
//   47  survivors keep their ranks;
//   48  the reason why a generation ended is true;
//   49  the cause is the first own fault;
//   50  every free survivor is in the next generation;
//   51  no rank is stopped for a growth before the newcomers are ready;
//   52  ranks that are said to have kept their process have.
//
// And of policies.cc, what a job's rows allow it:
//   53  who could not execute the program is in no later generation, and two such fail the job;
//   54  ends in a row without progress are counted, each kind by itself;
//   55  nothing new is proposed while a rank of before still stops;
//   56  nothing is proposed that open verdicts would forbid, and nobody waits for others;
//   57  how far a job came never falls;
//   58  a launch that lost all its nodes is held, and preempted only if it may go on;
//   59  no rank is kept through a second failure without progress;
//   60  of members that fell silent the cause is the first;
//   61  what a node was asked to prepare, or has not freed, leaves room for what it is asked next;
//   62  no generation is held of which a member is proved dead;
//   63  a job below its minimum gives its nodes back in time;
//   64  generations after the first are counted;
//   65  nobody is told to run what it has not shown to be prepared;
//   66  nothing of a job that is purged may still run;
//   67  what forms was proposed by the coordinator that forms it, and what one before has proposed
//       comes to nothing at once;
//   68  what is still wanted of a member is said again in its next session;
//   69  the time that a notice leaves to workers never grows;
//   70  whoever has retired and is left out of what forms is told to end;
//   71  silence is believed in time;
//   72  a cancel that is sent again is answered as it was;
//   73  no two groups have ranks on one slot of a node.
//
// Of that list these are not here:
//   2       one journal has one writer: its folder is flocked (tests/launcher/coordinator/shell);
//   11      is 6 as orders give it: a rank of a generation has one node;
//   15      shims are models here: tests/agent; that no record of live ranks goes, the nodes check;
//   22, 23  the coordinator reads no checkpoint; tests/worker/checkpoint does;
//   33      there is no `stop_after`;
//   34      no core can read a clock (tests/tidy), and the wall time that it is given is displayed;
//   38      bounds are reached one by one in core tests, queues of the shell in its own;
//   39, 40  there are no identities and no secrets.

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "launcher/coordinator/core/actions.h"
#include "launcher/coordinator/core/config.h"
#include "launcher/coordinator/core/events.h"
#include "launcher/coordinator/core/rows.h"
#include "tests/sim/coverage.h"
#include "tests/sim/node.h"

namespace regroup::sim {

template <class... Args>
std::string Text(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return out.str();
}

class Checker {
 public:
  // What the core is about to be stepped with.
  void OnEvent(const coordinator::Event& event, Instant now);
  // Once decided; durable later, and whoever is heard in between was lost all the same.
  void OnDecided(const std::map<coordinator::Key, coordinator::Value>& durable,
                 const coordinator::Effects& effects, Instant now);
  void OnCommit(const std::map<coordinator::Key, coordinator::Value>& before,
                const std::vector<coordinator::Row>& batch, Instant now);
  void OnRecovery(const std::vector<coordinator::Row>& durable,
                  const std::vector<coordinator::Row>& recovered);
  void OnRankStarted(const Node& node, const Group& group, const Rank& rank, Instant now);
  void OnRankEnded(const Node& node, const Group& group, const Rank& rank);
  void OnStruck(const NodeId& node);  // What it knew of its groups is gone.
  // Something befell this group: its generation may end for it.
  void OnDisturbed(const Group& group, Instant now);
  // Ranks that live are stopped because the coordinator says so.
  void OnStopped(const Node& node, const Group& group);
  void OnOrder(const Node& node, const Order& order, Instant now);
  void OnSubmitAnswered(const std::string& key, const JobId& job);
  void OnCancelAnswered(const JobId& job, Instant now);
  void OnCancelAnswered(const std::string& key, bool accepted);
  void OnCommitAnswered(SessionId session, const CommitAnswer& answer);
  void OnRead(const coordinator::ReadReply& reply);  // By one client, call after call.
  void OnHeard(const NodeId& node, Instant now) { heard_[node] = now; }
  void OnWord(const NodeId& node, Instant now) {  // Of a lost node's old session none counts.
    if (auto lost = lost_.find(node); lost == lost_.end() || !lost->second) OnHeard(node, now);
  }
  void OnStall(Duration gap, Instant now) {
    stalled_ += gap;
    for (auto& notice : notices_) notice.second += gap;
    stalled_until_ = now + gap;
  }
  void OnJournalReplaced();  // By hand: what was durable may be gone.
  void OnCoordinatorStart(Instant now, Epoch epoch);
  void OnCoordinatorSeen();  // It wrote a row, or an action of it was carried out.
  void OnFinished(const std::map<coordinator::Key, coordinator::Value>& rows);
  // The coordinator has, as it should.
  void OnLeft(const std::map<coordinator::Key, coordinator::Value>& rows, const Node& node,
              Instant now);
  void AtEnd(const std::map<coordinator::Key, coordinator::Value>& rows);
  void Expect(bool condition, const std::string& what);

  std::vector<std::string> violations;
  coordinator::Config config;
  Duration lease{}, first_backoff{}, backoff_limit{}, heartbeat{}, unreachable_hold{};
  std::function<const Node*(const NodeId&)> node_of;  // As it is; null: there is none.
  Coverage coverage;
  int formed = 0;  // Generations.

 private:
  using GenerationId = std::pair<JobId, Generation>;

  void NoteDecided(const std::map<coordinator::Key, coordinator::Value>& durable,
                   const coordinator::Row& row, Instant now);
  void CheckDecided(const coordinator::GenerationRow& row, bool known, Instant now);
  void CheckProposed(const coordinator::GenerationRow& row);
  void CheckStop(const coordinator::SendOrder& send, Instant now);
  void CheckState(const coordinator::JobStateRow* before, const coordinator::JobStateRow& after,
                  Instant now);
  void CheckGeneration(const coordinator::GenerationRow* before,
                       const coordinator::GenerationRow& after);
  void CheckFormed(const coordinator::GenerationRow& row);
  void BackOff(const coordinator::JobStateRow& state, const coordinator::GenerationRow& ended);
  void CheckCommitRow(const coordinator::CommitRow* before, const coordinator::CommitRow& after);
  void CheckEnded(const std::vector<coordinator::Row>& batch);
  void CheckNode(const coordinator::NodeRow* before, const coordinator::NodeRow& after);
  void CheckLost(const coordinator::NodeRow& after, Instant now);
  void CheckBrake(const coordinator::NodeRow& lost, Duration silent_for, Instant now);
  void CheckHold(const coordinator::GenerationRow& over, Instant now);
  void OnLost(const NodeId& node, Instant now);
  // truths.cc
  struct Exit {
    NodeId node;
    int local_rank = 0;
    agent::RankEnded ended;
  };
  void CheckProof(const coordinator::NodeRow& lost);
  void CheckAgain(const GenerationId& started, const std::string& name);
  void CheckReason(const coordinator::GenerationRow& closed, Instant now);
  void CheckFailure(const coordinator::GenerationRow& closed, const RankCause& cause, bool exec);
  void CheckSurvivors(const coordinator::GenerationRow& proposed);
  bool MayBeLeftOut(const NodeId& node, const GenerationId& previous, Generation next) const;
  void CheckEarly(const coordinator::SendOrder& send);
  void CheckKept(const JobId& job, const GenerationRunning& running);
  void CheckCharges(const coordinator::JobStateRow& state);
  void Show(const NodeId& node, const GroupReport& report) {
    shown_[node][report.job][report.generation] = report.phase;
    if (report.phase == Phase::kRetired) retired_[node].emplace(report.job, report.generation);
    if (report.supervisor_lost) struck_nodes_.insert(node);
  }
  void OnPurged(const std::string& folder);
  // policies.cc
  struct Spent {
    int charges = 0, preemptions = 0;
    // Of `charges`, by rows whose verdict is open: the loss of a member would outweigh them.
    int of_generations_with_a_loss = 0;
  };
  using Judged = std::map<JobId, std::map<Generation, coordinator::GenerationRow>>;
  Spent SpentBy(const Judged& judged, const JobId& job) const;
  void CheckBudget(const coordinator::GenerationRow& proposed);
  void CheckAllStopped(const coordinator::GenerationRow& proposed, Instant now);
  void CheckAble(const coordinator::GenerationRow& proposed);
  void OnClosed(const coordinator::GenerationRow& closed);
  void CheckCounts(const std::map<coordinator::Key, coordinator::Value>& before,
                   const std::vector<coordinator::Row>& batch);
  void CheckPreempted(const JobId& job, Instant now);
  void CheckAnew(const JobId& job, const GenerationRunning& running);
  void CheckFirstSilent(const coordinator::GenerationRow& closed, const NodeLost& lost);
  void CheckWait(const JobView& view);
  void CheckRoom(const coordinator::GenerationRow& proposed);
  void CheckSent(const coordinator::SendOrder& send, Instant now);
  void CheckToldAgain(const coordinator::GenerationRow& closed, const StartTimedOut& late,
                      Instant now);
  void CheckLeftOut(const coordinator::GenerationRow& formed);
  void CheckSilence(const coordinator::Effects& effects, Instant now);
  void CheckPurged(const std::string& folder);
  const Exit* Failed(const GenerationId& id, const NodeId& node, int local_rank) const;
  bool IsDisturbed(const GenerationId& id) const;
  bool IsMember(const GenerationId& id, const NodeId& node) const;

  Epoch epoch_, seen_epoch_;  // Of this coordinator; the highest that one before it was seen in.
  bool seen_ = false;         // This coordinator was.
  Instant started_{};
  Duration stalled_{};
  Instant stalled_until_{};  // The last time.
  std::map<JobId, JobSpec> specs_;
  std::map<JobId, Generation> proposed_, formed_;
  std::map<GenerationId, std::string> told_;             // What members were told.
  std::map<GenerationId, std::map<int, NodeId>> ranks_;  // Who started which rank.
  std::map<GenerationId, std::set<std::pair<NodeId, int>>> started_ranks_;
  std::map<GenerationId, std::set<NodeId>> members_;  // Of what formed.
  std::map<GenerationId, std::set<NodeId>> acked_, running_;
  std::map<GenerationId, Instant> disturbed_, noticed_;  // The first event; the first stop for it.
  std::set<GenerationId> over_;
  std::set<GenerationId> decided_formed_, decided_over_;
  std::map<JobId, std::set<Generation>> open_;  // Verdicts.
  std::map<JobId, Generation> elective_;  // The newest that was proposed while another one ran.
  std::map<GenerationId, Epoch> saved_;   // Workers that wait to be stopped, and under whom.
  std::set<JobId> verdicts_;
  std::map<JobId, Instant> not_before_;
  // As the newest rows have them: while a verdict is open, the worst cause so far.
  Judged ended_;
  std::map<JobId, std::vector<Instant>> charged_at_;
  std::map<std::string, JobId> submitted_;
  std::set<std::string> cancels_;  // Keys of those that ended a job.
  std::map<JobId, Instant> cancelled_;
  std::map<JobId, std::uint64_t> last_event_;
  std::map<JobId, int> ends_;
  std::map<JobId, Instant> over_when_;  // Jobs that are over, or were and are purged.
  std::map<NodeId, Instant> heard_;
  std::map<NodeId, bool> lost_;           // As this coordinator decided last.
  std::set<NodeId> leaving_;              // They told so.
  std::map<NodeId, Incarnation> agents_;  // As heard of last.
  // Of this coordinator's life.
  std::uint64_t events_ = 0;
  std::map<SessionId, NodeId> sessions_;
  std::map<NodeId, SessionId> open_sessions_;
  std::map<NodeId, Instant> accepted_;  // By a witness.
  std::map<NodeId, std::string> lost_how_;
  std::map<NodeId, std::uint64_t> opened_, lost_at_;  // At which event.
  std::set<NodeId> agents_restarted_;
  std::map<std::tuple<NodeId, JobId, Generation>, Instant> deadlines_;  // That stops were given.
  std::map<SessionId, std::deque<CommitRequest>> asked_;
  std::map<std::pair<GenerationId, std::int64_t>, std::string> manifests_;  // As recorded, by step.
  std::map<JobId, std::int64_t> committed_;
  std::map<JobId, JobView> views_;  // As they were read last.
  // What is true, whoever knows it.
  std::map<GenerationId, std::vector<Exit>> exits_;
  std::map<GenerationId, std::map<NodeId, BootId>> boots_;  // Of members when their ranks began.
  std::map<GenerationId, std::map<NodeId, Instant>> began_;
  std::set<GenerationId> struck_;  // A member of them was.
  std::set<NodeId> struck_nodes_;  // They, or a supervisor on them, were.
  std::map<GenerationId, int> worlds_;
  // As decided, which may be before it is durable.
  std::map<GenerationId, std::vector<NodeId>> placed_;  // Members by rank, of any proposal.
  std::map<JobId, Generation> growing_;  // The newest that is proposed beside another one.
  std::set<JobId> judged_, queued_;      // They have a verdict; they stand in the queue.
  std::map<JobId, std::set<NodeId>> excluded_;
  std::map<NodeId, std::map<JobId, std::map<Generation, Phase>>> shown_;  // In its last session.
  std::map<NodeId, std::set<GenerationId>> retired_;  // Their ranks were, whatever came then.
  std::set<SessionId> broken_;
  Judged judging_;  // As ended_, of what is decided.
  std::map<NodeId, coordinator::NodeLaunch> launches_;
  std::map<NodeId, Instant> lost_when_, lost_last_;  // The former only while it is.
  // Of this coordinator's life: until when members were told to stop, why, and since when those
  // were silent that are lost for it.
  std::map<GenerationId, Instant> stop_due_;
  std::map<GenerationId, std::pair<StopReason, Instant>> stop_reasons_;
  std::map<NodeId, Instant> silent_since_;
  std::set<GenerationId> own_proposals_;
  // Prepares that a session has not answered, and the order that asked for them.
  std::map<NodeId, std::map<JobId, std::pair<OrderNo, int>>> preparing_;
  // What a session was told: of generations that run, up to which nothing may, what notices leave.
  std::map<SessionId, std::set<GenerationId>> told_to_run_;
  std::map<SessionId, std::map<JobId, Generation>> told_to_end_;
  std::map<std::pair<NodeId, GenerationId>, Instant> notices_;
  std::map<SessionId, Instant> welcomed_;
  std::map<SessionId, Incarnation> incarnations_;
  std::map<NodeId, Incarnation> newest_welcomed_;
  std::set<SessionId> overtaken_;  // Opened by agents that have died since.
  Instant brake_until_{};
  // Durable.
  std::map<JobId, int> formed_of_;  // Generations.
  std::set<JobId> standalone_;
  std::set<NodeId> dead_;  // Proved so.
  // Nodes that could not execute the program, and what stood in the way.
  std::map<JobId, std::map<NodeId, std::pair<int, ExecObstacle>>> unable_;
};

}  // namespace regroup::sim
