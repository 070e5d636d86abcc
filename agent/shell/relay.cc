#include "agent/shell/relay.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "common/config/env.h"
#include "common/io/files.h"
#include "common/io/proc.h"

namespace regroup::agent {
namespace {

constexpr std::size_t kReadBytes = 64 << 10;
constexpr auto kIdleLook =
    std::chrono::seconds(1);  // Shims tell of output; this is for one that was too busy.

bool SameDevice(int a, int b) {
  struct stat x {
  }, y{};
  return ::fstat(a, &x) == 0 && ::fstat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

// Whoever reads a pipe may print on the same terminal, and would be overwritten.
bool MayPrintElsewhere(int fd) {
  struct stat info {};
  return ::fstat(fd, &info) == 0 && (S_ISFIFO(info.st_mode) || S_ISSOCK(info.st_mode));
}

bool IsScreen(int fd) {
  const std::string terminal = GetEnv("TERM").value_or("");
  return ::isatty(fd) == 1 && !terminal.empty() && terminal != "dumb";
}

std::optional<LineMixer::Sink> LiveSink(int out, int err) {
  if (IsScreen(err) && (SameDevice(out, err) || (!MayPrintElsewhere(out) && !IsScreen(out))))
    return LineMixer::Sink::kStderr;
  if (IsScreen(out) && !IsScreen(err) && !MayPrintElsewhere(err)) return LineMixer::Sink::kStdout;
  return std::nullopt;
}

// 0, or why not all of it could be written.
int WriteAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t wrote = ::write(fd, bytes.data(), bytes.size());
    if (wrote >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(wrote));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      pollfd wait{fd, POLLOUT, 0};  // A shared terminal may have been made non-blocking.
      ::poll(&wait, 1, -1);
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

int Index(LineMixer::Sink sink) { return sink == LineMixer::Sink::kStdout ? 0 : 1; }

}  // namespace

Relay::Relay(int stdout_fd, int stderr_fd, OnWriteError on_write_error,
             std::function<void()> progressed, OnReadTrouble on_read_trouble)
    : fds_{stdout_fd, stderr_fd},
      on_write_error_(std::move(on_write_error)),
      one_device_(SameDevice(stdout_fd, stderr_fd)),
      live_(LiveSink(stdout_fd, stderr_fd)),
      mixer_({.one = one_device_, .live = live_}),
      progressed_(std::move(progressed)),
      on_read_trouble_(std::move(on_read_trouble)),
      thread_([this] { Run(); }) {}

Relay::~Relay() {
  {
    std::lock_guard lock(mutex_);
    drop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Relay::Follow(std::string log_directory, Rules rules) {
  const auto begin = [](const Rule& rule) {
    return rule.shown || !rule.filters.empty() ? io::LogPosition{} : io::kNotAwaited;
  };
  std::lock_guard lock(mutex_);
  shown_[log_directory] = {begin(rules.out), begin(rules.err)};
  to_follow_.emplace_back(std::move(log_directory), std::move(rules));
  poked_ = true;
  changed_.notify_all();
}

void Relay::Unfollow(std::string log_directory) {
  std::lock_guard lock(mutex_);
  to_unfollow_.push_back(std::move(log_directory));
  poked_ = true;
  changed_.notify_all();
}

std::map<std::string, Relay::ShownOf> Relay::ShownSoFar() const {
  std::lock_guard lock(mutex_);
  return shown_;
}

// What the mixer holds of unfinished lines counts as shown: it is here, and nobody else shows it.
void Relay::TellShown(bool all) {
  if (!progressed_ || untold_bytes_ == 0 || (!all && untold_bytes_ < kTellBytes)) return;
  untold_bytes_ = 0;
  {
    std::lock_guard lock(mutex_);
    for (const Stream& stream : streams_) {
      ShownOf& shown = shown_[stream.directory];
      (stream.kind == io::LogStream::kStdout ? shown.out : shown.err) = stream.reader.position();
    }
  }
  progressed_();
}

void Relay::Poke() {
  std::lock_guard lock(mutex_);
  poked_ = true;
  changed_.notify_all();
}

void Relay::Say(std::string text, bool at_once) {
  if (text.empty()) return;
  std::lock_guard lock(mutex_);
  to_say_.push_back({std::move(text), at_once});
  changed_.notify_all();
}

bool Relay::Finish(std::string last_words, Duration limit) {
  std::unique_lock lock(mutex_);
  last_words_ = std::move(last_words);
  finish_ = true;
  changed_.notify_all();
  return changed_.wait_for(lock, limit, [this] { return done_; });
}

void Relay::Run() {
  bool finishing = false;
  std::string last_words;
  for (;;) {
    std::deque<Said> say;
    std::vector<std::string> unfollow;
    std::vector<std::pair<std::string, Rules>> follow;
    {
      std::unique_lock lock(mutex_);
      const std::optional<Instant> flush = mixer_.NextFlush();
      Duration wait = flush ? std::max(Duration::zero(), *flush - io::BootNow())
                            : Duration(std::chrono::hours(1));
      if (!streams_.empty()) wait = std::min<Duration>(wait, kIdleLook);
      changed_.wait_for(lock, wait,
                        [this] { return poked_ || finish_ || drop_ || !to_say_.empty(); });
      if (drop_) break;
      poked_ = false;
      follow = std::exchange(to_follow_, {});
      say = std::exchange(to_say_, {});
      unfollow = std::exchange(to_unfollow_, {});
      finishing = finish_;
      last_words = last_words_;
    }
    for (auto& [directory, rules] : follow) Start(directory, std::move(rules));
    End(unfollow);
    MeasureScreen();
    std::vector<LineMixer::Piece> out;
    // What workers printed before something happened comes before the line that says so.
    for (;;) {
      const bool any = ReadSome(finishing, out);
      DropEnded(out);
      if (!any && !(finishing && mixer_.Holds())) break;
      mixer_.Flush(io::BootNow(), finishing && !any, out);
      Write(std::exchange(out, {}));
      TellShown(/*all=*/false);
    }
    TellShown(/*all=*/true);
    ForgetEnded();
    for (const Said& said : say) mixer_.Say(said.text, said.at_once, io::BootNow(), out);
    mixer_.Flush(io::BootNow(), finishing, out);
    if (finishing) {
      for (const Stream& stream : streams_) TellUnread(stream, out);
      mixer_.Say(last_words, true, io::BootNow(), out);
    }
    Write(out);
    if (!finishing) continue;
    for (Stream& stream : streams_) {
      Keep(stream, stream.filter.Finish());
      LetGo(stream);
    }
    break;
  }
  std::lock_guard lock(mutex_);
  done_ = true;
  changed_.notify_all();
}

void Relay::Start(const std::string& directory, Rules rules) {
  if (!rules.link.empty()) {
    std::error_code ignored;  // The logs themselves are elsewhere.
    std::filesystem::create_directories(std::filesystem::path(rules.link).parent_path(), ignored);
    std::filesystem::create_symlink(rules.link_target, rules.link, ignored);
  }
  std::vector<LineMixer::Piece> pieces;
  for (const Stream& stream : streams_) {
    if (stream.source != kNotShown && stream.generation != rules.generation)
      mixer_.EndBar(stream.source, io::BootNow(), pieces);
  }
  Write(pieces);
  for (auto stream : {io::LogStream::kStdout, io::LogStream::kStderr}) {
    const bool out = stream == io::LogStream::kStdout;
    Rule& rule = out ? rules.out : rules.err;
    if (!rule.shown && rule.filters.empty()) continue;
    const auto sink = out ? LineMixer::Sink::kStdout : LineMixer::Sink::kStderr;
    const int source =
        rule.shown
            ? mixer_.AddSource(sink, {.prefix = rule.prefix, .raw = rule.raw, .label = rules.label})
            : kNotShown;
    streams_.push_back({directory, stream, rules.limits, rules.passing,
                        io::LogReader(directory, stream, {}, rules.passing), source,
                        LineFilter(std::move(rule.filters), std::move(rule.filtered_prefix)),
                        std::move(rule.filtered_file), rules.generation});
  }
}

// Several nodes may append to the same file.
void Relay::Keep(const Stream& stream, const std::string& lines) {
  if (lines.empty()) return;
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(stream.filtered_file).parent_path(),
                                      ignored);
  const absl::StatusOr<io::UniqueFd> file =
      io::OpenRegular(stream.filtered_file, O_WRONLY | O_CREAT | O_APPEND);
  if (!file.ok()) return;  // The whole output is in the logs.
  for (std::size_t done = 0; done < lines.size();) {
    const ssize_t wrote = ::write(file->get(), lines.data() + done, lines.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return;
    done += static_cast<std::size_t>(wrote);
  }
}

// All of it is shown, and its shim, which kept it until then, may have ended before.
void Relay::LetGo(const Stream& stream) {
  if (!stream.unread.empty() || stream.left_out) return;  // It is all that is left of it.
  io::TrimLog(stream.directory, stream.kind, stream.limits);
  if (stream.passing.empty()) return;
  std::error_code ignored;  // The node's folder goes as a whole in the end.
  for (const auto& entry : std::filesystem::directory_iterator(stream.passing, ignored)) {
    if (entry.path().filename().string().starts_with(io::NameOf(stream.kind)))
      std::filesystem::remove(entry.path(), ignored);
  }
}

void Relay::End(const std::vector<std::string>& directories) {
  ending_.insert(ending_.end(), directories.begin(), directories.end());
  for (Stream& stream : streams_) {
    stream.ending = stream.ending || std::find(directories.begin(), directories.end(),
                                               stream.directory) != directories.end();
  }
}

// Of what is unfollowed and shown to its end nobody has to know any more.
void Relay::ForgetEnded() {
  const auto shown = [this](const std::string& directory) {
    return std::none_of(streams_.begin(), streams_.end(),
                        [&](const Stream& stream) { return stream.directory == directory; });
  };
  bool any = false;
  {
    std::lock_guard lock(mutex_);
    any = std::erase_if(ending_, [&](const std::string& directory) {
            return shown(directory) && shown_.erase(directory) > 0;
          }) > 0;
  }
  if (any && progressed_) progressed_();
}

void Relay::DropEnded(std::vector<LineMixer::Piece>& out) {
  for (auto stream = streams_.begin(); stream != streams_.end();) {
    if (!stream->ending || !stream->empty) {
      ++stream;
      continue;
    }
    Keep(*stream, stream->filter.Finish());
    TellUnread(*stream, out);
    if (stream->source != kNotShown) mixer_.RemoveSource(stream->source, io::BootNow(), out);
    LetGo(*stream);
    stream = streams_.erase(stream);
  }
}

void Relay::MeasureScreen() {
  if (!live_) return;
  winsize size{};
  if (::ioctl(fds_[Index(*live_)], TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return;
  mixer_.SetScreen({.columns = size.ws_col, .rows = size.ws_row});
}

// What the mixer cannot take yet stays in the logs.
bool Relay::ReadSome(bool finishing, std::vector<LineMixer::Piece>& out) {
  bool any = false;
  for (Stream& stream : streams_) {
    stream.empty = false;
    if (stream.source != kNotShown && mixer_.Full(stream.source)) continue;
    const int gone = stream.reader.lost_segments();
    absl::StatusOr<io::LogReader::Chunk> chunk = stream.reader.Next(kReadBytes);
    stream.unread = chunk.ok() ? "" : std::string(chunk.status().message());
    if (chunk.ok()) stream.unread_since.reset();
    if (!chunk.ok() && !stream.unread_since) stream.unread_since = io::BootNow();
    stream.empty = !chunk.ok() || chunk->bytes.empty();
    const bool gap = stream.reader.lost_segments() > gone || (chunk.ok() && chunk->lost_before > 0);
    if (gap && !std::exchange(stream.gap_told, true))
      Tell(stream, "its log was removed before all of it was shown", out);
    if (!chunk.ok()) any = LeaveOut(stream, finishing, out) || any;
    if (!chunk.ok() || stream.empty) continue;
    any = true;
    stream.left_out_told = false;
    untold_bytes_ += chunk->bytes.size();
    if (chunk->note) continue;  // The writer's own words.
    if (!stream.filtered_file.empty()) Keep(stream, stream.filter.Add(chunk->bytes));
    if (stream.source == kNotShown) continue;
    mixer_.Add(stream.source, chunk->bytes, io::BootNow(), out);
  }
  return any;
}

// Of what cannot be read: a rank must not wait for ever because of it.
bool Relay::LeaveOut(Stream& stream, bool finishing, std::vector<LineMixer::Piece>& out) {
  const bool over = finishing || stream.ending;
  if (!over && io::BootNow() < *stream.unread_since + kUnreadableLimit) return false;
  if (!stream.reader.SkipSegment()) return false;
  if (!std::exchange(stream.left_out_told, true))
    Tell(stream, stream.unread + "; what comes after it is shown", out);
  stream.unread.clear();
  stream.left_out = true;
  stream.empty = false;
  ++untold_bytes_;  // Its position has moved.
  return true;
}

void Relay::Tell(const Stream& stream, const std::string& what,
                 std::vector<LineMixer::Piece>& out) {
  if (on_read_trouble_)
    mixer_.Say(on_read_trouble_(stream.directory, stream.kind, what), false, io::BootNow(), out);
}

// Nobody looks at it again.
void Relay::TellUnread(const Stream& stream, std::vector<LineMixer::Piece>& out) {
  if (!stream.unread.empty()) Tell(stream, stream.unread, out);
}

void Relay::Write(const std::vector<LineMixer::Piece>& pieces) {
  for (const LineMixer::Piece& piece : pieces) {
    const int index = Index(piece.sink);
    if (gone_[index]) continue;
    const int error = WriteAll(fds_[index], piece.bytes);
    if (error != 0) Failed(piece.sink, error);
  }
}

// A full disk may have room again; a reader that has gone does not come back.
void Relay::Failed(LineMixer::Sink sink, int error) {
  const int index = Index(sink), other = 1 - index;
  gone_[index] = gone_[index] || (error != ENOSPC && error != EDQUOT);
  if (std::exchange(told_[index], true)) return;
  if (one_device_) told_[other] = true;
  const std::string text = on_write_error_ ? on_write_error_(sink, error) : "";
  if (one_device_ || gone_[other]) return;
  const int failed = WriteAll(fds_[other], text);
  if (failed != 0) Failed(other == 0 ? LineMixer::Sink::kStdout : LineMixer::Sink::kStderr, failed);
}

}  // namespace regroup::agent
