#pragma once

// What happens to an agent, and what it has done about it. Plain values: the core (core.h) turns
// the first into the second, the shell carries them out. PROTOCOL §5, §7.

#include <compare>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "common/base/control.h"
#include "common/base/ids.h"
#include "common/base/time.h"

namespace regroup::agent {

// One group: the workers of one generation of one job on this node.
struct GroupKey {
  JobId job;
  Generation generation;
  friend auto operator<=>(const GroupKey&, const GroupKey&) = default;
};

// Instants of an agent are CLOCK_BOOTTIME, so that those of an earlier life of it, found in run
// directories, compare.
struct RankStarted {
  int local_rank = 0;
  std::int64_t pid = 0;
  Instant at{};
  friend bool operator==(const RankStarted&, const RankStarted&) = default;
};
struct RankEnded {
  int local_rank = 0;
  ExitKind kind = ExitKind::kExited;
  int code = 0;
  bool after_stop = false;
  OomEvidence oom = OomEvidence::kNone;
  std::int64_t pid = 0;
  Instant at{};
  std::string error{};
  ExecObstacle obstacle = ExecObstacle::kProgram;
  ErrorEvidence evidence = ErrorEvidence::kNone;
  bool given_up = false;  // By this agent, which says why in `error`.
  friend bool operator==(const RankEnded&, const RankEnded&) = default;
};

// ---- facts -------------------------------------------------------------------------------------

struct StoreSeen {
  bool hosted = false;
  bool alive = false;
  bool closed = false;             // The mark that it was ordered to end is there.
  std::optional<Address> address;  // Once it is bound.
  friend bool operator==(const StoreSeen&, const StoreSeen&) = default;
};

// What one run directory and the shim behind it say: absolute, whoever asks and however often.
struct RunRecord {
  GroupKey key;
  BootId boot;
  int workers = 0;          // 0: not known, so that it may hold every slot.
  std::vector<int> slots;   // By number; empty: an older agent did not give them out by number.
  bool started = false;     // The started mark is there: `run` was obeyed.
  bool shim_alive = false;  // It answers; of an earlier life's, the run directory's lock is held.
  bool unheard = false;     // It has not answered yet, and is not known to be gone.
  bool checking = false;    // Its node check runs, or may have left something of its own.
  bool empty = false;       // The shim saw the last process of the group end.
  // With `empty`: what its failed ranks left behind is not read yet, or, where people watch, what
  // its ranks printed not shown.
  bool awaits_words = false;
  bool killed = false;  // The killed mark is there: the shim was lost, and what it left is gone.
  bool unkillable = false;               // Its shim has killed it, and it is not gone.
  std::string check_failed;              // How; empty: it has not.
  std::optional<Instant> stop_deadline;  // The shim was told to stop.
  StoreSeen store;
  std::optional<Address> witness;
  // Also kept ranks of a generation that was not started yet.
  std::vector<RankStarted> starts;
  std::vector<RankEnded> exits;
  std::set<int> kept;       // Local ranks whose process is older than this generation.
  std::set<int> signalled;  // Local ranks that the noticed mark names: they were signalled alone.
  friend bool operator==(const RunRecord&, const RunRecord&) = default;
};
struct Scanned {  // First event of an agent's life: every run directory has been read.
  std::vector<RunRecord> records;
};

struct CoordinatorFound {  // A session is open; nothing was said yet.
  std::string address;     // Local IP of this session.
  std::string dialled;     // IP of the coordinator as it was reached.
};
struct Welcomed {
  Welcome welcome;
};
struct CoordinatorRefused {  // Instead of a Welcome, or as the answer to a launch.
  std::string why;
};
struct CoordinatorAway {};   // The session is broken.
struct CoordinatorSpoke {};  // Any message of it.
struct Ordered {
  Order order;
};
struct ReportAcked {
  ReportNo number;
};
struct CommitAnswered {
  CommitAnswer answer;
};
struct LaunchAccepted {};  // This launch command belongs to a job.
struct EnoughJoined {};    // More nodes than the job of this launch command can use.
struct JobOver {           // The job of this launch command.
  int exit_code = 0;
};

struct RunDirectoryWritten {
  GroupKey key;
};
struct PrepareFailed {  // Any part of it: run directory, shim, store.
  GroupKey key;
  std::string why;
};
struct WarmedUp {  // Its ranks can be forked, or it is known that they cannot.
  GroupKey key;
};
struct GroupSeen {  // Something of it has changed, or nothing has.
  RunRecord record;
};
struct RankErrorRead {  // What a failed rank left behind was read again, more of it than at its
                        // exit.
  GroupKey key;
  int local_rank = 0;
  std::string error;
  ErrorEvidence evidence = ErrorEvidence::kNone;
};
struct LeftoversKilled {  // One round of KillGroup is over.
  GroupKey key;
  bool none = false;  // There was nothing to kill.
};

struct WorkerHello {  // Of a kept rank also: it has taken this generation.
  bool takes_notice = false;
  bool in_place = false;  // It can retire, and go on in the next generation.
};
struct CommunicatorFailed {
  std::string text;
};
struct WorkerRetired {};  // It has left its generation, and waits for the next one.
struct WorkerCannotGoOn {
  std::string why;
};
struct WorkerSaid {
  GroupKey key;
  int rank = 0, local_rank = 0;
  std::variant<WorkerHello, WorkerProgress, CommitRequest, CommunicatorFailed, WorkerRetired,
               WorkerCannotGoOn>
      what;
};
struct WorkerHungUp {  // Its connection closed.
  GroupKey key;
  int local_rank = 0;
};
struct SignalCaught {
  int signal = 0;
};
struct Tick {};  // now >= NextDeadline().

using Event =
    std::variant<Scanned, CoordinatorFound, Welcomed, CoordinatorRefused, CoordinatorAway,
                 CoordinatorSpoke, Ordered, ReportAcked, CommitAnswered, LaunchAccepted,
                 EnoughJoined, JobOver, RunDirectoryWritten, PrepareFailed, WarmedUp, GroupSeen,
                 RankErrorRead, LeftoversKilled, WorkerSaid, WorkerHungUp, SignalCaught, Tick>;

// ---- orders to the shell, carried out in sequence

// The run directory: the record of the group, complete before its shim exists. Answered by
// RunDirectoryWritten or PrepareFailed.
struct WriteRunDirectory {
  GroupKey key;
  Prepare prepare;
  std::vector<int> slots{};  // One number per worker: which of this node's.
};
// Has what the ranks need imported, by a process that they can be forked from. Answered by
// WarmedUp, at once where there is such a process.
struct WarmUp {
  GroupKey key;
};
struct SpawnShim {  // Answered by a GroupSeen with its shim alive, or PrepareFailed.
  GroupKey key;
};
// Instead of SpawnShim: the shim of a retired group becomes that of the next generation's, with the
// ranks that live and the same witness. Answered by `to` with its shim alive and then `from` empty,
// whose record keeps the exits until then, or by PrepareFailed of `to`, also where the group had
// ended before. Ends of ranks that come before it are told before the answer, of `from`. A shim
// that ends without an answer is gone from `from`, which is never empty: what its ranks have
// started may live. Until the answer nothing is ordered of the group `from`, but KillShim.
struct HandOver {
  GroupKey from, to;
};
struct SpawnStore {  // Answered by a GroupSeen with its address, or PrepareFailed.
  GroupKey key;
};
// Its shim writes the started mark before the first rank and starts ranks once ever, however often
// it is told. `kept` are ranks that live since an earlier generation: they are told of this one.
struct StartRanks {
  GroupKey key;
  Run run;
  std::set<int> kept{};
};
struct StopRanks {  // SIGTERM now, SIGKILL at the deadline. Repeated with an earlier deadline only.
  GroupKey key;
  Instant deadline;
  // The job has ended well, all ranks of this node by themselves: what is left, they left behind.
  bool finished = false;
};
// To that rank's process alone. The noticed mark of the run directory names it before the signal
// leaves.
struct SignalRank {
  GroupKey key;
  int local_rank = 0;
  int signal = 0;
};
struct KillRank {  // SIGKILL to that rank's process alone; its end is told as any other.
  GroupKey key;
  int local_rank = 0;
};
struct KillGroup {  // Its shim is gone: whatever of it is found is killed, once. Answered by
                    // LeftoversKilled.
  GroupKey key;
};
struct MarkKilled {  // The killed mark is in the run directory when this has been carried out.
  GroupKey key;
};
struct KillShim {  // It does not answer. Answered by a GroupSeen with its shim gone.
  GroupKey key;
};
struct ReleaseShim {  // The coordinator knows that its group is free and how: it need not wait.
  GroupKey key;
};
struct CloseStore {  // The mark is in the run directory before the store ends.
  GroupKey key;
};
struct EndNursery {  // Of ranks of this job, if there is one.
  JobId job;
};
struct RemoveRunDirectory {  // Shim and store of it end too. Logs stay.
  GroupKey key;
};

struct SendHello {
  Hello hello;
};
struct RememberCoordinator {  // Durable on return, for an agent that is a service.
  ClusterId cluster;
  Epoch epoch;
};
struct RefuseCoordinator {  // Close this session; dial again, patiently.
  std::string why;
};
struct BreakSession {  // Nothing was heard for a lease: close it; dial again, soon and briefly.
  std::string why;
};
struct SendLaunch {};
struct SendReport {
  GroupReport report;
};
struct SendProgress {
  WorkerProgress progress;
};
struct SendCommit {
  CommitRequest request;
};
struct SendNotice {
  Notice notice;
};
struct SendLeave {  // This launch command leaves its job, or has read that it is over.
  int signal = 0;
  bool now = false;
};
struct ShowLeaving {  // For people, where a launch command shows anything: this node leaves.
  int signal = 0;
  Duration left{};     // Until its workers are killed.
  bool again = false;  // The second signal.
};
struct ShowLateOutput {  // For people: what that group printed last may not be shown.
  GroupKey key;
};
struct SendHeartbeat {
  OrderNo obeyed;
};
struct TellNotice {
  GroupKey key;
  int local_rank = 0;
  Duration left{};
};
struct TellRetire {  // To the connection of that rank: leave this generation, and live.
  GroupKey key;
  int local_rank = 0;
  Duration left{};
};
struct TellCommit {
  GroupKey key;
  CommitAnswer answer;
};
struct StartCoordinator {};  // This host hosts it, and it does not answer.
struct Leave {               // End the process. Nothing follows.
  int exit_code = 0;
  std::string why;    // For exit code 125: what to tell the user.
  bool gone = false;  // This node has left: nothing of what is over is kept for a next life.
};

using Action =
    std::variant<WriteRunDirectory, WarmUp, SpawnShim, HandOver, SpawnStore, StartRanks, StopRanks,
                 SignalRank, KillRank, KillGroup, MarkKilled, KillShim, ReleaseShim, CloseStore,
                 RemoveRunDirectory, EndNursery, SendHello, RememberCoordinator, RefuseCoordinator,
                 BreakSession, SendLaunch, SendReport, SendProgress, SendCommit, SendNotice,
                 SendLeave, ShowLeaving, ShowLateOutput, SendHeartbeat, TellNotice, TellRetire,
                 TellCommit, StartCoordinator, Leave>;

struct Effects {
  std::vector<Action> actions;
  std::vector<std::string> notes;  // For the log.
};

}  // namespace regroup::agent
