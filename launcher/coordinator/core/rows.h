#pragma once

// Durable state. A record is a row: key → whole value, or deletion. Rows hold ids, counts and
// durations, never instants; wall time is for display. The shell maps them to record.proto, field
// by field. PROTOCOL §1.

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "common/base/control.h"
#include "common/base/ids.h"
#include "common/base/job_spec.h"
#include "common/base/reasons.h"
#include "common/base/time.h"
#include "common/base/views.h"

namespace regroup::coordinator {

using Key = std::string;  // Numbers in keys are zero-padded: byte order is numeric order.

inline constexpr std::uint32_t kRowFormat = 1;

// Whose journal this is. Each life of a coordinator writes it before anything else, so that its
// epoch is durable before an agent hears of it.
struct MetaRow {  // `meta`
  ClusterId cluster;
  Epoch epoch;  // Of the coordinator that wrote it; the next one takes epoch + 1.
  std::uint32_t format = kRowFormat;
  Epoch older_than;  // Not 0: an agent showed this higher epoch. This journal must not be used any
                     // more.
};

struct TakenSlots {  // A group that an ended generation left behind on a node that is unreachable
                     // or can not kill it.
  JobId job;
  Generation generation;
  int slots = 0;
  bool unkillable = false;
  friend bool operator==(const TakenSlots&, const TakenSlots&) = default;
};
struct NodeLaunch {  // The launch command that this node's agent serves.
  std::string key;
  JobId job;
  int workers = 1;
  bool left = false;  // It asked to leave: no member of later generations.
  friend bool operator==(const NodeLaunch&, const NodeLaunch&) = default;
};
// What outlives a coordinator about a node: who it is, and what it may still hold. How it is
// reached is soft (node.h).
struct NodeRow {  // `node/N`
  NodeId node;
  std::string name;  // As accepted: possibly NAME-2.
  bool name_explicit = false;
  Incarnation incarnation;
  BootId boot;
  std::string address, dialled;
  int slots = 1;
  bool gpu_slots = false;  // Each stands for a GPU, or for several.
  bool launched = false;
  Version version;
  bool lost = false;
  std::string lost_how;
  std::optional<NodeLaunch> launch;
  std::vector<TakenSlots> taken;
  friend bool operator==(const NodeRow&, const NodeRow&) = default;
};

struct JobSpecRow {  // `job/J/spec`, written once.
  JobId job;
  std::uint64_t sequence = 0;  // Of its admission; the N of NAME-N. FIFO order.
  JobSpec spec;
  std::string key;  // Idempotency key of the submit; of a launched job, the first launcher's.
  bool standalone = false;
  WallTime created_at{};
};

enum class JobPhase {
  kQueued,      // Submitted. Holds no nodes; waits for its turn, and for enough of them.
  kGathering,   // Launched. Waits for more launch commands.
  kForming,     // Its first generation is proposed, or formed and not running yet.
  kRunning,     // All ranks of the formed generation have started; until that is over.
  kRegrouping,  // Between two generations, from the end of one until the next one runs.
  kPreempted,   // Launched: every node has left. Goes on when one comes with the same command.
  kEnding,      // It has its verdict; what runs is being stopped.
  kEnded        // Nothing of it runs where it can be reached. Never changes again.
};
// Time of one node: an hour of two nodes is two hours. Coarser than Duration, for there may be
// thousands of them for years.
using NodeTime = std::chrono::duration<std::int64_t, std::micro>;
struct HeldTime {  // Of nodes that a job held.
  NodeTime held{};
  NodeTime lost{};  // Of it, to failures and preemptions.
  friend bool operator==(const HeldTime&, const HeldTime&) = default;
};
enum class VerdictState { kSucceeded, kFailed, kCancelled };
struct Verdict {  // Final.
  VerdictState state = VerdictState::kSucceeded;
  int exit_code = 0;  // What launch commands and `wait` exit with.
  std::optional<FailReason> failed;
};
struct ExcludedNode {  // It could not execute the program.
  NodeId node;
  std::string name;
  int error_number = 0;
  ExecObstacle obstacle = ExecObstacle::kProgram;
};
struct AcceptedCancel {
  std::string key;   // Its idempotency key; empty: none was accepted.
  bool now = false;  // It gave no grace.
};
struct EndsCounted {  // What ended generations have cost their job.
  int charged = 0;    // Restarts.
  // With a restart window: how long ago each charge was, when this row was written.
  std::vector<Duration> charges;
  int own = 0;          // In a row without progress, charged ones.
  int free = 0;         // In a row without progress, free ones.
  int preemptions = 0;  // That a notice ended.
};
struct Reached {  // By generations that are over.
  std::int64_t step = 0;
  std::int64_t samples = 0, tokens = 0;  // 0: not told.
};
// All of a job that changes, but for its generations: small, because most steps write it.
struct JobStateRow {  // `job/J/state`
  JobId job;
  JobPhase phase = JobPhase::kQueued;
  Generation last_number;  // Highest number any proposal took; never used again.
  Generation last_formed;
  std::optional<Verdict> verdict;
  AcceptedCancel cancel;
  EndsCounted ends;
  int regroups = 0, growths = 0;
  Reached reached;
  std::vector<ExcludedNode> excluded;
  TimeAccount account;                 // Of generations that are over; idle is left 0.
  HeldTime held;                       // Likewise.
  std::optional<WallTime> started_at;  // When its first generation formed.
  std::optional<WallTime> ended_at;
  Duration ran_for{};  // Of an ended job.
};

enum class GenerationPhase {
  kProposed,  // Its members were asked to prepare.
  kFormed,    // All have prepared: they may run, until the last of them has stopped.
  kOver       // It ended, or never formed (`voided`). Its verdict may still be open.
};
struct GenerationMember {  // Its index in the row is its group rank.
  NodeId node;
  std::string name;
  std::string address;  // As other members are told.
  int workers = 1;
  std::optional<Address> witness;
  bool witness_verified = false;   // It answered once.
  std::vector<std::int64_t> pids;  // By local rank, once started.
  // It was chosen among nodes that the job never had, for these; 0: it was not.
  int free_slots = 0;
};
struct StepsTold {  // By workers of one generation.
  std::optional<std::int64_t> first, last, restored;
};
// Members stay as they were proposed; a generation with other members has another number.
struct GenerationRow {  // `job/J/gen/G`
  JobId job;
  Generation generation;
  GenerationPhase phase = GenerationPhase::kProposed;
  bool voided = false;    // Over without ever having formed.
  bool elective = false;  // Proposed while another generation ran.
  std::vector<GenerationMember> members;
  std::optional<Address> store;
  int restart_count = 0;
  std::int64_t resume_step = 0;
  WallTime proposed_at{};
  std::optional<WallTime> formed_at, ended_at;
  std::optional<EndReason> ended;  // While verdict_open: the worst cause so far.
  bool verdict_open = false, charged = false;
  bool progressed = false;  // A higher step, a commit, or a silent worker that lived long enough.
  std::vector<RankCause> consequences;
  RestartPhases phases;
  StepsTold steps;
};
int WorldOf(const GenerationRow& row);  // Workers of all its members.

struct DoneRow {  // `job/J/done/N`: ranks of node N that exited 0 in this generation.
  JobId job;
  NodeId node;
  Generation generation;
  std::vector<int> local_ranks;
};

struct CommitRow {  // `job/J/commit`: the newest accepted checkpoint.
  JobId job;
  Generation generation;
  std::uint64_t attempt = 0;
  std::int64_t step = 0;
  std::string manifest_hash, path;
  bool for_notice = false;
  WallTime at{};
};

struct JobEventRow {  // `job/J/event/K`, K = number modulo the ring's size.
  JobId job;
  JobEvent event;
};

using Value = std::variant<MetaRow, NodeRow, JobSpecRow, JobStateRow, GenerationRow, DoneRow,
                           CommitRow, JobEventRow>;
struct Row {  // Whole replacement; nullopt deletes, all below it where the key ends with a slash.
  Key key;
  std::optional<Value> value;
};

Key MetaKey();
Key NodeKey(const NodeId& node);
Key JobSpecKey(const JobId& job);
Key JobStateKey(const JobId& job);
Key GenerationKey(const JobId& job, Generation generation);
Key DoneKey(const JobId& job, const NodeId& node);
Key CommitKey(const JobId& job);
Key JobEventKey(const JobId& job, std::uint64_t slot);  // slot = number modulo the ring's size.
Key JobFolder(const JobId& job);  // `job/J/`: to delete it deletes every row of the job.

// Of a job that has ended a start reads spec, state, commit and this many generations, the newest;
// and no more of them is in memory. The rest of its history is read when somebody asks.
inline constexpr std::size_t kGenerationsKept = 8;

// Two generations' rows fit into one step: pids, then witnesses are left out of a row that is too
// large.
void FitRow(GenerationRow& row);

// An upper bound of the row's size once encoded.
std::size_t EstimateBytes(const Row& row);

}  // namespace regroup::coordinator
