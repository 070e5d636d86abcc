#include "common/config/job_limits.h"

#include <algorithm>
#include <cctype>

#include "common/base/status_macros.h"
#include "common/base/user_error.h"
#include "common/config/env.h"
#include "common/config/job_fields.h"
#include "common/config/text.h"
#include "common/config/values.h"

namespace regroup {
namespace {

constexpr std::size_t kLongestName = 63;

bool IsNameCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
}

bool HasNul(std::string_view text) { return text.find('\0') != std::string_view::npos; }

absl::Status ValidateNodes(const JobSpec& spec) {
  RETURN_IF_ERROR(CheckRange("nnodes: minimum", spec.min_nodes, 1, limits::kNodes));
  RETURN_IF_ERROR(CheckRange("nnodes: maximum", spec.max_nodes, 1, limits::kNodes));
  if (spec.min_nodes > spec.max_nodes) {
    return BadInput(
        Cat("nnodes: ", spec.min_nodes, ":", spec.max_nodes, " has its minimum above its maximum"),
        Cat(spec.min_nodes, " is more than ", spec.max_nodes),
        Cat("nnodes ", spec.max_nodes, ":", spec.min_nodes));
  }
  RETURN_IF_ERROR(CheckRange("nnodes: unit", spec.unit, 1, limits::kNodes));
  // Some multiple of unit has to lie within the bounds, else the job could never start.
  if (spec.max_nodes / spec.unit * spec.unit < spec.min_nodes) {
    return BadInput(Cat("nnodes: no multiple of unit ", spec.unit, " lies in ", spec.min_nodes,
                        " to ", spec.max_nodes),
                    "the number of nodes is always a multiple of unit");
  }
  // Of how many GPUs a node has, and so of how many ranks there are, the coordinator decides.
  if (spec.workers_per_node == kWorkerPerGpu) return absl::OkStatus();
  RETURN_IF_ERROR(CheckRange("nproc_per_node", spec.workers_per_node, 1, limits::kWorkersPerNode));
  std::int64_t ranks = std::int64_t{spec.max_nodes} * spec.workers_per_node;
  if (ranks > limits::kRanks) {
    return BadInput(Cat("nnodes x nproc_per_node: ", spec.max_nodes, " x ", spec.workers_per_node,
                        " = ", ranks, " ranks"),
                    Cat("at most ", limits::kRanks, " ranks are allowed"));
  }
  return absl::OkStatus();
}

absl::Status ValidateCommand(const JobSpec& spec) {
  if (spec.command.empty() || spec.command.front().empty()) {
    return BadInput("run: there is no program", "a job needs a command", "run: [python, train.py]");
  }
  if (spec.command.size() > limits::kArguments) {
    return BadInput(Cat("run: ", spec.command.size(), " arguments"),
                    Cat("at most ", limits::kArguments, " are allowed"), "put them into a file");
  }
  std::size_t bytes = 0;
  for (const std::string& argument : spec.command) {
    if (HasNul(argument))
      return BadInput("run: an argument has a NUL byte", "no program can be given one");
    bytes += argument.size() + 1;
  }
  if (bytes > limits::kCommandBytes) {
    return BadInput(Cat("run: the command has ", bytes, " bytes"),
                    Cat("at most ", limits::kCommandBytes, " are allowed"),
                    "put long arguments into a file");
  }
  return absl::OkStatus();
}

bool IsVariableName(std::string_view name) {
  if (name.empty() || std::isdigit(static_cast<unsigned char>(name.front()))) return false;
  for (char c : name) {
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '_') return false;
  }
  return true;
}

absl::Status ValidateEnvironment(const JobSpec& spec) {
  if (spec.environment.size() > limits::kEnvironmentEntries) {
    return BadInput(Cat("env: ", spec.environment.size(), " variables"),
                    Cat("at most ", limits::kEnvironmentEntries, " are allowed"));
  }
  std::size_t bytes = 0;
  for (const auto& [name, value] : spec.environment) {
    if (!IsVariableName(name)) {
      return BadInput(
          Cat("env: ", ShellQuote(name.substr(0, 60)), " is not the name of a variable"),
          "letters, digits and _ are allowed, not starting with a digit");
    }
    if (IsSetByRegroup(name) || IsRegroupSecret(name)) {
      return BadInput(Cat("env: ", name, " cannot be given"),
                      IsRegroupSecret(name) ? "it is a secret of Regroup's, which no worker sees"
                                            : "Regroup sets it for every worker",
                      name == "ROLE_NAME" ? "role: NAME" : Cat("env without ", name));
    }
    if (HasNul(value))
      return BadInput(Cat("env: ", name, " has a NUL byte"), "no program can be given one");
    bytes += name.size() + value.size() + 2;
  }
  if (bytes > limits::kEnvironmentBytes) {
    return BadInput(Cat("env: ", bytes, " bytes"),
                    Cat("at most ", limits::kEnvironmentBytes, " are allowed"));
  }
  return absl::OkStatus();
}

absl::Status ValidateDirectory(const JobSpec& spec) {
  if (spec.origin != JobOrigin::kSubmitted) return absl::OkStatus();
  if (spec.directory.empty() || spec.directory.front() != '/') {
    return BadInput(Cat("workdir: ", ShellQuote(spec.directory.substr(0, 200)), " is not absolute"),
                    "every node has to find the same directory", "workdir: /shared/gpt");
  }
  if (spec.directory.size() >= limits::kDirectoryBytes || HasNul(spec.directory)) {
    return BadInput(Cat("workdir: a path of ", spec.directory.size(), " bytes"),
                    Cat("at most ", limits::kDirectoryBytes - 1, " are allowed, and no NUL"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckRange(std::string_view field, std::int64_t value, std::int64_t min,
                        std::int64_t max) {
  if (value >= min && value <= max) return absl::OkStatus();
  return BadInput(Cat(field, ": ", value, " is out of range"),
                  Cat(min, " to ", max, " are allowed"));
}

absl::Status ValidateJobName(std::string_view field, std::string_view name) {
  bool good =
      !name.empty() && name.size() <= kLongestName && name.front() != '-' && name.back() != '-';
  for (char c : name) good = good && IsNameCharacter(c);
  if (good) return absl::OkStatus();
  return BadInput(
      Cat(field, ": ", ShellQuote(name.substr(0, 80)), " is not a name"),
      Cat("1 to ", kLongestName, " of a-z, 0-9 and '-', not starting or ending with '-'"),
      Cat(field, " ", JobNameFrom(name)));
}

std::string JobNameFrom(std::string_view text) {
  std::string name;
  for (char c : text) {
    char lower = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    bool keep = IsNameCharacter(lower) && lower != '-';
    if (keep) {
      name += lower;
    } else if (!name.empty() && name.back() != '-') {
      name += '-';
    }
    if (name.size() == kLongestName) break;
  }
  while (!name.empty() && name.back() == '-') name.pop_back();
  return name.empty() ? "job" : name;
}

absl::Status ValidateNodeName(std::string_view field, std::string_view name) {
  bool good = !name.empty() && name.size() <= kLongestName &&
              std::isalnum(static_cast<unsigned char>(name.front()));
  for (char c : name) {
    good =
        good && (std::isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-');
  }
  if (good) return absl::OkStatus();
  return BadInput(Cat(field, ": ", ShellQuote(name.substr(0, 80)), " is not a node's name"),
                  Cat("1 to ", kLongestName,
                      " letters, digits, '.', '_' and '-', starting with a letter or digit"));
}

absl::Status ValidateRole(std::string_view field, std::string_view role) {
  const bool good = !role.empty() && role.size() <= limits::kRoleBytes &&
                    std::none_of(role.begin(), role.end(), [](char c) {
                      return std::iscntrl(static_cast<unsigned char>(c)) != 0;
                    });
  if (good) return absl::OkStatus();
  return BadInput(Cat(field, ": ", ShellQuote(role.substr(0, 80)), " is not a role"),
                  Cat("1 to ", limits::kRoleBytes, " bytes, no control characters"),
                  Cat(field, " trainer"));
}

const std::vector<std::string>& NumaBindings() {
  static const std::vector<std::string> known = {"node", "socket", "exclusive", "core-complex"};
  return known;
}

absl::Status ValidateJobSpec(const JobSpec& spec) {
  RETURN_IF_ERROR(ValidateJobName("name", spec.name));
  RETURN_IF_ERROR(ValidateNodes(spec));
  RETURN_IF_ERROR(ValidateCommand(spec));
  RETURN_IF_ERROR(ValidateDirectory(spec));
  RETURN_IF_ERROR(ValidateEnvironment(spec));
  for (const JobField& field : JobFields()) RETURN_IF_ERROR(CheckJobField(field, spec));
  if (spec.exit_codes.size() > 255)
    return BadInput("retry.exit_codes: more than 255 entries", "exit codes are 1 to 255");
  for (const auto& [code, action] : spec.exit_codes)
    RETURN_IF_ERROR(CheckRange("retry.exit_codes", code, 1, 255));
  return absl::OkStatus();
}

}  // namespace regroup
