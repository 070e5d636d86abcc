#include <algorithm>
#include <string_view>

#include "common/base/status_macros.h"
#include "common/config/text.h"
#include "launcher/cli/commands/all.h"
#include "launcher/coordinator/shell/coordinator_config.h"
#include "launcher/coordinator/shell/daemon.h"

namespace regroup::cli {
namespace {

class CoordinatorCommand : public Command {
 public:
  CoordinatorCommand()
      : Command({.name = "coordinator",
                 .summary = "serve: admit jobs, form groups, decide restarts (a daemon)",
                 .usage = "regroup coordinator [--listen HOST[:PORT]]",
                 .text = "Keeps its journal in the state directory: killed and started again it "
                         "resumes every job, and "
                         "no worker notices. SIGTERM or SIGINT ends it with 0, touching no worker.",
                 .example = "regroup coordinator --listen 10.0.0.4:29400"}) {
    DescribeFlags(line().app(), config_);
  }
  bool speaks_for_job() const override { return true; }

  absl::StatusOr<int> Run(const ParsedLine& words, const Terminal&) override {
    RETURN_IF_ERROR(CheckWords(*this, words, 0, 0));
    PreferTyped(words);
    RETURN_IF_ERROR(Validate(config_));
    return RunCoordinator(config_);
  }

 private:
  // Of --local and --listen the one that was typed wins over the other's environment variable: a
  // run's own coordinator starts with --local also where REGROUP_LISTEN is set for a service.
  void PreferTyped(const ParsedLine& words) {
    auto typed = [&](std::string_view flag) {
      return std::any_of(words.given.begin(), words.given.end(),
                         [&](const std::vector<std::string>& g) { return g.front() == flag; });
    };
    if (typed("--local") && !typed("--listen")) config_.listen.clear();
    if (typed("--listen") && !typed("--local")) config_.local = false;
  }

  CoordinatorConfig config_;
};

}  // namespace

std::unique_ptr<Command> MakeCoordinator() { return std::make_unique<CoordinatorCommand>(); }

}  // namespace regroup::cli
