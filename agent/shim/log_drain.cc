#include "agent/shim/log_drain.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/io/proc.h"

namespace regroup::shim {
namespace {

constexpr std::size_t kReadBytes = 64 << 10;
// More than a pipe holds: bounds the last reading of a pipe that somebody keeps writing to.
constexpr std::size_t kLastReads = 2 * ((1 << 20) / kReadBytes) + 2;

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

void LogDrain::AddRank(int local_rank, const std::string& directory, io::LogLimits limits,
                       io::UniqueFd standard_output, io::UniqueFd standard_error) {
  Order order{.kind = Order::kAdd, .local_rank = local_rank, .pipes = {}};
  order.pipes.push_back(
      {local_rank, std::move(standard_output),
       std::make_unique<io::LogWriter>(directory, io::LogStream::kStdout, limits)});
  order.pipes.push_back(
      {local_rank, std::move(standard_error),
       std::make_unique<io::LogWriter>(directory, io::LogStream::kStderr, limits)});
  Post(std::move(order));
}

void LogDrain::RankEnded(int local_rank) {
  Post({.kind = Order::kRankEnded, .local_rank = local_rank, .pipes = {}});
}

void LogDrain::Finish() { Post({.kind = Order::kFinish, .local_rank = 0, .pipes = {}}); }

LogDrain::Progress LogDrain::Look() const {
  std::lock_guard lock(mutex_);
  return progress_;
}

void LogDrain::Run() {
  buffer_.resize(kReadBytes);
  while (!local_.done) {
    epoll_event events[64];
    int n = ::epoll_wait(epoll_.get(), events, 64, -1);
    if (n < 0 && errno == EINTR) continue;
    CHECK(n > 0);
    bool woken = false;
    for (int i = 0; i < n; ++i) {
      woken = woken || events[i].data.fd == wake_.get();
      auto pipe = pipes_.find(events[i].data.fd);
      if (pipe != pipes_.end() && !ReadOnce(pipe->second)) pipes_.erase(pipe);
    }
    if (woken) TakeOrders();
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
  }
  for (Order& order : orders) {
    for (Pipe& pipe : order.pipes) {
      const int fd = pipe.fd.get();
      epoll_event event{};
      event.events = EPOLLIN;
      event.data.fd = fd;
      CHECK(::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0);
      pipes_.emplace(fd, std::move(pipe));
    }
    if (order.kind == Order::kAdd) continue;
    const bool all = order.kind == Order::kFinish;
    for (auto& [fd, pipe] : pipes_) {
      if (all || pipe.local_rank == order.local_rank) ReadWhatIsThere(pipe);
    }
    if (!all) local_.complete.insert(order.local_rank);
    local_.done = local_.done || all;
  }
}

// False at the end of the stream.
bool LogDrain::ReadOnce(Pipe& pipe) {
  ssize_t n;
  do {
    n = ::read(pipe.fd.get(), buffer_.data(), buffer_.size());
  } while (n < 0 && errno == EINTR);
  if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
  if (n == 0) return false;
  const std::uint64_t written = pipe.writer->written_bytes(), lost = pipe.writer->lost_bytes();
  pipe.writer->Append({buffer_.data(), static_cast<std::size_t>(n)}, io::WallNow());
  local_.output_bytes += pipe.writer->written_bytes() - written;
  if (pipe.writer->lost_bytes() > lost) {
    local_.lost_bytes += pipe.writer->lost_bytes() - lost;
    local_.trouble = std::string(pipe.writer->last_error().message());
  }
  return true;
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
                progress_.done != local_.done || progress_.trouble != local_.trouble;
    more_output = progress_.output_bytes != local_.output_bytes;
    progress_ = local_;
  }
  if (important || (more_output && output_watched_.exchange(false))) Signal(notify_fd_);
}

}  // namespace regroup::shim
