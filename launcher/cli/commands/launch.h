#pragma once

// What `regroup run` and `regroup-torchrun` have in common: from flags to the LaunchConfig with
// which this process becomes the agent of its node.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/config/launch_config.h"
#include "launcher/cli/commands/command.h"
#include "launcher/cli/commands/job_flags.h"
#include "launcher/cli/commands/program.h"
#include "launcher/cli/commands/torch_flags.h"

namespace regroup::cli {

struct LaunchFlags {
  JobFlags job;
  std::optional<int> total_ranks;  // -n: of the whole job.
  std::optional<Endpoint> endpoint;
  bool any_port = false;  // HOST:0, as torchrun's page has it for a single node.
  std::string rdzv_id;
  std::optional<Duration> join_timeout;
  ProgramFlags program;
  std::string node_name, state_dir, log_dir;
  PortRange ports;
  std::string token_file;
  bool insecure = false, quiet = false, leave_children = false;
  TorchFlags torch;
};

enum class Manner { kRun, kTorchrun };
// The same flags; under regroup-torchrun those of torchrun have their PET_ variable.
void DescribeFlags(Manner manner, CLI::App& app, LaunchFlags& flags);

// Under regroup-torchrun a line is read as torchrun reads it.
ParseRules RulesOf(Manner manner);

// Where and as whom nodes meet, once torchrun's options are read in ours.
struct Meeting {
  std::string node_name;             // Pins the order of a static group; empty: the host's.
  bool says_localhost = false;       // The endpoint does, as typed or by torchrun's default.
  std::vector<std::string> notices;  // What was asked for and has no effect, a sentence each.
};
// Rewrites bounds, endpoint, id, grace, join timeout and workers of `flags`. `names`: the flags
// that were given, on the line or by the environment.
absl::StatusOr<Meeting> Settle(Manner manner, const std::vector<std::string>& names,
                               LaunchFlags& flags);

// A job's name from any --rdzv-id: the same for the same text, another one for another text.
std::string JobNameFromId(const std::string& id);

// For --print-completion; shell: bash, zsh, tcsh.
std::string TorchrunCompletion(const std::string& shell, const CommandDescription& description);

class LaunchCommand : public Command {
 public:
  bool program_follows() const override { return true; }
  bool speaks_for_job() const override { return true; }
  absl::StatusOr<int> Run(const ParsedLine& words, const Terminal& terminal) override;

 protected:
  LaunchCommand(Manner manner, CommandDescription description);

 private:
  using Words = std::vector<std::string>;
  absl::Status Prepare(const ParsedLine& words);
  absl::Status Check(const ParsedLine& words) const;
  absl::Status FillJob(const ParsedLine& words, LaunchConfig& config) const;
  absl::Status FillNode(LaunchConfig& config, const Terminal& terminal) const;
  void FillOthers(const ParsedLine& words, LaunchConfig& config) const;
  void TellNotices(const ParsedLine& words, const LaunchConfig& config,
                   const Terminal& terminal) const;
  std::string FlagsOfTheProgram(const ParsedLine& words) const;
  std::string CommandWith(const ParsedLine& words, const Words& extra) const;
  std::string JobName(const ParsedLine& words) const;
  bool torchrun() const { return manner_ == Manner::kTorchrun; }
  Words Shown() const;

  const Manner manner_;
  LaunchFlags flags_;
  Meeting meeting_;
  std::string token_;  // That was given.
  bool insecure_implied_ = false;
  std::vector<Words> flags_in_force_;
  const std::int64_t started_ns_;
};

}  // namespace regroup::cli
