#include "common/config/agent_config.h"

#include "common/base/status_macros.h"
#include "common/base/user_error.h"
#include "common/config/flags.h"
#include "common/config/job_limits.h"
#include "common/config/network_rule.h"
#include "common/config/text.h"
#include "common/config/values.h"

namespace regroup {

void DescribeFlags(CLI::App& app, AgentConfig& config) {
  AddParsed(
      app, "--coordinator", "ADDRESS", "",
      "coordinator to serve: HOST[:PORT], or the path of its socket; none: the one of this host",
      [&config](std::string_view text) {
        constexpr std::string_view kUnix = "unix:";
        config.coordinator =
            text.substr(0, kUnix.size()) == kUnix ? text.substr(kUnix.size()) : text;
        return absl::OkStatus();
      });
  AddInt(app, "--slots", config.slots, 0, limits::kWorkersPerNode,
         "places for workers on this node; 0: its GPUs, else 1");
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
  AddSwitch(app, "--insecure", config.insecure, "allow plaintext connections to other hosts");
  AddSwitch(app, "--log-json", config.log_json, "write the log as JSON lines");
}

absl::Status Validate(const AgentConfig& config) {
  if (!config.node_name.empty()) RETURN_IF_ERROR(ValidateNodeName("--node-name", config.node_name));
  if (config.grace <= Duration::zero()) {
    return UserError(absl::StatusCode::kInvalidArgument, "--grace: 0s leaves no time to save",
                     "more than 0 is needed", "--grace 30s");
  }
  if (config.coordinator.empty() || config.coordinator.find('/') != std::string::npos)
    return absl::OkStatus();
  absl::StatusOr<Endpoint> endpoint = ParseEndpoint(config.coordinator);
  if (!endpoint.ok()) return AtField("--coordinator", endpoint.status());
  return CheckNetworkRule(*endpoint, config.insecure,
                          Cat("regroup agent --coordinator ", config.coordinator));
}

}  // namespace regroup
