#include <nlohmann/json.hpp>
#include <set>

#include "common/base/status_macros.h"
#include "common/config/state_dir.h"
#include "common/config/text.h"
#include "common/config/values.h"
#include "common/io/files.h"
#include "launcher/cli/commands/all.h"
#include "launcher/cli/commands/old_runs.h"
#include "launcher/cli/render/json.h"

namespace regroup::cli {
namespace {

class Prune : public Command {
 public:
  Prune()
      : Command({.name = "prune",
                 .summary = "remove the output of old runs of this host",
                 .usage = "regroup prune [--dry-run]",
                 .text = "Keeps the output of the youngest ended jobs, up to --keep jobs and "
                         "--max-size, and never lets "
                         "it take the last 10 % of the disk. Jobs that are not over are not "
                         "touched. `regroup run` does the same by itself now and then. What a "
                         "running job keeps is --log-keep of `run` and `submit`; what was given "
                         "--log-dir is never removed.",
                 .example = "regroup prune --dry-run"}) {
    AddSwitch(line().app(), "--dry-run", dry_run_, "say what would be removed");
    AddInt(line().app(), "--keep", limits_.keep, 0, 1'000'000, "ended jobs whose output is kept");
    AddBytes(line().app(), "--max-size", limits_.max_bytes, "output that is kept in all");
    DescribeFlags(line().app(), options_);
    ScopeEnvironment(line().app(), "prune");
  }

  absl::StatusOr<int> Run(const ParsedLine& words, const Terminal& terminal) override {
    RETURN_IF_ERROR(CheckWords(*this, words, 0, 0));
    ASSIGN_OR_RETURN(StateDirectory state, DefaultStateDirectory(options_.state_dir, false));
    ASSIGN_OR_RETURN(std::vector<RunLogs> old, RunsToPrune(options_, state.path, limits_));
    return Remove(old, terminal);
  }

 private:
  absl::StatusOr<int> Remove(const std::vector<RunLogs>& old, const Terminal& terminal) const {
    std::uint64_t bytes = 0;
    std::set<std::string> jobs;
    Json removed = Json::array();
    for (const RunLogs& logs : old) {
      if (!dry_run_) RETURN_IF_ERROR(io::RemoveTree(logs.path));
      bytes += logs.bytes;
      jobs.insert(logs.job);
      removed.push_back({{"job", logs.job}, {"path", logs.path}, {"bytes", logs.bytes}});
      std::string text = Cat(logs.job, "  ", FormatBytes(logs.bytes), "  ", logs.path, "\n");
      if (!options_.json) RETURN_IF_ERROR(terminal.Print(text));
    }
    std::string all =
        Cat(jobs.size(), jobs.size() == 1 ? " job" : " jobs",
            dry_run_ ? " would be removed, " : " removed, ", FormatBytes(bytes), "\n");
    if (options_.json)
      all = Dump({{"schema", "regroup.prune/1"},
                  {"dry_run", dry_run_},
                  {"bytes", bytes},
                  {"removed", removed}});
    RETURN_IF_ERROR(terminal.Print(all));
    return kDone;
  }

  bool dry_run_ = false;
  PruneLimits limits_;
  ReadOptions options_;
};

}  // namespace

std::unique_ptr<Command> MakePrune() { return std::make_unique<Prune>(); }

}  // namespace regroup::cli
