#pragma once

// The state machine behind Core. Private to this folder; one class, its methods in files by idea:
// engine.cc (steps, rows, deadlines, recovery), sessions.cc (who is there), reports.cc (what agents
// say), calls.cc (what people ask), gather.cc (the next generation), running.cc (the formed one),
// ending.cc (its end, the verdict, the job's end), orders.cc (what agents are told), views.cc (what
// people see).

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/job_word.h"
#include "launcher/coordinator/core/actions.h"
#include "launcher/coordinator/core/admission.h"
#include "launcher/coordinator/core/config.h"
#include "launcher/coordinator/core/decide_generation.h"
#include "launcher/coordinator/core/events.h"
#include "launcher/coordinator/core/failure_policy.h"
#include "launcher/coordinator/core/free_slots.h"
#include "launcher/coordinator/core/rows.h"
#include "launcher/coordinator/core/state.h"

namespace regroup::coordinator {

class Engine {
 public:
  Engine(Config config, Epoch epoch, std::span<const Row> rows, Instant now);

  Effects Step(Instant now, WallTime wall, const Event& event);
  std::optional<Instant> NextDeadline() const;
  absl::StatusOr<ReadReply> Read(const ReadFilter& filter, Instant now, WallTime wall) const;
  std::vector<Row> Rows() const;
  const ClusterId& cluster() const { return meta_.cluster; }
  std::uint64_t newest_number() const;  // Of a job; 0: there is none.
  Epoch epoch() const { return epoch_; }

 private:
  // ---- engine.cc: one step ---------------------------------------------------------------------
  using StateChange = std::function<void(JobStateRow&)>;
  using GenerationChange = std::function<void(GenerationRow&)>;

  void Apply(const Row& row);
  void ApplyValue(const Value& value);
  void ApplyDeletion(const Key& key);
  void IndexNode(const NodeRow* before, const NodeRow* after);
  void IndexJob(const Job& job);
  void Put(Value value);
  void Delete(Key key);
  void UpdateState(Job& job, const StateChange& change);
  void UpdateGeneration(Job& job, Generation generation, const GenerationChange& change);
  void AddEvent(Job& job, JobEventBody body);
  void Do(Action action) { effects_.actions.push_back(std::move(action)); }
  void Say(Severity severity, std::string what,
           std::vector<std::pair<std::string, std::string>> fields);
  bool HasRoom() const;  // For the rows of one more job or deadline.
  void Drain();
  void HandleDueDeadlines();
  void MarkDirty(Job& job);
  void MarkOrder(Job& job, const NodeId& node);
  void MarkOrders(Job& job, const GenerationSoft& soft);
  void OfferCapacity();  // Slots have become free: whoever waits for some looks again.
  void MarkHungry();
  void Wake(Job& job, Instant at);  // Look again by then.
  void ArmJob(Job& job);
  void ArmNode(Node& node, std::optional<Instant> at);
  void FirstStep();
  void StepDownNow();
  void RecoverNodes();
  void RecoverJobs();
  void RecoverGeneration(Job& job, const GenerationRow& row);
  void RecoverBackOff(Job& job);
  Streak StreakWith(const Job& job, const GenerationRow& row) const;
  int SameNodeUpTo(const Job& job, const GenerationRow& row) const;

  Job* FindJob(const JobId& id);
  const Job* FindJob(const JobId& id) const;
  Node* FindNode(const NodeId& id);
  const Node* FindNode(const NodeId& id) const;
  Node* NodeOf(SessionId session);  // Null: not the node's current session.
  std::string NameOf(const NodeId& id) const;

  void On(const SessionOpened& event);
  void On(const SessionBroken& event);
  void On(const HeartbeatReceived& event);
  void On(const Reported& event);
  void On(const Progressed& event);
  void On(const CommitAsked& event);
  void On(const Probed& event);
  void On(const Noticed& event);
  void On(const LaunchAsked& event);
  void On(const LeaveAsked& event);
  void On(const SubmitAsked& event);
  void On(const CancelAsked& event);
  void On(const ReadAsked& event);
  void On(const ForgetNodeAsked& event);
  void On(const CallDropped& event);
  void On(const Stalled& event);
  void On(const Tick& event);

  // ---- sessions.cc: who is there ---------------------------------------------------------------
  bool AdmitEpoch(const SessionOpened& event);
  bool AdmitSession(const SessionOpened& event, std::string* name);
  void Refuse(SessionId session, absl::Status why);
  NodeRow RowOf(const Hello& hello, const std::string& name, const Node* known) const;
  void Attach(Node& node, const SessionOpened& event);
  bool CommandIsOver(const Node& node) const;
  absl::Status CheckUnknown(const Hello& hello) const;
  void Heard(Node& node);
  void Detach(Node& node);  // Its session is no longer the current one.
  void SetLink(Node& node, Link link);
  void DeleteNode(Node& node);
  void LoseNode(Node& node, const std::string& how, bool proved);
  void RememberLost(Node& node);
  void OnNodeDeadline(Node& node);
  std::optional<Instant> LeaseEnd(const Node& node) const;
  Duration AwayLimit(const Node& node) const;
  bool JobStepsWithout(const Node& node) const;
  bool StepsKeep(const Node& node) const;
  bool Brake();
  bool IsBraked(Instant now) const { return now < brake_.until; }
  void ProbeWitnesses(Node& node);
  void WatchGroup(Node& node, const GroupReport& report);
  void SetLeaving(Node& node, const Notice& notice);
  void RefreshJobs(Node& node);  // Everything that depends on this node looks again.
  void Touch(Job& job, Node& node);
  void Untouch(Job& job, Node& node);
  void ForEachWait(const std::function<void(Instant&)>& extend);

  // ---- reports.cc: what agents say -------------------------------------------------------------
  void Refresh(Job& job, Node& node);
  void RefreshProposed(Job& job, GenerationSoft& soft, Generation generation, Node& node);
  void RefreshFormed(Job& job, GenerationSoft& soft, Generation generation, Node& node);
  void RefreshLostMember(Job& job, GenerationSoft& soft, Generation generation, Node& node);
  void FoldExits(Job& job, GenerationSoft& soft, Generation generation, Node& node,
                 const GroupReport& report);
  bool LearnError(GenerationSoft& soft, const std::string& node, const RankExit& exit);
  void FoldCause(GenerationSoft& soft, CauseAt cause);
  void RecordDone(Job& job, GenerationSoft& soft, Generation generation, Node& node,
                  const GroupReport& report);
  void RecordStarts(GenerationSoft& soft, int workers, Node& node, const GroupReport& report);
  void UpdateSteps(GenerationSoft& soft, const WorkerProgress& progress);
  const GroupReport* Shown(const Node& node, const JobId& job, Generation generation) const;
  bool IsSettled(const Job& job, Generation generation, const NodeId& node) const;
  Duration AgeOf(const GenerationRow& row, const GenerationSoft& soft) const;
  bool GroupIsDead(const Node& node, const JobId& job, Generation generation) const;
  int DoneRanksOf(const Job& job, Generation generation, const NodeId& node) const;
  std::string WhyNotCommit(const Job& job, const Node& node, const CommitRequest& request,
                           bool* known) const;

  // ---- calls.cc: what people ask ---------------------------------------------------------------
  absl::StatusOr<JobId> Admit(const JobSpec& spec, const std::string& key, bool standalone,
                              std::uint64_t free_bytes, std::uint64_t number_used);
  std::optional<LaunchedJob> LaunchedJobOf(const Job* job) const;
  int NodesStaying(const Job& job) const;
  void Join(Job& job, Node& node, const LaunchRequest& request);
  void CancelJob(Job& job, const std::string& by, int signal, bool now, const std::string& key);
  void HurryCancel(Job& job);
  absl::StatusOr<JobId> Resolve(const std::string& word, JobPrefixes prefixes) const;
  void AnswerWaiters(Job& job);
  void SendResults(Job& job);
  void SendResultTo(Job& job, Node& node);

  // ---- gather.cc: the next generation ----------------------------------------------------------
  void Advance(Job& job);
  bool AdvanceOnce(Job& job);
  bool Gather(Job& job);
  bool GatherWaits(Job& job, const Wait& wait);
  void LeaveOutUnsteady(const Job& job, std::vector<Candidate>& candidates) const;
  bool CheapWait(Job& job);
  std::uint64_t QueueHead() const { return fitting_.empty() ? 0 : *fitting_.begin(); }
  CannotFit FitOf(const JobSpec& spec) const;
  static bool Fits(const CannotFit& fit) { return fit.known >= fit.need; }
  void RefreshFits();
  bool IsLeaving(const Job& job, const Node& node) const;
  bool HasEnough(Job& job, int nodes);
  void UpdateHunger(Job& job);
  void SlotsChanged(const Node& node);  // Before the next look at free slots it is counted anew.
  void CountFreeSlots();
  int FreeSlotsOf(const Node& node) const;
  std::set<NodeId> NodesToLookAt(const Job& job) const;
  void CheckCandidates(const Job& job, const std::vector<Candidate>& candidates) const;
  std::vector<Candidate> CandidatesOf(const Job& job);
  std::optional<Candidate> CandidateOf(const Job& job, const Node& node, bool previous) const;
  std::optional<Instant> WorthAwaiting(const Job& job, const Node& node, bool previous) const;
  GenerationPolicy PolicyOf(const Job& job) const;
  std::optional<Instant> LastCallEnd(const Job& job) const;
  Instant UnreachableUntil(const Job& job) const;
  bool SlotsFree(const Job& job, const Node& node) const;  // Nothing of this job is left there.
  int FreeSlotsFor(const Job& job, const Node& node) const;
  int SlotsUsed(const Node& node) const;
  int WorkersOn(const Job& job, const Node& node) const;
  int MaxNodesNow(const Job& job) const;
  bool IsExcluded(const Job& job, const NodeId& node) const;
  void Propose(Job& job, const std::vector<NodeId>& chosen, bool elective);
  std::vector<NodeId> RankOrder(const Job& job, const std::vector<NodeId>& chosen) const;
  std::vector<GenerationMember> MembersOf(const Job& job, const std::vector<NodeId>& ranks) const;
  bool AdvanceProposal(Job& job);
  void Void(Job& job, Generation generation, const std::map<NodeId, std::string>& failed);
  bool AskSurvivors(Job& job, GenerationSoft& soft);
  void FormGeneration(Job& job, Generation generation);
  Duration AckLimit(const Job& job) const;
  void DropOldGenerations(Job& job);
  void UpdateClaims(Job& job);
  void SetWait(Job& job, std::optional<WaitReason> reason, std::optional<Instant> until);

  // ---- running.cc: the formed generation -------------------------------------------------------
  const GenerationRow* FormedOf(const Job& job) const;
  const GenerationRow* ProposedOf(const Job& job) const;
  bool AdvanceFormed(Job& job, Generation generation);
  bool CheckDone(Job& job, Generation generation, GenerationSoft& soft);
  bool CheckLost(Job& job, Generation generation, GenerationSoft& soft);
  bool HoldsForSilence(Job& job, const GenerationRow& row, GenerationSoft& soft,
                       const std::vector<NodeId>& lost);
  bool IsHeard(const NodeId& id) const;
  bool FinishHolds(Job& job, const GenerationRow& row, GenerationSoft& soft,
                   const std::vector<NodeId>& lost);
  bool CheckStart(Job& job, Generation generation, GenerationSoft& soft);
  bool CheckNotices(Job& job, Generation generation, GenerationSoft& soft);
  bool CheckSaving(Job& job, Generation generation, GenerationSoft& soft);
  bool CheckGrowth(Job& job, Generation generation, GenerationSoft& soft);
  void EnterRunning(Job& job, Generation generation, GenerationSoft& soft);
  std::vector<NodeId> Newcomers(Job& job, const GenerationSoft& soft);

  // ---- ending.cc: the end of a generation and of a job -----------------------------------------
  void BeginEnding(Job& job, Generation generation, StopReason reason, Duration grace);
  void PutOnTrial(Job& job, const GenerationSoft& soft);
  bool AdvanceEnding(Job& job, Generation generation, GenerationSoft& soft);
  void EndGeneration(Job& job, Generation generation, GenerationSoft& soft);
  void CloseAccount(const Job& job, const GenerationSoft& soft, GenerationRow& row,
                    JobStateRow& state) const;
  bool HasProgressed(const Job& job, const GenerationSoft& soft) const;
  Duration BackOffAfter(const Job& job, const GenerationRow& row, const Streak& streak) const;
  bool CloseVerdicts(Job& job);
  void CloseVerdict(Job& job, Generation generation, GenerationSoft& soft);
  ExcludedNode ExcludedOf(const GenerationRow& row, const ExecFailed& failed) const;
  int NodesLeft(const Job& job, const std::vector<ExcludedNode>& excluded) const;
  std::string ProgramOf(const Job& job) const;
  std::vector<Duration> ChargeAges(const Job& job) const;
  void DropOldCharges(Job& job);
  int Charges(const Job& job) const;
  int OpenCharges(const Job& job) const;
  void SetVerdict(Job& job, Verdict verdict, const EndReason& reason, StopReason stop,
                  Duration grace);
  void FailJob(Job& job, const FailReason& failed, const std::optional<EndReason>& root);
  bool FinishEnding(Job& job);
  bool HasUnkillable(const Job& job, const Node& node) const;
  bool RecordTaken(Job& job, Node& node, bool unkillable);
  void PutEnded(Job& job, Generation generation, GenerationSoft& soft, JobStateRow& state);
  void PutStopped(Job& job, Generation generation, const EndReason& reason, JobStateRow& state);
  void RecordVerdict(Job& job, Generation generation, const GenerationSoft& soft, bool charged);
  void EndJob(Job& job);
  bool CheckAbandoned(Job& job);
  void PreemptJob(Job& job);
  RestartPhases PhasesOf(const Outage& outage, Instant running_at) const;

  // ---- orders.cc: what agents are told ---------------------------------------------------------
  void FlushOrders();
  void SendOrderTo(Job& job, Node& node);
  Order DesiredOrder(Job& job, Node& node, SentOrder* key);
  Generation StopUpTo(const Job& job, const Node& node) const;
  void AddStop(const Job& job, const Node& node, Order& order, SentOrder* key) const;
  void AddForget(const Job& job, const Node& node, Order& order, SentOrder* key) const;
  Prepare PrepareOf(const Job& job, const GenerationRow& row, int group_rank) const;
  Run RunOf(const Job& job, const GenerationRow& row, int group_rank) const;
  bool IsClosed(const Job& job, Generation generation) const;
  void ClearTaken(const Job& job, Node& node);
  bool WasPurged(const JobId& id) const;
  bool StopUnknown(Node& node, const JobId& id);
  // False: there is no room for it, and nothing is kept.
  bool Keep(Node& node, const GroupReport& report);

  // ---- views.cc: what people see ---------------------------------------------------------------
  struct Moment {
    Instant now;
    WallTime wall;
  };
  Moment Here() const { return {now_, wall_}; }
  JobView ViewOf(const Job& job, bool detail, const Moment& at) const;
  JobView ResultOf(const Job& job) const;
  GenerationView ViewOf(const Job& job, const GenerationRow& row) const;
  NodeView ViewOf(const Node& node, const Moment& at) const;
  std::string WhyKept(const Node& node, const Moment& at) const;
  std::string NoteOf(const Node& node, const Moment& at) const;
  std::vector<LeftOutView> LeftOutOf(const Job& job, const Moment& at) const;
  std::map<NodeId, std::vector<std::string>> LeftOut(const Moment& at) const;
  std::optional<WaitReason> WaitOf(const Job& job, const Moment& at) const;

  // ---- accounts.cc: where time went ------------------------------------------------------------
  // What the journal's account lacks: the generation that runs, and the outage that goes on.
  struct OpenAccount {
    TimeAccount time;
    HeldTime held;
  };
  OpenAccount OpenAccountOf(const Job& job, Instant now) const;
  OpenAccount RunAccount(const Job& job, const GenerationRow& row, const GenerationSoft& soft,
                         Instant now) const;
  OpenAccount OutageAccount(const Job& job, Instant now) const;
  bool AfterFailure(const Job& job, Generation next) const;
  void Book(const OpenAccount& open, JobStateRow& state) const;
  void CountHeld(Job& job) const;
  TimeAccount WholeAccountOf(const Job& job, const Moment& at) const;
  std::optional<CostView> CostOf(const Job& job, Instant now) const;
  Duration AgeOf(const Job& job, const Moment& at) const;
  std::string StateName(const Job& job) const;

  // ---- retention.cc: what is kept, and when an ad-hoc coordinator leaves ------------------------
  void NoteOver(Job& job);
  void ChoosePurge();
  void SweepOldJobs();
  void PurgeSome();
  bool MayPurge(const Job& job) const;
  void CheckAdHocExit();
  std::optional<Instant> AdHocExitAt() const;

  const Config config_;
  const Epoch epoch_;
  Instant recovered_at_;
  Instant now_{};
  WallTime wall_{};
  bool first_step_done_ = false;
  bool stepped_down_ = false, finished_ = false;

  MetaRow meta_;
  std::map<NodeId, Node> nodes_;
  std::map<JobId, Job> jobs_;

  // Indices over durable state.
  std::map<std::uint64_t, NodeId> lost_;  // By Node::lost_order; without those that must go.
  std::uint64_t losses_ = 0;
  std::map<std::string, std::set<NodeId>> names_;  // Of nodes that are not lost.
  std::map<std::uint64_t, JobId> by_sequence_;
  std::map<std::string, JobId> by_key_;          // Idempotency keys of submits.
  std::map<std::string, JobId> newest_by_name_;  // Launched, not standalone.
  std::set<std::uint64_t> queue_;                // Sequences of queued jobs.
  std::set<std::uint64_t> fitting_;              // Those that the nodes that are known could run.
  std::map<int, int> daemons_by_slots_;          // Slots → how many nodes, of daemons not lost.
  std::set<std::uint64_t> over_;                 // Of ended and preempted jobs.

  // Soft.
  std::map<SessionId, NodeId> sessions_;
  std::set<NodeId> attached_daemons_;
  FreeSlots free_;                  // Of attached daemons that stay.
  std::set<NodeId> recount_slots_;  // What free_ says of them may be old.
  bool more_slots_ = false;         // Than when they were last offered.
  int broken_ = 0;                  // Nodes that are probed or awaited.
  struct {
    Instant until{};  // Silence expires no node before.
    int silent = 0, sessions = 0;
  } brake_;
  std::optional<Instant> fleet_join_;  // When a daemon came last.
  std::set<std::uint64_t> hungry_;     // Submitted jobs that could use more nodes.
  std::set<std::uint64_t> deferred_;   // Of those, who may not grow while another job waits.
  std::map<CallId, JobId> waiting_calls_;
  std::set<std::uint64_t> dirty_;  // Jobs to look at, oldest first.
  std::set<JobId> orders_dirty_;
  std::deque<JobId> purging_;
  std::optional<Instant> retention_at_;  // The next look at ages.
  std::optional<Instant> last_over_;     // When a job ended or was preempted, in this life.
  std::optional<Instant> idle_since_;    // Ad-hoc: nobody is attached since then.
  enum class DueKind { kNode, kJob };
  std::set<std::tuple<Instant, DueKind, std::string>> deadlines_;

  // Of the step in hand.
  Effects effects_;
  std::map<Key, std::size_t> row_of_;
  std::size_t bytes_ = 0;
};

}  // namespace regroup::coordinator
