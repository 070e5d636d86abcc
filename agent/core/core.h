#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "agent/core/events.h"
#include "agent/core/group.h"

namespace regroup::agent {

struct Config {
  NodeId node;
  Incarnation incarnation;
  BootId boot;
  std::string name;
  bool name_explicit = false;
  int slots = 1;
  Version version;
  std::string no_cgroup;                      // Why groups get none; empty: they get one.
  bool launched = false;                      // By `regroup run`; else a service.
  bool sigterm_is_notice = false;             // Of a service.
  bool starts_coordinator = false;            // This host hosts the launch command's coordinator.
  Duration grace = std::chrono::seconds(30);  // What a notice or a first signal gives the workers.
  std::optional<Duration> join_timeout;       // Of a launch command.
  ClusterId cluster;                          // Followed in an earlier life; empty: none.
  Epoch highest_epoch;
};

// The agent decides nothing about restarts. It obeys whole-state orders of the one coordinator it
// follows, `run` once ever, keeps what it has while there is none, and repeats what happened until
// that is durable elsewhere. Its records are run directories: after a crash the next Core gets them
// in Scanned and goes on. PROTOCOL §5.
class Core {
 public:
  Core(Config config, Instant now);
  // Total. REQUIRES: now never decreases; the actions of earlier steps were carried out in
  // sequence, or the process died.
  Effects Step(Instant now, const Event& event);
  std::optional<Instant> NextDeadline() const;  // <= now: Tick.

  bool attached() const { return attached_; }
  const std::map<GroupKey, Group>& groups() const { return groups_; }

 private:
  struct Job {           // What orders have said of one job.
    Generation highest;  // Of any prepare or run: lower ones are refused.
    Generation stopped_up_to, forgotten_up_to;
    std::optional<Prepare> prepare;  // Of the newest order of this session.
    std::optional<Run> run;
  };
  struct Progress {
    WorkerProgress last;
    bool unsent = false;
    Instant not_before{};
  };
  // One at a time goes to the coordinator: however often a worker asks, its node's session carries
  // one question and one answer.
  struct Commit {
    CommitRequest newest;
    std::optional<CommitRequest> in_flight;  // Sent in this session and not answered.
  };
  struct Leaving {
    int signal = 0;  // 0: join timeout.
    Instant since;
    Instant deadline;  // Of the grace.
    bool now = false;
    std::optional<Instant> idle_since;
  };

  void On(const Scanned&);
  void On(const CoordinatorFound&);
  void On(const Welcomed&);
  void On(const CoordinatorRefused&);
  void On(const CoordinatorAway&);
  void On(const CoordinatorSpoke&);
  void On(const Ordered&);
  void On(const ReportAcked&);
  void On(const CommitAnswered&);
  void On(const EnoughJoined&);
  void On(const JobOver&);
  void On(const RunDirectoryWritten&);
  void On(const PrepareFailed&);
  void On(const ShimReady&);
  void On(const NodeChecked&);
  void On(const StoreBound&);
  void On(const RanksStarted&);
  void On(const RankExited&);
  void On(const RankErrorRead&);
  void On(const GroupEmpty&);
  void On(const GroupStuck&);
  void On(const ShimGone&);
  void On(const StoreGone&);
  void On(const WorkerSaid&);
  void On(const WorkerHungUp&);
  void On(const SignalCaught&);
  void On(const Tick&) {}

  void Do(Action action) { effects_.actions.push_back(std::move(action)); }
  void Note(std::string text) { effects_.notes.push_back(std::move(text)); }
  Group* Find(const GroupKey& key);
  void Settle();  // After every event: what follows from the state.
  void SayHello();
  std::optional<std::string> WhyNot(const Welcome& welcome) const;

  void Reconcile(const JobId& job, Job& state);
  void StartPreparing(const JobId& job, const Prepare& prepare);
  void Refuse(const GroupKey& key, int workers, std::string why);
  void MaybePrepared(Group& group);
  void StopGroup(const GroupKey& key, Group& group, Instant deadline, StopReason reason);
  void StopEverything(Instant deadline);
  void KillSilentShims();
  static std::optional<Instant> SilentAt(const Group& group);
  void MarkFree(Group& group);
  void NotifyWorkers(const GroupKey& key, Group& group);
  void SendReports(bool all);
  void FlushProgress(const GroupKey& key);
  void OnCommitAsked(const GroupKey& key, const CommitRequest& request);
  void AskCommit(Commit& commit);
  void HeartbeatIfDue();
  void BreakIfSilent();
  void CoordinatorIfDue();
  void Remove(const GroupKey& key);

  void BeginLeaving(int signal, Instant deadline);
  void SayLeaving();
  void LeaveIfDue();
  void LeaveNow(int exit_code, std::string why);
  std::optional<Instant> JoinDeadline() const;
  std::vector<Instant> LeaveDeadlines() const;
  bool AnyBusy() const;
  bool AllAcked() const;

  Config config_;
  Instant started_at_;
  Instant now_;
  Effects effects_;

  bool scanned_ = false;
  std::optional<CoordinatorFound> found_;
  bool attached_ = false;
  Duration heartbeat_{};
  std::optional<Instant> next_heartbeat_;
  Duration lease_{};  // Of the last coordinator that welcomed this agent.
  // Of the session: by then something must have been heard. Unset while there is none, or its
  // coordinator answers no heartbeats.
  std::optional<Instant> silent_at_;
  std::optional<Instant> next_coordinator_start_;
  OrderNo obeyed_;
  ReportNo last_report_;

  std::map<GroupKey, Group> groups_;
  std::map<JobId, Job> jobs_;
  std::map<std::pair<GroupKey, int>, Progress> progress_;  // By local rank.
  std::map<GroupKey, Commit> commits_;                     // Asked and not answered.

  bool ever_ran_ = false;
  bool enough_joined_ = false;  // A spare waits as long as the job runs: no join timeout.
  std::optional<int> result_;
  std::optional<Instant> result_at_;
  std::optional<Leaving> leaving_;
  bool left_ = false;
};

}  // namespace regroup::agent
