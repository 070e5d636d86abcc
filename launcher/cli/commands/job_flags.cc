#include "launcher/cli/commands/job_flags.h"

#include "common/base/status_macros.h"
#include "common/base/user_error.h"
#include "common/config/flags.h"
#include "common/config/hardware.h"
#include "common/config/job_limits.h"
#include "common/config/names.h"
#include "common/config/text.h"

namespace regroup::cli {

void DescribeFlags(CLI::App& app, JobFlags& flags) {
  AddParsed(app, "-N,--nnodes", "MIN[:MAX]", FormatNnodes(flags.nodes.min, flags.nodes.max),
            "nodes that the job needs, and may use", [&flags](std::string_view text) {
              ASSIGN_OR_RETURN(flags.nodes, ParseNnodes(text));
              return absl::OkStatus();
            });
  AddText(app, "--nproc-per-node,--ppn", flags.workers,
          flags.origin == JobOrigin::kSubmitted
              ? "workers on each node"
              : "workers on this node: a number, gpu, cpu, or auto (GPUs, else CPUs)",
          "N");
  AddInt(app, "--max-restarts", flags.max_restarts, 0, limits::kRestarts,
         "restarts of the whole group after a fault of its own; losing nodes is free");
  AddDuration(app, "--grace", flags.grace, "time that workers get to stop when they are asked to");
  AddParsed(app, "--scale-up", "WHEN", NameOf(flags.scale_up),
            "when a further node joins a running job: settle (at once, then at most every 30 s), "
            "now, next (with the "
            "next restart), never",
            [&flags](std::string_view text) {
              ASSIGN_OR_RETURN(flags.scale_up, ParseScaleUp(text));
              return absl::OkStatus();
            });
  AddText(app, "--node-check", flags.node_check.command,
          "a line for sh, run on each node before each generation, which waits for it; a node that "
          "fails its check stays out and is checked again",
          "COMMAND");
  AddDuration(app, "--node-check-timeout", flags.node_check.timeout,
              "a node check that takes longer has failed");
  AddParsed(app, "--log-keep", "SIZE|all", "",
            flags.origin == JobOrigin::kSubmitted
                ? "how much of the output of each rank is kept, of stdout and of stderr, the "
                  "newest; none: 100M"
                : "how much of the output of each rank is kept, of stdout and of stderr, the "
                  "newest; none: 100M, all with --log-dir",
            [&flags](std::string_view text) {
              ASSIGN_OR_RETURN(flags.log_keep_bytes, ParseLogKeep(text));
              return absl::OkStatus();
            });
}

absl::Status Apply(const JobFlags& flags, JobSpec& spec) {
  absl::StatusOr<int> workers = flags.origin == JobOrigin::kSubmitted
                                    ? ParseWorkersPerNode(flags.workers)
                                    : ResolveWorkersPerNode(flags.workers);
  if (!workers.ok()) {
    const UserErrorParts parts = PartsOf(workers.status());
    return UserError(workers.status().code(), Cat("--nproc-per-node: ", parts.what), parts.because,
                     Cat("--nproc-per-node ", parts.try_this));
  }
  spec.origin = flags.origin;
  spec.workers_per_node = *workers;
  spec.min_nodes = flags.nodes.min;
  spec.max_nodes = flags.nodes.max;
  spec.max_restarts = flags.max_restarts;
  spec.grace = flags.grace;
  spec.scale_up = flags.scale_up;
  spec.node_check = flags.node_check;
  spec.log_keep_bytes = flags.log_keep_bytes;
  return absl::OkStatus();
}

}  // namespace regroup::cli
