#pragma once

#include <cstdint>

#include "common/base/control.h"
#include "common/base/ids.h"
#include "common/base/time.h"

namespace regroup::coordinator {

// Every number that the core decides by. The defaults are those of the protocol; tests and
// operators may change them.
struct Config {
  ClusterId new_cluster;  // The random id that a journal without one is given. REQUIRED for an
                          // empty journal.
  Version version;        // Ours; sent in every Welcome.
  // No job is given a lower number: a journal that lost its end had given them already.
  std::uint64_t first_job = 1;
  bool accept_journal = false;  // Its operator vouches for a journal found older than the fleet.
  bool check_indices = false;  // Tests: what is kept for speed is compared with what it stands for.
  bool ad_hoc = false;         // Started by `regroup run`: leaves when its last job is over.

  // Liveness.
  Duration heartbeat = std::chrono::seconds(1);
  Duration lease = std::chrono::seconds(5);
  Duration probe_interval = std::chrono::milliseconds(100);
  Duration agent_restart =
      std::chrono::minutes(2);  // Witness accepts: how long an agent may be away.
  Duration launched_restart_margin =
      std::chrono::seconds(1);  // A launched agent: the job's grace + this.
  // After recovery an agent may need this long to redial. Until then a refused witness proves
  // nothing: its group may have ended while nobody could be told, and the agent knows how.
  Duration redial = std::chrono::seconds(3);
  // Mass silence: when so many of all sessions fall silent within one lease, the fault is more
  // likely ours than theirs, and silence expires no node for `brake`.
  Duration brake = std::chrono::seconds(60);
  int brake_nodes = 3;       // At least so many nodes,
  double brake_share = 0.2;  // and at least this share of all sessions.
  int awaited_leases = 3;    // After recovery nobody expires before this many leases ...
  Duration awaited_per_node = std::chrono::milliseconds(10);  // ... plus this for every known node.

  // Life of a generation.
  Duration last_call_quiet = std::chrono::milliseconds(500);
  Duration last_call_limit = std::chrono::seconds(10);
  Duration join_batch =
      std::chrono::milliseconds(300);  // Growth takes joins this close together as one.
  Duration ack = std::chrono::seconds(2);
  Duration failure_grace = std::chrono::seconds(2);
  Duration stop_margin =
      std::chrono::seconds(1);  // After a stop's deadline a survivor is no longer waited for.
  Duration notice_margin =
      std::chrono::seconds(2);  // Of a notice's time, kept for stopping after the save.
  Duration settle = std::chrono::seconds(30);
  Duration newcomer_trial = std::chrono::minutes(5);  // A newcomer lost within it doubles `settle`.
  Duration verdict_limit =
      std::chrono::seconds(60);  // A verdict is closed so long after its members were given up.
  Duration finish_hold = std::chrono::seconds(60);
  Duration unreachable_hold = std::chrono::minutes(5);
  Duration hold = std::chrono::seconds(60);
  Duration orphan_hold =
      std::chrono::seconds(1);  // A launched job whose every node was lost: then it is preempted.
  Duration member_backoff_first = std::chrono::seconds(1);
  Duration member_backoff_limit = std::chrono::minutes(1);

  // Failure policy.
  Duration backoff_first = std::chrono::seconds(1);
  Duration backoff_limit = std::chrono::seconds(60);
  Duration free_backoff_limit = std::chrono::minutes(5);
  int crash_loop = 5;
  Duration silent_progress =
      std::chrono::seconds(60);  // Alive this long counts as progress of a silent worker.

  // Bounds.
  int max_ended_jobs = 10'000;
  Duration keep_ended = std::chrono::hours(24 * 30);
  Duration retention_sweep = std::chrono::hours(1);  // How often ages are looked at.
  Duration keep_lost_nodes = std::chrono::hours(24 * 7);
  // Lost nodes that hold nothing; beyond it the one that was lost first is forgotten.
  std::size_t max_lost_nodes = 4'096;
  // Nodes that are away but not lost. Beyond it one whose session breaks, and that holds nothing,
  // is not waited for.
  int max_away_nodes = 1'024;
  int max_events_per_job = 1'000;
  int max_generations_per_job = 100;
  int max_pending_submits = 10'000;
  int max_waiting_reads = 10'000;
  std::uint64_t min_free_bytes = 64ull << 20;  // Below it no new job.

  // Ad-hoc mode.
  Duration exit_delay = std::chrono::seconds(2);  // After the last job was over.
  Duration idle_exit = std::chrono::seconds(30);  // Nobody came at all.
};

// Bounds of one step. Nothing durable is larger.
inline constexpr int kMaxRowsPerStep = 64;
inline constexpr std::size_t kMaxBytesPerStep = 512u << 10;
inline constexpr int kMaxNodesPerJob =
    1'024;  // So that a generation's row fits twice into one step.
inline constexpr std::size_t kMaxNodeIdBytes = 64, kMaxNodeNameBytes = 63, kMaxAddressBytes = 45;
// What one node may show of jobs that this journal does not know, and of one job.
inline constexpr std::size_t kMaxUnknownJobsPerNode = 64, kMaxGroupsPerJob = 64;
inline constexpr std::size_t kMaxSpecBytes = 160u << 10;

}  // namespace regroup::coordinator
