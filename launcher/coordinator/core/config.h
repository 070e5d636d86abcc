#pragma once

#include <cstdint>

#include "common/base/control.h"
#include "common/base/ids.h"
#include "common/base/job_spec.h"
#include "common/base/time.h"

namespace regroup::coordinator {

// Every number that the core decides by, grouped by what it is about. The defaults are those of the
// protocol; tests and operators may change them.

// Whose journal this is, and how much of it is believed.
struct JournalConfig {
  ClusterId new_cluster;  // The random id that a journal without one is given. REQUIRED for an
                          // empty journal.
  // No job is given a lower number: a journal that lost its end had given them already.
  std::uint64_t first_job = 1;
  bool accept = false;  // Its operator vouches for a journal found older than the fleet.
};

// How long a node is believed to live without a word of it.
struct LeaseConfig {
  Duration heartbeat = std::chrono::seconds(1);
  Duration lease = std::chrono::seconds(5);
  Duration first_probe_interval = std::chrono::milliseconds(10);
  Duration probe_interval = std::chrono::milliseconds(100);
  // How long an agent may be away while the witness of its group accepts.
  Duration agent_restart = std::chrono::minutes(2);
  // An agent that was launched: its job's grace and this.
  Duration launched_restart_margin = std::chrono::seconds(1);
  // After recovery an agent may need this long to redial. Until then a refused witness proves
  // nothing: its group may have ended while nobody could be told, and the agent knows how.
  Duration redial = std::chrono::seconds(3);
  int awaited_leases = 3;  // After recovery nobody expires before this many leases ...
  Duration awaited_per_node = std::chrono::milliseconds(10);  // ... plus this for every known node.
};

// Mass silence: when so many of all sessions fall silent within one lease, the fault is more likely
// ours than theirs, and silence expires no node for a while.
struct BrakeConfig {
  Duration lasts = std::chrono::seconds(60);
  int nodes = 3;       // At least so many nodes,
  double share = 0.2;  // and at least this share of all sessions.
};

// From enough nodes to a generation, and to a larger one.
struct FormingConfig {
  Duration last_call_quiet = std::chrono::milliseconds(500);
  Duration last_call_limit = std::chrono::seconds(10);
  // Growth takes joins this close together as one.
  Duration join_batch = std::chrono::milliseconds(300);
  Duration ack = std::chrono::seconds(2);  // For a member to prepare, since the last one that has.
  Duration warm_up = kWarmUpLimit;         // More, where members' ranks wait for imports.
  Duration settle = std::chrono::seconds(30);
  Duration newcomer_trial = std::chrono::minutes(5);  // A newcomer lost within it doubles `settle`.
  // A member that voided a proposal is no candidate for the first of these, and twice as long each
  // further time.
  Duration member_backoff_first = std::chrono::seconds(1);
  Duration member_backoff_limit = std::chrono::minutes(1);
};

// From the end of a generation to the last word about it.
struct EndingConfig {
  Duration failure_grace = std::chrono::seconds(2);
  // After a stop's deadline a survivor is no longer waited for.
  Duration stop_margin = std::chrono::seconds(1);
  // Of a notice's time, kept for stopping after the save.
  Duration notice_margin = std::chrono::seconds(2);
  // A verdict is closed so long after its members were given up.
  Duration verdict_limit = std::chrono::seconds(60);
};

// How long something is held for who may come back.
struct HoldConfig {
  Duration finish = std::chrono::seconds(60);      // All others are done: for the news of one.
  Duration unreachable = std::chrono::minutes(5);  // A generation that no member of is heard.
  Duration nodes = std::chrono::seconds(60);  // Nodes of a job below its minimum; then it queues.
  // A launched job whose every node was lost: then it is preempted.
  Duration orphan = std::chrono::seconds(1);
};

// What follows a failure.
struct RetryConfig {
  Duration backoff_first = std::chrono::seconds(1);
  Duration backoff_limit = std::chrono::seconds(60);
  Duration free_backoff_limit = std::chrono::minutes(5);
  int crash_loop = 5;
  // Alive this long counts as progress of a silent worker.
  Duration silent_progress = std::chrono::seconds(60);
};

// How much is kept and waited for at most.
struct LimitConfig {
  int ended_jobs = 10'000;
  // Lost nodes that hold nothing; beyond it the one that was lost first is forgotten.
  std::size_t lost_nodes = 4'096;
  // Nodes that are away but not lost. Beyond it one whose session breaks, and that holds nothing,
  // is not waited for.
  int away_nodes = 1'024;
  int events_per_job = 1'000;
  int generations_per_job = 100;
  int pending_submits = 10'000;
  int waiting_reads = 10'000;
  std::uint64_t min_free_bytes = 64ull << 20;  // Below it no new job.
};

// How long what is over is kept.
struct RetentionConfig {
  Duration ended_jobs = std::chrono::hours(24 * 30);
  Duration lost_nodes = std::chrono::hours(24 * 7);
  Duration sweep = std::chrono::hours(1);  // How often ages are looked at.
};

// Of a coordinator that `regroup run` started: it leaves when its last job is over.
struct AdHocConfig {
  bool on = false;
  // After the last job was over, and after the last launch command was told so: it has to read it.
  Duration exit_delay = std::chrono::seconds(2);
  Duration idle_exit = std::chrono::seconds(30);  // Nobody came at all.
};

struct Config {
  Version version;             // Ours; sent in every Welcome.
  bool check_indices = false;  // Tests: what is kept for speed is compared with what it stands for.
  JournalConfig journal;
  LeaseConfig leases;
  BrakeConfig brake;
  FormingConfig forming;
  EndingConfig ending;
  HoldConfig holds;
  RetryConfig retries;
  LimitConfig limits;
  RetentionConfig retention;
  AdHocConfig ad_hoc;
};

// Bounds of one step. Nothing durable is larger.
inline constexpr int kMaxRowsPerStep = 64;
inline constexpr std::size_t kMaxBytesPerStep = 2u << 20;
inline constexpr int kMaxRanksPerJob = 65'536;  // What an agent is told fits into one message.
inline constexpr int kMaxNodesPerJob = 4'096;   // A generation's row fits twice into one step.
inline constexpr std::size_t kMaxNodeIdBytes = 64, kMaxNodeNameBytes = 63, kMaxAddressBytes = 45;
// What one node may show of jobs that this journal does not know, and of one job.
inline constexpr std::size_t kMaxUnknownJobsPerNode = 64, kMaxGroupsPerJob = 64;
inline constexpr std::size_t kMaxSpecBytes = 160u << 10;

}  // namespace regroup::coordinator
