#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "common/base/status_macros.h"
#include "common/base/user_error.h"
#include "common/config/state_dir.h"
#include "common/config/text.h"
#include "common/config/values.h"
#include "common/io/files.h"
#include "launcher/cli/commands/all.h"
#include "launcher/cli/commands/log_source.h"
#include "launcher/cli/commands/reader.h"
#include "launcher/cli/render/json.h"

namespace regroup::cli {
namespace {

namespace fs = std::filesystem;

struct KeptLogs {
  std::string path;  // <root>/<job>
  std::string job;
  fs::file_time_type newest = fs::file_time_type::min();
  std::uint64_t bytes = 0;
};

KeptLogs Measure(const std::string& root, const std::string& job) {
  KeptLogs logs{Cat(root, "/", job), job, fs::file_time_type::min(), 0};
  std::error_code error;
  for (const auto& entry : fs::recursive_directory_iterator(logs.path, error)) {
    if (!entry.is_regular_file(error) || entry.is_symlink(error)) continue;
    logs.bytes += entry.file_size(error);
    logs.newest = std::max(logs.newest, entry.last_write_time(error));
  }
  return logs;
}

class Prune : public Command {
 public:
  Prune()
      : Command({.name = "prune",
                 .summary = "remove the output of old runs of this host",
                 .usage = "regroup prune [--dry-run]",
                 .text =
                     "Keeps the output of the youngest ended jobs, up to --keep jobs and "
                     "--max-size, and never lets "
                     "it take the last 10 % of the disk. Jobs that are not over are not touched.",
                 .example = "regroup prune --dry-run"}) {
    AddSwitch(line().app(), "--dry-run", dry_run_, "say what would be removed");
    AddInt(line().app(), "--keep", keep_, 0, 1'000'000, "ended jobs whose output is kept");
    AddBytes(line().app(), "--max-size", max_bytes_, "output that is kept in all");
    DescribeFlags(line().app(), options_);
    ScopeEnvironment(line().app(), "prune");
  }

  absl::StatusOr<int> Run(const ParsedLine& words, const Terminal& terminal) override {
    RETURN_IF_ERROR(CheckWords(*this, words, 0, 0));
    ASSIGN_OR_RETURN(StateDirectory state, DefaultStateDirectory(options_.state_dir, false));
    ReadOptions here = options_;
    here.state_dir = state.path;
    ASSIGN_OR_RETURN(Reader reader, Reader::Open(here, "regroup prune"));
    ASSIGN_OR_RETURN(std::vector<JobView> unfinished, reader.Jobs(false));
    if (!reader.warnings().empty()) {
      return UserError(absl::StatusCode::kFailedPrecondition, "can not tell which jobs are over",
                       reader.warnings().front(), "again when its coordinator answers");
    }
    ASSIGN_OR_RETURN(std::vector<JobView> all, reader.Jobs(true));
    std::set<std::string> busy;
    for (const JobView& job : unfinished) busy.insert(job.id.value());
    std::vector<KeptLogs> logs;
    for (const JobView& job : all) {
      if (busy.count(job.id.value()) > 0) continue;
      for (const std::string& root : FindLogRoots(state.path, "", job.id))
        logs.push_back(Measure(root, job.id.value()));
    }
    ASSIGN_OR_RETURN(std::vector<KeptLogs> old, Old(std::move(logs), state.path));
    return Remove(old, terminal);
  }

 private:
  absl::StatusOr<std::vector<KeptLogs>> Old(std::vector<KeptLogs> logs,
                                            const std::string& state_dir) const {
    std::sort(logs.begin(), logs.end(),
              [](const KeptLogs& a, const KeptLogs& b) { return a.newest > b.newest; });
    constexpr std::uint64_t kShareKeptFree = 10;
    std::uint64_t must_free = 0;
    absl::StatusOr<io::DiskSpace> space = io::DiskSpaceOf(state_dir);
    if (space.ok() && space->free_bytes < space->total_bytes / kShareKeptFree) {
      must_free = space->total_bytes / kShareKeptFree - space->free_bytes;
    }
    std::uint64_t total = 0, kept_bytes = 0;
    for (const KeptLogs& log : logs) total += log.bytes;
    std::uint64_t allowed = std::min(max_bytes_, total > must_free ? total - must_free : 0);
    std::size_t kept = 0;
    while (kept < logs.size() && kept < static_cast<std::size_t>(keep_) &&
           kept_bytes + logs[kept].bytes <= allowed) {
      kept_bytes += logs[kept++].bytes;
    }
    return std::vector<KeptLogs>(logs.begin() + static_cast<std::ptrdiff_t>(kept), logs.end());
  }

  absl::StatusOr<int> Remove(const std::vector<KeptLogs>& old, const Terminal& terminal) const {
    std::uint64_t bytes = 0;
    Json removed = Json::array();
    for (const KeptLogs& logs : old) {
      if (!dry_run_) RETURN_IF_ERROR(io::RemoveTree(logs.path));
      bytes += logs.bytes;
      removed.push_back({{"job", logs.job}, {"path", logs.path}, {"bytes", logs.bytes}});
      std::string text = Cat(dry_run_ ? "would remove " : "removed ", logs.job, "  ",
                             FormatBytes(logs.bytes), "  ", logs.path, "\n");
      if (!options_.json) RETURN_IF_ERROR(terminal.Print(text));
    }
    std::string all =
        Cat(old.size(), dry_run_ ? " would be removed, " : " removed, ", FormatBytes(bytes), "\n");
    if (options_.json)
      all = Dump({{"schema", "regroup.prune/1"},
                  {"dry_run", dry_run_},
                  {"bytes", bytes},
                  {"removed", removed}});
    RETURN_IF_ERROR(terminal.Print(all));
    return kDone;
  }

  bool dry_run_ = false;
  int keep_ = 20;
  std::uint64_t max_bytes_ = 10ull << 30;
  ReadOptions options_;
};

}  // namespace

std::unique_ptr<Command> MakePrune() { return std::make_unique<Prune>(); }

}  // namespace regroup::cli
