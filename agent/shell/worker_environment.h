#pragma once

// What a worker is started with: argument list and environment. Everything torchrun sets (facts:
// its §2.1), in the same formats, and REGROUP_*; nothing that was set on purpose is overwritten
// where torchrun would inherit it. Pure but for the look at PATH.

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "agent/core/events.h"
#include "agent/shim/protocol.h"
#include "common/base/control.h"
#include "common/config/hardware.h"
#include "common/config/launch_config.h"

namespace regroup::agent {

using Environment = std::map<std::string, std::string>;

struct GroupProgram {
  std::vector<std::string> command;  // The first word is looked up in the workers' PATH.
  Environment environment;           // Of all ranks.
  std::string directory;
  NodeCheck node_check{};
  std::string program{};  // Executed in place of the first word; empty: that one.
};

// `own` is the environment of this process. Launched: what the launch command named, in its whole
// environment.
GroupProgram LaunchedProgram(const LaunchConfig& launch, const Environment& own,
                             const std::string& directory);
// Submitted: the job's, over an allow-list of ours. CLI.md, Program: a .py runs under $PYTHON_EXEC,
// python or python3.
GroupProgram SubmittedProgram(const JobSpec& job, const Environment& own);
// What a submitted job asks of its workers.
WorkerOptions SubmittedOptions(const JobSpec& job);
// A group sees `names` of its node's devices; without any, those that its agent was told of, which
// may be none. Nothing changes where that was told of none in particular, or where its job names
// devices itself.
void ShowDevices(const std::vector<std::string>& names, const NodeDevices& node,
                 Environment& environment);
// With a virtual local rank each worker sees one device: the list must be long enough.
absl::Status CheckDevices(int workers, const Environment& environment);

// Adds what every rank of this group shares. `workers` are the local ranks, `cpus` those this node
// may use.
void AddGroupEnvironment(const GroupKey& key, int workers, int cpus,
                         const std::string& worker_socket, GroupProgram& program,
                         const WorkerOptions& options = {});

// regroup-worker takes part in choosing its threads; other programs are left alone.
bool IsNativeWorker(const std::vector<std::string>& command);

// What a rank that lives on is told of its job's next generation.
struct NewGeneration {
  GroupKey key;
  int rank = 0, local_rank = 0;
  Environment environment;  // What a new process of that rank would have from its agent.
};
NewGeneration NewGenerationOf(const GroupKey& key, const shim::Spec& spec,
                              const shim::RankPlan& plan);

// What is known only once the generation is formed. `group` is the environment of all ranks,
// `interface` owns the node's advertised address (empty: unknown), `error_files` is a folder.
// `secret` is that of the group.
shim::RankPlan PlanRank(const Run& run, const RankAssignment& rank, const Environment& group,
                        const std::string& interface, const std::string& error_files,
                        const std::string& secret, const WorkerOptions& options = {});
// By what its agent knows a rank on the worker socket; it is in that rank's environment alone.
std::string WorkerToken(const std::string& secret, int rank, int local_rank);
// The command of one rank where "${local_rank}" stands for its number; empty where it is nowhere.
std::vector<std::string> CommandOf(const std::vector<std::string>& command, int local_rank);
// Disjoint, one block per local rank; empty when there are fewer CPUs than ranks.
std::vector<int> CpusOf(int local_rank, int workers, const std::vector<int>& cpus);
// The node check of this name is ours; the line for sh that runs it, of the folder where `program`,
// another one of ours, is.
inline constexpr std::string_view kGpuCheck = "gpu";
std::string BuiltInGpuCheck(const std::string& program);
// Where that rank's TORCHELASTIC_ERROR_FILE is.
std::string ErrorFile(const std::string& folder, int local_rank);

std::vector<std::string> ToEntries(const Environment& environment);  // "K=V"
Environment FromEntries(const std::vector<std::string>& entries);

}  // namespace regroup::agent
