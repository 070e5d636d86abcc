#include "launcher/cli/commands/exec.h"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "common/base/user_error.h"
#include "common/config/text.h"
#include "launcher/cli/commands/program.h"

namespace regroup::cli {

absl::Status BecomeSibling(const std::string& program, const std::vector<std::string>& args) {
  std::array<char, 4096> buffer{};
  ssize_t length = ::readlink("/proc/self/exe", buffer.data(), buffer.size() - 1);
  std::string own =
      length > 0 ? std::string(buffer.data(), static_cast<std::size_t>(length)) : std::string();
  std::string path = Cat(own.substr(0, own.find_last_of('/') + 1), program);
  if (own.empty() || ::access(path.c_str(), X_OK) != 0)
    path = FindExecutable(program).value_or(path);
  std::vector<char*> argv = {const_cast<char*>(program.c_str())};
  for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);
  ::execv(path.c_str(), argv.data());
  return UserError(absl::StatusCode::kInternal, Cat("cannot start ", path), std::strerror(errno),
                   "is Regroup installed completely? ./dev install");
}

}  // namespace regroup::cli
