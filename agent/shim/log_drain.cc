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
#include "common/io/thread.h"

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
  ASSIGN_OR_RETURN(drain->thread_, io::StartThread([raw = drain.get()] { raw->Run(); }));
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

LogDrain::Order LogDrain::OrderFor(Order::Kind kind, const Place& place) {
  Order order{.kind = kind, .id = place.id, .pipes = {}};
  for (const auto stream : {io::LogStream::kStdout, io::LogStream::kStderr}) {
    Pipe& pipe = order.pipes.emplace_back();
    pipe.id = place.id;
    pipe.local_rank = place.local_rank;
    pipe.stream = stream;
    pipe.writer =
        std::make_unique<io::LogWriter>(place.directory, stream, place.limits, place.passing);
  }
  order.directory = place.directory;
  order.passing = !place.passing.empty();
  return order;
}

void LogDrain::AddRank(const Place& place, io::UniqueFd standard_output,
                       io::UniqueFd standard_error) {
  Order order = OrderFor(Order::kAdd, place);
  order.pipes[0].fd = std::move(standard_output);
  order.pipes[1].fd = std::move(standard_error);
  Post(std::move(order));
}

void LogDrain::MoveRank(int id, const Place& place) {
  Order order = OrderFor(Order::kMove, place);
  order.id = id;
  Post(std::move(order));
}

void LogDrain::RankEnded(int id) { Post({.kind = Order::kRankEnded, .id = id, .pipes = {}}); }

void LogDrain::Forget(int id) { Post({.kind = Order::kForget, .id = id, .pipes = {}}); }

void LogDrain::Finish() {
  {
    std::lock_guard lock(mutex_);
    finishing_ = true;
  }
  Post({.kind = Order::kFinish, .id = 0, .pipes = {}});
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
    const int n = ::epoll_wait(epoll_.get(), events, 64, WaitMilliseconds());
    if (n < 0 && errno == EINTR) continue;
    CHECK(n >= 0);
    if (n == 0) LookAtDisk(0);
    bool woken = false;
    for (int i = 0; i < n; ++i) {
      woken = woken || events[i].data.fd == wake_.get();
      auto pipe = pipes_.find(events[i].data.fd);
      if (pipe == pipes_.end() || ReadOnce(pipe->second)) continue;
      if (pipe->second.next) FinishMove(pipe->second);
      pipe->second.writer->End(io::WallNow());
      pipes_.erase(pipe);
    }
    if (woken) TakeOrders();
    FinishMoves();
    WaitOrGoOn();
    Publish();
  }
}

// A full disk has room again at some time, whether workers write or not. A line may have no end.
int LogDrain::WaitMilliseconds() const {
  if (!moving_.empty()) return static_cast<int>(kLineLimit.count()) / 10;
  return local_.disk_full ? kFullDiskLookMs : -1;
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
    if (order.kind == Order::kAdd) Add(order);
    if (order.kind == Order::kMove) Move(order);
    ApplyReader();
    if (order.kind == Order::kForget) {
      local_.complete.erase(order.id);
      local_.moved.erase(order.id);
    }
    const bool all = order.kind == Order::kFinish;
    if (!all && order.kind != Order::kRankEnded) continue;
    for (auto& [fd, pipe] : pipes_) {
      if (!all && pipe.id != order.id && !(pipe.next && pipe.next_id == order.id)) continue;
      ReadWhatIsThere(pipe);
      pipe.writer->End(io::WallNow());
    }
    if (!all) local_.complete.insert(order.id);
    local_.done = local_.done || all;
  }
}

void LogDrain::Add(Order& order) {
  log_directory_ = order.directory;
  passes_ = order.passing;
  for (Pipe& pipe : order.pipes) {
    pipe.writer->Begin();
    const int fd = pipe.fd.get();
    pipe.paused = true;
    Watch(pipes_.emplace(fd, std::move(pipe)).first->second, true);
  }
}

void LogDrain::Move(Order& order) {
  for (Pipe& to : order.pipes) {
    moving_.insert(to.id);
    const auto from = std::find_if(pipes_.begin(), pipes_.end(), [&](const auto& entry) {
      const Pipe& pipe = entry.second;
      return pipe.stream == to.stream &&
             (pipe.next ? pipe.next_id == order.id : pipe.id == order.id);
    });
    if (from == pipes_.end()) {  // It has closed that stream.
      to.writer->Begin();
      continue;
    }
    Pipe& pipe = from->second;
    if (pipe.next) FinishMove(pipe);  // Two generations on.
    ReadWhatIsThere(pipe);            // Before `next` is there: all of that was written before.
    pipe.next = std::move(to.writer);
    pipe.next_id = to.id;
    if (!pipe.in_line) FinishMove(pipe);
  }
  log_directory_ = order.directory;
  passes_ = order.passing;
}

void LogDrain::FinishMove(Pipe& pipe) {
  pipe.writer->End(io::WallNow());
  pipe.writer = std::move(pipe.next);
  pipe.writer->Begin();
  pipe.id = pipe.next_id;
  pipe.in_line = false;
  ApplyReader();
}

void LogDrain::FinishMoves() {
  const Instant now = io::BootNow();
  for (auto& [fd, pipe] : pipes_) {
    if (pipe.next && now >= pipe.read_at + kLineLimit) FinishMove(pipe);
  }
  for (auto id = moving_.begin(); id != moving_.end();) {
    const bool waits = std::any_of(pipes_.begin(), pipes_.end(), [&](const auto& entry) {
      return entry.second.next && entry.second.next_id == *id;
    });
    if (!waits) local_.moved.insert(*id);
    id = waits ? std::next(id) : moving_.erase(id);
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
  std::string_view bytes(buffer_.data(), static_cast<std::size_t>(n));
  pipe.read_at = io::BootNow();
  const std::size_t end = pipe.next ? bytes.find('\n') : std::string_view::npos;
  if (end != std::string_view::npos) {
    Write(pipe, bytes.substr(0, end + 1));
    FinishMove(pipe);
    bytes.remove_prefix(end + 1);
  }
  if (bytes.empty()) return true;
  Write(pipe, bytes);
  pipe.in_line = bytes.back() != '\n';
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
  if (place == Place::kDisk && pipe.writer->in_memory() &&
      pipe.writer->memory_bytes() >= kMostMemoryBytes) {
    place = Place::kNowhere;
    why = pipe.writer->last_error();
  } else if (place == Place::kNowhere) {
    why = io::ErrnoStatus(ENOSPC, absl::StrCat("less than a tenth or ", kLeastFreeBytes >> 20,
                                               " MiB is free at ", log_directory_));
  }
  const std::uint64_t written = pipe.writer->written_bytes(), lost = pipe.writer->lost_bytes();
  pipe.writer->Append(bytes, io::WallNow(), place, why);
  local_.output_bytes += pipe.writer->written_bytes() - written;
  const bool refused = pipe.writer->lost_bytes() > lost || pipe.writer->in_memory();
  local_.lost_bytes += pipe.writer->lost_bytes() - lost;
  if (refused && place != Place::kMemory)
    local_.trouble = std::string(pipe.writer->last_error().message());
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
    const std::uint64_t before = local_.output_bytes + local_.lost_bytes;
    if (!ReadOnce(pipe)) return;
    if (local_.output_bytes + local_.lost_bytes == before) return;  // Empty for now.
  }
}

void LogDrain::Publish() {
  bool important = false, more_output = false;
  {
    std::lock_guard lock(mutex_);
    important = progress_.complete != local_.complete || progress_.moved != local_.moved ||
                progress_.done != local_.done || progress_.trouble != local_.trouble ||
                progress_.disk_full != local_.disk_full;
    more_output = progress_.output_bytes != local_.output_bytes;
    progress_ = local_;
  }
  if (important || (more_output && output_watched_.exchange(false))) Signal(notify_fd_);
}

}  // namespace regroup::shim
