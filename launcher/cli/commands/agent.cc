#include "common/config/agent_config.h"

#include "common/base/status_macros.h"
#include "common/config/text.h"
#include "launcher/cli/commands/all.h"
#include "launcher/cli/commands/exec.h"

namespace regroup::cli {
namespace {

class AgentCommand : public Command {
 public:
  AgentCommand()
      : Command({.name = "agent",
                 .summary = "serve this node: start and watch workers of submitted jobs (a daemon)",
                 .usage = "regroup agent [--coordinator HOST[:PORT]] [--slots N]",
                 .text = "Becomes regroup-agent. Killed and started again it finds its workers "
                         "running. SIGTERM "
                         "detaches: workers run on; with --sigterm-is-notice they save and this "
                         "node leaves.",
                 .example = "regroup agent --coordinator 10.0.0.4 --token-file token --slots 8"}) {
    DescribeFlags(line().app(), config_);
  }
  bool speaks_for_job() const override { return true; }

  absl::StatusOr<int> Run(const ParsedLine& words, const Terminal&) override {
    RETURN_IF_ERROR(CheckWords(*this, words, 0, 0));
    RETURN_IF_ERROR(Validate(config_));
    std::vector<std::string> args;
    for (const auto& flag : words.given) args.insert(args.end(), flag.begin(), flag.end());
    return BecomeSibling("regroup-agent", args);
  }

 private:
  AgentConfig config_;
};

}  // namespace

std::unique_ptr<Command> MakeAgent() { return std::make_unique<AgentCommand>(); }

}  // namespace regroup::cli
