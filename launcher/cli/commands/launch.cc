#include "launcher/cli/commands/launch.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "common/base/status_macros.h"
#include "common/base/user_error.h"
#include "common/config/env.h"
#include "common/config/job_limits.h"
#include "common/config/network_rule.h"
#include "common/config/state_dir.h"
#include "common/config/text.h"
#include "common/config/token.h"
#include "common/config/values.h"
#include "common/io/files.h"
#include "common/rpc/resolve.h"
#include "launcher/cli/commands/exec.h"
#include "launcher/cli/commands/log_source.h"
#include "launcher/cli/commands/old_runs.h"
#include "launcher/cli/commands/python_modules.h"
#include "launcher/cli/commands/python_source.h"

namespace regroup::cli {
namespace {

using Words = std::vector<std::string>;

void Append(Words& words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
}

// A batch system may send these as soon as the job has begun: they wait until the agent that this
// process becomes can pass them on.
void HoldForwardedSignals() {
  sigset_t held;
  ::sigemptyset(&held);
  for (int signal : {SIGUSR1, SIGUSR2}) ::sigaddset(&held, signal);
  ::pthread_sigmask(SIG_BLOCK, &held, nullptr);
}

// Flags in force: as typed, and those that the environment gave.
std::vector<Words> FlagsInForce(const ParsedLine& words, const CommandDescription& description) {
  std::vector<Words> flags = words.given;
  for (const FlagDescription& flag : description.flags) {
    const std::string& name =
        *std::find_if(flag.names.begin(), flag.names.end(),
                      [](const std::string& n) { return n.substr(0, 2) == "--"; });
    bool typed = std::any_of(flags.begin(), flags.end(), [&](const Words& f) {
      return f[0].substr(0, f[0].find('=')) == name;
    });
    std::string value = GetEnv(flag.environment).value_or("");
    if (typed || value.empty()) continue;
    flags.push_back(flag.needs_value() ? Words{name, value} : Words{Cat(name, "=", value)});
  }
  return flags;
}

bool IsOneOf(const Words& flag, std::initializer_list<std::string_view> names) {
  std::string_view name = std::string_view(flag[0]).substr(0, flag[0].find('='));
  return std::find(names.begin(), names.end(), name) != names.end();
}

constexpr char kLocalhost[] = "localhost";

// A host may call anything so, or nothing; a store of this host is at 127.0.0.1.
bool LocalhostIsHere() {
  const absl::StatusOr<std::vector<std::string>> found = ResolveHost(kLocalhost);
  return found.ok() && std::find(found->begin(), found->end(), "127.0.0.1") != found->end();
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

// For people only, so it may be cut to what a job may hold.
Words Displayed(const Words& given) {
  constexpr std::size_t kMostBytes = limits::kCommandBytes / 2, kMostWords = limits::kArguments / 2;
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

constexpr std::string_view kAnyPort = ":0";

// HOST:0 or [IPV6]:0; an IPv6 address alone may end like that.
bool HasAnyPort(std::string_view endpoint) {
  if (endpoint.empty()) return false;
  const std::size_t colon = endpoint.front() == '[' ? endpoint.rfind(':') : endpoint.find(':');
  return colon != std::string_view::npos && colon != 0 && endpoint.substr(colon) == kAnyPort;
}

// As of --state-dir: said before anything starts. What others may read there is theirs to say.
absl::Status CheckLogDirectory(const std::string& path) {
  const absl::Status made = io::MakeDirectories(path);
  const bool writable = made.ok() && ::access(path.c_str(), W_OK | X_OK) == 0;
  if (writable) return absl::OkStatus();
  const std::string why = made.ok() ? std::strerror(errno) : std::string(made.message());
  return UserError(absl::StatusCode::kPermissionDenied,
                   Cat("--log-dir: ", path, " cannot be written"), why, "--log-dir DIRECTORY");
}

}  // namespace

void DescribeFlags(Manner manner, CLI::App& app, LaunchFlags& flags) {
  DescribeFlags(app, flags.job);
  AddInt(app, "-n,--total-ranks", flags.total_ranks, 1, limits::kNodes * limits::kWorkersPerNode,
         "workers of the whole job, in place of --nproc-per-node; --nnodes must divide it",
         "TOTAL");
  AddParsed(app, "--rdzv-endpoint", "HOST[:PORT]", "",
            "where nodes meet; the coordinator runs on that host", [&flags](std::string_view text) {
              flags.any_port = HasAnyPort(text);
              if (flags.any_port) text.remove_suffix(kAnyPort.size());
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
          "where output of workers is kept, all of it; none: in the state directory, the newest",
          "DIRECTORY");
  AddParsed(app, "--port-range", "FIRST-LAST", "",
            "ports that stores and witnesses may use; none: any", [&flags](std::string_view text) {
              ASSIGN_OR_RETURN(flags.ports, ParsePortRange(text));
              return absl::OkStatus();
            });
  AddTokenFile(app, flags.token_file);
  AddSwitch(app, "--insecure", flags.insecure,
            "no token: whoever reaches the endpoint may take part and run programs");
  AddSwitch(app, "--leave-children", flags.leave_children,
            "processes that a worker has left behind run on when the job has succeeded; else they "
            "are ended and named");
  AddSwitch(app, "-q,--quiet", flags.quiet, "no lines of Regroup's own, except about a failure");
  DescribeFlags(app, flags.torch);
  if (manner != Manner::kTorchrun) return;
  for (const TorchrunOption& option : TorchrunOptions()) {
    RenameEnvironment(app, Cat("--", option.name), option.environment ? "PET_" : "");
  }
}

ParseRules RulesOf(Manner manner) {
  if (manner != Manner::kTorchrun) return {};
  ParseRules rules{.abbreviations = true, .empty_is_absent = true};
  for (const TorchrunOption& option : TorchrunOptions())
    rules.abbreviated_first.emplace_back(option.name);
  return rules;
}

LaunchCommand::LaunchCommand(Manner manner, CommandDescription description)
    : Command(std::move(description)), manner_(manner), started_ns_(BoottimeNanoseconds()) {
  DescribeFlags(manner_, line().app(), flags_);
}

absl::StatusOr<int> LaunchCommand::Run(const ParsedLine& words, const Terminal& terminal) {
  HoldForwardedSignals();
  if (!flags_.torch.print_completion.empty()) {
    RETURN_IF_ERROR(
        terminal.Print(TorchrunCompletion(flags_.torch.print_completion, line().Describe())));
    return kDone;
  }
  if (words.rest.empty()) {
    const CommandDescription description = line().Describe();
    return BadInput("there is no program to run", UsageLine(description),
                    Cat(ShellJoin(Shown()), " --help"));
  }
  RETURN_IF_ERROR(Prepare(words));
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
  config.worker.sets_master_port = program->hints.sets_master_port;
  config.worker.leave_children = flags_.leave_children;
  RETURN_IF_ERROR(FillJob(words, config));
  if (program->hints.keeps_ranks && !config.spec.in_place) {
    config.spec.in_place = true;
    if (!flags_.quiet) terminal.Say(InPlaceNotice(config.given.front()));
  }
  if (program->python && config.spec.warm && !config.spec.warm->empty())
    RETURN_IF_ERROR(CheckImportable(program->executable, *config.spec.warm));
  RETURN_IF_ERROR(FillNode(config, terminal));
  RETURN_IF_ERROR(Apply(flags_.torch, config.workers, config));
  if (torchrun() && config.worker.handled_signals.empty())
    config.worker.handled_signals = "SIGTERM,SIGINT,SIGHUP,SIGQUIT";
  if (meeting_.says_localhost && flags_.torch.local_addr.empty() && LocalhostIsHere())
    config.worker.master_name = kLocalhost;
  FillOthers(words, config);
  TellNotices(words, config, terminal);
  if (!config.log_dir_explicit) PruneNowAndThen(config.state_dir, config.log_dir);
  ASSIGN_OR_RETURN(int fd, WriteLaunchConfig(config));
  return BecomeSibling("regroup-agent", {kLaunchConfigFlag, std::to_string(fd)});
}

absl::Status LaunchCommand::Prepare(const ParsedLine& words) {
  flags_in_force_ = FlagsInForce(words, line().Describe());
  Words names;
  for (const Words& flag : flags_in_force_) names.push_back(flag[0].substr(0, flag[0].find('=')));
  ASSIGN_OR_RETURN(meeting_, Settle(manner_, names, flags_));
  flags_.program.run_path = flags_.torch.run_path;
  flags_.program.always_python = torchrun();
  if (flags_.endpoint) {
    ASSIGN_OR_RETURN(token_, GivenToken(flags_.token_file));
  }
  if (torchrun() && flags_.endpoint && !IsLoopback(flags_.endpoint->host) && token_.empty() &&
      !flags_.insecure)
    flags_.insecure = insecure_implied_ = true;
  return Check(words);
}

// The command as it is called.
Words LaunchCommand::Shown() const {
  return torchrun() ? Words{"regroup-torchrun"} : Words{"regroup", "run"};
}

// The command as it is, with `extra` options before the program.
std::string LaunchCommand::CommandWith(const ParsedLine& words, const Words& extra) const {
  Words all = Shown();
  for (const Words& flag : flags_in_force_) Append(all, flag);
  Append(all, extra);
  if (words.dashes) all.push_back("--");
  Append(all, words.rest);
  return ShellJoin(all);
}

absl::Status LaunchCommand::Check(const ParsedLine& words) const {
  if (flags_.program.module && flags_.program.no_python && !flags_.program.run_path) {
    return UserError(absl::StatusCode::kInvalidArgument, "-m and --no-python exclude each other",
                     "a module is run by Python", "leave --no-python out");
  }
  if (flags_.job.nodes.max > 1 && !flags_.endpoint) {
    Words extra = {"--rdzv-endpoint", Cat(HostName(), ":", kDefaultPort), "--rdzv-id",
                   JobName(words)};
    return UserError(absl::StatusCode::kInvalidArgument,
                     Cat("--nnodes ", FormatNnodes(flags_.job.nodes.min, flags_.job.nodes.max),
                         " needs --rdzv-endpoint HOST[:PORT]"),
                     "several nodes have to meet somewhere, for example here",
                     CommandWith(words, extra));
  }
  if (flags_.join_timeout && *flags_.join_timeout <= Duration::zero()) {
    return UserError(absl::StatusCode::kInvalidArgument, "--join-timeout: 0s is no time to join",
                     "more than 0 is needed", "leave --join-timeout out to wait");
  }
  return absl::OkStatus();
}

std::string LaunchCommand::JobName(const ParsedLine& words) const {
  if (flags_.rdzv_id.empty()) return DefaultJobName(words.rest);
  return torchrun() ? JobNameFromId(flags_.rdzv_id) : flags_.rdzv_id;
}

absl::Status LaunchCommand::FillJob(const ParsedLine& words, LaunchConfig& config) const {
  config.given = words.rest;
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
  // A node that was told the default name, and one that found it, have to say the same.
  const bool own_id = torchrun() && flags_.rdzv_id != DefaultJobName(words.rest);
  config.worker.run_id = own_id ? flags_.rdzv_id : "";
  config.worker.substitute_local_rank = torchrun();
  return absl::OkStatus();
}

absl::Status LaunchCommand::FillNode(LaunchConfig& config, const Terminal& terminal) const {
  config.node_name_explicit = !flags_.node_name.empty();
  config.node_name = config.node_name_explicit     ? flags_.node_name
                     : !meeting_.node_name.empty() ? meeting_.node_name
                                                   : HostName();
  RETURN_IF_ERROR(ValidateNodeName("--node-name", config.node_name));
  ASSIGN_OR_RETURN(StateDirectory state, DefaultStateDirectory(flags_.state_dir, false));
  ASSIGN_OR_RETURN(const std::string tightened, MakeStateDirectory(state.path));
  for (const std::string& notice : {state.notice, tightened}) {
    if (!notice.empty() && !flags_.quiet) terminal.Say(Cat("regroup: ", notice, "\n"));
  }
  config.state_dir = state.path;
  config.log_dir_explicit = !flags_.log_dir.empty();
  const std::string kept = Cat(state.path, "/", kRunLogsFolder, "/", LogKey(flags_.endpoint));
  std::string logs = kept;
  if (config.log_dir_explicit) {
    ASSIGN_OR_RETURN(StateDirectory given,
                     DefaultStateDirectory(flags_.log_dir, false));  // Made absolute.
    logs = given.path;
    RETURN_IF_ERROR(CheckLogDirectory(logs));
  }
  config.log_dir = logs;
  config.output.notes_dir = kept;
  if (torchrun()) config.output.prefixes = OutputOptions::Prefixes::kTee;
  config.ports = flags_.ports;
  config.insecure = flags_.insecure;
  config.insecure_implied = insecure_implied_;
  config.token = token_;
  if (!flags_.token_file.empty())
    config.token_file = std::filesystem::absolute(flags_.token_file).string();
  const TorchFlags& torch = flags_.torch;
  const bool asked = torch.redirects.any() || torch.tee.any() || !torch.stdout_filters.empty() ||
                     !torch.stderr_filters.empty();
  config.output.attempts = config.log_dir_explicit && (torchrun() || asked);
  config.quiet = flags_.quiet;
  return absl::OkStatus();
}

void LaunchCommand::FillOthers(const ParsedLine& words, LaunchConfig& config) const {
  config.others_command = Shown();
  for (const Words& flag : flags_in_force_) {
    if (IsOneOf(flag, {"--rdzv-endpoint", "--rdzv-id", "--node-name", "--insecure", "--token-file",
                       "--local-addr", "--node-rank", "--master-addr", "--master-port"}))
      continue;
    Append(IsOneOf(flag, {"--module", "--no-python", "--run-path"}) ? config.others_program
                                                                    : config.others_options,
           flag);
  }
  if (!meeting_.node_name.empty()) {
    const bool two = flags_.job.nodes.max == 2;
    const int mine = flags_.torch.node_rank.value_or(0);
    Append(config.others_options, {"--node-rank", two ? std::to_string(1 - mine) : "RANK"});
  }
  if (words.dashes) config.others_program.push_back("--");
  Append(config.others_program, words.rest);
}

// One worker, and behind the program a flag that would have asked for more: most likely it stands
// in the wrong place. Empty: there is none.
std::string LaunchCommand::FlagsOfTheProgram(const ParsedLine& words) const {
  constexpr std::array<std::string_view, 3> kNames = {"--nproc-per-node", "--ppn", "--nnodes"};
  for (std::size_t i = 1; i < words.rest.size(); ++i) {
    std::string name = words.rest[i].substr(0, words.rest[i].find('='));
    std::replace(name.begin(), name.end(), '_', '-');
    if (std::find(kNames.begin(), kNames.end(), name) == kNames.end()) continue;
    Words moved = {words.rest[i]};
    const bool apart = name.size() == words.rest[i].size() && i + 1 < words.rest.size();
    if (apart) moved.push_back(words.rest[i + 1]);
    ParsedLine mended = words;
    const auto at = mended.rest.begin() + static_cast<std::ptrdiff_t>(i);
    mended.rest.erase(at, at + static_cast<std::ptrdiff_t>(moved.size()));
    return Cat(ShellJoin(moved), " stands behind ", ShellQuote(words.rest[0]),
               ", which gets it, and one worker runs · for Regroup: ", CommandWith(mended, moved));
  }
  return "";
}

void LaunchCommand::TellNotices(const ParsedLine& words, const LaunchConfig& config,
                                const Terminal& terminal) const {
  if (flags_.quiet) return;
  const bool alone = config.workers == 1 && flags_.job.nodes.max == 1;
  if (const std::string misplaced = alone ? FlagsOfTheProgram(words) : ""; !misplaced.empty())
    terminal.Say(Cat("regroup: ", misplaced, "\n"));
  for (const std::string& notice : meeting_.notices) terminal.Say(Cat("regroup: ", notice, "\n"));
  if (config.worker.sets_master_port && config.workers == 1 && flags_.job.nodes.max == 1)
    terminal.Say(OwnStoreNotice(config.given.front()));
  if (torchrun() && config.workers > 1 && !GetEnv("OMP_NUM_THREADS")) {
    terminal.Say(Cat("regroup: OMP_NUM_THREADS=1 for each of ", config.workers,
                     " workers, as under torchrun; set it to what your program needs\n"));
  }
}

}  // namespace regroup::cli
