#include "common/rpc/places.h"

namespace regroup {

std::string CoordinatorFolder(std::string_view state_dir, std::uint16_t port) {
  return std::string(state_dir) + "/coordinator-" + std::to_string(port);
}

std::string LocalCoordinatorFolder(std::string_view state_dir) {
  return std::string(state_dir) + "/coordinator-local";
}

std::vector<std::string> CoordinatorArguments(const AdHocCoordinator& coordinator) {
  std::vector<std::string> arguments = {"coordinator", "--ad-hoc", "--state-dir",
                                        coordinator.state_dir};
  std::string listen;
  for (const std::string& address : coordinator.listen)
    listen += (listen.empty() ? "" : ",") + address;
  if (listen.empty()) {
    arguments.push_back("--local");
  } else {
    arguments.push_back("--listen");
    arguments.push_back(listen);
  }
  if (!coordinator.token_file.empty()) {
    arguments.push_back("--token-file");
    arguments.push_back(coordinator.token_file);
  }
  if (coordinator.insecure) arguments.push_back("--insecure");
  return arguments;
}

}  // namespace regroup
