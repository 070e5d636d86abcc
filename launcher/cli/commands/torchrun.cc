#include "common/base/status_macros.h"
#include "common/config/text.h"
#include "launcher/cli/commands/all.h"
#include "launcher/cli/commands/launch.h"

namespace regroup::cli {
namespace {

constexpr char kName[] = "regroup-torchrun";

class Torchrun : public LaunchCommand {
 public:
  Torchrun()
      : LaunchCommand(
            Manner::kTorchrun,
            {.name = "torchrun",
             .summary = "regroup run with torchrun's command line",
             .usage = "regroup-torchrun [OPTIONS] SCRIPT ARGS...",
             .text =
                 "Takes every option of torchrun 2.15 with its meaning, default and PET_ variable "
                 "(the variable of a switch is a number, 0 is off), with dashes or underscores, "
                 "and those of regroup run beside them. What makes no sense here is refused or, "
                 "where leaving it out changes nothing, accepted without effect. SCRIPT runs under "
                 "$PYTHON_EXEC, python or python3 whatever its name is; in ARGS ${local_rank} is "
                 "the worker's. torchrun authenticates nobody: between hosts --insecure is "
                 "implied unless a token is given; nodes are waited for for 600 s.\n\n"
                 "Without --rdzv-backend it is static, as under torchrun: --nnodes nodes, in the "
                 "order of --node-rank. When the host of the endpoint dies, the others wait until "
                 "the same command is given there again (regroup run --help: how to keep it "
                 "apart). Exit code: that of regroup run, so the worker's own instead of "
                 "torchrun's 1.",
             .example = "regroup-torchrun --standalone --nproc-per-node 2 train.py\n"
                        "regroup-torchrun --nnodes 2:4 --nproc-per-node gpu --max-restarts 3 \\\n"
                        "  --rdzv-backend c10d --rdzv-endpoint node0:29400 --rdzv-id 1 train.py",
             .positionals = {{"SCRIPT", "what each worker runs"}, {"ARGS...", "its arguments"}}}) {}

  ParseRules rules() const override { return RulesOf(Manner::kTorchrun); }
};

}  // namespace

std::string TorchrunCompletion(const std::string& shell, const CommandDescription& description) {
  std::string flags = "--help";
  for (const FlagDescription& flag : description.flags) {
    for (const std::string& name : flag.names) flags += Cat(" ", name);
  }
  if (shell == "tcsh") return Cat("complete ", kName, " 'c/-/(", flags, ")/' 'p/*/f/'\n");
  const std::string bash =
      Cat("_regroup_torchrun() {\n  COMPREPLY=()\n  case ${COMP_WORDS[COMP_CWORD]} in\n"
          "    -*) COMPREPLY=($(compgen -W '",
          flags, "' -- \"${COMP_WORDS[COMP_CWORD]}\")) ;;\n  esac\n}\n",
          "complete -o default -F _regroup_torchrun ", kName, "\n");
  return shell == "zsh" ? Cat("autoload -U +X bashcompinit && bashcompinit\n", bash) : bash;
}

std::unique_ptr<Command> MakeTorchrun() { return std::make_unique<Torchrun>(); }

}  // namespace regroup::cli
