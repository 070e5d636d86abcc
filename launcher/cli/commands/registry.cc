#include <array>

#include "launcher/cli/commands/all.h"
#include "launcher/cli/commands/command.h"

namespace regroup::cli {

std::span<const CommandEntry> AllCommands() {
  static constexpr std::array<CommandEntry, 21> kCommands = {
      {{"run", MakeRun},
       {"torchrun", MakeTorchrun},
       {"submit", MakeSubmit},
       {"ps", MakePs},
       {"nodes", MakeNodes},
       {"wait", MakeWait},
       {"logs", MakeLogs},
       {"explain", MakeExplain},
       {"cancel", MakeCancel},
       {"prune", MakePrune},
       {"plan", MakePlan},
       {"version", MakeVersion},
       {"coordinator", MakeCoordinator},
       {"agent", MakeAgent},
       {"token", MakeToken},
       {"authz", MakeAuthz},
       {"completion", MakeCompletion},
       {"man", MakeMan},
       {"__man", MakeMan, true},
       {"__complete", MakeComplete, true},
       {"__completion", MakeCompletion, true}}};
  return kCommands;
}

CommandDescription DescribeProgram() {
  return {
      .name = "",
      .summary = "lose a node, regroup, keep training",
      .usage = "regroup COMMAND [OPTIONS] ARGS...",
      .text =
          "Launches distributed training on machines that fail. One node: `regroup run PROGRAM`. "
          "Several: the "
          "same command on each node, with --nnodes and --rdzv-endpoint. A cluster: `regroup "
          "coordinator`, "
          "`regroup agent` on each node, then `regroup submit`.",
      .example =
          "regroup run --nproc-per-node 2 train.py\n"
          "regroup run --nnodes 2:4 --nproc-per-node 8 --rdzv-endpoint node0 train.py\n"
          "regroup explain"};
}

}  // namespace regroup::cli
