#include "agent/shell/relay.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <utility>

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

}  // namespace

Relay::Relay(int stdout_fd, int stderr_fd)
    : fds_{stdout_fd, stderr_fd},
      mixer_(SameDevice(stdout_fd, stderr_fd)),
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
  std::lock_guard lock(mutex_);
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

void Relay::Poke() {
  std::lock_guard lock(mutex_);
  poked_ = true;
  changed_.notify_all();
}

void Relay::Say(std::string text) {
  if (text.empty()) return;
  std::lock_guard lock(mutex_);
  to_say_.push_back(std::move(text));
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
    std::deque<std::string> say;
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
    std::vector<LineMixer::Piece> out;
    // What workers printed before something happened comes before the line that says so.
    while (ReadSome(out)) {
      Write(std::exchange(out, {}));
    }
    Drop(unfollow, out);
    for (const std::string& text : say) mixer_.Say(text, out);
    mixer_.Flush(io::BootNow(), finishing, out);
    if (finishing) mixer_.Say(last_words, out);
    for (Stream& stream : streams_) {
      if (finishing) Keep(stream, stream.filter.Finish());
    }
    Write(out);
    if (finishing) break;
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
  for (auto stream : {io::LogStream::kStdout, io::LogStream::kStderr}) {
    const bool out = stream == io::LogStream::kStdout;
    Rule& rule = out ? rules.out : rules.err;
    if (!rule.shown && rule.filters.empty()) continue;
    const auto sink = out ? LineMixer::Sink::kStdout : LineMixer::Sink::kStderr;
    const int source = rule.shown ? mixer_.AddSource(sink, rule.prefix) : kNotShown;
    streams_.push_back({directory, io::LogReader(directory, stream), source,
                        LineFilter(std::move(rule.filters)), std::move(rule.filtered_file)});
  }
}

// Several nodes may append to the same file.
void Relay::Keep(const Stream& stream, const std::string& lines) {
  if (lines.empty()) return;
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(stream.filtered_file).parent_path(),
                                      ignored);
  const io::UniqueFd file(
      ::open(stream.filtered_file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (file.get() < 0) return;  // The whole output is in the logs.
  for (std::size_t done = 0; done < lines.size();) {
    const ssize_t wrote = ::write(file.get(), lines.data() + done, lines.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return;
    done += static_cast<std::size_t>(wrote);
  }
}

void Relay::Drop(const std::vector<std::string>& directories, std::vector<LineMixer::Piece>& out) {
  for (const std::string& directory : directories) {
    for (auto stream = streams_.begin(); stream != streams_.end();) {
      if (stream->directory == directory) {
        Keep(*stream, stream->filter.Finish());
        if (stream->source != kNotShown) mixer_.RemoveSource(stream->source, out);
        stream = streams_.erase(stream);
      } else {
        ++stream;
      }
    }
  }
}

bool Relay::ReadSome(std::vector<LineMixer::Piece>& out) {
  bool any = false;
  for (Stream& stream : streams_) {
    absl::StatusOr<io::LogReader::Chunk> chunk = stream.reader.Next(kReadBytes);
    if (!chunk.ok() || chunk->bytes.empty()) continue;
    any = true;
    if (!stream.filtered_file.empty()) Keep(stream, stream.filter.Add(chunk->bytes));
    if (stream.source == kNotShown) continue;
    mixer_.Add(stream.source, chunk->bytes, io::BootNow(), out);
  }
  return any;
}

void Relay::Write(const std::vector<LineMixer::Piece>& pieces) {
  for (const LineMixer::Piece& piece : pieces) {
    const int fd = fds_[piece.sink == LineMixer::Sink::kStdout ? 0 : 1];
    for (std::size_t done = 0; done < piece.bytes.size();) {
      const ssize_t wrote = ::write(fd, piece.bytes.data() + done, piece.bytes.size() - done);
      if (wrote >= 0) {
        done += static_cast<std::size_t>(wrote);
      } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
        pollfd wait{fd, POLLOUT, 0};  // Somebody else made a shared terminal non-blocking.
        ::poll(&wait, 1, -1);
      } else if (errno != EINTR) {
        break;  // Nobody reads any more; the logs keep it.
      }
    }
  }
}

}  // namespace regroup::agent
