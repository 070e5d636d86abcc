#include <unistd.h>

#include <algorithm>

#include "common/base/status_macros.h"
#include "common/base/user_error.h"
#include "common/config/env.h"
#include "common/config/job_limits.h"
#include "common/config/launch_config.h"
#include "common/config/network_rule.h"
#include "common/config/state_dir.h"
#include "common/config/text.h"
#include "launcher/cli/commands/all.h"
#include "launcher/cli/commands/exec.h"
#include "launcher/cli/commands/job_flags.h"
#include "launcher/cli/commands/log_source.h"
#include "launcher/cli/commands/old_runs.h"
#include "launcher/cli/commands/program.h"

namespace regroup::cli {
namespace {

// What torchrun's users bring along and do not need here.
std::vector<std::pair<std::string, std::string>> TorchrunHints() {
  return {{"--standalone", "a run on one node needs no flag: leave it out"},
          {"--rdzv-backend", "there is one rendezvous, the coordinator: leave it out"},
          {"--rdzv-conf", "timeouts have their own flags, as --join-timeout"},
          {"--node-rank", "ranks are given by the coordinator and survive restarts: leave it out"},
          {"--master-addr", "the meeting point is --rdzv-endpoint HOST[:PORT]"},
          {"--master-port", "the meeting point is --rdzv-endpoint HOST[:PORT]"},
          {"--monitor-interval", "exits of workers are events, nothing is polled: leave it out"},
          {"--start-method", "workers are programs, started by exec: leave it out"},
          {"--local-addr",
           "a node is known by the address it reaches the coordinator from: leave it out"},
          {"--role", "every worker has the role default"},
          {"--tee", "output is always shown and always kept: see regroup logs"},
          {"--redirects", "output is always shown and always kept: see regroup logs"},
          {"-t", "output is always shown and always kept: see regroup logs"},
          {"-r", "output is always shown and always kept: see regroup logs"}};
}

struct RunFlags {
  JobFlags job;
  std::optional<Endpoint> endpoint;
  std::string rdzv_id;
  std::optional<Duration> join_timeout;
  ProgramFlags program;
  std::string node_name, state_dir, log_dir;
  PortRange ports;
  bool insecure = false, quiet = false;
};

void DescribeFlags(CLI::App& app, RunFlags& flags) {
  DescribeFlags(app, flags.job);
  AddParsed(app, "--rdzv-endpoint", "HOST[:PORT]", "",
            "where nodes meet; the coordinator runs on that host", [&flags](std::string_view text) {
              ASSIGN_OR_RETURN(flags.endpoint, ParseEndpoint(text));
              return absl::OkStatus();
            });
  AddText(app, "--rdzv-id", flags.rdzv_id, "name of the job; none: the program's base name", "ID");
  AddDuration(app, "--join-timeout", flags.join_timeout,
              "give up (exit 124) when not enough nodes have joined by then; none: wait");
  AddSwitch(app, "-m,--module", flags.program.module,
            "PROGRAM is a Python module, as in python -m");
  AddSwitch(app, "--no-python", flags.program.no_python,
            "execute PROGRAM directly, also when it ends in .py");
  AddText(app, "--node-name", flags.node_name, "name of this node; none: the host's", "NAME");
  AddText(app, "--state-dir", flags.state_dir, "where journal, node and logs are kept",
          "DIRECTORY");
  AddText(app, "--log-dir", flags.log_dir,
          "where output of workers is kept; none: in the state directory", "DIRECTORY");
  AddParsed(app, "--port-range", "FIRST-LAST", "",
            "ports that stores and witnesses may use; none: any", [&flags](std::string_view text) {
              ASSIGN_OR_RETURN(flags.ports, ParsePortRange(text));
              return absl::OkStatus();
            });
  AddSwitch(app, "--insecure", flags.insecure, "allow plaintext connections between hosts");
  AddSwitch(app, "-q,--quiet", flags.quiet, "no lines of Regroup's own, except about a failure");
}

using Words = std::vector<std::string>;

void Append(Words& words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
}

// Flags in force: as typed, and those that the environment gave.
std::vector<Words> FlagsInForce(const ParsedLine& words, const CommandDescription& description) {
  std::vector<Words> flags = words.given;
  for (const FlagDescription& flag : description.flags) {
    const std::string& name =
        *std::find_if(flag.names.begin(), flag.names.end(),
                      [](const std::string& n) { return n.substr(0, 2) == "--"; });
    bool typed =
        std::any_of(flags.begin(), flags.end(), [&](const Words& f) { return f[0] == name; });
    std::string value = GetEnv(flag.environment).value_or("");
    if (typed || value.empty()) continue;
    flags.push_back(flag.placeholder.empty() ? Words{Cat(name, "=", value)} : Words{name, value});
  }
  return flags;
}

bool IsOneOf(const Words& flag, std::initializer_list<std::string_view> names) {
  std::string_view name = std::string_view(flag[0]).substr(0, flag[0].find('='));
  return std::find(names.begin(), names.end(), name) != names.end();
}

// "local", or the endpoint: job ids are unique within a coordinator only, and logs must not mix.
std::string LogKey(const std::optional<Endpoint>& endpoint) {
  if (!endpoint) return "local";
  std::string key = Cat(endpoint->host, "-", endpoint->port);
  for (char& c : key) {
    if (c == ':' || c == '%' || c == '/') c = '_';
  }
  return key;
}

class RunCommand : public Command {
 public:
  RunCommand()
      : Command({.name = "run",
                 .summary = "launch a program here; the same command on each node",
                 .usage = "regroup run [OPTIONS] PROGRAM ARGS...",
                 .text = "Starts --nproc-per-node workers on this node, with torchrun's "
                         "environment. With --nnodes and "
                         "--rdzv-endpoint the same command is given on each node; nodes may come, "
                         "go and fail at any "
                         "time. A program that ends in .py, or is given with -m, runs under "
                         "$PYTHON_EXEC, python or "
                         "python3; anything else is executed.\n\n"
                         "Exit code: 0 when the job succeeded, else the code of the worker that "
                         "failed first, or 128 "
                         "plus its signal; 124 --join-timeout; 125 Regroup itself; 126, 127 the "
                         "program; 129, 130, 143 "
                         "cancelled or left by SIGHUP, Ctrl-C, SIGTERM.",
                 .example = "regroup run --nproc-per-node 2 train.py --lr 3e-4\n"
                            "regroup run --nnodes 2:4 --nproc-per-node gpu --max-restarts 3 \\\n"
                            "  --rdzv-endpoint node0 --insecure train.py",
                 .positionals = {{"PROGRAM", "what each worker runs"},
                                 {"ARGS...", "its arguments, untouched"}}}),
        started_ns_(BoottimeNanoseconds()) {
    DescribeFlags(line().app(), flags_);
  }

  bool program_follows() const override { return true; }
  bool speaks_for_job() const override { return true; }
  std::vector<std::pair<std::string, std::string>> hints() const override {
    return TorchrunHints();
  }

  absl::StatusOr<int> Run(const ParsedLine& words, const Terminal& terminal) override {
    if (words.rest.empty()) {
      return UserError(absl::StatusCode::kInvalidArgument, "there is no program to run",
                       "usage: regroup run [OPTIONS] PROGRAM ARGS...", "regroup run --help");
    }
    flags_in_force_ = FlagsInForce(words, line().Describe());
    RETURN_IF_ERROR(Check(words));
    absl::StatusOr<Program> program = ResolveProgram(words.rest, flags_.program);
    if (!program.ok()) {
      TellError(program.status(), terminal);
      return program.status().code() == absl::StatusCode::kNotFound ? kNotFoundCode
                                                                    : kNotExecutableCode;
    }
    LaunchConfig config;
    config.executable = program->executable;
    config.argv = program->argv;
    config.python = program->python;
    RETURN_IF_ERROR(FillJob(words, config));
    RETURN_IF_ERROR(FillNode(config, terminal));
    FillOthers(words, config);
    if (!config.log_dir_explicit) PruneNowAndThen(config.state_dir, config.log_dir);
    ASSIGN_OR_RETURN(int fd, WriteLaunchConfig(config));
    return BecomeSibling("regroup-agent", {kLaunchConfigFlag, std::to_string(fd)});
  }

 private:
  // The command as it is, with `extra` options before the program.
  std::string CommandWith(const ParsedLine& words, const Words& extra) const {
    Words all = {"regroup", "run"};
    for (const Words& flag : flags_in_force_) Append(all, flag);
    Append(all, extra);
    if (words.dashes) all.push_back("--");
    Append(all, words.rest);
    return ShellJoin(all);
  }

  absl::Status Check(const ParsedLine& words) const {
    if (flags_.program.module && flags_.program.no_python) {
      return UserError(absl::StatusCode::kInvalidArgument, "-m and --no-python exclude each other",
                       "a module is run by Python", "leave --no-python out");
    }
    if (flags_.job.nodes.max > 1 && !flags_.endpoint) {
      Words extra = {"--rdzv-endpoint", Cat(HostName(), ":", kDefaultPort), "--rdzv-id",
                     JobName(words)};
      if (!flags_.insecure) extra.push_back("--insecure");
      return UserError(absl::StatusCode::kInvalidArgument,
                       Cat("--nnodes ", FormatNnodes(flags_.job.nodes.min, flags_.job.nodes.max),
                           " needs --rdzv-endpoint HOST[:PORT]"),
                       "several nodes have to meet somewhere, for example here",
                       CommandWith(words, extra));
    }
    if (flags_.endpoint) {
      RETURN_IF_ERROR(CheckNetworkRule(*flags_.endpoint, flags_.insecure, CommandWith(words, {})));
    }
    if (flags_.join_timeout && *flags_.join_timeout <= Duration::zero()) {
      return UserError(absl::StatusCode::kInvalidArgument, "--join-timeout: 0s is no time to join",
                       "more than 0 is needed", "leave --join-timeout out to wait");
    }
    return absl::OkStatus();
  }

  std::string JobName(const ParsedLine& words) const {
    return flags_.rdzv_id.empty() ? DefaultJobName(words.rest) : flags_.rdzv_id;
  }

  absl::Status FillJob(const ParsedLine& words, LaunchConfig& config) const {
    config.given = words.rest;
    config.spec.origin = JobOrigin::kLaunched;
    config.spec.name = JobName(words);
    config.spec.command = Displayed(words.rest);
    RETURN_IF_ERROR(ValidateJobName("--rdzv-id", config.spec.name));
    RETURN_IF_ERROR(Apply(flags_.job, config.spec));
    config.workers = config.spec.workers_per_node;
    config.spec.workers_per_node = 1;  // Each launcher brings its own.
    RETURN_IF_ERROR(ValidateJobSpec(config.spec));
    config.endpoint = flags_.endpoint;
    config.join_timeout = flags_.join_timeout;
    config.started_boottime_ns = started_ns_;
    return absl::OkStatus();
  }

  // For people only, so it may be cut to what a job may hold.
  static Words Displayed(const Words& given) {
    constexpr std::size_t kMostBytes = limits::kCommandBytes / 2,
                          kMostWords = limits::kArguments / 2;
    Words shown;
    std::size_t bytes = 0;
    for (const std::string& word : given) {
      bytes += word.size() + 1;
      if (bytes > kMostBytes || shown.size() == kMostWords) {
        shown.push_back("...");
        break;
      }
      shown.push_back(word);
    }
    return shown;
  }

  absl::Status FillNode(LaunchConfig& config, const Terminal& terminal) const {
    config.node_name_explicit = !flags_.node_name.empty();
    config.node_name = config.node_name_explicit ? flags_.node_name : HostName();
    RETURN_IF_ERROR(ValidateNodeName("--node-name", config.node_name));
    ASSIGN_OR_RETURN(StateDirectory state, DefaultStateDirectory(flags_.state_dir, false));
    RETURN_IF_ERROR(MakeStateDirectory(state.path));
    if (!state.notice.empty() && !flags_.quiet) terminal.Say(Cat("regroup: ", state.notice, "\n"));
    config.state_dir = state.path;
    config.log_dir_explicit = !flags_.log_dir.empty();
    std::string logs = Cat(state.path, "/", kRunLogsFolder, "/", LogKey(flags_.endpoint));
    if (config.log_dir_explicit) {
      ASSIGN_OR_RETURN(StateDirectory given,
                       DefaultStateDirectory(flags_.log_dir, false));  // Made absolute.
      logs = given.path;
    }
    config.log_dir = logs;
    config.ports = flags_.ports;
    config.insecure = flags_.insecure;
    config.quiet = flags_.quiet;
    return absl::OkStatus();
  }

  void FillOthers(const ParsedLine& words, LaunchConfig& config) const {
    for (const Words& flag : flags_in_force_) {
      if (IsOneOf(flag, {"--rdzv-endpoint", "--rdzv-id", "--node-name", "--insecure"})) continue;
      Append(IsOneOf(flag, {"--module", "--no-python"}) ? config.others_program
                                                        : config.others_options,
             flag);
    }
    if (words.dashes) config.others_program.push_back("--");
    Append(config.others_program, words.rest);
  }

  RunFlags flags_;
  std::vector<Words> flags_in_force_;
  const std::int64_t started_ns_;
};

}  // namespace

std::unique_ptr<Command> MakeRun() { return std::make_unique<RunCommand>(); }

}  // namespace regroup::cli
