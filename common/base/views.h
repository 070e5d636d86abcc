#pragma once

// What a reader is shown: one snapshot of a job or node, the same for `ps`, `nodes`, `explain`,
// their --json and the final report of a launch command. Built by the coordinator's core, rendered
// by common/report and launcher/cli.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/gpu.h"
#include "common/base/reasons.h"

namespace regroup {

struct MemberView {
  NodeId node;
  std::string name, address;
  int group_rank = 0;
  std::vector<int> ranks;
  std::vector<std::int64_t> pids;  // By local rank; 0: not started.
  int free_slots =
      0;  // It was chosen among nodes that the job never had, for these; 0: it was not.
};

struct GenerationView {
  Generation generation;
  enum class State { kProposed, kFormed, kRunning, kOver, kVoided } state = State::kProposed;
  int world = 0;
  std::vector<MemberView> members;
  std::optional<Address> store;
  std::optional<WallTime> formed_at, ended_at;
  std::optional<EndReason> ended;
  std::vector<RankCause> consequences;  // Other ranks' exits, at most 8.
  bool charged = false;
  RestartPhases phases;  // Of the restart that led to this generation.
  std::optional<std::int64_t> first_step, last_step, restored_step;
};

struct TimeAccount {  // Where the job's time went; sums to its age.
  Duration productive{}, checkpoint{}, detect{}, regroup{}, restore{}, recompute{}, idle{};
};

struct CostView {         // Of a job with a price, in the price's money.
  double node_hours = 0;  // Held, from the first generation's run on.
  double total = 0;       // So far.
  double lost = 0;        // Of it, to failures and preemptions.
  std::optional<double> per_million_samples, per_million_tokens;  // Unset: workers do not tell.
};

inline constexpr std::size_t kMaxLeftOutShown = 16;
struct LeftOutView {  // A node that could not prepare for a job, and has not taken part since.
  NodeId node;
  std::string name, why;
  Duration left{};  // Until it is asked again; 0: it is, as soon as it is needed.
};

struct JobView {
  JobId id;
  JobSpec spec;
  std::string state;  // queued gathering forming running regrouping ending succeeded failed
                      // cancelled preempted
  int nodes = 0, world = 0;
  Generation generation;
  std::optional<std::int64_t> step;
  std::optional<double> loss, tokens_per_second;
  int restarts_charged = 0, regroups = 0;
  int preemptions = 0;  // Generations that a notice ended.
  std::optional<std::int64_t> committed_step;
  std::string commit_path;
  WallTime created_at{};
  Duration age{};
  std::optional<WallTime> started_at;  // When its first generation formed.
  std::optional<WallTime> ended_at;    // Of an ended job, as ran_for, which begins at created_at.
  std::optional<Duration> ran_for;
  std::optional<WaitReason> why;
  std::optional<FailReason> failed;
  // What ended the newest generation, if a rank's failure did; the end of its error alone.
  std::optional<RankCause> last_failure;
  int exit_code = 0;  // Of an ended job: what `run` and `wait` exit with.
  std::vector<GenerationView>
      generations;  // Oldest first, at most the last 100; only where detail was asked for.
  std::vector<JobEvent> events;  // Likewise.
  // Detail was asked for, and this job has ended: all of both is in the journal alone. Only between
  // the coordinator's core and its shell.
  bool history_away = false;
  std::vector<LeftOutView> left_out;  // Likewise; the first few.
  TimeAccount time;
  std::optional<CostView> cost;
};

struct NodeView {
  NodeId id;
  std::string name, address, state;  // ready suspect away awaited leaving lost
  int slots = 0, slots_used = 0;
  std::vector<JobId> jobs;
  Duration seen{};
  std::string note;
  bool launched = false, coordinator_host = false;
  Version version;
  std::uint64_t warm_bytes = 0;  // Memory of what its warm ranks are forked from.
  std::vector<Gpu> gpus{};
  bool gpu_slots = false;  // Each slot stands for a GPU, or for several.
};

// Of a coordinator. Beyond the limit it refuses connections over TCP: so many since it started.
struct MemoryUse {
  std::uint64_t resident_bytes = 0, limit_bytes = 0, refused_connections = 0;
};
struct CoordinatorMemory {
  std::string coordinator;  // Its address, or its folder.
  MemoryUse use;
};

}  // namespace regroup
