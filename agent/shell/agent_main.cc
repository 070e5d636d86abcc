// regroup-agent: the service of a node, or what `regroup run` becomes.

#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "agent/shell/agent.h"
#include "agent/shell/launch_front.h"
#include "common/base/status_macros.h"
#include "common/base/user_error.h"
#include "common/config/agent_config.h"
#include "common/config/build_info.h"
#include "common/config/env.h"
#include "common/config/flags.h"
#include "common/config/hardware.h"
#include "common/config/job_limits.h"
#include "common/config/launch_config.h"
#include "common/config/state_dir.h"
#include "common/config/token.h"
#include "common/io/files.h"
#include "common/io/proc.h"
#include "common/io/spawn.h"
#include "common/io/standard_fds.h"
#include "common/io/thread.h"
#include "common/io/unix_socket.h"

namespace regroup::agent {
namespace {

constexpr int kOwnFault = 125, kUsage = 2;
constexpr char kWorkerSocket[] = "workers";
// A start hands descriptors over by copies from 64 on; 8 ranks begin with some 80.
constexpr std::size_t kLeastDescriptors = 128;

std::vector<int> Cpus() {
  cpu_set_t set;
  std::vector<int> cpus;
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

// What workers get: many a program closes or selects all descriptors up to a raised limit.
std::optional<shim::ResourceLimit> OwnDescriptorLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return std::nullopt;
  return shim::ResourceLimit{RLIMIT_NOFILE, limit.rlim_cur, limit.rlim_max};
}

// Before anything is begun.
absl::Status CheckDescriptorLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_max >= kLeastDescriptors)
    return absl::OkStatus();
  return UserError(absl::StatusCode::kFailedPrecondition,
                   absl::StrCat("this process may open ", limit.rlim_max, " descriptors"),
                   absl::StrCat("a node needs ", kLeastDescriptors, ", its ranks a few more each"),
                   "raise the hard limit: ulimit -Hn 4096, as root, or LimitNOFILE= of a unit");
}

// What both kinds of agent need of their node.
struct Node {
  NodeFolder folder;
  std::string base;  // Of run directories.
  BootId boot;
};

absl::StatusOr<std::string> RunBase(const NodeId& node) {
  return shim::MakeRunBase(node, GetEnv("XDG_RUNTIME_DIR").value_or(""));
}

// A launch command takes no node whose workers are still stopping after their own command was
// killed: they have their grace, and their slots are not free.
bool HasLiveGroups(const NodeId& node) {
  absl::StatusOr<std::string> base = RunBase(node);
  if (!base.ok()) return false;
  absl::StatusOr<shim::RunScan> scan = shim::ScanRunDirectories(*base);
  if (!scan.ok()) return true;  // Nobody knows what lives there.
  const auto lives = [](const shim::RunRecord& record) { return record.shim_alive; };
  const auto held = [](const shim::UnreadableRun& run) { return run.held; };
  return std::any_of(scan->records.begin(), scan->records.end(), lives) ||
         std::any_of(scan->unreadable.begin(), scan->unreadable.end(), held);
}

// What an earlier launch command on this node left when it was killed: its shims are gone, nobody
// asks for their groups any more.
void ClearRunBase(const std::string& base) {
  io::RemoveTree(shim::PassingRoot(base)).IgnoreError();
  constexpr int kRounds = 200;
  constexpr useconds_t kRoundUs = 5'000;
  absl::StatusOr<shim::RunScan> scan = shim::ScanRunDirectories(base);
  if (!scan.ok()) return;
  for (const shim::RunRecord& record : scan->records) {
    for (int round = 0, clean = 0; record.supervisor_lost() && round < kRounds && clean < 2;
         ++round) {
      absl::StatusOr<int> found = shim::KillLeftovers(record);
      clean = found.ok() && *found == 0 ? clean + 1 : 0;
      if (clean < 2) ::usleep(kRoundUs);
    }
    shim::RemoveRunDirectory(record.path).IgnoreError();
  }
  for (const shim::UnreadableRun& run : scan->unreadable) {
    if (!run.held) shim::RemoveRunDirectory(run.path).IgnoreError();
  }
}

absl::StatusOr<Node> TakeNode(const std::string& state_dir, bool launched) {
  ASSIGN_OR_RETURN(
      NodeFolder folder,
      NodeFolder::Take(
          state_dir, launched ? io::Durability::kVolatile : io::Durability::kDurable,
          [launched](const NodeId& node) { return !launched || !HasLiveGroups(node); }));
  ASSIGN_OR_RETURN(std::string base, RunBase(folder.node()));
  if (launched) ClearRunBase(base);
  ASSIGN_OR_RETURN(BootId boot, io::ReadBootId());
  return Node{std::move(folder), std::move(base), std::move(boot)};
}

absl::StatusOr<AgentOptions> CommonOptions(const Node& node) {
  AgentOptions options;
  options.core.node = node.folder.node();
  options.core.incarnation = node.folder.incarnation();
  options.core.boot = node.boot;
  options.core.version.major = kProtocolMajor;
  options.core.version.minor = kProtocolMinor;
  options.core.version.build = BuildId();
  options.groups.node_base = node.base;
  options.groups.shim_program = absl::StrCat(io::ProgramFolder(), "/regroup-shim");
  options.groups.worker_socket = absl::StrCat(node.base, "/", kWorkerSocket);
  options.groups.node = node.folder.node();
  options.groups.boot = node.boot;
  options.groups.cpus = Cpus();
  options.groups.descriptors = OwnDescriptorLimit();
  io::RaiseDescriptorLimit();
  absl::StatusOr<std::string> cgroups = shim::FindCgroupBase();
  if (cgroups.ok()) {
    options.groups.cgroup_base = *std::move(cgroups);
  } else {
    options.core.no_cgroup = std::string(cgroups.status().message());
  }
  ASSIGN_OR_RETURN(options.worker_listener, io::ListenUnix(options.groups.worker_socket));
  return options;
}

io::PortRange Ports(const PortRange& range) { return {range.first, range.last}; }

// Leaves nothing where there is nothing to come back to. Shims and stores that are about to end are
// waited for; what groups that are free have left is of use to a service that detached: its next
// life tells of it.
void CleanUp(const std::string& base, const Agent::End& end) {
  // The shim of a free group lets go within five seconds of being told to, though a disk hangs that
  // last words wait for.
  constexpr int kRounds = 1300, kPatientRounds = 60;
  constexpr useconds_t kRoundUs = 5'000;
  io::RemoveTree(shim::PassingRoot(base)).IgnoreError();
  for (int round = 0; round < kRounds; ++round) {
    absl::StatusOr<shim::RunScan> scan = shim::ScanRunDirectories(base);
    if (!scan.ok() || !scan->unreadable.empty()) return;
    if (scan->records.empty()) break;
    bool goes = false;
    for (const shim::RunRecord& record : scan->records) {
      const bool group = record.spec.role == shim::Role::kGroup;
      const bool free = record.state && record.state->phase == Phase::kFree;
      const bool forgotten = end.removing.count(record.path) > 0;
      if (!forgotten && (!end.gone || (group && !free))) continue;
      goes = true;
      const bool writes = free && forgotten;
      const int patience = !group ? 0 : writes ? kRounds - kPatientRounds : kPatientRounds;
      if (record.shim_alive && round >= patience) shim::KillShim(record).IgnoreError();
      shim::RemoveRunDirectory(record.path).IgnoreError();  // Held: in the next round.
    }
    if (!goes) return;
    ::usleep(kRoundUs);
  }
  ::unlink(absl::StrCat(base, "/", kWorkerSocket).c_str());
  ::rmdir(base.c_str());
}

// Threads of gRPC and detached resolvers may be anywhere: nothing of ours is destroyed under them.
[[noreturn]] void Exit(int code) {
  std::fflush(nullptr);
  ::_exit(code);
}

int Tell(const absl::Status& status, int code) {
  const std::string text = RenderUserError(status);
  std::fwrite(text.data(), 1, text.size(), stderr);
  return code;
}

// ---- `regroup run`

absl::StatusOr<AgentOptions> LaunchOptions(const LaunchConfig& launch, const Node& node) {
  ASSIGN_OR_RETURN(AgentOptions options, CommonOptions(node));
  options.core.name = launch.node_name;
  options.core.name_explicit = launch.node_name_explicit;
  options.core.slots = launch.workers;
  options.core.launched = true;
  options.core.grace = launch.spec.grace;
  options.core.join_timeout = launch.join_timeout;
  options.groups.log_root = launch.log_dir;
  options.groups.ports = Ports(launch.ports);
  options.groups.launched = true;
  options.groups.log_limits = LimitsOf(launch.spec, launch.log_dir_explicit);
  options.groups.worker = launch.worker;
  options.groups.pass_stdin = launch.spec.max_nodes == 1;
  std::string directory(4096, '\0');
  if (::getcwd(directory.data(), directory.size()) == nullptr) {
    return io::ErrnoStatus(errno, "the working directory of this command");
  }
  directory.resize(std::strlen(directory.c_str()));
  // What the network says of the program is for display: this command's own is what runs.
  options.groups.program = [launch, directory, own = AllEnv()](const Prepare&) {
    return LaunchedProgram(launch, own, directory);
  };
  options.ending_signals = launch.worker.ending_signals;
  options.forwarded_signals = launch.worker.forwarded_signals;
  LaunchRequest request;
  request.key = io::RandomHex(16);
  request.rdzv_id = launch.spec.name;
  request.standalone = !launch.endpoint.has_value();
  request.spec = launch.spec;
  request.spec.workers_per_node = launch.workers;  // Each launcher brings its own.
  options.launch = std::move(request);
  options.started_at = Instant(Duration(launch.started_boottime_ns));
  return options;
}

int RunLaunched(int config_fd) {
  absl::StatusOr<LaunchConfig> launch = ReadLaunchConfig(config_fd);
  if (!launch.ok()) return Tell(launch.status(), kOwnFault);
  if (absl::Status enough = CheckDescriptorLimit(); !enough.ok()) return Tell(enough, kOwnFault);
  boost::asio::io_context loop(1);
  Agent* agent = nullptr;
  absl::Status early;
  LaunchDialler dialler(
      loop, *launch, absl::StrCat(io::ProgramFolder(), "/regroup"),
      [&](absl::Status why) {
        if (agent != nullptr) {
          agent->Fatal(why);
        } else {
          early = std::move(why);
        }
      },
      [&](const std::string& text) {
        if (agent != nullptr) agent->Warn(text);
      });
  dialler.StartEarly();
  if (!early.ok()) return Tell(early, kOwnFault);
  absl::StatusOr<Node> node = TakeNode(launch->state_dir, /*launched=*/true);
  if (!node.ok()) return Tell(node.status(), kOwnFault);
  absl::StatusOr<AgentOptions> options = LaunchOptions(*launch, *node);
  if (!options.ok()) return Tell(options.status(), kOwnFault);
  options->core.starts_coordinator = true;  // Where this host hosts one: the dialler knows.
  LaunchFront front(loop, *launch, dialler);
  Agent shell(loop, *std::move(options), node->folder, dialler, &front, nullptr);
  agent = &shell;
  Agent::End end = shell.Run();
  // Started by a worker of another launcher: that one looks for it there.
  const std::optional<std::string> error_file = GetEnv("TORCHELASTIC_ERROR_FILE");
  if (error_file && !error_file->empty()) front.LeaveErrorFile(*error_file);
  const int code = front.Finish(end);
  end.gone = true;  // A launch command has no next life.
  CleanUp(node->base, end);
  Exit(code);
}

// ---- `regroup agent`

absl::StatusOr<AgentOptions> ServiceOptions(const AgentConfig& config, const Node& node) {
  ASSIGN_OR_RETURN(AgentOptions options, CommonOptions(node));
  options.core.name = config.node_name.empty() ? HostName() : config.node_name;
  options.core.name_explicit = !config.node_name.empty();
  absl::StatusOr<NodeDevices> devices = DevicesOfNode(OwnVisibleDevices());
  if (!devices.ok() && config.slots == 0) {
    return UserError(devices.status().code(), "the GPUs of this node cannot be counted",
                     std::string(devices.status().message()), "regroup agent --slots 8");
  }
  if (devices.ok()) {
    options.groups.devices = *std::move(devices);
  } else {
    options.groups.devices.why_none = std::string(devices.status().message());
  }
  const int counted = static_cast<int>(options.groups.devices.names.size());
  options.core.slots =
      config.slots > 0 ? config.slots : std::clamp(counted, 1, limits::kWorkersPerNode);
  options.groups.slots = options.core.slots;
  options.core.gpu_slots = !DevicesOfSlots(options.groups.devices, options.core.slots, {0}).empty();
  options.core.sigterm_is_notice = config.sigterm_is_notice;
  options.core.grace = config.grace;
  options.core.cluster = node.folder.cluster();
  options.core.highest_epoch = node.folder.highest_epoch();
  options.groups.log_root =
      config.log_dir.empty() ? absl::StrCat(node.folder.path(), "/logs") : config.log_dir;
  options.groups.ports = Ports(config.ports);
  options.groups.program = [own = AllEnv()](const Prepare& prepare) {
    return SubmittedProgram(prepare.spec.job, own);
  };
  options.durable_memory = true;
  options.tells_of_gpus = true;
  return options;
}

absl::StatusOr<int> RunService(const AgentConfig& config) {
  RETURN_IF_ERROR(CheckDescriptorLimit());
  ASSIGN_OR_RETURN(StateDirectory state, DefaultStateDirectory(config.state_dir, /*service=*/true));
  ASSIGN_OR_RETURN(const std::string tightened, MakeStateDirectory(state.path));
  obs::LogConfig log_config;
  log_config.json = config.log_json;
  ASSIGN_OR_RETURN(std::unique_ptr<obs::Logger> log, obs::Logger::Create(log_config));
  for (const std::string& notice : {state.notice, tightened}) {
    if (!notice.empty()) log->Info(notice);
  }
  ASSIGN_OR_RETURN(Node node, TakeNode(state.path, /*launched=*/false));
  ASSIGN_OR_RETURN(AgentOptions options, ServiceOptions(config, node));
  log->Info("agent started", {{"node", node.folder.node().value()},
                              {"name", options.core.name},
                              {"incarnation", absl::StrCat(node.folder.incarnation().value())},
                              {"slots", absl::StrCat(options.core.slots)},
                              {"gpus", absl::StrJoin(options.groups.devices.names, ",")},
                              {"run_directories", node.base},
                              {"build", options.core.version.build}});
  if (const std::string& why = options.groups.devices.why_none; !why.empty())
    log->Warning("GPUs are not shared out, each job sees all there are", {{"why", why}});
  if (!options.core.no_cgroup.empty())
    log->Warning("groups get no cgroup", {{"why", options.core.no_cgroup}});
  if (config.insecure)
    log->Warning("--insecure: whoever answers at the coordinator's address may run programs here");
  boost::asio::io_context loop(1);
  // Validate has refused a bad one where it is needed.
  ServiceDialler dialler(loop, config.coordinators, state.path, !config.state_dir.empty(),
                         {GivenToken(config.token_file).value_or(""), config.insecure});
  Agent shell(loop, std::move(options), node.folder, dialler, nullptr, log.get());
  const Agent::End end = shell.Run();
  log->Info("agent ends", {{"exit_code", absl::StrCat(end.exit_code)}});
  log->Flush();
  CleanUp(node.base, end);
  Exit(end.exit_code);
}

int ServiceMain(const std::vector<std::string>& arguments) {
  CommandLine line(CommandDescription{
      .name = "",
      .summary = "supervise workers on this node",
      .usage = "regroup-agent [OPTIONS]",
      .text = "The same as regroup agent.",
      .example = "regroup-agent --coordinator node0 --token-file token --slots 8",
      .positionals = {},
      .flags = {}});
  AgentConfig config;
  DescribeFlags(line.app(), config);
  absl::StatusOr<ParsedLine> parsed = line.Parse(arguments, /*program_follows=*/false);
  if (!parsed.ok()) return Tell(parsed.status(), kUsage);
  if (parsed->help) {
    const std::string help = RenderHelp(line.Describe());
    std::fwrite(help.data(), 1, help.size(), stdout);
    return 0;
  }
  if (absl::Status valid = Validate(config); !valid.ok()) return Tell(valid, kUsage);
  absl::StatusOr<int> ended = RunService(config);
  return ended.ok() ? *ended : Tell(ended.status(), kOwnFault);
}

}  // namespace

int Main(const std::vector<std::string>& arguments) {
  ::signal(SIGPIPE, SIG_IGN);
  if (arguments.size() == 2 && arguments[0] == kLaunchConfigFlag) {
    return RunLaunched(static_cast<int>(std::strtol(arguments[1].c_str(), nullptr, 10)));
  }
  return ServiceMain(arguments);
}

}  // namespace regroup::agent

int main(int argc, char** argv) {
  regroup::io::OpenStandardDescriptors();
  regroup::io::EndClearlyWithoutThreads(regroup::agent::kOwnFault);
  regroup::agent::Exit(regroup::agent::Main(std::vector<std::string>(argv + 1, argv + argc)));
}
