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
constexpr std::uint64_t kMemorySegmentBytes = 256 << 10;
constexpr char kDiskFull[] = "the disk was full";

// One index entry on disk, little endian as all hosts we run on. The first of a segment says where
// it begins: kBeginMark as its time, and what was kept of the stream before it as its offset.
struct DiskEntry {
  std::uint64_t offset = 0;
  std::int64_t wall_us = 0;
};
static_assert(sizeof(DiskEntry) == 16);
constexpr std::int64_t kBeginMark = std::numeric_limits<std::int64_t>::min();
constexpr std::uint64_t kNoteBit = 1ull << 63;  // In an offset: a note begins there.

// Of a stream whose whole output is one file.
std::string WholeStem(const std::string& directory, LogStream stream) {
  return absl::StrCat(directory, "/", std::string(NameOf(stream)));
}

bool HasWholeFile(const std::string& directory, LogStream stream) {
  return ::access(absl::StrCat(WholeStem(directory, stream), ".idx").c_str(), F_OK) == 0;
}

// The path of a segment without its ".log" or ".idx".
std::string Stem(const std::string& directory, LogStream stream, int segment) {
  if (segment == 0 && HasWholeFile(directory, stream)) return WholeStem(directory, stream);
  return absl::StrCat(WholeStem(directory, stream), ".", segment);
}

std::string SegmentPath(const std::string& directory, LogStream stream, int segment,
                        const char* suffix) {
  return absl::StrCat(Stem(directory, stream, segment), suffix);
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
  const std::string whole = std::string(NameOf(stream));
  int of_whole = 0;
  for (const std::string& name : *names) {
    if (std::optional<int> segment = SegmentOf(name, stream)) segments.push_back(*segment);
    if (name == whole + ".log" || name == whole + ".idx") ++of_whole;
  }
  if (of_whole == 2) segments.push_back(0);
  std::sort(segments.begin(), segments.end());
  segments.erase(std::unique(segments.begin(), segments.end()), segments.end());
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

LogLimits LimitsFor(std::optional<std::uint64_t> bytes) {
  if (!bytes) return {.segment_bytes = std::numeric_limits<std::uint64_t>::max(), .segments = 0};
  LogLimits limits;
  constexpr std::uint64_t kMost = 1'000'000;  // Segments.
  const std::uint64_t usual = limits.segment_bytes * static_cast<std::uint64_t>(limits.segments);
  if (*bytes < usual) {
    limits.segment_bytes =
        std::max(kMinSegmentBytes, *bytes / static_cast<std::uint64_t>(limits.segments));
  } else {
    limits.segments = static_cast<int>(
        std::min(kMost, (*bytes + limits.segment_bytes - 1) / limits.segment_bytes));
  }
  return limits;
}

LogWriter::LogWriter(std::string directory, LogStream stream, LogLimits limits, std::string passing)
    : directory_(std::move(directory)),
      passing_(std::move(passing)),
      stream_(stream),
      limits_{.segment_bytes = std::max(kMinSegmentBytes, limits.segment_bytes),
              .segments = std::max(0, limits.segments)} {}

void LogWriter::Begin() {
  if (next_segment_ < 0) OpenNextSegment(/*in_memory=*/false).IgnoreError();
}

std::uint64_t LogWriter::SegmentRoom() const {
  const std::uint64_t most = in_memory_ ? kMemorySegmentBytes : limits_.segment_bytes;
  return most > segment_size_ ? most - segment_size_ : 0;
}

void LogWriter::Append(std::string_view bytes, WallTime now, Place place, const absl::Status& why) {
  if (place == Place::kNowhere) return Lose(bytes.size(), why);
  bool in_memory = place == Place::kMemory;
  if (in_memory) passed_because_ = kDiskFull;
  in_memory |= held_ && !passing_.empty() && end_ < refused_until_;
  // A disk that turns out to be full between two looks at it, or that refuses for another reason,
  // loses nothing that is to be shown.
  const auto passes = [&](const absl::Status& status) {
    if (in_memory || passing_.empty() || !held_) return false;
    log_.reset();
    last_error_ = status;
    passed_because_ = ErrnoOf(status) == ENOSPC ? kDiskFull : std::string(status.message());
    refused_until_ = end_ + kMemorySegmentBytes;
    return in_memory = true;
  };
  if (log_ && in_memory_ != in_memory) log_.reset();
  if (!in_memory && !bytes.empty()) {
    const absl::Status noted = NoteWhatIsMissing(now);
    if (!noted.ok() && !passes(noted)) return Lose(bytes.size(), noted);
  }
  while (!bytes.empty()) {
    if (!log_ || SegmentRoom() == 0) {
      const absl::Status opened = OpenNextSegment(in_memory);
      if (!opened.ok() && passes(opened)) continue;
      if (!opened.ok()) return Lose(bytes.size(), opened);
    }
    std::string_view part = bytes.substr(0, SegmentRoom());
    const std::uint64_t before = segment_size_;
    absl::Status written = WriteChunk(part, now);
    const std::uint64_t reached = segment_size_ - before;  // The file, also of a failed write.
    bytes.remove_prefix(reached);
    written_bytes_ += reached;
    if (in_memory) passed_bytes_ += reached;
    if (!written.ok() && !passes(written)) return Lose(bytes.size(), written);
  }
}

void LogWriter::End(WallTime now) {
  if (lost_bytes_ + passed_bytes_ == 0) return;
  if (in_memory_) log_.reset();
  NoteWhatIsMissing(now).IgnoreError();  // What has no room for a few words can't be told here.
}

absl::Status LogWriter::NoteWhatIsMissing(WallTime now) {
  const std::uint64_t missing = lost_bytes_ + passed_bytes_;
  if (missing == 0) return absl::OkStatus();
  const std::string note = absl::StrCat(
      in_line_ ? "\n" : "", "[regroup: ", missing, " bytes of ", std::string(NameOf(stream_)),
      lost_bytes_ > 0 ? " lost here: " : " not kept here: ",
      lost_bytes_ > 0 ? std::string(last_error_.message()) : passed_because_, "]\n");
  RETURN_IF_ERROR(WriteChunk(note, now, /*note=*/true));
  lost_bytes_ = passed_bytes_ = 0;
  return absl::OkStatus();
}

// The oldest ones go, as far as nobody has yet to show them, until there is room for so many more.
void LogWriter::RemoveOldSegments(int room) {
  if (limits_.keeps_all()) return;
  const std::vector<int> segments = SegmentsIn(directory_, stream_);
  int excess = static_cast<int>(segments.size()) + room - limits_.segments;
  for (int segment : segments) {
    if (excess-- <= 0 || (held_ && segment >= held_->segment)) return;
    RemoveSegment(directory_, stream_, segment);
  }
}

absl::Status LogWriter::OpenNextSegment(bool in_memory) {
  log_.reset();
  index_.reset();
  if (next_segment_ < 0) {
    std::vector<int> existing = SegmentsIn(directory_, stream_);
    next_segment_ = existing.empty() ? 0 : existing.back() + 1;
  }
  // Room first: a full disk may have space again once the oldest segment is gone.
  if (!in_memory) RemoveOldSegments(1);
  RETURN_IF_ERROR(OpenFiles(in_memory));
  in_memory_ = in_memory;
  segment_size_ = 0;
  last_index_time_.reset();
  segments_.push_back({next_segment_++, end_, in_memory});
  ForgetShown();
  return absl::OkStatus();
}

absl::Status LogWriter::OpenFiles(bool in_memory) {
  const std::string& directory = in_memory ? passing_ : directory_;
  RETURN_IF_ERROR(MakeDirectories(directory));
  const int flags = O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC | O_NOFOLLOW;
  const bool whole = !in_memory && limits_.keeps_all() && next_segment_ == 0;
  const std::string stem = whole ? WholeStem(directory, stream_)
                                 : absl::StrCat(WholeStem(directory, stream_), ".", next_segment_);
  const std::string index_path = absl::StrCat(stem, ".idx"), log_path = absl::StrCat(stem, ".log");
  UniqueFd index;
  if (!in_memory) {
    // The index first: a reader that sees the segment finds its times.
    ::unlink(index_path.c_str());  // Left by an attempt that made only this one.
    index.reset(::open(index_path.c_str(), flags, 0644));
    if (!index) return ErrnoStatus(errno, absl::StrCat("create ", index_path));
    const DiskEntry begin{kept_bytes_, kBeginMark};
    // One that did not fit only leaves unsaid how much is gone before this segment.
    [[maybe_unused]] ssize_t ignored = ::write(index.get(), &begin, sizeof(begin));
  }
  UniqueFd log(::open(log_path.c_str(), flags, in_memory ? 0600 : 0644));
  if (!log) return ErrnoStatus(errno, absl::StrCat("create ", log_path));
  if (!in_memory && !limits_.keeps_all()) LinkNewest(log_path);
  log_ = std::move(log);
  index_ = std::move(index);
  return absl::OkStatus();
}

// For people only; a failure does not matter.
void LogWriter::LinkNewest(const std::string& log_path) {
  const std::string link = absl::StrCat(WholeStem(directory_, stream_), ".log");
  const std::string temporary = absl::StrCat(link, ".tmp");
  const std::string target = log_path.substr(directory_.size() + 1);
  ::unlink(temporary.c_str());
  if (::symlink(target.c_str(), temporary.c_str()) == 0) ::rename(temporary.c_str(), link.c_str());
}

absl::Status LogWriter::WriteChunk(std::string_view bytes, WallTime now, bool note) {
  if (!log_) RETURN_IF_ERROR(OpenNextSegment(/*in_memory=*/false));
  const bool timed =
      !last_index_time_ || now - *last_index_time_ >= kIndexInterval || now < *last_index_time_;
  if (index_ && (timed || note)) {
    const DiskEntry entry{segment_size_ | (note ? kNoteBit : 0), now.time_since_epoch().count()};
    // An entry that did not fit only makes these bytes look as old as those before; the log itself
    // decides. A note without one would pass for output.
    const bool fit = ::write(index_.get(), &entry, sizeof(entry)) == sizeof(entry);
    if (fit) last_index_time_ = now;
    if (note && !fit) return ErrnoStatus(ENOSPC, absl::StrCat("write to ", directory_));
  }
  if (note) last_index_time_.reset();
  const char last = bytes.empty() ? '\n' : bytes.back();
  while (!bytes.empty()) {
    ssize_t n = ::write(log_.get(), bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0)
      return ErrnoStatus(errno, absl::StrCat("write to ", in_memory_ ? passing_ : directory_));
    const auto wrote = static_cast<std::uint64_t>(n);
    bytes.remove_prefix(wrote);
    segment_size_ += wrote;
    end_ += wrote;
    if (!in_memory_) kept_bytes_ += wrote;
    if (!in_memory_) in_line_ = last != '\n';
  }
  return absl::OkStatus();
}

// ---- what is yet to be shown

void LogWriter::Hold(std::optional<LogPosition> shown) {
  const bool further = held_ && shown && shown->segment > held_->segment;
  const bool released = held_ && !shown;
  held_ = shown;
  if (!further && !released) return;
  if (released && in_memory_) log_.reset();  // What it holds was for the reader alone.
  ForgetShown();
  if (next_segment_ >= 0) RemoveOldSegments(0);
}

// The open segment stays, unless it is one in memory that nobody will read.
void LogWriter::ForgetShown() {
  while (!segments_.empty()) {
    const Segment& first = segments_.front();
    const bool open = segments_.size() == 1 && log_;
    if (open || (held_ && first.number >= held_->segment)) return;
    if (first.in_memory) RemoveSegment(passing_, stream_, first.number);
    segments_.pop_front();
  }
}

std::uint64_t LogWriter::unshown_bytes() const {
  if (!held_) return 0;
  for (const Segment& segment : segments_) {
    if (segment.number < held_->segment) continue;
    const std::uint64_t offset = segment.number == held_->segment ? held_->offset : 0;
    return end_ - std::min(end_, segment.begin + offset);
  }
  return 0;
}

std::uint64_t LogWriter::memory_bytes() const {
  const std::uint64_t shown = end_ - unshown_bytes();
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < segments_.size(); ++i) {
    if (!segments_[i].in_memory) continue;
    const std::uint64_t end = i + 1 < segments_.size() ? segments_[i + 1].begin : end_;
    bytes += end - std::min(end, std::max(shown, segments_[i].begin));
  }
  return bytes;
}

void LogWriter::Lose(std::size_t bytes, const absl::Status& why) {
  last_error_ = why;
  lost_bytes_ += bytes;
  lost_bytes_total_ += bytes;
}

// ---- reader ------------------------------------------------------------------------------------

LogReader::LogReader(std::string directory, LogStream stream, LogPosition from, std::string passing)
    : directory_(std::move(directory)),
      passing_(std::move(passing)),
      stream_(stream),
      position_(from) {
  if (from == LogPosition{}) expected_ = 0;
}

std::vector<int> LogReader::Segments() const {
  std::vector<int> segments = SegmentsIn(directory_, stream_);
  if (passing_.empty()) return segments;
  const std::vector<int> passing = SegmentsIn(passing_, stream_);
  segments.insert(segments.end(), passing.begin(), passing.end());
  std::sort(segments.begin(), segments.end());
  return segments;
}

absl::Status LogReader::OpenSegment() {
  index_.clear();
  index_at_ = 0;
  index_read_bytes_ = 0;
  segment_begin_.reset();
  // A folder that cannot be read any more could not be written either: what follows passes by it.
  absl::Status unreadable;
  for (const std::string* directory : {&directory_, &passing_}) {
    if (directory->empty()) break;
    stem_ = Stem(*directory, stream_, position_.segment);
    absl::StatusOr<UniqueFd> log = OpenRegular(absl::StrCat(stem_, ".log"), O_RDONLY);
    if (log.ok()) {
      log_ = *std::move(log);
      return absl::OkStatus();
    }
    if (ErrnoOf(log.status()) != ENOENT) unreadable.Update(log.status());
  }
  RETURN_IF_ERROR(unreadable);
  return ErrnoStatus(ENOENT, absl::StrCat("open ", stem_, ".log"));
}

// The first segment of number `least` or above. The folders are listed one after the other: one
// that was made in between shows only beside its successor, so that a gap is looked at twice.
std::optional<int> LogReader::SegmentFrom(int least) const {
  std::optional<int> found;
  for (int look = 0; look < 2 && found.value_or(least + 1) != least; ++look) {
    const std::vector<int> segments = Segments();
    const auto first = std::lower_bound(segments.begin(), segments.end(), least);
    if (first == segments.end()) return found;
    found = *first;
  }
  return found;
}

// To the next segment that exists. False: there is none yet.
bool LogReader::AdvanceSegment() {
  const int next = position_.segment + (log_ ? 1 : 0);
  const std::optional<int> found = SegmentFrom(next);
  if (!found) return false;
  lost_segments_ += *found - next;
  position_ = {*found, *found == position_.segment ? position_.offset : 0};
  log_.reset();
  return true;
}

bool LogReader::SkipSegment() {
  const std::optional<int> found = SegmentFrom(position_.segment + 1);
  if (!found) return false;
  lost_segments_ += *found - position_.segment;
  position_ = {*found, 0};
  expected_.reset();
  log_.reset();
  return true;
}

// An entry is written before its bytes: with the bytes in hand, the index that is read now covers
// them.
void LogReader::CutAtNextEntry(Chunk& chunk) {
  const std::uint64_t end = position_.offset + chunk.bytes.size();
  if (index_.empty() || index_.back().offset <= end) LoadIndex(end);
  while (index_at_ + 1 < index_.size() && index_[index_at_ + 1].offset <= position_.offset)
    ++index_at_;
  if (index_at_ < index_.size()) {
    chunk.at = index_[index_at_].at;
    chunk.note = index_[index_at_].note;
  }
  if (index_at_ + 1 < index_.size() &&
      index_[index_at_ + 1].offset - position_.offset < chunk.bytes.size()) {
    chunk.bytes.resize(index_[index_at_ + 1].offset - position_.offset);
  }
}

// Until an entry behind `end` of the segment is known, or there are no more. A stream may run for
// weeks: entries that are used are dropped.
void LogReader::LoadIndex(std::uint64_t end) {
  const absl::StatusOr<UniqueFd> fd = OpenRegular(absl::StrCat(stem_, ".idx"), O_RDONLY);
  if (!fd.ok()) return;  // The bytes are shown without their times.
  DiskEntry entries[256];
  while (index_.empty() || index_.back().offset <= end) {
    ssize_t n = ::pread(fd->get(), entries, sizeof(entries), static_cast<off_t>(index_read_bytes_));
    const std::size_t whole = n > 0 ? static_cast<std::size_t>(n) / sizeof(DiskEntry) : 0;
    if (whole == 0) return;
    for (std::size_t i = 0; i < whole; ++i) {
      if (entries[i].wall_us == kBeginMark) {
        segment_begin_ = entries[i].offset;
        continue;
      }
      index_.push_back({entries[i].offset & ~kNoteBit,
                        WallTime(std::chrono::microseconds(entries[i].wall_us)),
                        (entries[i].offset & kNoteBit) != 0});
    }
    index_read_bytes_ += whole * sizeof(DiskEntry);
    while (index_at_ + 1 < index_.size() && index_[index_at_ + 1].offset <= position_.offset)
      ++index_at_;
    index_.erase(index_.begin(), index_.begin() + static_cast<std::ptrdiff_t>(index_at_));
    index_at_ = 0;
  }
}

void LogReader::CountLost(Chunk& chunk) {
  if (!segment_begin_) return expected_.reset();
  const std::uint64_t here = *segment_begin_ + position_.offset;
  if (expected_ && here > *expected_) chunk.lost_before = here - *expected_;
  expected_ = here + chunk.bytes.size();
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
      CountLost(chunk);
      position_.offset += chunk.bytes.size();
      return chunk;
    }
    if (has_successor) {
      AdvanceSegment();
      has_successor = false;
      continue;
    }
    const std::vector<int> segments = Segments();
    has_successor = !segments.empty() && segments.back() > position_.segment;
    if (!has_successor) return chunk;
  }
}

// ---- lines -------------------------------------------------------------------------------------

void LineSplitter::Add(std::string_view bytes, WallTime at, std::vector<LogLine>& out) {
  const std::size_t all = bytes.size();
  while (!bytes.empty()) {
    if (partial_.text.empty() && !cut_) partial_.at = at;
    const std::size_t room = max_line_bytes_ - partial_.text.size();
    const std::size_t newline = bytes.substr(0, room + 1).find('\n');
    if (newline != std::string_view::npos) {
      partial_.text.append(bytes.substr(0, newline));
      bytes.remove_prefix(newline + 1);
      partial_.complete = true;
      partial_.end = all - bytes.size();
      out.push_back(std::move(partial_));
      partial_ = LogLine{};
      cut_ = false;
    } else if (bytes.size() > room) {
      partial_.text.append(bytes.substr(0, room));
      bytes.remove_prefix(room);
      partial_.complete = false;
      partial_.end = all - bytes.size();
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
    absl::StatusOr<UniqueFd> fd = OpenRegular(path, O_RDONLY);
    if (absl::IsNotFound(fd.status())) break;
    if (!fd.ok()) return fd.status();
    std::uint64_t end = segment == segments.rbegin() ? position.offset : SizeOf(path);
    char block[4096];
    while (end > 0) {
      const std::size_t want = std::min<std::uint64_t>(sizeof(block), end);
      ssize_t n = ::pread(fd->get(), block, want, static_cast<off_t>(end - want));
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
    const absl::StatusOr<UniqueFd> index =
        OpenRegular(SegmentPath(directory, stream, segment, ".idx"), O_RDONLY);
    DiskEntry entries[256];
    std::uint64_t read = 0;
    for (ssize_t n; index.ok() && (n = ::pread(index->get(), entries, sizeof(entries),
                                               static_cast<off_t>(read))) > 0;) {
      const std::size_t whole = static_cast<std::size_t>(n) / sizeof(DiskEntry);
      if (whole == 0) break;
      for (std::size_t i = 0; i < whole; ++i) {
        if (entries[i].wall_us >= since.time_since_epoch().count())
          return LogPosition{segment, entries[i].offset & ~kNoteBit};
      }
      read += whole * sizeof(DiskEntry);
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

std::uint64_t NotKeptBytes(const std::string& directory, LogStream stream) {
  const std::vector<int> segments = SegmentsIn(directory, stream);
  if (segments.empty()) return 0;
  const absl::StatusOr<UniqueFd> index =
      OpenRegular(SegmentPath(directory, stream, segments.front(), ".idx"), O_RDONLY);
  DiskEntry begin;
  if (!index.ok() || ::pread(index->get(), &begin, sizeof(begin), 0) != sizeof(begin)) return 0;
  return begin.wall_us == kBeginMark ? begin.offset : 0;
}

void TrimLog(const std::string& directory, LogStream stream, LogLimits limits) {
  if (limits.keeps_all()) return;
  const std::vector<int> segments = SegmentsIn(directory, stream);
  const auto kept = static_cast<std::size_t>(std::max(1, limits.segments));
  for (std::size_t i = 0; i + kept < segments.size(); ++i)
    RemoveSegment(directory, stream, segments[i]);
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
