#pragma once

// What the coordinator and an agent say to each other, as plain values: both cores use these,
// common/rpc/convert maps them to coordinator.proto. PROTOCOL §7. Every message is absolute and
// repeatable.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/base/gpu.h"
#include "common/base/ids.h"
#include "common/base/job_spec.h"
#include "common/base/time.h"

namespace regroup {

struct Address {
  std::string host;  // An IP literal, never a name; IPv6 without brackets.
  std::uint16_t port = 0;
  friend auto operator<=>(const Address&, const Address&) = default;
};

struct Version {
  std::uint32_t major = 1, minor = 0;  // Of the protocol. One minor apart works both ways.
  std::string build;                   // Commit and build type; for people.
  friend bool operator==(const Version&, const Version&) = default;
};
inline constexpr std::uint32_t kProtocolMajor = 1, kProtocolMinor = 3;

// ---- agent → coordinator -----------------------------------------------------------------------

enum class ExitKind {
  kExited,
  kSignaled,
  kExecFailed
};  // code: exit status, signal number, errno.
// What could not be had: the program itself, the interpreter that it names, its directory.
enum class ExecObstacle { kProgram, kInterpreter, kDirectory };
enum class OomEvidence {
  kNone,
  kCounted,
  kProbable
};  // cgroup memory.events, or /proc/vmstat only.

// What a failed rank's own words tell about the cause. kErrorFile: it left one. kCommunicator: what
// it told of, there or on stderr, is the loss of its peers.
enum class ErrorEvidence { kNone, kErrorFile, kCommunicator };

struct RankExit {
  int local_rank = 0;
  ExitKind kind = ExitKind::kExited;
  int code = 0;
  bool after_stop = false;  // We had signalled it: never a cause.
  OomEvidence oom = OomEvidence::kNone;
  std::int64_t pid = 0;
  Duration age{};  // How long ago, when this was sent.
  std::string
      error;  // Error file's message, else the last 20 lines of stderr; at most kMaxErrorBytes.
  ExecObstacle obstacle = ExecObstacle::kProgram;  // kExecFailed only.
  ErrorEvidence evidence = ErrorEvidence::kNone;
  // Its agent has killed it, since it did not go on in place: `error` says why.
  bool given_up = false;
  friend bool operator==(const RankExit&, const RankExit&) = default;
};
inline constexpr std::size_t kMaxErrorBytes = 8192;

struct RankStart {
  int local_rank = 0;
  std::int64_t pid = 0;
  Duration age{};
  bool kept = false;  // Its process is one of an earlier generation.
  friend bool operator==(const RankStart&, const RankStart&) = default;
};

// kRetired: its ranks have ended or have left their generation alive, and wait to become ranks of
// their job's next one on this node. The slots are that job's alone.
enum class Phase {
  kPreparing,
  kPrepared,
  kStarting,
  kRunning,
  kStopping,
  kFree,
  kUnkillable,
  kRetired
};

// The whole state of one job's group on one node. kRunning = every rank was started. kFree = no
// process of it is left and its slots can be used; its exits stay in the report until Forget.
struct GroupReport {
  ReportNo number;
  JobId job;
  Generation generation;
  Phase phase = Phase::kPreparing;
  std::optional<Address> store;    // The listening store, when this node hosts it.
  std::optional<Address> witness;  // The shim's witness port.
  std::vector<RankStart> started;
  std::vector<RankExit> exits;
  bool supervisor_lost = false;  // The shim died; what it had was killed.
  bool store_lost = false;
  std::string refused;  // Not empty: this Prepare could not be done, and why. Phase is kFree.
  friend bool operator==(const GroupReport&, const GroupReport&) = default;
};

enum class NoticeSource { kSignal };
// This node will go away. For a launch command, `leave` says that it does so by itself once its
// workers are gone.
struct Notice {
  NoticeSource source = NoticeSource::kSignal;
  int signal = 0;   // 0: a launch command's --join-timeout is over.
  Duration left{};  // Until the node is gone, when this was sent.
  friend bool operator==(const Notice&, const Notice&) = default;
};

struct Hello {
  ClusterId cluster;  // Empty: this agent follows nobody yet.
  Epoch highest_epoch;
  NodeId node;
  Incarnation incarnation;
  BootId boot;
  std::string name;            // Label.
  bool name_explicit = false;  // Given by --node-name: a clash is refused instead of renamed.
  int slots = 1;
  bool gpu_slots = false;  // Each stands for a GPU, or for several.
  Version version;
  std::string address;              // Local IP of this session: what other nodes are told.
  std::string dialled;              // IP of the coordinator as this agent reached it.
  bool launched = false;            // By `regroup run`; else a daemon.
  std::vector<GroupReport> groups;  // The whole inventory.
  std::vector<Notice> notices;
  // Why groups of this node get no cgroup, for people; empty: they get one, or the agent is older
  // than this field.
  std::string no_cgroup;
};

// A launch command asks to take part. Repeated with the same key after every reconnect; means the
// same each time.
struct LaunchRequest {
  std::string key;          // Random, one per launch command.
  std::string rdzv_id;      // Grammar of a job name.
  bool standalone = false;  // One node without an endpoint: always a new job.
  JobSpec spec;    // origin kLaunched. Bounds and budget must agree over all launchers of a job.
  Duration age{};  // Since the launch command started.
};

struct WorkerProgress {  // Of one rank; absolute.
  JobId job;
  Generation generation;
  int rank = 0;
  std::int64_t step = 0;
  std::int64_t samples = 0;  // Done so far by the whole job; 0: not told.
  std::optional<double> loss;
  std::optional<double> tokens_per_second;
  std::optional<std::int64_t> restored_step;  // Step this generation resumed from.
  // Durations of this worker's life so far, where it told them.
  std::optional<Duration> init, restore, first_step, checkpoint;
  std::optional<std::int64_t> tokens;  // As samples.
};

struct CommitRequest {  // Rank 0 has every rank's shard on disk and asks to publish. Answered by
                        // CommitAnswer.
  JobId job;
  Generation generation;
  std::uint64_t attempt = 0;
  std::int64_t step = 0;
  std::string manifest_hash;  // Lower-case hex.
  std::string path;
  bool for_notice =
      false;  // The save that a notice asked for: no step follows it in this generation.
};

struct HeartbeatMessage {
  OrderNo obeyed;
  std::uint64_t warm_bytes = 0;  // Memory of what the node's warm ranks are forked from.
  // As they are now; unset: as this session has said before, or there are none.
  std::optional<std::vector<Gpu>> gpus{};
};

// ---- coordinator → agent -----------------------------------------------------------------------

struct Welcome {
  ClusterId cluster;
  Epoch epoch;
  std::string name;  // Possibly NAME-2.
  Version version;
  Duration heartbeat{}, lease{};
  Duration agent_restart = std::chrono::minutes(2);
  bool answers_heartbeats = false;  // An older coordinator does not.
};

struct GroupSpec {  // What a node needs to know before ranks exist.
  int workers = 1;
  JobSpec job;  // Launched jobs: command, directory, environment and node_check are ignored by the
                // agent (CLI.md, Program).
};
struct Prepare {
  Generation generation;
  GroupSpec spec;
  bool host_store = false;
  std::vector<std::string> store_members;  // IPs that the store accepts; only where host_store.
  std::string advertise;  // This node's IP as other members are told it; the store binds it.
  friend bool operator==(const Prepare& a, const Prepare& b) {
    return a.generation == b.generation;
  }
};
struct RankAssignment {
  int local_rank = 0, rank = 0;
  friend bool operator==(const RankAssignment&, const RankAssignment&) = default;
};
struct Run {
  Generation generation;
  Address store;
  std::vector<RankAssignment> mine;
  int group_rank = 0, group_size = 1, world_size = 1;
  int restart_count = 0, max_restarts = 0;
  bool many_hosts = false;       // Members have more than one IP: export *_SOCKET_IFNAME.
  std::int64_t resume_step = 0;  // Of the newest accepted commit; 0: none.
  friend bool operator==(const Run&, const Run&) = default;
};
enum class StopReason { kFailure, kElective, kNotice, kCancelled, kSuperseded };
struct Stop {  // Every generation <= up_to. Its deadline never moves later.
  Generation up_to;
  Duration grace{};
  StopReason reason = StopReason::kFailure;
  // Ranks that can live through it retire (Phase::kRetired); a group in which one cannot is stopped
  // as a whole. Who has not retired by the end of the grace is killed. A stop without it ends what
  // an earlier one has retired.
  bool in_place = false;
  friend bool operator==(const Stop&, const Stop&) = default;
};
struct Forget {
  Generation up_to;
  friend bool operator==(const Forget&, const Forget&) = default;
};
struct WorkerNotice {  // To workers of one generation: save within `left`, then wait to be stopped.
  Generation generation;
  Duration left{};
  friend bool operator==(const WorkerNotice&, const WorkerNotice&) = default;
};
// The whole desired state of one job on one node. Absence means nothing; forget and stop are
// cumulative.
struct Order {
  OrderNo number;
  JobId job;
  std::optional<Forget> forget;
  std::optional<Stop> stop;
  std::optional<Prepare> prepare;
  std::optional<Run> run;
  std::optional<WorkerNotice> notice;
};

struct CommitAnswer {
  JobId job;
  Generation generation;
  std::uint64_t attempt = 0;
  std::int64_t step = 0;
  bool accepted = false;
  std::string why_not;
};

}  // namespace regroup
