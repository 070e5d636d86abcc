#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/control.h"
#include "common/base/time.h"

namespace CLI {
class App;
}

namespace regroup {

// `regroup coordinator`.
struct CoordinatorConfig {
  // HOST[:PORT] each, names or IP literals; port 0: the kernel chooses. Empty: 127.0.0.1:29400. The
  // first one's port names the folder, <state_dir>/coordinator-<port>/.
  std::vector<std::string> listen;
  bool local = false;           // No TCP at all, folder coordinator-local.
  std::string state_dir;        // Empty: the default of a service (common/config/state_dir.h).
  bool ad_hoc = false;          // Started by a launch command: ends when its last job is over.
  std::string token_file;       // Empty: REGROUP_TOKEN, else what lies in the folder, else made.
  bool accept_journal = false;  // Use a journal that was found older than the fleet.
  bool insecure = false;        // Over TCP nobody has to show the token.
  std::string log_file;         // Empty: standard error; ad hoc: <folder>/coordinator.log.
  bool log_json = false;
  std::uint64_t memory_limit_bytes = 1u << 30;  // Beyond it no connection over TCP is taken.
  std::string build;                            // Commit and build type, for people; set by main.
  Duration lease = std::chrono::seconds(5);
  Duration agent_restart = std::chrono::minutes(2);
  Duration heartbeat = std::chrono::seconds(1);
};

// One declaration for parser, help, environment, man page and completion.
void DescribeFlags(CLI::App& app, CoordinatorConfig& config);
// What starts this coordinator again, for people; empty for one that a launch command started.
std::string StartCommand(const CoordinatorConfig& config, const std::vector<Address>& listening);
// The error is a UserError.
absl::Status Validate(const CoordinatorConfig& config);

}  // namespace regroup
