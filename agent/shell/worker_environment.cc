#include "agent/shell/worker_environment.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <optional>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/config/env.h"
#include "common/config/hardware.h"
#include "common/io/address.h"
#include "common/rpc/proof.h"

namespace regroup::agent {
namespace {

constexpr char kLocal[] = "127.0.0.1";

void SetDefault(Environment& environment, const std::string& name, std::string value) {
  environment.emplace(name, std::move(value));
}

bool OnPath(const std::string& program, const std::string& path) {
  const std::vector<std::string> folders = absl::StrSplit(path, ':');
  for (const std::string& folder : folders) {
    const std::string file = absl::StrCat(folder.empty() ? "." : folder, "/", program);
    struct stat info {};
    if (::stat(file.c_str(), &info) == 0 && S_ISREG(info.st_mode) &&
        ::access(file.c_str(), X_OK) == 0)
      return true;
  }
  return false;
}

std::string BaseName(const std::string& path) { return path.substr(path.find_last_of('/') + 1); }

std::string PythonOf(const Environment& environment) {
  const auto chosen = environment.find("PYTHON_EXEC");
  if (chosen != environment.end() && !chosen->second.empty()) return chosen->second;
  const auto path = environment.find("PATH");
  return path != environment.end() && OnPath("python", path->second) ? "python" : "python3";
}

// A port that nobody listens on there. 0, any one, when none is to be had.
std::uint16_t UnusedPort(const std::string& ip) {
  absl::StatusOr<io::UniqueFd> listener = io::ListenTcp({ip, 0});
  if (!listener.ok()) return 0;
  absl::StatusOr<Address> address = io::LocalAddressOf(listener->get());
  return address.ok() ? address->port : 0;
}

// torchrun's virtual local rank.
void HideOtherDevices(int local_rank, const Environment& group, Environment& environment) {
  environment["LOCAL_RANK"] = "0";
  const std::optional<VisibleDevices> visible = VisibleDevicesOf(group);
  std::string device = absl::StrCat(local_rank);
  if (visible) {
    // A list that is too short was refused before.
    const auto at = static_cast<std::size_t>(local_rank);
    device = at < visible->devices.size() ? visible->devices[at] : "";
    environment[visible->variable] = device;
  }
  environment["CUDA_VISIBLE_DEVICES"] = device;
}

Environment Inherited(const Environment& own, bool all) {
  Environment environment;
  for (const auto& [name, value] : own) {
    if (IsRegroupSecret(name) || !(all || OnSubmitAllowList(name))) continue;
    environment.emplace(name, value);
  }
  return environment;
}

}  // namespace

GroupProgram LaunchedProgram(const LaunchConfig& launch, const Environment& own,
                             const std::string& directory) {
  GroupProgram program;
  program.command = launch.argv;
  // Found on the PATH of the launch command, and called as that called it.
  const bool named = !launch.argv.empty() && launch.argv[0].find('/') == std::string::npos;
  if (named) program.program = launch.executable;
  program.environment = Inherited(own, /*all=*/true);
  program.directory = directory;
  program.node_check = launch.spec.node_check;
  if (launch.python) program.environment["PYTHONUNBUFFERED"] = "1";
  return program;
}

GroupProgram SubmittedProgram(const JobSpec& job, const Environment& own) {
  GroupProgram program;
  program.environment = Inherited(own, /*all=*/false);
  for (const auto& [name, value] : job.environment) program.environment[name] = value;
  program.directory = job.directory;
  program.node_check = job.node_check;
  program.command = job.command;
  if (program.command.empty()) return program;
  const bool script = absl::EndsWith(program.command[0], ".py");
  if (script || program.command[0] == "-m") {
    program.command.insert(program.command.begin(), {PythonOf(program.environment), "-u"});
  }
  if (absl::StartsWith(BaseName(program.command[0]), "python")) {
    SetDefault(program.environment, "PYTHONUNBUFFERED", "1");
  }
  return program;
}

WorkerOptions SubmittedOptions(const JobSpec& job) {
  WorkerOptions options;
  options.role = job.role;
  options.numa_binding = job.numa_binding;
  options.virtual_local_rank = job.virtual_local_rank;
  options.sets_master_port = job.sets_master_port;
  return options;
}

void ShowDevices(const std::vector<std::string>& names, const NodeDevices& node,
                 Environment& environment) {
  if (VisibleDevicesOf(environment) || (names.empty() && node.variable.empty())) return;
  environment[node.variable.empty() ? "CUDA_VISIBLE_DEVICES" : node.variable] =
      absl::StrJoin(names.empty() ? node.names : names, ",");
  if (!node.order.empty()) SetDefault(environment, "CUDA_DEVICE_ORDER", node.order);
}

absl::Status CheckDevices(int workers, const Environment& environment) {
  const std::optional<VisibleDevices> few = TooFewDevices(workers, environment);
  if (!few) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("virtual_local_rank: ", workers, " workers need ", workers, " devices, and ",
                   few->variable, "=", few->value, " names ", few->devices.size()));
}

bool IsNativeWorker(const std::vector<std::string>& command) {
  return !command.empty() && BaseName(command[0]) == "regroup-worker";
}

void AddGroupEnvironment(const GroupKey& key, int workers, int cpus,
                         const std::string& worker_socket, GroupProgram& program,
                         const WorkerOptions& options) {
  Environment& environment = program.environment;
  environment["REGROUP_JOB"] = key.job.value();
  environment["REGROUP_GENERATION"] = absl::StrCat(key.generation.value());
  environment["REGROUP_SOCKET"] = worker_socket;
  environment["TORCHELASTIC_RUN_ID"] = options.run_id.empty() ? key.job.value() : options.run_id;
  environment["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  environment["LOCAL_WORLD_SIZE"] = absl::StrCat(workers);
  environment["ROLE_NAME"] = options.role;
  if (!options.handled_signals.empty())
    environment["TORCHELASTIC_SIGNALS_TO_HANDLE"] = options.handled_signals;
  SetDefault(environment, "TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
  if (IsNativeWorker(program.command)) {
    SetDefault(environment, "OMP_NUM_THREADS",
               absl::StrCat(std::max(1, cpus / std::max(1, workers))));
    // Some milliseconds; the worker itself cuts them short while it shares its cores.
    SetDefault(environment, "GOMP_SPINCOUNT", "100000");
  } else if (workers > 1) {
    SetDefault(environment, "OMP_NUM_THREADS", "1");
  }
}

shim::RankPlan PlanRank(const Run& run, const RankAssignment& rank, const Environment& group,
                        const std::string& interface, const std::string& error_files,
                        const std::string& secret, const WorkerOptions& options) {
  Environment environment;
  environment["RANK"] = environment["ROLE_RANK"] = absl::StrCat(rank.rank);
  environment["LOCAL_RANK"] = absl::StrCat(rank.local_rank);
  environment["WORLD_SIZE"] = environment["ROLE_WORLD_SIZE"] = absl::StrCat(run.world_size);
  environment["GROUP_RANK"] = absl::StrCat(run.group_rank);
  environment["GROUP_WORLD_SIZE"] = absl::StrCat(run.group_size);
  const bool by_name = !options.master_name.empty() && !run.many_hosts && run.store.host == kLocal;
  environment["MASTER_ADDR"] = by_name ? options.master_name : run.store.host;
  environment["MASTER_PORT"] = absl::StrCat(run.store.port);
  environment["TORCHELASTIC_RESTART_COUNT"] = absl::StrCat(run.restart_count);
  environment["TORCHELASTIC_MAX_RESTARTS"] = absl::StrCat(run.max_restarts);
  environment["TORCHELASTIC_ERROR_FILE"] = ErrorFile(error_files, rank.local_rank);
  // Who it is to its agent, whatever its program makes of LOCAL_RANK.
  environment["REGROUP_LOCAL_RANK"] = environment["LOCAL_RANK"];
  environment["REGROUP_WORKER_TOKEN"] = WorkerToken(secret, rank.rank, rank.local_rank);
  environment["REGROUP_RESUME_STEP"] = absl::StrCat(run.resume_step);
  if (run.many_hosts && !interface.empty()) {
    // What the host's name resolves to is often 127.0.1.1, which other hosts can't reach.
    for (const char* name : {"GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"}) {
      if (!group.contains(name)) environment[name] = interface;
    }
  }
  if (options.sets_master_port && run.world_size == 1) {
    // PyTorch would take an address of the program's own for ours and wait for a store that nobody
    // serves. A lone rank can as well serve it, there or at a port that nobody uses.
    environment["TORCHELASTIC_USE_AGENT_STORE"] = "False";
    environment["MASTER_PORT"] = absl::StrCat(UnusedPort(run.store.host));
  }
  if (options.virtual_local_rank) HideOtherDevices(rank.local_rank, group, environment);
  shim::RankPlan plan;
  plan.local_rank = rank.local_rank;
  plan.rank = rank.rank;
  plan.environment = ToEntries(environment);
  return plan;
}

// What the user has set is in the process already, and a line of the worker socket is short.
NewGeneration NewGenerationOf(const GroupKey& key, const shim::Spec& spec,
                              const shim::RankPlan& plan) {
  NewGeneration next{key, plan.rank, plan.local_rank, FromEntries(plan.environment)};
  for (const auto& [name, value] : FromEntries(spec.environment)) {
    const bool ours = absl::StartsWith(name, "REGROUP_") || absl::StartsWith(name, "TORCHELASTIC_");
    if (ours && name != "REGROUP_SITE") next.environment.emplace(name, value);
  }
  return next;
}

std::string WorkerToken(const std::string& secret, int rank, int local_rank) {
  return absl::BytesToHexString(HmacSha256(secret, absl::StrCat(rank, "/", local_rank)));
}

std::vector<std::string> CommandOf(const std::vector<std::string>& command, int local_rank) {
  std::vector<std::string> words;
  for (const std::string& word : command)
    words.push_back(absl::StrReplaceAll(word, {{"${local_rank}", absl::StrCat(local_rank)}}));
  if (words == command) words.clear();
  return words;
}

std::vector<int> CpusOf(int local_rank, int workers, const std::vector<int>& cpus) {
  const int count = static_cast<int>(cpus.size());
  if (workers < 2 || count < workers) return {};
  const int first = static_cast<int>(static_cast<std::int64_t>(count) * local_rank / workers);
  const int last = static_cast<int>(static_cast<std::int64_t>(count) * (local_rank + 1) / workers);
  return {cpus.begin() + first, cpus.begin() + last};
}

std::string BuiltInGpuCheck(const std::string& program) {
  const std::string folder = program.substr(0, program.find_last_of('/') + 1);
  return absl::StrCat("exec '", absl::StrReplaceAll(folder, {{"'", "'\\''"}}),
                      "regroup-worker' check-gpu");
}

std::string ErrorFile(const std::string& folder, int local_rank) {
  return absl::StrCat(folder, "/error.", local_rank, ".json");
}

std::vector<std::string> ToEntries(const Environment& environment) {
  std::vector<std::string> entries;
  entries.reserve(environment.size());
  for (const auto& [name, value] : environment) entries.push_back(absl::StrCat(name, "=", value));
  return entries;
}

Environment FromEntries(const std::vector<std::string>& entries) {
  Environment environment;
  for (const std::string& entry : entries) {
    const std::size_t equals = entry.find('=');
    if (equals != std::string::npos)
      environment[entry.substr(0, equals)] = entry.substr(equals + 1);
  }
  return environment;
}

}  // namespace regroup::agent
