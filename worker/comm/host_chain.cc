#include "worker/comm/host_chain.h"

#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace regroup::worker {
namespace {

using std::chrono::steady_clock;

constexpr int kSpin = 200;
constexpr long kSliceNanoseconds = 2'000'000;
// Beside other ranks, whose processes only a look shows to have ended; and alone.
constexpr std::size_t kWakeBytes = 256 << 10;
constexpr int kSliceMilliseconds = 2, kAloneMilliseconds = 50;

bool Passed(std::uint32_t counter, std::uint32_t target) {
  return static_cast<std::int32_t>(counter - target) > 0;
}

// Bytes moved, 0 for none now, -1 for the end of the connection.
ssize_t Moved(ssize_t result, bool reading) {
  if (result > 0) return result;
  if (result == 0) return reading ? -1 : 0;
  return errno == EAGAIN || errno == EINTR ? 0 : -1;
}

}  // namespace

HostChain::HostChain(const Hosts& hosts, int own, io::UniqueFd previous, io::UniqueFd next,
                     SharedMemoryCommunicator& local, HostWatch& watch, Board* board)
    : hosts_(hosts),
      own_(own),
      count_(hosts[static_cast<std::size_t>(own)].count),
      local_(local),
      watch_(watch),
      board_(board) {
  previous_.fd = std::move(previous);
  previous_.host = own - 1;
  next_.fd = std::move(next);
  next_.host = own + 1;
  if (own == 1 && hosts_[0].count == 1) narrow_.resize(kPieceBytes);
}

bool HostChain::Receives(const Lane& lane, const Piece& piece) const {
  if (flow_.sums) return lane.up ? own_ > 0 : true;
  return lane.up ? piece.host < own_ : piece.host > own_;
}

bool HostChain::Sends(const Lane& lane, const Piece& piece) const {
  if (lane.out == nullptr) return false;
  if (!flow_.sums || (lane.up && next_.exists())) return true;
  return piece.host == kAllHosts || piece.host < own_;  // A result, on its way down.
}

bool HostChain::Delivers(const Lane& lane, const Piece& piece) const {
  if (!flow_.sums) return piece.host != own_;  // Of its own ranks each takes it from its owner.
  if (lane.up && next_.exists()) return false;
  const int first = hosts_[static_cast<std::size_t>(own_)].first;
  for (int r = 0; r < count_; ++r) {
    if (flow_.IsFor(first + r, piece)) return true;
  }
  return false;
}

bool HostChain::SendsNarrow(int host) const {
  return host == 0 && hosts_[0].count == 1 && flow_.summing.wider > 1;
}

std::size_t HostChain::BytesFrom(int host, const Lane& lane, const Piece& piece) const {
  const bool partial = flow_.sums && lane.up && !SendsNarrow(host);
  return partial ? piece.bytes * flow_.summing.wider : piece.bytes;
}

std::size_t HostChain::BytesIn(const Lane& lane, const Piece& piece) const {
  return BytesFrom(lane.up ? own_ - 1 : own_ + 1, lane, piece);
}

// The last host has made a result of it.
std::size_t HostChain::BytesOut(const Lane& lane, const Piece& piece) const {
  return next_.exists() ? BytesFrom(own_, lane, piece) : piece.bytes;
}

void HostChain::AddLanes() {
  Lane up, down;
  down.up = false;
  up.in = previous_.exists() ? &previous_ : nullptr;
  up.out = next_.exists() ? &next_ : nullptr;
  down.in = up.out;
  down.out = up.in;
  // The last host turns sums round.
  if (flow_.sums && !next_.exists()) up.out = &previous_;
  for (std::uint32_t i = 0; i < flow_.pieces.size(); ++i) {
    const int host = flow_.pieces[i].host;
    if (flow_.sums || host <= own_) up.pieces.push_back(i);
    if (flow_.sums ? host == kAllHosts || host <= own_ : host >= own_) down.pieces.push_back(i);
  }
  auto* slots = reinterpret_cast<std::byte*>(board_) + kBoardBytes;
  up.slots = slots;
  down.slots = slots + kWindow * kPieceBytes;
  lanes_.clear();
  lanes_.push_back(std::move(up));
  if (!flow_.sums || next_.exists()) lanes_.push_back(std::move(down));
}

void HostChain::Begin(const Flow& flow) {
  flow_ = flow;
  previous_.sent = previous_.received = next_.sent = next_.received = 0;
  AddLanes();
}

bool HostChain::Finished() const {
  for (const Link* link : {&previous_, &next_}) {
    if (link->exists() && (!link->open() || link->sent < sizeof(CallMessage))) return false;
  }
  return std::all_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return lane.done(); });
}

absl::Status HostChain::Move(const Flow& flow, steady_clock::time_point end) {
  watch_.BeginFlow(flow.header.sequence);
  Begin(flow);
  absl::Status status;
  while (status.ok() && !Finished()) {
    const absl::StatusOr<bool> moved = Advance();
    status = !moved.ok() ? moved.status() : *moved ? absl::OkStatus() : Wait(end);
  }
  if (status.ok()) Publish({Board::kDone, 0});
  watch_.EndFlow(flow.header.sequence);
  return status;
}

absl::StatusOr<bool> HostChain::Advance() {
  bool moved = false;
  for (Link* link : {&previous_, &next_}) {
    if (!link->exists()) continue;
    ASSIGN_OR_RETURN(const bool greeted, Greet(*link));
    moved |= greeted;
  }
  for (Lane& lane : lanes_) {
    ASSIGN_OR_RETURN(const bool received, Receive(lane));
    ASSIGN_OR_RETURN(const bool sent, Send(lane));
    moved |= received || sent;
  }
  return moved;
}

absl::StatusOr<bool> HostChain::Greet(Link& link) {
  bool moved = false;
  if (link.sent < sizeof(CallMessage)) {
    CallMessage message;
    message.header = flow_.header;
    const ssize_t sent =
        Moved(send(link.fd.get(), reinterpret_cast<const char*>(&message) + link.sent,
                   sizeof message - link.sent, MSG_NOSIGNAL | MSG_DONTWAIT),
              /*reading=*/false);
    if (sent < 0) return Lost(link);
    link.sent += static_cast<std::size_t>(sent);
    moved |= sent > 0;
  }
  if (!link.open()) {
    const ssize_t got = Moved(recv(link.fd.get(), reinterpret_cast<char*>(&link.in) + link.received,
                                   sizeof link.in - link.received, MSG_DONTWAIT),
                              /*reading=*/true);
    if (got < 0) return Lost(link);
    link.received += static_cast<std::size_t>(got);
    moved |= got > 0;
    if (link.open()) RETURN_IF_ERROR(Compare(link));
  }
  return moved;
}

absl::Status HostChain::Compare(const Link& link) {
  const int own = hosts_[static_cast<std::size_t>(own_)].first,
            peer = hosts_[static_cast<std::size_t>(link.host)].first;
  if (link.in.magic != kCallMagic) return Fail(PackFailure(kBadBytes, own, peer));
  if (link.in.header == flow_.header) return absl::OkStatus();
  local_.SetMismatch(absl::StrCat("ranks issued different calls: rank ", own, " ",
                                  Describe(flow_.header), ", ", local_.NameOf(peer), " ",
                                  Describe(link.in.header)));
  return Fail(PackFailure(kMismatch, own, peer));
}

std::byte* HostChain::Target(Lane& lane, const Piece& piece) const {
  // A partial sum is not a result yet; the last host makes one of it in the end.
  if (flow_.direct != nullptr && Delivers(lane, piece) && !(flow_.sums && lane.up))
    return flow_.direct + piece.to;
  return lane.slots + (lane.ready % kWindow) * kPieceBytes;
}

absl::StatusOr<bool> HostChain::Receive(Lane& lane) {
  lane.blocked = false;
  if (lane.ready == lane.pieces.size()) return false;
  Release(lane);
  if (lane.ready == lane.released + kWindow) {
    lane.blocked = lane.sent > lane.released;
    return false;
  }
  const Piece& piece = flow_.pieces[lane.pieces[lane.ready]];
  if (Receives(lane, piece)) {
    if (!lane.in->open()) return false;
    const bool narrow = flow_.sums && lane.up && SendsNarrow(own_ - 1);
    std::byte* const to = narrow ? narrow_.data() : Target(lane, piece);
    const ssize_t got = Moved(recv(lane.in->fd.get(), to + lane.in_bytes,
                                   BytesIn(lane, piece) - lane.in_bytes, MSG_DONTWAIT),
                              /*reading=*/true);
    if (got < 0) return Lost(*lane.in);
    lane.in_bytes += static_cast<std::size_t>(got);
    if (lane.in_bytes < BytesIn(lane, piece)) return got > 0;
  }
  Complete(lane);
  return true;
}

// The piece that came is a partial sum, or the beginning of one: this host's ranks follow.
const std::byte* HostChain::AddUp(Lane& lane, const Piece& piece, std::byte* target) {
  const Summing& summing = flow_.summing;
  const bool last = !next_.exists(), same = summing.wider == 1;
  std::size_t r = 0;
  if (own_ == 0) {
    if (count_ == 1) return flow_.sources[0] + piece.from;
    summing.begin(target, flow_.sources[r++] + piece.from, piece.bytes);
  } else if (SendsNarrow(own_ - 1)) {
    summing.begin(target, narrow_.data(), piece.bytes);
  }
  std::byte* const result =
      last && flow_.direct != nullptr && Delivers(lane, piece) ? flow_.direct + piece.to : target;
  if (same && last && count_ == 1 && result == flow_.sources[0] + piece.from) {
    summing.add(result, target, piece.bytes);  // The order of two does not matter.
    return result;
  }
  for (; r < static_cast<std::size_t>(count_); ++r)
    summing.add(target, flow_.sources[r] + piece.from, piece.bytes);
  if (last && !(same && result == target)) summing.finish(result, target, piece.bytes);
  return result;
}

void HostChain::Complete(Lane& lane) {
  const std::uint32_t number = lane.pieces[lane.ready];
  const Piece& piece = flow_.pieces[number];
  const std::size_t k = lane.ready % kWindow;
  std::byte* const target = Target(lane, piece);
  const std::byte* at = target;
  if (flow_.sums && lane.up) {
    at = AddUp(lane, piece, target);
  } else if (!Receives(lane, piece)) {
    const int first = hosts_[static_cast<std::size_t>(own_)].first;
    at = flow_.sources[static_cast<std::size_t>(piece.owner - first)] + piece.from;
  }
  lane.at[k] = at;
  if (Delivers(lane, piece)) {
    const bool direct = flow_.direct != nullptr;
    const int first = hosts_[static_cast<std::size_t>(own_)].first;
    if (!direct && flow_.own != nullptr && flow_.IsFor(first, piece))
      std::memcpy(flow_.own + piece.to, at, piece.bytes);
    const auto slot = static_cast<std::uint32_t>(
        (lane.slots - (reinterpret_cast<std::byte*>(board_) + kBoardBytes)) /
            static_cast<std::ptrdiff_t>(kPieceBytes) +
        static_cast<std::ptrdiff_t>(k));
    lane.tag[k] = Publish({number, direct ? Board::kDirect : slot});
  }
  lane.in_bytes = 0;
  ++lane.ready;
}

absl::StatusOr<bool> HostChain::Send(Lane& lane) {
  bool moved = false;
  while (lane.sent < lane.ready) {
    const Piece& piece = flow_.pieces[lane.pieces[lane.sent]];
    if (Sends(lane, piece)) {
      if (lane.out->sent < sizeof(CallMessage)) return moved;
      const ssize_t sent =
          Moved(send(lane.out->fd.get(), lane.at[lane.sent % kWindow] + lane.out_bytes,
                     BytesOut(lane, piece) - lane.out_bytes, MSG_NOSIGNAL | MSG_DONTWAIT),
                /*reading=*/false);
      if (sent < 0) return Lost(*lane.out);
      lane.out_bytes += static_cast<std::size_t>(sent);
      moved |= sent > 0;
      if (lane.out_bytes < BytesOut(lane, piece)) return moved;
    }
    lane.out_bytes = 0;
    ++lane.sent;
    moved = true;
  }
  return moved;
}

void HostChain::Release(Lane& lane) {
  while (lane.released < lane.sent) {
    const Piece& piece = flow_.pieces[lane.pieces[lane.released]];
    if (count_ > 1 && Delivers(lane, piece) && !Taken(lane.tag[lane.released % kWindow])) return;
    ++lane.released;
  }
}

std::uint32_t HostChain::Publish(Board::Tag tag) {
  const std::uint32_t number = board_->published.value.load(std::memory_order_relaxed);
  if (count_ == 1) return number;
  board_->tags[number % Board::kTags] = tag;
  board_->published.value.store(number + 1);
  syscall(SYS_futex, &board_->published.value, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  return number;
}

bool HostChain::Taken(std::uint32_t tag) const {
  for (int r = 1; r < count_; ++r) {
    if (!Passed(board_->taken[static_cast<std::size_t>(r)].value.load(), tag)) return false;
  }
  return true;
}

absl::Status HostChain::Fail(std::uint64_t word) {
  local_.PublishWord(word);
  watch_.Tell();
  return local_.Failure();
}

absl::Status HostChain::Lost(const Link& link) {
  return Fail(watch_.AwaitVerdict(/*next=*/&link == &next_));
}

absl::Status HostChain::Late() {
  const int own = hosts_[static_cast<std::size_t>(own_)].first;
  int missing = watch_.AwaitMissing(flow_.header.sequence);
  if (const std::uint64_t word = watch_.FailureWord(); word != 0) return Fail(word);
  // All have begun the call, so what they send does not come through.
  if (missing < 0) {
    const Link& link = previous_.exists() ? previous_ : next_;
    missing = hosts_[static_cast<std::size_t>(link.host)].first;
  }
  return Fail(PackFailure(kLate, own, missing));
}

void HostChain::WakeAt(Link& link, int bytes) {
  if (link.wakes_at == bytes) return;
  link.wakes_at = bytes;
  setsockopt(link.fd.get(), SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof bytes);
}

// To be woken for each packet costs more than to move it. Where more is to come than one piece, it
// comes whatever this host does meanwhile, save to send.
void HostChain::ChooseWakes() {
  for (Lane& lane : lanes_) {
    if (lane.in == nullptr) continue;
    std::size_t left = 0;
    for (std::size_t k = lane.ready; k < lane.pieces.size() && left < kWakeBytes; ++k) {
      const Piece& piece = flow_.pieces[lane.pieces[k]];
      if (Receives(lane, piece))
        left += BytesIn(lane, piece) - (k == lane.ready ? lane.in_bytes : 0);
    }
    WakeAt(*lane.in, lane.in->open() && left >= kWakeBytes ? static_cast<int>(kWakeBytes) : 1);
  }
}

absl::Status HostChain::Wait(steady_clock::time_point end) {
  if (const std::uint64_t word = watch_.FailureWord(); word != 0) return Fail(word);
  const int first = hosts_[static_cast<std::size_t>(own_)].first;
  for (int r = 1; r < count_; ++r) {
    // The call is not over, so none can have left after it.
    if (local_.HasLeft(r)) return Fail(PackFailure(kGone, first, first + r));
  }
  if (steady_clock::now() >= end) return Late();
  ChooseWakes();
  bool blocked = false;
  std::array<pollfd, 3> items{{{watch_.wake_fd(), POLLIN, 0}, {-1, 0, 0}, {-1, 0, 0}}};
  const auto want = [&](const Link* link, short event) {
    pollfd& item = items[link == &previous_ ? 1 : 2];
    item.fd = link->fd.get();
    item.events = static_cast<short>(item.events | event);
  };
  for (const Link* link : {&previous_, &next_}) {
    if (!link->exists()) continue;
    if (!link->open()) want(link, POLLIN);
    if (link->sent < sizeof(CallMessage)) want(link, POLLOUT);
  }
  for (const Lane& lane : lanes_) {
    blocked |= lane.blocked;
    if (lane.in != nullptr && lane.ready < lane.pieces.size() &&
        lane.ready < lane.released + kWindow &&
        Receives(lane, flow_.pieces[lane.pieces[lane.ready]]))
      want(lane.in, POLLIN);
    if (lane.sent < lane.ready && lane.out != nullptr) want(lane.out, POLLOUT);
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - steady_clock::now()).count();
  const auto slice = std::int64_t{count_ > 1 ? kSliceMilliseconds : kAloneMilliseconds};
  if (blocked) sched_yield();
  (void)poll(items.data(), items.size(),
             blocked ? 0 : static_cast<int>(std::clamp<std::int64_t>(left, 0, slice)));
  if (items[0].revents != 0) {
    std::uint64_t count = 0;
    (void)!read(watch_.wake_fd(), &count, sizeof count);
  }
  return absl::OkStatus();
}

absl::Status PieceTaker::Await(steady_clock::time_point end) {
  const auto come = [&] { return Passed(board_->published.value.load(), taken_); };
  for (int i = 0; i < kSpin; ++i) {
    if (come()) return absl::OkStatus();
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
  const timespec slice{0, kSliceNanoseconds};
  for (;;) {
    const Look look = LookOnce(come, [&] { return local_.FailureWord() != 0; });
    if (look != Look::kNothing) return look == Look::kCome ? absl::OkStatus() : local_.Failure();
    syscall(SYS_futex, &board_->published.value, FUTEX_WAIT, taken_, &slice, nullptr, 0);
    if (come()) return absl::OkStatus();
    const bool gone = local_.HasLeft(0), late = steady_clock::now() >= end;
    if ((gone || late) && !come()) return local_.Fail(gone ? kGone : kLate, 0);
  }
}

}  // namespace regroup::worker
