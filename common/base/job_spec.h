#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/base/time.h"

namespace regroup {

enum class ScaleUp { kSettle, kNow, kNext, kNever };
enum class ExitAction {
  kRetry,
  kFail
};  // What a job file's retry.exit_codes maps an exit code to.
enum class JobOrigin { kLaunched, kSubmitted };  // `regroup run` on each node, or `regroup submit`.

// What says whether a node may take part: run on each member before each generation, once its slots
// are free and before its first rank. 0: it may.
struct NodeCheck {
  std::string command;  // A line for sh -c; empty: none. A launched node runs its own command's.
  Duration timeout = std::chrono::minutes(1);
  bool wanted() const { return !command.empty(); }
  friend bool operator==(const NodeCheck&, const NodeCheck&) = default;
};

// How long a member's ranks wait, at most, for a process of theirs that imports. Of a stack on a
// shared file system 80 s were measured; what takes longer starts cold.
inline constexpr Duration kWarmUpLimit = std::chrono::minutes(2);

inline constexpr std::uint64_t kKeepAllLogs = ~std::uint64_t{0};

// For JobSpec::workers_per_node: on each node as many as its slots, which have to be GPUs. Such a
// job shares its nodes with no other.
inline constexpr int kWorkerPerGpu = -1;

// What a job is, as one person asked for it; never changed after it was accepted. Validated by
// ValidateJobSpec (common/config); the limits are stated there.
struct JobSpec {
  std::string name;  // [a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?
  JobOrigin origin = JobOrigin::kSubmitted;
  int min_nodes = 1, max_nodes = 1,
      unit = 1;  // World size counts nodes here: a multiple of unit in [min, max].
  // Of a submitted job; or kWorkerPerGpu. Launched: each launcher brings its own (LaunchRequest).
  int workers_per_node = 1;
  std::vector<std::string>
      command;            // argv. Launched jobs: for display only; never executed by an agent.
  std::string directory;  // Of a submitted job; absolute.
  std::map<std::string, std::string> environment;  // Of a submitted job, over the allow-list.
  Duration grace = std::chrono::seconds(30);
  Duration start_timeout = std::chrono::seconds(10);
  int max_restarts = 0;
  std::optional<Duration> restart_window;  // Unset: the whole job.
  std::optional<int> max_preemptions;      // Generations that a notice may end; unset: any number.
  std::map<int, ExitAction> exit_codes;
  ScaleUp scale_up = ScaleUp::kSettle;
  std::string role = "default";  // ROLE_NAME; the same on all nodes.
  std::string numa_binding;  // Of a submitted job: empty, node, socket, exclusive, core-complex.
  bool virtual_local_rank = false;  // Of a submitted job.
  bool sets_master_port = false;    // Of a submitted job: its program seems to say where it meets.
  NodeCheck node_check;
  // Unset: ranks start cold. Else each node forks them from a process that has imported these
  // modules; none named: those that the script imports at its top.
  std::optional<std::vector<std::string>> warm;
  // Ranks that can keep their process when their generation ends, and go on in the next one. Unset:
  // they do not, but where the program seems to ask for it (launcher/cli).
  std::optional<bool> in_place;
  // Of each stream of each rank, the newest; kKeepAllLogs: all. Unset: what the place does (100
  // MiB, or all where a launch command was given --log-dir).
  std::optional<std::uint64_t> log_keep_bytes;
  std::optional<double> price_per_node_hour;  // In whatever money its reader thinks.
  bool keeps_ranks() const { return in_place.value_or(false); }
  // A member may need more than a moment before it can start ranks.
  bool prepares_slowly() const { return node_check.wanted() || warm; }
  friend bool operator==(const JobSpec&, const JobSpec&) = default;
};

}  // namespace regroup
