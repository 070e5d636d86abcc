#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/shim/cgroup.h"
#include "agent/shim/control_socket.h"
#include "agent/shim/log_drain.h"
#include "agent/shim/node_check.h"
#include "agent/shim/protocol.h"
#include "agent/shim/run_directory.h"
#include "agent/shim/warm_start.h"
#include "common/io/fd.h"

namespace regroup::shim {

// What a witness does: every caller is accepted and closed, without a byte.
void AcceptAndClose(int listener_fd);

struct SupervisorFds {
  io::UniqueFd directory, socket, witness, lifeline, rank0_stdin;  // The last two may be empty.
};

// Supervises one group until nothing of it is left. Runs on the process's main thread, which alone
// clones ranks and never touches a path that may hang: only the run directory (tmpfs), /proc and
// cgroups.
//
// REQUIRES: the process is a subreaper and has no children but that of `warm`; SIGCHLD and all
// signals to be ignored are blocked.
class Supervisor {
 public:
  // With `warm` its ranks are forked there, as far as that succeeds.
  static absl::StatusOr<std::unique_ptr<Supervisor>> Create(Spec spec, SupervisorFds fds,
                                                            std::optional<WarmStart> warm);
  // Returns when the group is free, its state was sent and written, an agent has released it (or
  // none was there for spec.agent_patience, or the lifeline closed), and its logs are on disk.
  // Where a disk does not take them in 5 s it lets go of its run directory and its agent, for which
  // it has ended, and waits for spec.log_patience more; then false: the process must end by _exit.
  // Until it is released its witness accepts, so that a refused witness means a process that died.
  bool Run();

 private:
  struct Rank {
    RankState state;
    io::UniqueFd exec_status;  // While kStarting.
    int log_id = 0;            // Of LogDrain; 0: none yet.
    bool moving = false;    // Kept; its output still goes to the folder of the generation before.
    pid_t predecessor = 0;  // It has ended, and what it left is gone before this rank starts.
    bool lives() const {
      return state.phase == RankPhase::kStarting || state.phase == RankPhase::kRunning;
    }
  };
  // What Adopt has brought, understood.
  struct Next {
    Spec spec;
    RunDirectory directory;
    io::UniqueFd lock, rank0_stdin;
    std::optional<ControlSocket> control;
  };

  Supervisor(Spec spec, SupervisorFds fds) : spec_(std::move(spec)), fds_(std::move(fds)) {}
  absl::Status SetUp();
  absl::Status Watch(int fd, std::uint32_t events);
  void OnEvent(int fd, std::uint32_t events);
  void OnCommand(ControlSocket::Received received);
  void OnLifeline();
  void StartCheck();
  void OnCheckDue(Instant now);
  void FailCheck(std::string how);
  void OnStartRanks(const StartRanks& start);
  void StartRank(Rank& rank, const RankPlan& plan);
  absl::StatusOr<SpawnedRank> SpawnWarmOrCold(const RankPlan& plan, const RankFds& fds);
  void AskForSpare();
  void LetWarmRanksBegin();
  void EndWarmStart();
  LogDrain::Place LogPlaceOf(const Rank& rank) const;
  // supervisor_adopt.cc
  void OnAdopt(const Adopt& adopt, std::vector<io::UniqueFd> fds);
  absl::StatusOr<Next> Understand(const Adopt& adopt, std::vector<io::UniqueFd> fds);
  absl::Status TurnTo(const Next& next);
  void Take(Next next);
  void AwaitSuccessor(Rank& rank);
  void KeepRank(Rank& rank);
  void OnMoved(const std::set<int>& moved);
  void OnMovesDue();
  bool EndLeftovers();
  void OnSweepDue();
  void OnExecStatus(Rank& rank);
  void EndRank(Rank& rank, ExitKind kind, int code, std::string exec_stage);
  void ReapChildren();
  void OnRankExit(Rank& rank, int code, int status);
  OomEvidence LookForOom();
  void OnStop(const Stop& stop);
  bool LeavesOnlyOthers() const;
  void OnLeftovers();
  bool Disown();
  void SignalGroup(int signal);
  void OnDue(Instant now);
  void KillAll(Instant now);
  void KillDescendants();
  bool NothingLeft() const;
  void CheckFree();
  void EndIfReleased();
  void WatchForAgent();
  Phase PhaseNow() const;
  State Compose(const LogDrain::Progress& logs);
  void OnShown(const Shown& shown);
  void TellReader();
  bool Report();
  bool WriteLate();
  std::optional<Instant> NextDue() const;
  void ArmTimer();
  Rank* FindByPid(pid_t pid);

  Spec spec_;  // Of the newest generation that was handed over.
  SupervisorFds fds_;
  // Until the ranks were started, or it has ended; then its spare, if it left one.
  std::optional<WarmStart> warm_;
  io::UniqueFd epoll_, signals_, timer_, logs_ready_, dev_null_;
  std::optional<ControlSocket> control_;
  std::optional<Cgroup> cgroup_;
  std::unique_ptr<LogDrain> logs_;
  LogDrain::Reader reader_;  // As the drain knows it.
  std::vector<Rank> ranks_;  // By local rank; fixed.
  int last_log_id_ = 0;
  int own_oom_score_adj_ = 0;
  long oom_kills_seen_ = 0, cgroup_oom_kills_seen_ = 0;

  std::optional<NodeCheckProcess> check_;  // Until it is over and nothing of it is left.
  bool check_passed_ = false;              // Its process; what it has started is being ended.
  std::optional<Instant> check_due_;       // Set as long as check_ is.
  std::optional<Instant> check_limit_;     // Set once it has passed.
  std::string check_failed_;

  State reported_;
  bool ever_started_ = false;  // Together with the mark in the run directory.
  bool cgroup_used_ = false;   // Every rank was born in the cgroup.
  bool free_ = false;          // Final.
  bool lifeline_closed_ = false;
  bool dismissed_ = false;  // No agent has to be told any more how its group ended.
  bool released_ = false;   // Likewise, or none has come for long: the witness is closed.
  std::optional<Instant> stop_deadline_, first_kill_, next_kill_, output_due_, logs_deadline_;
  // Set while no agent is there to start the first rank, or to tell how the free group ended.
  std::optional<Instant> orphan_due_;
  int stop_signal_ = 0;  // Last one sent; 0: none.
  std::vector<pid_t> left_;

  std::optional<StartRanks> pending_start_;  // Until what ended ranks have left behind is gone.
  std::optional<Instant> sweep_due_;         // Next look at that.
  Duration sweep_wait_{};
  std::map<pid_t, std::uint64_t> swept_;  // Killed there, and not gone yet, with their start.
  std::optional<Instant> moves_due_;      // After it no kept rank waits for its log.

  std::optional<Instant> leftovers_due_;  // Of the look at what ended ranks have left behind.
  bool keep_leftovers_ = false;
  bool disowned_ = false;  // What is left is not this group's any more.
  std::vector<LeftBehind> left_behind_;
  int left_behind_count_ = 0;
};

}  // namespace regroup::shim
