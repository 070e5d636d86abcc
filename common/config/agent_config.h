#pragma once

// `regroup agent`, the service: what `regroup` parses for help, completion and man page and
// regroup-agent obeys.

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/time.h"
#include "common/config/launch_config.h"

namespace CLI {
class App;
}

namespace regroup {

inline constexpr std::size_t kMaxCoordinators = 8;

struct AgentConfig {
  // Each HOST[:PORT] as typed, or the path of a Unix socket (has a '/'). None: coordinator-local.
  std::vector<std::string> coordinators;
  int slots = 0;  // 0: count GPUs, else 1.
  bool sigterm_is_notice = false;
  Duration grace = std::chrono::seconds(30);  // Until this node is gone after a notice by signal.
  std::string node_name;                      // Empty: the host's name, and then not explicit.
  std::string state_dir;                      // Empty: DefaultStateDirectory (state_dir.h).
  std::string log_dir;                        // Empty: the node's folder.
  PortRange ports;
  std::string token_file;  // Empty: REGROUP_TOKEN, if that is set.
  bool insecure = false;
  bool log_json = false;
};

// One declaration for parser, help, environment, man page and completion.
void DescribeFlags(CLI::App& app, AgentConfig& config);
// Limits and the --insecure rule; the error is a UserError.
absl::Status Validate(const AgentConfig& config);

}  // namespace regroup
