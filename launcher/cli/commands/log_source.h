#pragma once

// Where `logs` gets lines from: a live coordinator's relay, or the files of an ended run.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/rpc/log_marks.h"
#include "launcher/cli/commands/reader.h"
#include "launcher/cli/render/log_text.h"

namespace regroup::cli {

// In the state directory: below it, a folder per endpoint holds the output of launch commands.
inline constexpr std::string_view kRunLogsFolder = "logs";

struct LogFilter {
  std::vector<int> ranks;  // Empty: all.
  std::string node;        // Name or id; empty: all.
  std::optional<Generation> generation;
  bool stdout_only = false, stderr_only = false;  // Not both.
  std::optional<Duration> since;
  std::optional<int> tail;  // Per rank and stream.
  LogMarks read;            // What was printed already; of a node that it knows only the rest.
};

// Directories below the state directory (and `log_dir`, if given) that hold logs of this job: the
// `root`s of io::LogDirectory.
std::vector<std::string> FindLogRoots(const std::string& state_dir, const std::string& log_dir,
                                      const JobId& job);

// What launch commands of this host noted of output of the job that they could not show.
std::vector<std::string> OutputNotes(const Place& place, const JobId& job);

// Every line that the filter lets through: generation by generation, within one by the time it was
// written, and always in its stream's own order. Reads only; holds one chunk of each stream of a
// generation.
absl::Status ReadLogFiles(const std::vector<std::string>& roots, const JobView& job,
                          const LogFilter& filter, const std::function<void(LogEntry)>& take);

// "the first 151.0 MiB of rank 0 are no longer kept; --log-keep", for each stream that the filter
// lets through whole.
std::vector<std::string> NotKept(const std::vector<std::string>& roots, const JobView& job,
                                 const LogFilter& filter);
std::string NotKeptText(std::uint64_t bytes, bool first, int rank, bool is_stderr);

// Those of `roots` that belong to a job of this coordinator: ids are unique within a coordinator
// only, and several may have left output in one state directory.
std::vector<std::string> OwnLogRoots(const std::vector<std::string>& roots, const Place& place,
                                     JobOrigin origin);

// Members of the job none of whose ranks has a file here: they wrote nothing, or on another host.
std::vector<std::string> NodesWithoutLogs(const std::vector<std::string>& roots,
                                          const JobView& job);

// Replies of one Logs call as entries. Streams are cut into lines here.
class LogReplies {
 public:
  // `tell`: of output that is no longer kept.
  LogReplies(std::function<void(LogEntry)> take, std::function<void(std::string)> tell)
      : take_(std::move(take)), tell_(std::move(tell)) {}
  void Add(const regroup::v1::LogChunk& chunk);
  // How far they have come, for a call that goes on where this one broke.
  const LogMarks& marks() const { return marks_; }
  void Finish();  // What is left of unfinished lines.

 private:
  struct Stream;
  std::function<void(LogEntry)> take_;
  std::function<void(std::string)> tell_;
  LogMarks marks_;
  std::map<std::string, std::shared_ptr<Stream>> streams_;
};

}  // namespace regroup::cli
