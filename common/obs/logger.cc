#include "common/obs/logger.h"

#include <fcntl.h>
#include <spdlog/async.h>
#include <spdlog/async_logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <mutex>

namespace regroup::obs {
namespace {

// -1 with errno. A FIFO that nobody reads is refused and not waited for; one with a reader, as a
// log collector makes it, is written to like a file.
int OpenLog(const std::string& path) {
  constexpr int kFlags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY;
  const int fd = open(path.c_str(), kFlags | O_NONBLOCK, 0600);
  if (fd >= 0) fcntl(fd, F_SETFL, O_APPEND);
  return fd;
}

constexpr std::size_t kQueueLines = 8192;

// Writes rendered lines to one descriptor and starts a new file at the size cap. Never throws and
// never fails towards the daemon: a line that can not be written is gone, the next one is tried
// again.
class LineSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  LineSink(std::string path, int fd, std::uint64_t max_bytes)
      : path_(std::move(path)), fd_(fd), max_bytes_(max_bytes) {
    struct stat status {};
    if (fstat(fd_, &status) == 0 && S_ISREG(status.st_mode))
      written_ = static_cast<std::uint64_t>(status.st_size);
  }
  ~LineSink() override {
    if (!path_.empty()) close(fd_);
  }

  std::uint64_t flushes() const {
    std::lock_guard lock(flushes_mutex_);
    return flushes_;
  }
  // False: not within a second.
  bool WaitForFlushAfter(std::uint64_t before) const {
    std::unique_lock lock(flushes_mutex_);
    return flushed_.wait_for(lock, std::chrono::seconds(1), [&] { return flushes_ > before; });
  }

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    std::string line(message.payload.data(), message.payload.size());
    line += '\n';
    if (!path_.empty() && written_ > 0 && written_ + line.size() > max_bytes_) Rotate();
    std::size_t done = 0;
    while (done < line.size()) {
      const ssize_t size = write(fd_, line.data() + done, line.size() - done);
      if (size < 0 && errno == EINTR) continue;
      if (size <= 0) break;
      done += static_cast<std::size_t>(size);
    }
    written_ += done;
  }
  void flush_() override {
    std::lock_guard lock(flushes_mutex_);
    ++flushes_;
    flushed_.notify_all();
  }

  void Rotate() {
    if (rename(path_.c_str(), (path_ + ".1").c_str()) != 0) return;
    const int fd = OpenLog(path_);
    if (fd < 0) return;
    // The number stays the same: standard error of an ad-hoc coordinator may be a duplicate of it.
    dup3(fd, fd_, O_CLOEXEC);
    close(fd);
    written_ = 0;
  }

  const std::string path_;
  const int fd_;
  const std::uint64_t max_bytes_;
  std::uint64_t written_ = 0;
  mutable std::mutex flushes_mutex_;
  mutable std::condition_variable flushed_;
  std::uint64_t flushes_ = 0;
};

class SpdLogger final : public Logger {
 public:
  SpdLogger(const LogConfig& config, int fd)
      : json_(config.json),
        level_(config.level),
        pool_(std::make_shared<spdlog::details::thread_pool>(kQueueLines, 1)),
        sink_(std::make_shared<LineSink>(config.path, fd, config.max_bytes)),
        logger_(std::make_shared<spdlog::async_logger>(
            "regroup", sink_, pool_, spdlog::async_overflow_policy::overrun_oldest)) {
    logger_->set_level(spdlog::level::trace);
  }
  ~SpdLogger() override {
    SpdLogger::Flush();
    logger_.reset();
    pool_.reset();  // Joins the thread after it has written what is queued.
  }

  void Log(Level level, std::string_view what, const Fields& fields) override {
    if (level < level_) return;
    const auto now =
        std::chrono::time_point_cast<std::chrono::microseconds>(std::chrono::system_clock::now());
    const std::size_t dropped = pool_->overrun_counter();
    if (told_dropped_.exchange(dropped) != dropped) {
      Write(RenderLine(now, Level::kWarning, "log lines were dropped",
                       {{"lines", std::to_string(dropped)}}, json_));
    }
    Write(RenderLine(now, level, what, fields, json_));
  }

  void Flush() override {
    // Asked through the queue, so that it comes after every line. A pipe nobody reads must not hold
    // us for ever.
    const std::uint64_t before = sink_->flushes();
    logger_->flush();
    sink_->WaitForFlushAfter(before);
  }

 private:
  void Write(const std::string& line) {
    logger_->log(spdlog::level::info, spdlog::string_view_t(line.data(), line.size()));
  }

  const bool json_;
  const Level level_;
  std::atomic<std::size_t> told_dropped_ = 0;
  // Shared with spdlog's own parts.
  std::shared_ptr<spdlog::details::thread_pool> pool_;
  std::shared_ptr<LineSink> sink_;
  std::shared_ptr<spdlog::async_logger> logger_;
};

}  // namespace

Logger::~Logger() = default;

absl::StatusOr<std::unique_ptr<Logger>> Logger::Create(const LogConfig& config) {
  int fd = STDERR_FILENO;
  if (!config.path.empty()) {
    fd = OpenLog(config.path);
    if (fd < 0) {
      return absl::FailedPreconditionError("log file " + config.path +
                                           " cannot be opened: " + std::strerror(errno));
    }
  }
  return std::unique_ptr<Logger>(new SpdLogger(config, fd));
}

}  // namespace regroup::obs
