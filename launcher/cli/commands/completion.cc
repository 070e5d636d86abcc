#include "launcher/cli/render/completion.h"

#include <algorithm>

#include "common/base/status_macros.h"
#include "common/base/user_error.h"
#include "common/config/text.h"
#include "common/config/values.h"
#include "launcher/cli/commands/all.h"
#include "launcher/cli/commands/reader.h"

namespace regroup::cli {
namespace {

class Completion : public Command {
 public:
  Completion()
      : Command({.name = "completion",
                 .summary = "print the completion script of a shell",
                 .usage = "regroup completion bash|zsh|fish",
                 .text = "Completes commands, flags, and the names of live jobs and nodes. `./dev "
                         "install` has installed "
                         "it already.",
                 .example = "source <(regroup completion bash)\nregroup completion fish | source",
                 .positionals = {{"bash|zsh|fish", "the shell"}}}) {}

  absl::StatusOr<int> Run(const ParsedLine& words, const Terminal& terminal) override {
    RETURN_IF_ERROR(CheckWords(*this, words, 1, 1));
    const std::vector<std::string> shells = {"bash", "zsh", "fish"};
    const std::string& shell = words.rest[0];
    if (std::find(shells.begin(), shells.end(), shell) == shells.end()) {
      std::string nearest = DidYouMean(shell, shells);
      return UserError(absl::StatusCode::kInvalidArgument,
                       Cat("no completion for ", ShellQuote(shell)), "use bash, zsh or fish",
                       nearest.empty() ? "" : Cat("regroup completion ", nearest));
    }
    std::vector<CommandDescription> commands;
    for (const CommandEntry& entry : AllCommands()) {
      if (!entry.hidden) commands.push_back(entry.make()->line().Describe());
    }
    RETURN_IF_ERROR(terminal.Print(RenderCompletion(shell, commands)));
    return kDone;
  }
};

// Live names for the scripts: one a line, nothing when nobody answers.
class Complete : public Command {
 public:
  Complete()
      : Command({.name = "__complete",
                 .summary = "names of live jobs or nodes, for completion scripts",
                 .usage = "regroup __complete jobs|nodes",
                 .example = "regroup __complete jobs"}) {
    DescribeFlags(line().app(), options_);
  }

  absl::StatusOr<int> Run(const ParsedLine& words, const Terminal& terminal) override {
    RETURN_IF_ERROR(CheckWords(*this, words, 1, 1));
    ASSIGN_OR_RETURN(Reader reader, Reader::Open(options_, "regroup __complete"));
    std::string out;
    if (words.rest[0] == "jobs") {
      ASSIGN_OR_RETURN(std::vector<JobView> jobs, reader.Jobs(true));
      for (const JobView& job : jobs) out += Cat(job.id.value(), "\n");
      if (!jobs.empty()) out += "last\n";
    } else {
      ASSIGN_OR_RETURN(std::vector<NodeView> nodes, reader.Nodes());
      for (const NodeView& node : nodes) out += Cat(node.name, "\n");
    }
    RETURN_IF_ERROR(terminal.Print(out));
    return kDone;
  }

 private:
  ReadOptions options_;
};

}  // namespace

std::unique_ptr<Command> MakeCompletion() { return std::make_unique<Completion>(); }
std::unique_ptr<Command> MakeComplete() { return std::make_unique<Complete>(); }

}  // namespace regroup::cli
