#include "agent/shim/log_drain.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/io/proc.h"

namespace regroup::shim {
namespace {

constexpr std::size_t kPipeReadBytes = 64 << 10;
// More than a pipe holds: bounds the last reading of a pipe that somebody keeps writing to.
constexpr std::size_t kLastReads = 2 * ((1 << 20) / kPipeReadBytes) + 2;
// How old what is known of the free space may get: less than kLeastFreeBytes lie between two looks.
constexpr auto kDiskInterval = std::chrono::milliseconds(200);
constexpr std::uint64_t kDiskBytes = 3 << 20;  // With its index, less than 4 MiB.
constexpr int kFullDiskLookMs = 1000;

void Signal(int event_fd) {
  const std::uint64_t one = 1;
  [[maybe_unused]] ssize_t ignored =
      ::write(event_fd, &one, sizeof(one));  // Full: it is readable anyway.
}

}  // namespace

absl::StatusOr<std::unique_ptr<LogDrain>> LogDrain::Start(int notify_fd) {
  std::unique_ptr<LogDrain> drain(new LogDrain(notify_fd));
  drain->epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
  drain->wake_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = drain->wake_.get();
  if (!drain->epoll_ || !drain->wake_ ||
      ::epoll_ctl(drain->epoll_.get(), EPOLL_CTL_ADD, drain->wake_.get(), &event) < 0) {
    return io::ErrnoStatus(errno, "set up log thread");
  }
  drain->thread_ = std::thread([raw = drain.get()] { raw->Run(); });
  return drain;
}

LogDrain::~LogDrain() {
  if (thread_.joinable()) thread_.join();
}

void LogDrain::Post(Order order) {
  {
    std::lock_guard lock(mutex_);
    orders_.push_back(std::move(order));
  }
  Signal(wake_.get());
}

void LogDrain::AddRank(int local_rank, const std::string& directory, const std::string& passing,
                       io::LogLimits limits, io::UniqueFd standard_output,
                       io::UniqueFd standard_error) {
  Order order{.kind = Order::kAdd, .local_rank = local_rank, .pipes = {}};
  const auto add = [&](io::LogStream stream, io::UniqueFd fd) {
    order.pipes.push_back({local_rank, stream, std::move(fd),
                           std::make_unique<io::LogWriter>(directory, stream, limits, passing)});
  };
  add(io::LogStream::kStdout, std::move(standard_output));
  add(io::LogStream::kStderr, std::move(standard_error));
  order.directory = directory;
  order.passing = !passing.empty();
  Post(std::move(order));
}

void LogDrain::RankEnded(int local_rank) {
  Post({.kind = Order::kRankEnded, .local_rank = local_rank, .pipes = {}});
}

void LogDrain::Finish() {
  {
    std::lock_guard lock(mutex_);
    finishing_ = true;
  }
  Post({.kind = Order::kFinish, .local_rank = 0, .pipes = {}});
}

void LogDrain::SetReader(Reader reader) {
  {
    std::lock_guard lock(mutex_);
    if (told_ == reader || (finishing_ && !reader.present)) return;
    told_ = std::move(reader);
  }
  Signal(wake_.get());
}

bool LogDrain::DiskIsFull(std::uint64_t free_bytes, std::uint64_t total_bytes, bool full) {
  const std::uint64_t least = std::max(kLeastFreeBytes, total_bytes / 10);
  return free_bytes < (full ? least + least / 8 : least);
}

LogDrain::Progress LogDrain::Look() const {
  std::lock_guard lock(mutex_);
  return progress_;
}

void LogDrain::Run() {
  buffer_.resize(kPipeReadBytes);
  while (!local_.done) {
    epoll_event events[64];
    // A full disk has room again at some time, whether workers write or not.
    const int n = ::epoll_wait(epoll_.get(), events, 64, local_.disk_full ? kFullDiskLookMs : -1);
    if (n < 0 && errno == EINTR) continue;
    CHECK(n >= 0);
    if (n == 0) LookAtDisk(0);
    bool woken = false;
    for (int i = 0; i < n; ++i) {
      woken = woken || events[i].data.fd == wake_.get();
      auto pipe = pipes_.find(events[i].data.fd);
      if (pipe != pipes_.end() && !ReadOnce(pipe->second)) pipes_.erase(pipe);
    }
    if (woken) TakeOrders();
    WaitOrGoOn();
    Publish();
  }
}

void LogDrain::TakeOrders() {
  std::uint64_t count = 0;
  [[maybe_unused]] ssize_t ignored = ::read(wake_.get(), &count, sizeof(count));
  std::vector<Order> orders;
  {
    std::lock_guard lock(mutex_);
    orders.swap(orders_);
    reader_ = told_;
  }
  ApplyReader();
  for (Order& order : orders) {
    for (Pipe& pipe : order.pipes) {
      log_directory_ = order.directory;
      passes_ = order.passing;
      pipe.writer->Begin();
      const int fd = pipe.fd.get();
      pipe.paused = true;
      Watch(pipes_.emplace(fd, std::move(pipe)).first->second, true);
    }
    ApplyReader();
    if (order.kind == Order::kAdd) continue;
    const bool all = order.kind == Order::kFinish;
    for (auto& [fd, pipe] : pipes_) {
      if (all || pipe.local_rank == order.local_rank) ReadWhatIsThere(pipe);
    }
    if (!all) local_.complete.insert(order.local_rank);
    local_.done = local_.done || all;
  }
}

// A pipe that is not read leaves the set: one without a writer would be reported again and again.
void LogDrain::Watch(Pipe& pipe, bool watched) {
  if (pipe.paused != watched) return;
  pipe.paused = !watched;
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = pipe.fd.get();
  CHECK(::epoll_ctl(epoll_.get(), watched ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, pipe.fd.get(), &event) ==
        0);
}

void LogDrain::ApplyReader() {
  for (auto& [fd, pipe] : pipes_) {
    if (!reader_.present) {
      pipe.writer->Hold(std::nullopt);
      continue;
    }
    const auto shown = reader_.shown.find({pipe.local_rank, pipe.stream});
    pipe.writer->Hold(shown == reader_.shown.end() ? io::LogPosition{} : shown->second);
  }
}

bool LogDrain::MustWait(const Pipe& pipe) const {
  if (!reader_.present || !reader_.waits || pipe.writer->unshown_bytes() == 0) return false;
  return local_.unshown_bytes >= reader_.room_bytes || pipe.writer->memory_bytes() >= kMemoryBytes;
}

void LogDrain::WaitOrGoOn() {
  local_.unshown_bytes = 0;
  for (const auto& [fd, pipe] : pipes_) local_.unshown_bytes += pipe.writer->unshown_bytes();
  for (auto& [fd, pipe] : pipes_) Watch(pipe, !MustWait(pipe));
}

// False at the end of the stream.
bool LogDrain::ReadOnce(Pipe& pipe) {
  ssize_t n;
  do {
    n = ::read(pipe.fd.get(), buffer_.data(), buffer_.size());
  } while (n < 0 && errno == EINTR);
  if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
  if (n == 0) return false;
  Write(pipe, {buffer_.data(), static_cast<std::size_t>(n)});
  return true;
}

void LogDrain::Write(Pipe& pipe, std::string_view bytes) {
  using Place = io::LogWriter::Place;
  LookAtDisk(bytes.size());
  Place place = Place::kDisk;
  if (local_.disk_full) {
    const bool passes =
        passes_ && reader_.present && pipe.writer->memory_bytes() < kMostMemoryBytes;
    place = passes ? Place::kMemory : Place::kNowhere;
  }
  absl::Status why;
  if (place == Place::kNowhere) {
    why = io::ErrnoStatus(ENOSPC, absl::StrCat("less than a tenth or ", kLeastFreeBytes >> 20,
                                               " MiB is free at ", log_directory_));
  }
  const std::uint64_t written = pipe.writer->written_bytes(), lost = pipe.writer->lost_bytes();
  pipe.writer->Append(bytes, io::WallNow(), place, why);
  local_.output_bytes += pipe.writer->written_bytes() - written;
  const bool refused = pipe.writer->lost_bytes() > lost || pipe.writer->in_memory();
  if (pipe.writer->lost_bytes() > lost) {
    local_.lost_bytes += pipe.writer->lost_bytes() - lost;
    local_.trouble = std::string(pipe.writer->last_error().message());
  }
  if (place == Place::kDisk && refused) {
    disk_seen_ = {};  // Full since the last look, it seems.
    LookAtDisk(0);
  }
}

// What can not be asked is found out by writing.
void LogDrain::LookAtDisk(std::size_t about_to_write) {
  const Instant now = io::BootNow();
  written_since_ += about_to_write;
  if (now < disk_seen_ + kDiskInterval && written_since_ < kDiskBytes) return;
  disk_seen_ = now;
  written_since_ = about_to_write;
  struct statvfs disk {};
  std::string path = log_directory_;  // A disk that is full to the end has no room for folders.
  while (::statvfs(path.c_str(), &disk) != 0) {
    const std::size_t slash = path.rfind('/');
    if (slash == std::string::npos || slash == 0) return;
    path.resize(slash);
  }
  local_.disk_full =
      DiskIsFull(static_cast<std::uint64_t>(disk.f_bavail) * disk.f_frsize,
                 static_cast<std::uint64_t>(disk.f_blocks) * disk.f_frsize, local_.disk_full);
}

void LogDrain::ReadWhatIsThere(Pipe& pipe) {
  for (std::size_t i = 0; i < kLastReads; ++i) {
    const std::uint64_t before = pipe.writer->written_bytes() + pipe.writer->lost_bytes();
    if (!ReadOnce(pipe)) return;
    if (pipe.writer->written_bytes() + pipe.writer->lost_bytes() == before)
      return;  // Empty for now.
  }
}

void LogDrain::Publish() {
  bool important = false, more_output = false;
  {
    std::lock_guard lock(mutex_);
    important = progress_.complete.size() != local_.complete.size() ||
                progress_.done != local_.done || progress_.trouble != local_.trouble ||
                progress_.disk_full != local_.disk_full;
    more_output = progress_.output_bytes != local_.output_bytes;
    progress_ = local_;
  }
  if (important || (more_output && output_watched_.exchange(false))) Signal(notify_fd_);
}

}  // namespace regroup::shim
