#pragma once

// Why. One struct per reason, with its numbers; log, CLI and JSON render the same value
// (common/report). PROTOCOL §7.

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "common/base/control.h"
#include "common/base/ids.h"
#include "common/base/time.h"

namespace regroup {

// Why something waits. `since` is how long already, `left` how long at most.
struct BelowMinimum {
  int have = 0, need = 0;
  Duration since{};
  std::vector<std::string> missing;
};
struct LastCall {
  int have = 0;
  Duration left{};
};
struct BackingOff {
  int failures = 0;
  Duration left{};
  std::string node{}, why{};  // Set when a node could not prepare; empty after failures of the job.
};
struct SlotsStopping {
  std::vector<std::string> nodes;
  Duration left{};
};
struct AwaitReattach {
  std::vector<std::string> nodes;
  Duration left{};
};
struct FinishHold {
  std::string node;
  Duration left{};
};
struct UnreachableHold {
  std::vector<std::string> nodes;
  Duration left{};
};
struct BudgetVerdictOpen {
  std::vector<std::string> waiting_for;
};
struct BehindJob {
  JobId job;
};
struct MembersPreparing {
  std::vector<std::string> nodes;
  Duration since{};
};
struct SavingBeforeLeave {
  std::string node;
  Duration left{};
};
// No set of the nodes that are known could run it, however free they were.
struct CannotFit {
  int need = 0, known = 0;  // Nodes with enough slots.
  // That one node must have, kWorkerPerGpu: of GPUs, whatever their number; that the largest has.
  int slots = 1, largest = 0;
  std::string node{};  // The largest; empty: there is none.
};
using WaitReason = std::variant<BelowMinimum, LastCall, BackingOff, SlotsStopping, AwaitReattach,
                                FinishHold, UnreachableHold, BudgetVerdictOpen, BehindJob,
                                MembersPreparing, SavingBeforeLeave, CannotFit>;

// Which rank's exit it was.
struct RankCause {
  std::string node;
  int rank = -1, local_rank = -1;
  RankExit exit;
  WallTime at{};
};

// Why a generation ended.
struct WorkerFailed {
  RankCause cause;
};
struct NodeLost {
  std::string node;
  std::string how;
  Duration silent{};
};  // how: "connection refused", "silent".
struct NodeRebooted {
  std::string node;
};
struct SupervisorLost {
  std::string node;
  // It did not die: its workers were told to stop, by a launch command or a coordinator that is
  // gone, and why is not recorded.
  bool stopped = false;
};
struct StoreLost {
  std::string node;
};
struct StartTimedOut {
  std::string node;
  Duration limit{};
};
struct ExecFailed {
  RankCause cause;
};
struct Preempted {
  std::string node;
  bool saved = false;
};
struct Resized {
  int from = 0, to = 0;
  std::vector<std::string> joined;
};
struct Cancelled {
  std::string by;
};
struct Finished {};
using EndReason = std::variant<WorkerFailed, NodeLost, NodeRebooted, SupervisorLost, StoreLost,
                               StartTimedOut, ExecFailed, Preempted, Resized, Cancelled, Finished>;

// Own fault (WorkerFailed, StartTimedOut) is charged; everything else is free, a rank that did not
// go on in place, too: that was our wish.
constexpr bool ChargesBudget(const EndReason& reason) {
  if (const auto* failed = std::get_if<WorkerFailed>(&reason)) return !failed->cause.exit.given_up;
  return std::holds_alternative<StartTimedOut>(reason);
}
// Root cause over all nodes = highest class, then earliest time. PROTOCOL §3.
int CauseClass(const EndReason& reason);

// Why a job is over without every rank having exited 0.
struct BudgetSpent {
  int used = 0, max = 0;
};
struct CrashLoop {
  int failures = 0;
};
struct ExitCodeSaysFail {
  int code = 0;
};
struct NotExecutable {
  int error_number = 0;
  std::string program;  // The directory, where that is the obstacle.
  ExecObstacle obstacle = ExecObstacle::kProgram;
};
struct CancelledBy {
  std::string who;
  int signal = 0;
};
struct PreemptedAll {};
struct PreemptionsSpent {
  int used = 0, max = 0;
};
using FailReason = std::variant<BudgetSpent, CrashLoop, ExitCodeSaysFail, NotExecutable,
                                CancelledBy, PreemptedAll, PreemptionsSpent>;

// Where the time of one restart went. Unset: not reported by the worker, never 0 (CLI.md). The set
// ones from `detect` to `spawn` sum to `down`.
struct RestartPhases {
  Duration down{};
  std::optional<Duration> detect, decide, stop, form, spawn, init, restore, first_step;
};

// What happened to a job, in order; kept as rows (ring), shown live by launch commands and `logs
// -f`.
struct NodeJoined {
  std::string node;
  int have = 0, min = 0, max = 0;
};
struct NodeLeft {
  std::string node;
  std::string why;
  bool stays = false;  // It could not prepare, and tries again.
};
struct GenerationFormed {
  Generation generation;
  int nodes = 0, world = 0;
  Duration took{};
  std::vector<std::string> members;
};
struct GenerationRunning {
  Generation generation;
  RestartPhases phases;
  int kept = 0;  // Ranks whose process is one of the generation before.
};
struct GenerationEnded {
  Generation generation;
  EndReason reason;
  bool charged = false;
  int restarts = 0, max_restarts = 0;
};
struct CommitAccepted {
  Generation generation;
  std::int64_t step = 0;
};
struct NodeWillLeave {
  std::string node;
  Notice notice;
};
struct Waits {
  WaitReason reason;
};
struct JobEnded {
  int exit_code = 0;
  std::string state;
};  // succeeded, failed, cancelled, preempted.
using JobEventBody = std::variant<NodeJoined, NodeLeft, GenerationFormed, GenerationRunning,
                                  GenerationEnded, CommitAccepted, NodeWillLeave, Waits, JobEnded>;
struct JobEvent {
  std::uint64_t number = 0;  // From 1, gap-free per job.
  WallTime at{};
  JobEventBody body;
};

}  // namespace regroup
