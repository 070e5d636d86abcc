#pragma once

// What `regroup run` and `regroup-torchrun` hand to the agent it becomes: parsed, validated and
// resolved, so that the agent judges no flag. It travels as JSON in an anonymous file whose
// descriptor number follows kLaunchConfigFlag on regroup-agent's command line. The working
// directory, umask, limits and environment of the launch command are the agent's own: exec keeps
// them.

#include <csignal>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/job_spec.h"
#include "common/base/time.h"

namespace regroup {

// `regroup-agent --launch-config-fd N`: a launched agent. Without it regroup-agent is a service
// (agent_config.h).
inline constexpr char kLaunchConfigFlag[] = "--launch-config-fd";

struct PortRange {  // Inclusive. Stores and witnesses bind inside it; 0:0 means any port.
  std::uint16_t first = 0, last = 0;
  bool any() const { return first == 0 && last == 0; }
  friend bool operator==(const PortRange&, const PortRange&) = default;
};

struct Endpoint {  // As typed: a name or an IP literal without brackets. Not resolved.
  std::string host;
  std::uint16_t port = 29400;
  friend bool operator==(const Endpoint&, const Endpoint&) = default;
};
inline constexpr std::uint16_t kDefaultPort = 29400;

// What torchrun's options ask of this node's workers.
struct WorkerOptions {
  std::string role = "default";
  std::string run_id;                  // TORCHELASTIC_RUN_ID, as typed; empty: the job's id.
  bool substitute_local_rank = false;  // "${local_rank}" in arguments.
  bool virtual_local_rank = false;     // LOCAL_RANK is 0, and one device is visible.
  std::string numa_binding;            // Empty, node, socket, exclusive, core-complex.
  // On which this node leaves its job; those that are passed on to workers and end nothing. Any
  // other has its default effect.
  std::vector<int> ending_signals = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};
  std::vector<int> forwarded_signals = {SIGUSR1, SIGUSR2};
  std::string handled_signals;  // TORCHELASTIC_SIGNALS_TO_HANDLE; empty: not set.
  std::string master_name;      // MASTER_ADDR where all ranks are on this host; empty: its literal.
  bool leave_children = false;  // What ranks leave behind at exit 0 runs on.
  bool sets_master_port = false;  // The program says itself where its processes meet, it seems.
  friend bool operator==(const WorkerOptions&, const WorkerOptions&) = default;
};

// What could not be shown, a line each.
inline constexpr char kOutputNotes[] = "output.txt";

// What they ask of the workers' output. All of it is in the logs in any case.
struct OutputOptions {
  static constexpr int kStdout = 1, kStderr = 2;  // Bits.
  std::vector<int> redirects, tee;  // Of each local rank: to a file only; to a file and shown.
  std::vector<int> shown_ranks;     // Local ranks; empty: all are shown.
  std::string prefix_template;      // With ${role_name} ${rank} ${local_rank} ${hostname}.
  // Lines with one of these texts also go to filtered_stdout.log, filtered_stderr.log.
  std::vector<std::string> stdout_filters, stderr_filters;
  // Where lines bear who printed them: where there is more than one worker; where --tee named the
  // stream; nowhere.
  enum class Prefixes { kAll, kTee, kNone };
  Prefixes prefixes = Prefixes::kAll;
  std::string notes_dir;     // Absolute; <notes_dir>/<job>/kOutputNotes is for `explain`.
  bool errors_fail = false;  // This node leaves when its stdout or stderr cannot be written.
  // Of the rendezvous, in the node's events, which PyTorch's console handler writes; empty: none.
  std::string events;
  bool attempts = false;  // <log_dir>/<job>_<node>/attempt_<n>/<local rank>, as under torchrun.
  friend bool operator==(const OutputOptions&, const OutputOptions&) = default;
};

struct LaunchConfig {
  // The program.
  std::vector<std::string> given;  // PROGRAM ARGS… as typed; for display.
  std::string executable;  // Absolute path to exec; existed and was executable when `run` looked.
  std::vector<std::string>
      argv;  // Of every worker: interpreter with -u (and -m) where Python applies, else as typed.
  bool python = false;  // argv[0] is a Python: workers also get PYTHONUNBUFFERED=1.

  // The job. name is the --rdzv-id; origin kLaunched; nodes, restarts, grace and scale-up filled
  // in; command = given.
  JobSpec spec;
  int workers = 1;                       // --nproc-per-node, already a number.
  std::optional<Endpoint> endpoint;      // Unset: one node, coordinator-local.
  std::optional<Duration> join_timeout;  // Unset: wait for ever.

  // This node.
  std::string node_name;  // --node-name, else the host's name.
  bool node_name_explicit = false;
  std::string
      state_dir;  // Absolute; exists, 0700. coordinator-<port>/ and node-<k>/ are made inside it.
  std::string log_dir;  // Absolute; logs are <log_dir>/<job>/<generation>/<rank>/. Default: the
                        // node's folder.
  bool log_dir_explicit = false;
  PortRange ports;
  bool insecure = false;
  std::string token;              // That was given; empty: none.
  std::string token_file;         // Where it was given, for a coordinator that this host starts.
  bool insecure_implied = false;  // By regroup-torchrun: nobody typed it.
  bool quiet = false;
  std::string local_address;  // --local-addr, an IP literal of this host; empty: found out.
  WorkerOptions worker;
  OutputOptions output;

  // CLOCK_BOOTTIME nanoseconds when the launch command started: LaunchRequest::age = now − this.
  std::int64_t started_boottime_ns = 0;

  // What the others have to type (common/report's CommandForOthers puts the endpoint between the
  // two).
  std::vector<std::string> others_command = {"regroup", "run"};
  std::vector<std::string>
      others_options;  // Every option given but endpoint, --rdzv-id, --node-name and --insecure.
  std::vector<std::string>
      others_program;  // Program and arguments as typed, with -m or --no-python before it.

  friend bool operator==(const LaunchConfig&, const LaunchConfig&) = default;
};

std::string LaunchConfigToJson(
    const LaunchConfig& config);  // Any bytes in arguments and paths survive.
absl::StatusOr<LaunchConfig> LaunchConfigFromJson(std::string_view json);

// An inheritable (not close-on-exec) descriptor of a sealed anonymous file.
absl::StatusOr<int> WriteLaunchConfig(const LaunchConfig& config);
// Reads and closes `fd`.
absl::StatusOr<LaunchConfig> ReadLaunchConfig(int fd);

std::int64_t BoottimeNanoseconds();

}  // namespace regroup
