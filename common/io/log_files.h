#pragma once

// Where the output of workers lies and how it is read:
//
//   <root>/<job>/<generation>/<rank>/
//     stdout.<n>.log   segments, n from 0, each at most `segment_bytes`, never renamed
//     stdout.<n>.idx   where the segment begins in its stream, when each chunk was written
//     stdout.log       symbolic link to the newest segment, for people (tail -F)
//
// and the same for stderr. Where all is kept (LogLimits::segments is 0), segment 0 is stdout.log
// itself, a whole file, and its index stdout.idx. A new generation never touches an old one's
// files.
//
// While the disk is full, what a reader has yet to show goes into segments of the same numbers in a
// second folder, on a tmpfs ("passing"): they are gone once they are shown.

#include <cstdint>
#include <deque>
#include <limits>
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
  int segments = 10;  // Per stream; the oldest is removed first. 0: all is kept, in one file.
  bool keeps_all() const { return segments == 0; }
};
// Those that keep about the newest `bytes` of each stream; nothing: all.
LogLimits LimitsFor(std::optional<std::uint64_t> bytes);

// Where a reader stands; can be sent elsewhere and continued.
struct LogPosition {
  int segment = 0;
  std::uint64_t offset = 0;
  friend auto operator<=>(const LogPosition&, const LogPosition&) = default;
};
// Of a stream that its reader does not show: nothing of it is ever yet to be shown.
inline constexpr LogPosition kNotAwaited{std::numeric_limits<int>::max(), 0};

// Appends one stream of one rank. Used by one thread, which may block on the disk. Never fails
// towards the caller: what can not be written is counted and, when writing works again, told by a
// line in the log itself (a note, which whoever shows the stream leaves out).
class LogWriter {
 public:
  // `passing`: the folder on a tmpfs for Place::kMemory; empty: there is none.
  LogWriter(std::string directory, LogStream stream, LogLimits limits, std::string passing = {});

  enum class Place { kDisk, kMemory, kNowhere };
  // Makes the first file, so that a stream to which nothing is written has an empty one. A failure
  // shows at the first Append.
  void Begin();
  // kNowhere: lost, with `why` as the reason. What the disk refuses, whatever for, goes to memory,
  // where there is a reader and a folder for it, and so does some of what follows: then the disk is
  // asked again. `last_error` says why.
  void Append(std::string_view bytes, WallTime now, Place place = Place::kDisk,
              const absl::Status& why = {});
  // What is missing at the end of the log is told there, as Append tells it before what follows:
  // when nothing more is expected, and again after more.
  void End(WallTime now);
  // Up to where a reader has shown the stream: what lies behind it is removed by no limit. Nothing:
  // there is no reader, the limits alone count, and segments in memory are dropped.
  void Hold(std::optional<LogPosition> shown);
  // Written behind the position that is held; 0 without a reader.
  std::uint64_t unshown_bytes() const;
  std::uint64_t memory_bytes() const;            // Of it, in segments in memory.
  bool in_memory() const { return in_memory_; }  // Where the last bytes went.

  std::uint64_t written_bytes() const { return written_bytes_; }
  std::uint64_t lost_bytes() const { return lost_bytes_total_; }
  const absl::Status& last_error() const { return last_error_; }

 private:
  struct Segment {  // One that this writer made and that is held or in memory.
    int number = 0;
    std::uint64_t begin = 0;  // In the stream.
    bool in_memory = false;
  };
  absl::Status OpenNextSegment(bool in_memory);
  absl::Status OpenFiles(bool in_memory);
  void LinkNewest(const std::string& log_path);
  absl::Status WriteChunk(std::string_view bytes, WallTime now, bool note = false);
  absl::Status NoteWhatIsMissing(WallTime now);
  void RemoveOldSegments(int room);
  void ForgetShown();
  void Lose(std::size_t bytes, const absl::Status& why);
  std::uint64_t SegmentRoom() const;

  const std::string directory_, passing_;
  const LogStream stream_;
  const LogLimits limits_;
  UniqueFd log_, index_;
  int next_segment_ = -1;            // -1: not looked yet.
  bool in_memory_ = false;           // The open segment.
  bool in_line_ = false;             // At the end of what is kept.
  std::uint64_t refused_until_ = 0;  // In the stream: from there the disk is asked again.
  std::string passed_because_;       // What is not kept.
  std::uint64_t segment_size_ = 0;
  std::uint64_t end_ = 0;  // Of the stream as its segments hold it, those in memory included.
  std::uint64_t kept_bytes_ = 0;  // Of it, in segments on disk.
  std::optional<LogPosition> held_;
  std::deque<Segment> segments_;  // By number; the open one is last.
  std::optional<WallTime> last_index_time_;
  std::uint64_t written_bytes_ = 0, lost_bytes_total_ = 0;
  std::uint64_t lost_bytes_ = 0, passed_bytes_ = 0;  // Since the last note: lost, or only shown.
  absl::Status last_error_;
};

struct LogLine {
  WallTime at{};         // When its first byte was written to the log.
  std::string text;      // Without the newline; any bytes.
  bool complete = true;  // False: the stream ended, or paused longer than asked, within this line.
  std::size_t end = 0;   // Bytes of the LineSplitter::Add that finished it, up to its end.
};

// Reads one stream of one rank from a position on, also while it is written: call again later for
// more. Survives that segments are removed under it (`lost_segments` counts them).
class LogReader {
 public:
  // `passing`: as of the writer.
  LogReader(std::string directory, LogStream stream, LogPosition from = {},
            std::string passing = {});
  // The next bytes, at most `max_bytes`; empty when there are no more now. Never crosses a time
  // entry, so that all of one chunk were written at `at`.
  struct Chunk {
    std::string bytes;
    WallTime at{};
    bool note = false;              // Not of the stream: the writer's own words.
    std::uint64_t lost_before = 0;  // Bytes of the stream in front of these that are not kept.
  };
  absl::StatusOr<Chunk> Next(std::size_t max_bytes = 64 << 10);
  // After Next has failed: goes on behind the segment that cannot be read, where there is more.
  // The rest of it counts as one lost segment.
  bool SkipSegment();
  LogPosition position() const { return position_; }
  int lost_segments() const { return lost_segments_; }

 private:
  struct IndexEntry {
    std::uint64_t offset = 0;
    WallTime at{};
    bool note = false;
  };
  absl::Status OpenSegment();
  bool AdvanceSegment();
  std::optional<int> SegmentFrom(int least) const;
  void CutAtNextEntry(Chunk& chunk);
  void LoadIndex(std::uint64_t end);
  void CountLost(Chunk& chunk);
  std::vector<int> Segments() const;

  const std::string directory_, passing_;
  const LogStream stream_;
  LogPosition position_;
  std::string stem_;  // Path of the open segment, without ".log".
  // In the stream: where the open segment begins, and where the reader stands; nothing: unknown.
  std::optional<std::uint64_t> segment_begin_, expected_;
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

// How much of the beginning of a stream is no longer kept; 0 where that is not known.
std::uint64_t NotKeptBytes(const std::string& directory, LogStream stream);
// Applies `limits` to a stream whose writer has ended.
void TrimLog(const std::string& directory, LogStream stream, LogLimits limits);

// What is there, from the directories: generation → ranks.
absl::StatusOr<std::map<Generation, std::vector<int>>> ListLogs(const std::string& root,
                                                                const JobId& job);

// Removes the oldest segments of a job (by generation, then number) until its logs hold at most
// `max_bytes`; those of `keep` (the first and the last failure, the running one) stay. Returns the
// bytes that are left.
absl::StatusOr<std::uint64_t> PruneLogs(const std::string& root, const JobId& job,
                                        std::uint64_t max_bytes, const std::set<Generation>& keep);

}  // namespace regroup::io
