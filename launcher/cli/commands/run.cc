#include "launcher/cli/commands/all.h"
#include "launcher/cli/commands/launch.h"

namespace regroup::cli {
namespace {

class RunCommand : public LaunchCommand {
 public:
  RunCommand()
      : LaunchCommand(
            Manner::kRun,
            {.name = "run",
             .summary = "launch a program here; the same command on each node",
             .usage = "regroup run [OPTIONS] PROGRAM ARGS...",
             .text =
                 "Starts --nproc-per-node workers on this node, with torchrun's "
                 "environment. With --nnodes and "
                 "--rdzv-endpoint the same command is given on each node; nodes may come, "
                 "go and fail at any "
                 "time. A program that ends in .py, or is given with -m, runs under "
                 "$PYTHON_EXEC, python or "
                 "python3; anything else is executed.\n\n"
                 "The coordinator runs on the host of --rdzv-endpoint. When that host "
                 "dies, the other nodes wait for it, say so, and go on once the same "
                 "command is given there again, with its state directory. An endpoint that "
                 "names a `regroup coordinator` on another host keeps it apart from the "
                 "nodes.\n\n"
                 "Exit code: 0 when the job succeeded, else the code of the worker that "
                 "failed first, or 128 "
                 "plus its signal; 124 --join-timeout; 125 Regroup itself; 126, 127 the "
                 "program; 129, 130, 143 "
                 "cancelled or left by SIGHUP, Ctrl-C, SIGTERM; 143 also when a notice ended one "
                 "generation more than --max-preemptions allows.",
             .example = "regroup run --nproc-per-node 2 train.py --lr 3e-4\n"
                        "regroup run --nnodes 2:4 --nproc-per-node gpu --max-restarts 3 \\\n"
                        "  --rdzv-endpoint node0 train.py",
             .positionals = {{"PROGRAM", "what each worker runs"},
                             {"ARGS...", "its arguments, untouched"}}}) {}
};

}  // namespace

std::unique_ptr<Command> MakeRun() { return std::make_unique<RunCommand>(); }

}  // namespace regroup::cli
