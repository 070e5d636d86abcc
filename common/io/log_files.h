#pragma once

// Where the output of workers lies and how it is read:
//
//   <root>/<job>/<generation>/<rank>/stdout.<n>.log   segments, n from 0, each at most
//   `segment_bytes`, never renamed
//                                    stdout.<n>.idx   when each chunk of the segment was written
//                                    stdout.log       symbolic link to the newest segment, for
//                                    people (tail -F)
//
// and the same for stderr. A new generation never touches an old one's files. A file appears with
// its first byte.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/base/time.h"
#include "common/io/fd.h"

namespace regroup::io {

enum class LogStream { kStdout, kStderr };
std::string_view NameOf(LogStream stream);  // "stdout", "stderr"

std::string LogDirectory(const std::string& root, const JobId& job, Generation generation,
                         int rank);

struct LogLimits {
  std::uint64_t segment_bytes = 10u << 20;  // At least 4096.
  int segments = 10;                        // Per stream; the oldest is removed first.
};

// Appends one stream of one rank. Used by one thread, which may block on the disk. Never fails
// towards the caller: what can not be written is counted and, when writing works again, told by a
// line in the log itself.
class LogWriter {
 public:
  LogWriter(std::string directory, LogStream stream, LogLimits limits);
  void Append(std::string_view bytes, WallTime now);
  std::uint64_t written_bytes() const { return written_bytes_; }
  std::uint64_t lost_bytes() const { return lost_bytes_total_; }
  const absl::Status& last_error() const { return last_error_; }

 private:
  absl::Status OpenNextSegment();
  absl::Status WriteChunk(std::string_view bytes, WallTime now);
  void Lose(std::size_t bytes, const absl::Status& why);

  const std::string directory_;
  const LogStream stream_;
  const LogLimits limits_;
  UniqueFd log_, index_;
  int next_segment_ = -1;  // -1: not looked yet.
  std::uint64_t segment_size_ = 0;
  std::optional<WallTime> last_index_time_;
  std::uint64_t written_bytes_ = 0, lost_bytes_ = 0, lost_bytes_total_ = 0;
  absl::Status last_error_;
};

struct LogLine {
  WallTime at{};         // When its first byte was written to the log.
  std::string text;      // Without the newline; any bytes.
  bool complete = true;  // False: the stream ended, or paused longer than asked, within this line.
};

// Where a reader stands; can be sent elsewhere and continued.
struct LogPosition {
  int segment = 0;
  std::uint64_t offset = 0;
  friend auto operator<=>(const LogPosition&, const LogPosition&) = default;
};

// Reads one stream of one rank from a position on, also while it is written: call again later for
// more. Survives that segments are removed under it (`lost_segments` counts them).
class LogReader {
 public:
  LogReader(std::string directory, LogStream stream, LogPosition from = {});
  // The next bytes, at most `max_bytes`; empty when there are no more now. Never crosses a time
  // entry, so that all of one chunk were written at `at`.
  struct Chunk {
    std::string bytes;
    WallTime at{};
  };
  absl::StatusOr<Chunk> Next(std::size_t max_bytes = 64 << 10);
  LogPosition position() const { return position_; }
  int lost_segments() const { return lost_segments_; }

 private:
  struct IndexEntry {
    std::uint64_t offset = 0;
    WallTime at{};
  };
  absl::Status OpenSegment();
  bool AdvanceSegment();
  void CutAtNextEntry(Chunk& chunk);
  void LoadIndex();

  const std::string directory_;
  const LogStream stream_;
  LogPosition position_;
  UniqueFd log_;
  std::vector<IndexEntry> index_;
  std::size_t index_at_ = 0;
  std::uint64_t index_read_bytes_ = 0;
  int lost_segments_ = 0;
};

// Cuts chunks into lines. A line longer than `max_line_bytes` is cut there, and its rest has the
// same time.
class LineSplitter {
 public:
  explicit LineSplitter(std::size_t max_line_bytes = 64 << 10) : max_line_bytes_(max_line_bytes) {}
  // Appends finished lines to `out`.
  void Add(std::string_view bytes, WallTime at, std::vector<LogLine>& out);
  // The unfinished rest, if any, as an incomplete line.
  std::optional<LogLine> TakePartial();
  bool has_partial() const { return !partial_.text.empty(); }

 private:
  const std::size_t max_line_bytes_;
  LogLine partial_;
  bool cut_ = false;  // The line that partial_ belongs to has begun before.
};

// Where the last `lines` lines begin (0: at the end), looking back at most `max_bytes`.
absl::StatusOr<LogPosition> TailPosition(const std::string& directory, LogStream stream, int lines,
                                         std::size_t max_bytes = 1 << 20);
// Where the first chunk that was written at `since` or later begins.
absl::StatusOr<LogPosition> PositionSince(const std::string& directory, LogStream stream,
                                          WallTime since);
// The last `lines` lines as one text of at most `max_bytes` (cut at the front); empty when there
// are none.
std::string TailText(const std::string& directory, LogStream stream, int lines,
                     std::size_t max_bytes);

// What is there, from the directories: generation → ranks.
absl::StatusOr<std::map<Generation, std::vector<int>>> ListLogs(const std::string& root,
                                                                const JobId& job);

// Removes the oldest segments of a job (by generation, then number) until its logs hold at most
// `max_bytes`; those of `keep` (the first and the last failure, the running one) stay. Returns the
// bytes that are left.
absl::StatusOr<std::uint64_t> PruneLogs(const std::string& root, const JobId& job,
                                        std::uint64_t max_bytes, const std::set<Generation>& keep);

}  // namespace regroup::io
