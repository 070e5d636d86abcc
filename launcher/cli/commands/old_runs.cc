#include "launcher/cli/commands/old_runs.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

#include "common/base/status_macros.h"
#include "common/base/user_error.h"
#include "common/config/text.h"
#include "common/io/files.h"
#include "launcher/cli/commands/log_source.h"
#include "launcher/cli/commands/reader.h"

namespace regroup::cli {
namespace {

namespace fs = std::filesystem;

RunLogs Measure(const std::string& root, const std::string& job) {
  RunLogs logs{Cat(root, "/", job), job, fs::file_time_type::min(), 0};
  std::error_code error;
  for (const auto& entry : fs::recursive_directory_iterator(logs.path, error)) {
    if (!entry.is_regular_file(error) || entry.is_symlink(error)) continue;
    logs.bytes += entry.file_size(error);
    logs.newest = std::max(logs.newest, entry.last_write_time(error));
  }
  return logs;
}

// What every node of this host kept of a job: all of it goes, or nothing.
struct JobLogs {
  fs::file_time_type newest = fs::file_time_type::min();
  std::uint64_t bytes = 0;
  std::vector<RunLogs> logs;
};

std::vector<JobLogs> YoungestFirst(std::vector<RunLogs> logs) {
  std::map<std::string, JobLogs> by_job;
  for (RunLogs& log : logs) {
    JobLogs& job = by_job[log.job];
    job.newest = std::max(job.newest, log.newest);
    job.bytes += log.bytes;
    job.logs.push_back(std::move(log));
  }
  std::vector<JobLogs> jobs;
  for (auto& [id, job] : by_job) jobs.push_back(std::move(job));
  std::stable_sort(jobs.begin(), jobs.end(),
                   [](const JobLogs& a, const JobLogs& b) { return a.newest > b.newest; });
  return jobs;
}

std::vector<RunLogs> Beyond(std::vector<RunLogs> logs, const std::string& state_dir,
                            const PruneLimits& limits) {
  std::vector<JobLogs> jobs = YoungestFirst(std::move(logs));
  constexpr std::uint64_t kShareKeptFree = 10;
  std::uint64_t must_free = 0, total = 0, kept_bytes = 0;
  absl::StatusOr<io::DiskSpace> space = io::DiskSpaceOf(state_dir);
  if (space.ok() && space->free_bytes < space->total_bytes / kShareKeptFree) {
    must_free = space->total_bytes / kShareKeptFree - space->free_bytes;
  }
  for (const JobLogs& job : jobs) total += job.bytes;
  std::uint64_t allowed = std::min(limits.max_bytes, total > must_free ? total - must_free : 0);
  std::size_t kept = 0;
  while (kept < jobs.size() && kept < static_cast<std::size_t>(limits.keep) &&
         kept_bytes + jobs[kept].bytes <= allowed) {
    kept_bytes += jobs[kept++].bytes;
  }
  std::vector<RunLogs> beyond;
  for (std::size_t i = kept; i < jobs.size(); ++i)
    std::move(jobs[i].logs.begin(), jobs[i].logs.end(), std::back_inserter(beyond));
  return beyond;
}

}  // namespace

absl::StatusOr<std::vector<RunLogs>> RunsToPrune(const ReadOptions& options,
                                                 const std::string& state_dir,
                                                 const PruneLimits& limits) {
  ReadOptions here = options;
  here.state_dir = state_dir;
  ASSIGN_OR_RETURN(Reader reader, Reader::Open(here, "regroup prune"));
  ASSIGN_OR_RETURN(std::vector<JobView> unfinished, reader.Jobs(false));
  if (!reader.warnings().empty()) {
    return UserError(absl::StatusCode::kFailedPrecondition, "cannot tell which jobs are over",
                     reader.warnings().front(), "again when its coordinator answers");
  }
  ASSIGN_OR_RETURN(std::vector<JobView> all, reader.Jobs(true));
  std::set<std::string> busy, seen;
  for (const JobView& job : unfinished) busy.insert(job.id.value());
  std::vector<RunLogs> logs;
  for (const JobView& job : all) {
    if (busy.count(job.id.value()) > 0) continue;
    for (const std::string& root : FindLogRoots(state_dir, "", job.id)) {
      if (seen.insert(Cat(root, "/", job.id.value())).second)
        logs.push_back(Measure(root, job.id.value()));
    }
  }
  return Beyond(std::move(logs), state_dir, limits);
}

void PruneNowAndThen(const std::string& state_dir, const std::string& log_dir) {
  PruneLimits limits;
  std::error_code error;
  int jobs = 0;
  for (auto at = fs::directory_iterator(log_dir, error); !error && at != fs::directory_iterator();
       at.increment(error))
    ++jobs;
  if (jobs <= limits.keep + limits.keep / 2) return;
  absl::StatusOr<std::vector<RunLogs>> old = RunsToPrune(ReadOptions{}, state_dir, limits);
  if (!old.ok()) return;  // A run never fails for this; `regroup prune` says why.
  for (const RunLogs& logs : *old) io::RemoveTree(logs.path).IgnoreError();
}

}  // namespace regroup::cli
