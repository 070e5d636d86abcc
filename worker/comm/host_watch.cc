#include "worker/comm/host_watch.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "common/base/check.h"

namespace regroup::worker {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr int kTickMilliseconds = 5;  // Between two looks at this host's ranks and failure word.
constexpr std::size_t kMaxQueued = 64 << 10;
constexpr int kMessagesAtOnce = 64;  // Of one neighbour, before the caller gets its turn.
constexpr Duration kLastWords = milliseconds(200);
constexpr Duration kVerdict = milliseconds(1000);
constexpr Duration kAnswers = milliseconds(500);
constexpr std::uint64_t kStays = ~0ull;
constexpr int kNoAnswer = -2;

int MakeEventFd() {
  const int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  CHECK(fd >= 0);
  return fd;
}

void Ring(int fd) {
  const std::uint64_t one = 1;
  (void)!write(fd, &one, sizeof one);
}

void Silence(int fd) {
  std::uint64_t count = 0;
  (void)!read(fd, &count, sizeof count);
}

}  // namespace

HostWatch::HostWatch(SharedMemoryCommunicator& local, Hosts hosts, int own, io::UniqueFd previous,
                     io::UniqueFd next)
    : local_(local),
      hosts_(std::move(hosts)),
      own_(own),
      first_(hosts_[static_cast<std::size_t>(own)].first),
      world_(hosts_.back().first + hosts_.back().count),
      wake_caller_(MakeEventFd()),
      wake_thread_(MakeEventFd()),
      after_(static_cast<std::size_t>(world_), kStays),
      answers_(hosts_.size(), kNoAnswer) {
  sides_[0].fd = std::move(previous);
  sides_[0].host = own - 1;
  sides_[1].fd = std::move(next);
  sides_[1].host = own + 1;
  thread_ = std::thread([this] { Run(); });
}

HostWatch::~HostWatch() {
  {
    const std::scoped_lock lock(mutex_);
    LookAtFailures();
    SendToAll({.kind = kLeft, .value = static_cast<std::uint64_t>(first_), .call = Completed()});
    stop_ = true;
  }
  Ring(wake_thread_.get());
  thread_.join();
}

void HostWatch::Run() {
  steady_clock::time_point end{};
  for (;;) {
    std::array<pollfd, 3> items{{{wake_thread_.get(), POLLIN, 0}, {-1, 0, 0}, {-1, 0, 0}}};
    {
      const std::scoped_lock lock(mutex_);
      bool queued = false;
      for (std::size_t s = 0; s < sides_.size(); ++s) {
        Side& side = sides_[s];
        if (side.fd.get() < 0 || side.closed) continue;
        const bool waits = !side.out.empty();
        queued |= waits;
        items[s + 1] = {side.fd.get(), static_cast<short>(POLLIN | (waits ? POLLOUT : 0)), 0};
      }
      if (stop_) {
        if (end == steady_clock::time_point{}) end = steady_clock::now() + kLastWords;
        if (!queued || steady_clock::now() >= end) return;
      }
    }
    (void)poll(items.data(), items.size(), kTickMilliseconds);
    const std::scoped_lock lock(mutex_);
    if (items[0].revents != 0) Silence(wake_thread_.get());
    for (std::size_t s = 0; s < sides_.size(); ++s) {
      if ((items[s + 1].revents & POLLOUT) != 0) Flush(sides_[s]);
      if ((items[s + 1].revents & (POLLIN | POLLHUP | POLLERR)) != 0) Read(sides_[s]);
    }
    LookAtFailures();
    LookAtRanks();
  }
}

void HostWatch::Enter(Stage stage, std::uint64_t call) {
  const std::scoped_lock lock(mutex_);
  stage_ = stage;
  call_ = call;
  if (stage != Stage::kFlow && remote_ != 0) LookAtRanks();
}

void HostWatch::WakeCaller() const { Ring(wake_caller_.get()); }

void HostWatch::Tell() {
  {
    const std::scoped_lock lock(mutex_);
    LookAtFailures();
  }
  WakeCaller();
}

void HostWatch::Flush(Side& side) {
  while (!side.out.empty() && !side.closed) {
    const ssize_t sent =
        send(side.fd.get(), side.out.data(), side.out.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent <= 0) {
      if (sent < 0 && errno == EINTR) continue;
      if (sent == 0 || errno == EAGAIN) return;
      side.out.clear();  // It is gone, which the next read tells.
      return;
    }
    side.out.erase(0, static_cast<std::size_t>(sent));
  }
}

void HostWatch::Send(const ControlMessage& message, Side& to) {
  // A neighbour that takes no bytes for so long learns nothing more; calls have a deadline.
  if (to.fd.get() < 0 || to.closed || to.out.size() + sizeof message > kMaxQueued) return;
  to.out.append(reinterpret_cast<const char*>(&message), sizeof message);
  Flush(to);
}

void HostWatch::SendToAll(const ControlMessage& message) {
  for (Side& side : sides_) Send(message, side);
}

void HostWatch::Read(Side& side) {
  for (int message = 0; message < kMessagesAtOnce && !side.closed; ++message) {
    const ssize_t got = recv(side.fd.get(), side.partial.data() + side.have,
                             side.partial.size() - side.have, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) {
      side.closed = true;
      changed_.notify_all();
      WakeCaller();
      return;
    }
    side.have += static_cast<std::size_t>(got);
    if (side.have < side.partial.size()) continue;
    side.have = 0;
    ControlMessage told;
    std::memcpy(&told, side.partial.data(), sizeof told);
    if (IsSound(told)) {
      Handle(told, side);
      continue;
    }
    const int peer = hosts_[static_cast<std::size_t>(side.host)].first;
    side.closed = true;  // Nothing more is read of it.
    Handle({.kind = kFailed, .value = PackFailure(kBadBytes, first_, peer)}, side);
  }
}

bool HostWatch::IsSound(const ControlMessage& message) const {
  const auto world = static_cast<std::uint64_t>(world_);
  if (message.magic != kControlMagic || message.rank < -1 || message.rank >= world_) return false;
  switch (message.kind) {
    case kFailed:
      return FailureKindOf(message.value) >= kAbort && FailureKindOf(message.value) <= kBadBytes &&
             FoundBy(message.value) < world_ && FoundAbout(message.value) < world_;
    case kLeft: return message.value < world && message.call != kStays;
    case kAsk: return true;
    case kAnswer: return message.call < hosts_.size();
    default: return false;
  }
}

void HostWatch::Handle(const ControlMessage& message, Side& from) {
  Send(message, &from == &sides_[0] ? sides_[1] : sides_[0]);
  switch (message.kind) {
    case kFailed:
      if (remote_ == 0) remote_ = message.value;
      break;
    case kLeft: Note(static_cast<int>(message.value), message.call); break;
    case kAsk:
      SendToAll({.kind = kAnswer,
                 .rank = MissingHere(message.call),
                 .value = message.value,
                 .call = static_cast<std::uint64_t>(own_)});
      return;
    default:
      if (message.value == question_) answers_[message.call] = message.rank;
      break;
  }
  changed_.notify_all();
  WakeCaller();
}

void HostWatch::Note(int rank, std::uint64_t after) {
  std::uint64_t& known = after_[static_cast<std::size_t>(rank)];
  if (known == kStays) left_.push_back(rank);
  known = std::min(known, after);
}

// Who has come least far: others may wait for that rank in a call that stays on this host.
int HostWatch::MissingHere(std::uint64_t call) const {
  int missing = -1;
  for (int r = 0; r < hosts_[static_cast<std::size_t>(own_)].count; ++r) {
    if (local_.CallOf(r) >= call) continue;
    call = local_.CallOf(r);
    missing = first_ + r;
  }
  return missing;
}

// Of a rank that takes part in no call as late as `last_needed`, or 0. Of several it is the first:
// the others may have left because of that.
std::uint64_t HostWatch::LeftWord(std::uint64_t last_needed) const {
  for (const int rank : left_) {
    if (after_[static_cast<std::size_t>(rank)] < last_needed)
      return PackFailure(kGone, first_, rank);
  }
  return 0;
}

void HostWatch::LookAtFailures() {
  const std::uint64_t word = local_.FailureWord();
  if (word == 0 || told_ || word == quiet_) return;
  told_ = true;
  SendToAll({.kind = kFailed, .value = word});
  WakeCaller();
}

void HostWatch::LookAtRanks() {
  // In a flow the caller looks itself. After it, what this host's ranks wait for is on this host:
  // what others tell by then must not keep some of them from what the others get.
  if (stage_ == Stage::kFlow || stage_ == Stage::kAfterFlow || local_.FailureWord() != 0) return;
  for (int r = 1; stage_ == Stage::kIdle && r < hosts_[static_cast<std::size_t>(own_)].count; ++r) {
    const int rank = first_ + r;
    if (after_[static_cast<std::size_t>(rank)] != kStays || !local_.HasLeft(r)) continue;
    Note(rank, Completed());
    SendToAll({.kind = kLeft, .value = static_cast<std::uint64_t>(rank), .call = Completed()});
  }
  if (remote_ != 0) {
    told_ = true;  // It was passed on when it came.
    local_.PublishWord(remote_);
    return;
  }
  for (const Side& side : sides_) {
    if (!side.closed) continue;
    const int peer = hosts_[static_cast<std::size_t>(side.host)].first;
    if (after_[static_cast<std::size_t>(peer)] != kStays) continue;
    Note(peer, Completed());
    SendToAll({.kind = kLeft, .value = static_cast<std::uint64_t>(peer), .call = Completed()});
  }
  if (const std::uint64_t left = LeftWord(Completed() + 1); left != 0) {
    quiet_ = left;
    local_.PublishWord(left);
  }
}

std::uint64_t HostWatch::FailureWord() {
  const std::scoped_lock lock(mutex_);
  if (const std::uint64_t word = local_.FailureWord(); word != 0) return word;
  if (remote_ != 0) {
    told_ = true;
    return remote_;
  }
  return LeftWord(call_);
}

std::uint64_t HostWatch::AwaitVerdict(bool next) {
  const Side& side = sides_[next ? 1 : 0];
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, kVerdict, [&] { return remote_ != 0 || side.closed; });
  if (remote_ != 0) {
    told_ = true;
    return remote_;
  }
  if (const std::uint64_t left = LeftWord(call_); left != 0) return left;
  return PackFailure(kGone, first_, hosts_[static_cast<std::size_t>(side.host)].first);
}

int HostWatch::AwaitMissing(std::uint64_t call) {
  std::unique_lock lock(mutex_);
  question_ = (static_cast<std::uint64_t>(own_) << 32 | (question_ & 0xFFFFFFFF)) + 1;
  answers_.assign(hosts_.size(), kNoAnswer);
  answers_[static_cast<std::size_t>(own_)] = MissingHere(call);
  SendToAll({.kind = kAsk, .value = question_, .call = call});
  changed_.wait_for(lock, kAnswers, [&] {
    return remote_ != 0 || std::find(answers_.begin(), answers_.end(), kNoAnswer) == answers_.end();
  });
  for (const int missing : answers_) {
    if (missing >= 0) return missing;
  }
  // Who is behind a silent host cannot be heard either.
  for (int far = 1; far < static_cast<int>(hosts_.size()); ++far) {
    for (const int host : {own_ - far, own_ + far}) {
      if (host < 0 || host >= static_cast<int>(hosts_.size())) continue;
      const auto at = static_cast<std::size_t>(host);
      if (answers_[at] == kNoAnswer) return hosts_[at].first;
    }
  }
  return -1;
}

}  // namespace regroup::worker
