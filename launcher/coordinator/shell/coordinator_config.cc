#include "launcher/coordinator/shell/coordinator_config.h"

#include "absl/strings/str_split.h"
#include "common/base/user_error.h"
#include "common/config/flags.h"
#include "common/config/state_dir.h"
#include "common/config/token.h"
#include "common/config/values.h"
#include "common/io/address.h"
#include "common/rpc/places.h"

namespace regroup {
namespace {

constexpr std::uint64_t kLeastMemory = 64u << 20;

}  // namespace

void DescribeFlags(CLI::App& app, CoordinatorConfig& config) {
  AddParsed(app, "--listen", "HOST[:PORT]", "127.0.0.1:29400",
            "address that agents dial, as in 10.0.0.4:29400; several with commas",
            [&config](std::string_view text) {
              config.listen = absl::StrSplit(absl::string_view(text.data(), text.size()), ',');
              return absl::OkStatus();
            });
  AddSwitch(app, "--local", config.local, "only a Unix socket, no TCP: serves this host");
  AddText(app, "--state-dir", config.state_dir,
          "where journal, socket and lock lie, as in /var/lib/regroup", "DIR");
  AddSwitch(app, "--ad-hoc", config.ad_hoc,
            "end when the last job is over; `regroup run` starts it so");
  AddSwitch(app, "--accept-journal", config.accept_journal,
            "use a journal that was found older than the fleet: what a newer one had is lost");
  AddTokenFile(app, config.token_file);
  AddSwitch(app, "--insecure", config.insecure,
            "no token: whoever reaches the port may do everything, run programs too");
  AddText(app, "--log-file", config.log_file,
          "log here instead of to standard error, as in /var/log/regroup.log", "FILE");
  AddSwitch(app, "--log-json", config.log_json, "log lines are JSON objects instead of key=value");
  AddDuration(app, "--agent-lease", config.lease, "silence after which a node is lost, as in 5s");
  AddBytes(app, "--memory-limit", config.memory_limit_bytes,
           "memory of this process beyond which it takes no connection over TCP, as in 1GiB; "
           "`regroup nodes --json` shows what it takes");
  AddDuration(app, "--heartbeat", config.heartbeat,
              "how often an agent says that it lives, as in 1s");
  AddDuration(app, "--agent-restart", config.agent_restart,
              "how long an agent may be away while its workers run on, as in 2m");
}

std::string StartCommand(const CoordinatorConfig& config, const std::vector<Address>& listening) {
  if (config.ad_hoc) return "";
  std::string command = "regroup coordinator";
  if (config.local) command += " --local";
  for (std::size_t i = 0; i < listening.size(); ++i)
    command += (i == 0 ? " --listen " : ",") + io::FormatAddress(listening[i]);
  if (!config.state_dir.empty()) {
    const absl::StatusOr<StateDirectory> state = DefaultStateDirectory(config.state_dir, true);
    command += " --state-dir " + ShellQuote(state.ok() ? state->path : config.state_dir);
  }
  if (config.insecure) command += " --insecure";
  return command;
}

absl::Status Validate(const CoordinatorConfig& config) {
  if (config.local && !config.listen.empty()) {
    return UserError(absl::StatusCode::kInvalidArgument, "--local and --listen exclude each other",
                     "--local serves no TCP", "give one of them");
  }
  for (const std::string& text : config.listen) {
    if (absl::StatusOr<io::HostPort> parsed = io::ParseHostPort(text, kDefaultCoordinatorPort);
        !parsed.ok()) {
      return UserError(absl::StatusCode::kInvalidArgument, "--listen is no address",
                       std::string(parsed.status().message()),
                       "regroup coordinator --listen 127.0.0.1:29400");
    }
  }
  if (config.memory_limit_bytes < kLeastMemory) {
    return UserError(absl::StatusCode::kInvalidArgument, "--memory-limit is too low",
                     std::to_string(config.memory_limit_bytes) + " bytes, at least " +
                         std::to_string(kLeastMemory) + " are needed",
                     "regroup coordinator --memory-limit 1GiB");
  }
  if (config.heartbeat < std::chrono::milliseconds(10) || config.lease < 3 * config.heartbeat ||
      config.lease > std::chrono::hours(1)) {
    return UserError(
        absl::StatusCode::kInvalidArgument, "--agent-lease does not fit --heartbeat",
        "lease " + FormatDuration(config.lease) + ", heartbeat " +
            FormatDuration(config.heartbeat) +
            "; the heartbeat is at least 10ms, the lease at least three of them and at most 1h",
        "regroup coordinator --agent-lease 5s --heartbeat 1s");
  }
  if (config.agent_restart < std::chrono::seconds(1) ||
      config.agent_restart > std::chrono::hours(24)) {
    return UserError(absl::StatusCode::kInvalidArgument,
                     "--agent-restart: " + FormatDuration(config.agent_restart) +
                         " is no time for an agent to be replaced in",
                     "it is at least 1s and at most 24h", "regroup coordinator --agent-restart 2m");
  }
  return absl::OkStatus();
}

}  // namespace regroup
