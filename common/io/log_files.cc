#include "common/io/log_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/io/files.h"

namespace regroup::io {
namespace {

// Entries closer together than this are one: merging needs no more, and a fast writer must not fill
// the disk with times.
constexpr auto kIndexInterval = std::chrono::milliseconds(1);
constexpr std::uint64_t kMinSegmentBytes = 4096;
constexpr std::size_t kMaxIndexBytes = 64u << 20;

// One index entry on disk, little endian as all hosts we run on.
struct DiskEntry {
  std::uint64_t offset = 0;
  std::int64_t wall_us = 0;
};
static_assert(sizeof(DiskEntry) == 16);

std::string SegmentPath(const std::string& directory, LogStream stream, int segment,
                        const char* suffix) {
  return absl::StrCat(directory, "/", std::string(NameOf(stream)), ".", segment, suffix);
}

// "stdout.12.log" → 12 for the stream; nothing for any other name.
std::optional<int> SegmentOf(std::string_view name, LogStream stream) {
  std::string_view head = NameOf(stream);
  if (name.substr(0, head.size()) != head) return std::nullopt;
  name.remove_prefix(head.size());
  if (name.size() < 6 || name.front() != '.' || name.substr(name.size() - 4) != ".log")
    return std::nullopt;
  name = name.substr(1, name.size() - 5);
  int segment = 0;
  auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), segment);
  if (error != std::errc() || end != name.data() + name.size() || segment < 0) return std::nullopt;
  return segment;
}

// Segment numbers in order; empty also when there is no directory yet.
std::vector<int> SegmentsIn(const std::string& directory, LogStream stream) {
  std::vector<int> segments;
  absl::StatusOr<std::vector<std::string>> names = ListDirectory(directory);
  if (!names.ok()) return segments;
  for (const std::string& name : *names) {
    if (std::optional<int> segment = SegmentOf(name, stream)) segments.push_back(*segment);
  }
  std::sort(segments.begin(), segments.end());
  return segments;
}

void RemoveSegment(const std::string& directory, LogStream stream, int segment) {
  ::unlink(SegmentPath(directory, stream, segment, ".log").c_str());
  ::unlink(SegmentPath(directory, stream, segment, ".idx").c_str());
}

std::uint64_t SizeOf(const std::string& path) {
  struct stat info;
  return ::stat(path.c_str(), &info) == 0 ? static_cast<std::uint64_t>(info.st_size) : 0;
}

template <class T>
std::optional<T> NumberFromName(const std::string& name) {
  T number{};
  auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (name.empty() || error != std::errc() || end != name.data() + name.size()) return std::nullopt;
  return number;
}

}  // namespace

std::string_view NameOf(LogStream stream) {
  return stream == LogStream::kStdout ? "stdout" : "stderr";
}

std::string LogDirectory(const std::string& root, const JobId& job, Generation generation,
                         int rank) {
  return absl::StrCat(root, "/", job.value(), "/", generation.value(), "/", rank);
}

// ---- writer ------------------------------------------------------------------------------------

LogWriter::LogWriter(std::string directory, LogStream stream, LogLimits limits)
    : directory_(std::move(directory)),
      stream_(stream),
      limits_{.segment_bytes = std::max(kMinSegmentBytes, limits.segment_bytes),
              .segments = std::max(1, limits.segments)} {}

void LogWriter::Append(std::string_view bytes, WallTime now) {
  if (lost_bytes_ > 0 && !bytes.empty()) {
    const std::string note =
        absl::StrCat("\n[regroup: ", lost_bytes_, " bytes of ", std::string(NameOf(stream_)),
                     " lost here: ", last_error_.message(), "]\n");
    if (!WriteChunk(note, now).ok()) return Lose(bytes.size(), last_error_);
    lost_bytes_ = 0;
  }
  while (!bytes.empty()) {
    if (!log_ || segment_size_ >= limits_.segment_bytes) {
      if (absl::Status opened = OpenNextSegment(); !opened.ok()) return Lose(bytes.size(), opened);
    }
    std::string_view part = bytes.substr(0, limits_.segment_bytes - segment_size_);
    const std::uint64_t before = segment_size_;
    absl::Status written = WriteChunk(part, now);
    bytes.remove_prefix(segment_size_ -
                        before);  // What did reach the file, also of a failed write.
    if (!written.ok()) return Lose(bytes.size(), written);
  }
}

absl::Status LogWriter::OpenNextSegment() {
  log_.reset();
  index_.reset();
  RETURN_IF_ERROR(MakeDirectories(directory_));
  if (next_segment_ < 0) {
    std::vector<int> existing = SegmentsIn(directory_, stream_);
    next_segment_ = existing.empty() ? 0 : existing.back() + 1;
  }
  // Room first: a full disk may have space again once the oldest segment is gone.
  for (const std::vector<int> segments = SegmentsIn(directory_, stream_); int segment : segments) {
    if (segment > next_segment_ - limits_.segments) break;
    RemoveSegment(directory_, stream_, segment);
  }
  const int flags = O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC | O_NOFOLLOW;
  // The index first: a reader that sees the segment finds its times.
  const std::string index_path = SegmentPath(directory_, stream_, next_segment_, ".idx");
  const std::string log_path = SegmentPath(directory_, stream_, next_segment_, ".log");
  ::unlink(index_path.c_str());  // Left by an attempt that made only this one.
  UniqueFd index(::open(index_path.c_str(), flags, 0644));
  if (!index) return ErrnoStatus(errno, absl::StrCat("create ", index_path));
  UniqueFd log(::open(log_path.c_str(), flags, 0644));
  if (!log) return ErrnoStatus(errno, absl::StrCat("create ", log_path));
  // For people only; a failure does not matter.
  const std::string link = absl::StrCat(directory_, "/", std::string(NameOf(stream_)), ".log");
  const std::string temporary = absl::StrCat(link, ".tmp");
  const std::string target = log_path.substr(directory_.size() + 1);
  ::unlink(temporary.c_str());
  if (::symlink(target.c_str(), temporary.c_str()) == 0) ::rename(temporary.c_str(), link.c_str());
  log_ = std::move(log);
  index_ = std::move(index);
  segment_size_ = 0;
  last_index_time_.reset();
  ++next_segment_;
  return absl::OkStatus();
}

absl::Status LogWriter::WriteChunk(std::string_view bytes, WallTime now) {
  if (!log_) RETURN_IF_ERROR(OpenNextSegment());
  if (!last_index_time_ || now - *last_index_time_ >= kIndexInterval || now < *last_index_time_) {
    const DiskEntry entry{segment_size_, now.time_since_epoch().count()};
    // An entry that did not fit only makes these bytes look as old as those before; the log itself
    // decides.
    if (::write(index_.get(), &entry, sizeof(entry)) == sizeof(entry)) last_index_time_ = now;
  }
  while (!bytes.empty()) {
    ssize_t n = ::write(log_.get(), bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, absl::StrCat("write to ", directory_));
    bytes.remove_prefix(static_cast<std::size_t>(n));
    segment_size_ += static_cast<std::uint64_t>(n);
    written_bytes_ += static_cast<std::uint64_t>(n);
  }
  return absl::OkStatus();
}

void LogWriter::Lose(std::size_t bytes, const absl::Status& why) {
  last_error_ = why;
  lost_bytes_ += bytes;
  lost_bytes_total_ += bytes;
}

// ---- reader ------------------------------------------------------------------------------------

LogReader::LogReader(std::string directory, LogStream stream, LogPosition from)
    : directory_(std::move(directory)), stream_(stream), position_(from) {}

absl::Status LogReader::OpenSegment() {
  index_.clear();
  index_at_ = 0;
  index_read_bytes_ = 0;
  const std::string path = SegmentPath(directory_, stream_, position_.segment, ".log");
  log_.reset(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!log_) return ErrnoStatus(errno, absl::StrCat("open ", path));
  return absl::OkStatus();
}

// To the next segment that exists. False: there is none yet.
bool LogReader::AdvanceSegment() {
  for (int segment : SegmentsIn(directory_, stream_)) {
    if (segment < position_.segment || (segment == position_.segment && log_)) continue;
    lost_segments_ += segment - position_.segment - (log_ ? 1 : 0);
    position_ = {segment, segment == position_.segment ? position_.offset : 0};
    log_.reset();
    return true;
  }
  return false;
}

// An entry is written before its bytes: with the bytes in hand, the index that is read now covers
// them.
void LogReader::CutAtNextEntry(Chunk& chunk) {
  auto advance = [&] {
    while (index_at_ + 1 < index_.size() && index_[index_at_ + 1].offset <= position_.offset)
      ++index_at_;
  };
  if (index_.empty() || index_.back().offset <= position_.offset + chunk.bytes.size()) LoadIndex();
  advance();
  if (index_at_ < index_.size()) chunk.at = index_[index_at_].at;
  if (index_at_ + 1 < index_.size() &&
      index_[index_at_ + 1].offset - position_.offset < chunk.bytes.size()) {
    chunk.bytes.resize(index_[index_at_ + 1].offset - position_.offset);
  }
}

void LogReader::LoadIndex() {
  const std::string path = SegmentPath(directory_, stream_, position_.segment, ".idx");
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!fd) return;
  DiskEntry entries[256];
  while (index_read_bytes_ < kMaxIndexBytes) {
    ssize_t n = ::pread(fd.get(), entries, sizeof(entries), static_cast<off_t>(index_read_bytes_));
    const std::size_t whole = n > 0 ? static_cast<std::size_t>(n) / sizeof(DiskEntry) : 0;
    if (whole == 0) return;
    for (std::size_t i = 0; i < whole; ++i) {
      index_.push_back(
          {entries[i].offset, WallTime(std::chrono::microseconds(entries[i].wall_us))});
    }
    index_read_bytes_ += whole * sizeof(DiskEntry);
  }
}

absl::StatusOr<LogReader::Chunk> LogReader::Next(std::size_t max_bytes) {
  Chunk chunk;
  // Found before a read that then met the end: nothing more comes to this segment.
  bool has_successor = false;
  for (;;) {
    if (!log_) {
      absl::Status opened = OpenSegment();
      if (absl::IsNotFound(opened) && !AdvanceSegment()) return chunk;
      if (absl::IsNotFound(opened)) continue;
      RETURN_IF_ERROR(opened);
    }
    chunk.bytes.resize(std::max<std::size_t>(1, max_bytes));
    ssize_t n = ::pread(log_.get(), chunk.bytes.data(), chunk.bytes.size(),
                        static_cast<off_t>(position_.offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, absl::StrCat("read log in ", directory_));
    chunk.bytes.resize(static_cast<std::size_t>(n));
    if (n > 0) {
      CutAtNextEntry(chunk);
      position_.offset += chunk.bytes.size();
      return chunk;
    }
    if (has_successor) {
      AdvanceSegment();
      has_successor = false;
      continue;
    }
    const std::vector<int> segments = SegmentsIn(directory_, stream_);
    has_successor = !segments.empty() && segments.back() > position_.segment;
    if (!has_successor) return chunk;
  }
}

// ---- lines -------------------------------------------------------------------------------------

void LineSplitter::Add(std::string_view bytes, WallTime at, std::vector<LogLine>& out) {
  while (!bytes.empty()) {
    if (partial_.text.empty() && !cut_) partial_.at = at;
    const std::size_t room = max_line_bytes_ - partial_.text.size();
    const std::size_t newline = bytes.substr(0, room + 1).find('\n');
    if (newline != std::string_view::npos) {
      partial_.text.append(bytes.substr(0, newline));
      bytes.remove_prefix(newline + 1);
      partial_.complete = true;
      out.push_back(std::move(partial_));
      partial_ = LogLine{};
      cut_ = false;
    } else if (bytes.size() > room) {
      partial_.text.append(bytes.substr(0, room));
      bytes.remove_prefix(room);
      partial_.complete = false;
      const WallTime begun = partial_.at;
      out.push_back(std::move(partial_));
      partial_ = LogLine{};
      partial_.at = begun;
      cut_ = true;
    } else {
      partial_.text.append(bytes);
      return;
    }
  }
}

std::optional<LogLine> LineSplitter::TakePartial() {
  if (partial_.text.empty()) return std::nullopt;
  LogLine line = std::move(partial_);
  partial_ = LogLine{};
  line.complete = false;
  return line;
}

// ---- positions ---------------------------------------------------------------------------------

absl::StatusOr<LogPosition> TailPosition(const std::string& directory, LogStream stream, int lines,
                                         std::size_t max_bytes) {
  const std::vector<int> segments = SegmentsIn(directory, stream);
  if (segments.empty()) return LogPosition{};
  LogPosition position{segments.back(),
                       SizeOf(SegmentPath(directory, stream, segments.back(), ".log"))};
  std::size_t looked = 0;
  int newlines = 0;
  bool at_end = true;  // A newline at the very end closes the last line, it does not begin another.
  for (auto segment = segments.rbegin(); segment != segments.rend() && lines > 0; ++segment) {
    const std::string path = SegmentPath(directory, stream, *segment, ".log");
    UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    if (!fd && errno == ENOENT) break;
    if (!fd) return ErrnoStatus(errno, absl::StrCat("open ", path));
    std::uint64_t end = segment == segments.rbegin() ? position.offset : SizeOf(path);
    char block[4096];
    while (end > 0) {
      const std::size_t want = std::min<std::uint64_t>(sizeof(block), end);
      ssize_t n = ::pread(fd.get(), block, want, static_cast<off_t>(end - want));
      if (n != static_cast<ssize_t>(want))
        return ErrnoStatus(n < 0 ? errno : EIO, absl::StrCat("read ", path));
      for (std::size_t i = want; i-- > 0; at_end = false) {
        if (looked++ >= max_bytes) return position;
        if (block[i] == '\n' && !at_end && ++newlines == lines)
          return LogPosition{*segment, end - want + i + 1};
        position = {*segment, end - want + i};
      }
      end -= want;
    }
  }
  return position;
}

absl::StatusOr<LogPosition> PositionSince(const std::string& directory, LogStream stream,
                                          WallTime since) {
  LogPosition position;
  for (int segment : SegmentsIn(directory, stream)) {
    absl::StatusOr<std::string> index =
        ReadFile(SegmentPath(directory, stream, segment, ".idx"), kMaxIndexBytes);
    if (index.ok()) {
      for (std::size_t at = 0; at + sizeof(DiskEntry) <= index->size(); at += sizeof(DiskEntry)) {
        DiskEntry entry;
        std::memcpy(&entry, index->data() + at, sizeof(entry));
        if (entry.wall_us >= since.time_since_epoch().count())
          return LogPosition{segment, entry.offset};
      }
    }
    position = {segment, SizeOf(SegmentPath(directory, stream, segment, ".log"))};
  }
  return position;
}

std::string TailText(const std::string& directory, LogStream stream, int lines,
                     std::size_t max_bytes) {
  std::string text;
  absl::StatusOr<LogPosition> position = TailPosition(directory, stream, lines, max_bytes);
  if (!position.ok()) return text;
  LogReader reader(directory, stream, *position);
  std::size_t read = 0;
  while (read < 2 * max_bytes) {  // A writer may be faster than this loop.
    absl::StatusOr<LogReader::Chunk> chunk = reader.Next();
    if (!chunk.ok() || chunk->bytes.empty()) break;
    read += chunk->bytes.size();
    text += chunk->bytes;
    if (text.size() > max_bytes) text.erase(0, text.size() - max_bytes);
  }
  return text;
}

absl::StatusOr<std::map<Generation, std::vector<int>>> ListLogs(const std::string& root,
                                                                const JobId& job) {
  std::map<Generation, std::vector<int>> found;
  const std::string job_directory = absl::StrCat(root, "/", job.value());
  ASSIGN_OR_RETURN(std::vector<std::string> generations, ListDirectory(job_directory));
  for (const std::string& generation_name : generations) {
    std::optional<std::uint64_t> generation = NumberFromName<std::uint64_t>(generation_name);
    absl::StatusOr<std::vector<std::string>> ranks =
        ListDirectory(absl::StrCat(job_directory, "/", generation_name));
    if (!generation || !ranks.ok()) continue;
    std::vector<int>& list = found[Generation(*generation)];
    for (const std::string& rank_name : *ranks) {
      if (std::optional<int> rank = NumberFromName<int>(rank_name)) list.push_back(*rank);
    }
    std::sort(list.begin(), list.end());
  }
  return found;
}

absl::StatusOr<std::uint64_t> PruneLogs(const std::string& root, const JobId& job,
                                        std::uint64_t max_bytes, const std::set<Generation>& keep) {
  ASSIGN_OR_RETURN(auto logs, ListLogs(root, job));
  struct Segment {
    Generation generation;
    int number = 0, rank = 0;
    LogStream stream{};
    std::uint64_t bytes = 0;
  };
  std::vector<Segment> removable;
  std::uint64_t total = 0;
  for (const auto& [generation, ranks] : logs) {
    for (int rank : ranks) {
      const std::string directory = LogDirectory(root, job, generation, rank);
      for (LogStream stream : {LogStream::kStdout, LogStream::kStderr}) {
        for (int number : SegmentsIn(directory, stream)) {
          const std::uint64_t bytes = SizeOf(SegmentPath(directory, stream, number, ".log")) +
                                      SizeOf(SegmentPath(directory, stream, number, ".idx"));
          total += bytes;
          if (!keep.contains(generation))
            removable.push_back({generation, number, rank, stream, bytes});
        }
      }
    }
  }
  std::sort(removable.begin(), removable.end(), [](const Segment& a, const Segment& b) {
    return std::tie(a.generation, a.number, a.rank, a.stream) <
           std::tie(b.generation, b.number, b.rank, b.stream);
  });
  for (const Segment& segment : removable) {
    if (total <= max_bytes) break;
    RemoveSegment(LogDirectory(root, job, segment.generation, segment.rank), segment.stream,
                  segment.number);
    total -= segment.bytes;
  }
  return total;
}

}  // namespace regroup::io
