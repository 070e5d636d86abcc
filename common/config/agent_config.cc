#include "common/config/agent_config.h"

#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/base/user_error.h"
#include "common/config/flags.h"
#include "common/config/job_limits.h"
#include "common/config/network_rule.h"
#include "common/config/text.h"
#include "common/config/token.h"
#include "common/config/values.h"

namespace regroup {

void DescribeFlags(CLI::App& app, AgentConfig& config) {
  AddParsed(
      app, "--coordinator", "ADDRESS", "",
      "coordinator to serve: HOST[:PORT], or the path of its socket; up to 8 with commas, tried in "
      "turn; none: the one of this host",
      [&config](std::string_view text) {
        constexpr std::string_view kUnix = "unix:";
        if (text.empty()) return absl::OkStatus();
        config.coordinators = absl::StrSplit(absl::string_view(text.data(), text.size()), ',');
        for (std::string& coordinator : config.coordinators) {
          if (coordinator.compare(0, kUnix.size(), kUnix) == 0) coordinator.erase(0, kUnix.size());
        }
        return absl::OkStatus();
      });
  AddInt(app, "--slots", config.slots, 0, limits::kWorkersPerNode,
         "slots for workers on this node; 0: one for each GPU or MIG instance, else 1. A job "
         "sees the GPUs of its slots");
  AddSwitch(app, "--sigterm-is-notice", config.sigterm_is_notice,
            "SIGTERM means that this node goes away: workers save and leave; else the agent "
            "detaches and they run on");
  AddDuration(app, "--grace", config.grace, "time between such a notice and the end of this node");
  AddText(app, "--node-name", config.node_name, "name of this node; none: the host's", "NAME");
  AddText(app, "--state-dir", config.state_dir, "where this node keeps its state", "DIRECTORY");
  AddText(app, "--log-dir", config.log_dir,
          "where output of workers goes; none: the state directory", "DIRECTORY");
  AddParsed(app, "--port-range", "FIRST-LAST", "",
            "ports that stores and witnesses may use; none: any", [&config](std::string_view text) {
              ASSIGN_OR_RETURN(config.ports, ParsePortRange(text));
              return absl::OkStatus();
            });
  AddTokenFile(app, config.token_file);
  AddSwitch(app, "--insecure", config.insecure,
            "dial without a token, a coordinator that takes everybody");
  AddSwitch(app, "--log-json", config.log_json, "write the log as JSON lines");
}

absl::Status Validate(const AgentConfig& config) {
  if (!config.node_name.empty()) RETURN_IF_ERROR(ValidateNodeName("--node-name", config.node_name));
  if (config.grace <= Duration::zero()) {
    return UserError(absl::StatusCode::kInvalidArgument, "--grace: 0s leaves no time to save",
                     "more than 0 is needed", "--grace 30s");
  }
  if (config.coordinators.size() > kMaxCoordinators) {
    return UserError(absl::StatusCode::kInvalidArgument,
                     Cat("--coordinator: ", config.coordinators.size(), " addresses"),
                     Cat("an agent tries at most ", kMaxCoordinators, " in turn"),
                     "--coordinator HOST1,HOST2");
  }
  for (const std::string& coordinator : config.coordinators) {
    if (coordinator.find('/') != std::string::npos) continue;
    absl::StatusOr<Endpoint> endpoint = ParseEndpoint(coordinator);
    if (!endpoint.ok()) return AtField("--coordinator", endpoint.status());
    absl::StatusOr<std::string> token = GivenToken(config.token_file);
    if (!token.ok()) return token.status();
    RETURN_IF_ERROR(CheckNetworkRule(*endpoint, config.insecure, *token,
                                     Cat("regroup agent --coordinator ", coordinator)));
  }
  return absl::OkStatus();
}

}  // namespace regroup
