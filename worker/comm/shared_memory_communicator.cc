#include "worker/comm/shared_memory_communicator.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <cstring>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "worker/comm/reduce.h"

namespace regroup::worker {
namespace {

using std::chrono::steady_clock;

constexpr long kSliceNanoseconds = 2'000'000;
// Elements between two looks at whether the others have failed; about a tenth of a millisecond.
constexpr std::size_t kSumAtOnce = 256 << 10;
// Parts of an arena start at different offsets within a page: equal ones would make loads and
// stores of two parts collide in the first-level cache.
constexpr std::size_t kArenaSkew = 1280;

bool Reached(std::uint32_t phase, std::uint32_t target) {
  return static_cast<std::int32_t>(phase - target) >= 0;
}

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::atomic_signal_fence(std::memory_order_seq_cst);
#endif
}

}  // namespace

std::string Describe(const CallHeader& header) {
  static constexpr const char* kOperations[] = {
      "?",         "Barrier",        "AllReduceSum",  "AllReduce",
      "Broadcast", "AllocateTensor", "ReduceScatter", "AllGather"};
  static constexpr const char* kTypes[] = {"?", "byte", "float", "double", "int64", "bf16", "f16"};
  return absl::StrCat(kOperations[header.operation <= kGather ? header.operation : 0], "(",
                      header.count, " × ", kTypes[header.type <= kHalf ? header.type : 0],
                      ", place ", header.place, ") as call ", header.sequence);
}

Type TypeOf(DType type) {
  switch (type) {
    case DType::kF32: return kFloat;
    case DType::kBF16: return kBFloat16;
    case DType::kF16: return kHalf;
  }
  CHECK(false);
}

std::uint64_t HashOf(std::span<const Stretch> stretches, int group) {
  std::uint64_t hash = 0xCBF29CE484222325ull ^ static_cast<std::uint64_t>(group);
  for (const Stretch& s : stretches) {
    for (const std::int64_t word : {std::int64_t{s.owner}, s.from, s.to, s.size})
      hash = (hash ^ static_cast<std::uint64_t>(word)) * 0x100000001B3ull;
  }
  return hash;
}

SharedMemoryCommunicator::SharedMemoryCommunicator(int rank, int world_size, Segment* segment,
                                                   SharedMemoryOptions options,
                                                   std::unique_ptr<Peers> peers)
    : rank_(rank),
      world_size_(world_size),
      segment_(segment),
      options_(options),
      peers_(std::move(peers)),
      deadline_(options.deadline) {
  CHECK(rank >= 0 && rank < world_size && world_size <= kMaxRanks);
}

SharedMemoryCommunicator::~SharedMemoryCommunicator() {
  segment_->slots[rank_].left.store(1);
  WakeAll();
}

std::byte* SharedMemoryCommunicator::Buffer(int rank, std::uint32_t phase) const {
  return reinterpret_cast<std::byte*>(segment_) + kSegmentHeadBytes +
         (static_cast<std::size_t>(rank) * 2 + phase % 2) * kBufferBytes;
}

void SharedMemoryCommunicator::WakeAll() {
  for (int r = 0; r < world_size_; ++r) {
    syscall(SYS_futex, &segment_->slots[r].phase, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }
}

void SharedMemoryCommunicator::Publish(std::uint32_t kind, int about) {
  PublishWord(PackFailure(kind, options_.first_rank + rank_, options_.first_rank + about));
}

void SharedMemoryCommunicator::PublishWord(std::uint64_t packed) {
  std::uint64_t none = 0;
  if (segment_->failure.compare_exchange_strong(none, packed)) WakeAll();
}

bool SharedMemoryCommunicator::HasLeft(int rank) const {
  return segment_->slots[rank].left.load() != 0 || peers_->Gone(rank);
}

void SharedMemoryCommunicator::Abort() { Publish(kAbort, rank_); }

absl::Status SharedMemoryCommunicator::Health() {
  if (segment_->failure.load() != 0) return Failure();
  for (int r = 0; r < world_size_; ++r) {
    if (r != rank_ && HasLeft(r)) return Fail(kGone, r);
  }
  return absl::OkStatus();
}

absl::Status SharedMemoryCommunicator::Fail(std::uint32_t kind, int about) {
  Publish(kind, about);
  return Failure();
}

absl::Status SharedMemoryCommunicator::Failure() const {
  return MarkCommunicatorFailure(Published());
}

absl::Status SharedMemoryCommunicator::Published() const {
  const std::uint64_t packed = segment_->failure.load();
  const int by = FoundBy(packed), about = FoundAbout(packed);
  switch (FailureKindOf(packed)) {
    case kGone:
      return absl::UnavailableError(
          absl::StrCat(peers_->NameOf(about), " is gone, noticed by rank ", by));
    case kLate:
      return absl::DeadlineExceededError(absl::StrCat(
          "rank ", by, " has waited for ", peers_->NameOf(about), " as long as one call may take"));
    case kMismatch:
      return absl::FailedPreconditionError(
          !mismatch_.empty()
              ? mismatch_
              : absl::StrCat("rank ", by, " and rank ", about, " issued different calls"));
    case kBadBytes:
      return absl::UnavailableError(absl::StrCat("rank ", by, " received bytes from ",
                                                 peers_->NameOf(about),
                                                 " that are no message of this group"));
    default: return absl::AbortedError(absl::StrCat("rank ", by, " failed and ended the group"));
  }
}

absl::Status SharedMemoryCommunicator::AwaitRank(int rank, std::uint32_t phase) {
  const RankSlot& slot = segment_->slots[rank];
  const auto come = [&] { return Reached(slot.phase.load(std::memory_order_acquire), phase); };
  const auto failed = [&] { return segment_->failure.load(std::memory_order_acquire) != 0; };
  for (int i = 0; i < options_.spin; ++i) {
    const Look look = LookOnce(come, failed);
    if (look != Look::kNothing) return look == Look::kCome ? absl::OkStatus() : Failure();
    Pause();
  }
  return AwaitAsleep(rank, phase);
}

absl::Status SharedMemoryCommunicator::AwaitAsleep(int rank, std::uint32_t phase) {
  RankSlot& slot = segment_->slots[rank];
  if (!call_end_) call_end_ = steady_clock::now() + deadline_;
  const timespec slice{0, kSliceNanoseconds};
  const auto come = [&] { return Reached(slot.phase.load(), phase); };
  const auto failed = [&] { return segment_->failure.load() != 0; };
  for (;;) {
    // Counted before the kernel compares `phase`, and looked at by the publisher after it has
    // stored it: one of the two sees the other.
    slot.waiters.fetch_add(1);
    const std::uint32_t seen = slot.phase.load();
    if (!Reached(seen, phase) && !failed()) {
      syscall(SYS_futex, &slot.phase, FUTEX_WAIT, seen, &slice, nullptr, 0);
    }
    slot.waiters.fetch_sub(1);
    const Look look = LookOnce(come, failed);
    if (look != Look::kNothing) return look == Look::kCome ? absl::OkStatus() : Failure();
    for (int r = 0; r < world_size_; ++r) {
      RankSlot& other = segment_->slots[r];
      // A rank that arrived and then left in good order is no failure of this call.
      if (r == rank_ || Reached(other.phase.load(), phase)) continue;
      const bool gone = HasLeft(r);
      if (gone && !Reached(other.phase.load(), phase)) return Fail(kGone, r);
    }
    if (steady_clock::now() >= *call_end_ && !come()) return Fail(kLate, rank);
  }
}

absl::Status SharedMemoryCommunicator::NextPhase() {
  RankSlot& mine = segment_->slots[rank_];
  ++phase_;
  mine.phase.store(phase_);
  if (mine.waiters.load() != 0) {
    syscall(SYS_futex, &mine.phase, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }
  for (int r = 0; r < world_size_; ++r) {
    if (r != rank_) RETURN_IF_ERROR(AwaitRank(r, phase_));
  }
  return absl::OkStatus();
}

absl::Status SharedMemoryCommunicator::CompareHeaders(const CallHeader& mine) {
  for (int r = 0; r < world_size_; ++r) {
    const CallHeader theirs = segment_->slots[r].header[phase_ % 2];
    if (theirs == mine) continue;
    mismatch_ =
        absl::StrCat("ranks issued different calls: rank ", options_.first_rank + rank_, " ",
                     Describe(mine), ", ", NameOf(options_.first_rank + r), " ", Describe(theirs));
    return Fail(kMismatch, r);
  }
  return absl::OkStatus();
}

absl::Status SharedMemoryCommunicator::Exchange(const CallHeader& header, const void* data,
                                                std::size_t bytes) {
  CHECK(bytes <= kBufferBytes);
  if (segment_->failure.load() != 0) return Failure();
  segment_->slots[rank_].header[(phase_ + 1) % 2] = header;
  if (bytes > 0) std::memcpy(Buffer(rank_, phase_ + 1), data, bytes);
  RETURN_IF_ERROR(NextPhase());
  return CompareHeaders(header);
}

std::uint64_t SharedMemoryCommunicator::NextCall() {
  call_end_.reset();
  segment_->slots[rank_].call.store(++sequence_, std::memory_order_relaxed);
  return sequence_;
}

absl::Status SharedMemoryCommunicator::Barrier() {
  return Exchange({kBarrier, kByte, 0, 0, NextCall()}, nullptr, 0);
}

template <class T>
absl::Status SharedMemoryCommunicator::ReduceStaged(std::span<T> inout, CallHeader header,
                                                    void (*combine)(T*, const T*, std::size_t)) {
  constexpr std::size_t kChunk = kBufferBytes / sizeof(T);
  std::size_t at = 0;
  do {
    const std::size_t count = std::min(kChunk, inout.size() - at);
    T* const out = inout.data() + at;
    RETURN_IF_ERROR(Exchange(header, out, count * sizeof(T)));
    if (count > 0) std::memcpy(out, Buffer(0, phase_), count * sizeof(T));
    for (int r = 1; r < world_size_; ++r)
      combine(out, reinterpret_cast<const T*>(Buffer(r, phase_)), count);
    at += count;
  } while (at < inout.size());
  return absl::OkStatus();
}

template <class T>
absl::Status SharedMemoryCommunicator::SumAll(std::span<T> inout) {
  if (inout.size() > kStagedElements) {
    if (const std::optional<Place> place = FindInArena(inout))
      return SumInArena<T>(*place, inout.size());
  }
  const CallHeader header{kSum, TypeOf(DTypeOf<T>()), inout.size(), kNoArena, sequence_};
  constexpr std::size_t kChunk = kBufferBytes / sizeof(T);
  std::size_t at = 0;
  do {
    const std::size_t count = std::min(kChunk, inout.size() - at);
    RETURN_IF_ERROR(Exchange(header, inout.data() + at, count * sizeof(T)));
    std::array<const T*, kMaxRanks> brought;
    for (int r = 0; r < world_size_; ++r) brought[r] = reinterpret_cast<const T*>(Brought(r));
    SumInto<T>({brought.data(), static_cast<std::size_t>(world_size_)}, 0, count,
               inout.data() + at);
    at += count;
  } while (at < inout.size());
  return absl::OkStatus();
}

absl::Status SharedMemoryCommunicator::AllReduceSum(Tensor inout) {
  NextCall();
  return WithType(inout.type, [&](auto one) { return SumAll(inout.Elements<decltype(one)>()); });
}

absl::Status SharedMemoryCommunicator::AllReduce(std::span<double> inout, Reduction reduction) {
  return ReduceStaged<double>(
      inout, {kReduce, kDouble, inout.size(), static_cast<std::uint64_t>(reduction), NextCall()},
      reduction == Reduction::kSum
          ? static_cast<void (*)(double*, const double*, std::size_t)>(&Add)
          : static_cast<void (*)(double*, const double*, std::size_t)>(&Max));
}

absl::Status SharedMemoryCommunicator::AllReduce(std::span<std::int64_t> inout,
                                                 Reduction reduction) {
  using Combine = void (*)(std::int64_t*, const std::int64_t*, std::size_t);
  return ReduceStaged<std::int64_t>(
      inout, {kReduce, kInt64, inout.size(), static_cast<std::uint64_t>(reduction), NextCall()},
      reduction == Reduction::kSum ? static_cast<Combine>(&Add) : static_cast<Combine>(&Max));
}

absl::Status SharedMemoryCommunicator::Broadcast(std::span<std::byte> inout, int root) {
  CHECK(root >= 0 && root < world_size_);
  const CallHeader header{kBroadcast, kByte, inout.size(), static_cast<std::uint64_t>(root),
                          NextCall()};
  std::size_t at = 0;
  do {
    const std::size_t count = std::min(kBufferBytes, inout.size() - at);
    RETURN_IF_ERROR(Exchange(header, inout.data() + at, rank_ == root ? count : 0));
    if (rank_ != root && count > 0) std::memcpy(inout.data() + at, Buffer(root, phase_), count);
    at += count;
  } while (at < inout.size());
  return absl::OkStatus();
}

std::optional<SharedMemoryCommunicator::Place> SharedMemoryCommunicator::FindInArena(
    const Tensor& range) const {
  for (std::size_t a = 0; a < arenas_.size(); ++a) {
    const Tensor part(arenas_[a].type, PartOf(arenas_[a], rank_), arenas_[a].count);
    if (range.data < part.data || range.data >= part.at(part.size)) continue;
    CHECK(range.type == part.type);
    const std::size_t offset =
        static_cast<std::size_t>(range.data - part.data) / part.element_bytes();
    if (range.size <= part.size - offset) return Place{a, offset};
  }
  return std::nullopt;
}

template <class T>
absl::Status SharedMemoryCommunicator::SumInArena(Place place, std::size_t count) {
  const SharedArena& arena = arenas_[place.arena];
  CHECK(arena.sharers == 1);
  const CallHeader header{kSum, TypeOf(arena.type), count, place.Packed(), sequence_};
  RETURN_IF_ERROR(Exchange(header, nullptr, 0));
  // Each rank sums one part of the range for all, in whole cache lines.
  std::array<T*, kMaxRanks> sources;
  for (int r = 0; r < world_size_; ++r)
    sources[r] = reinterpret_cast<T*>(PartOf(arena, r)) + place.offset;
  constexpr std::size_t kLine = 64 / sizeof(T);
  const std::size_t lines = (count + kLine - 1) / kLine;
  const auto share = [&](int r) {
    return std::min(
        count, lines * static_cast<std::size_t>(r) / static_cast<std::size_t>(world_size_) * kLine);
  };
  for (std::size_t at = share(rank_); at < share(rank_ + 1); at += kSumAtOnce) {
    if (segment_->failure.load(std::memory_order_relaxed) != 0) return Failure();
    SumIntoAll<T>({sources.data(), static_cast<std::size_t>(world_size_)}, at,
                  std::min(at + kSumAtOnce, share(rank_ + 1)));
  }
  return NextPhase();
}

const SharedMemoryCommunicator::SharedArena& SharedMemoryCommunicator::ArenaOf(
    const Tensor& own) const {
  const auto found = std::find_if(arenas_.begin(), arenas_.end(), [&](const SharedArena& arena) {
    return PartOf(arena, rank_) == own.data && arena.type == own.type && arena.count == own.size;
  });
  CHECK(found != arenas_.end());
  return *found;
}

absl::Status SharedMemoryCommunicator::Meet(std::uint32_t operation, const SharedArena& arena,
                                            std::span<const Stretch> stretches, int group) {
  CHECK(group >= 1 && world_size_ % group == 0);
  const auto number = static_cast<std::uint64_t>(&arena - arenas_.data());
  return Exchange({operation, TypeOf(arena.type), stretches.size(),
                   HashOf(stretches, group) + number, NextCall()},
                  nullptr, 0);
}

template <class T>
absl::Status SharedMemoryCommunicator::SumOwned(const SharedArena& arena,
                                                std::span<const Stretch> stretches,
                                                std::span<T> out, int group) {
  T* const own = reinterpret_cast<T*>(PartOf(arena, rank_));
  const bool in_place = out.data() == own;
  // Owners of the same would overwrite in place what the others of them still sum: each sums a part
  // of it, and takes the rest from them.
  const int owners = in_place ? world_size_ / group : 1, number = in_place ? rank_ / group : 0;
  for (const Stretch& s : stretches) {
    if (s.owner != rank_ % group || (in_place && world_size_ == 1)) continue;
    CHECK(s.from + s.size <= static_cast<std::int64_t>(arena.count) &&
          s.to + s.size <= static_cast<std::int64_t>(out.size()) && (!in_place || s.from == s.to));
    std::array<const T*, kMaxRanks> sources;
    for (int r = 0; r < world_size_; ++r)
      sources[r] = reinterpret_cast<const T*>(PartOf(arena, r)) + s.from;
    const auto end = static_cast<std::size_t>(s.size * (number + 1) / owners);
    for (auto at = static_cast<std::size_t>(s.size * number / owners); at < end; at += kSumAtOnce) {
      if (segment_->failure.load(std::memory_order_relaxed) != 0) return Failure();
      SumInto<T>({sources.data(), static_cast<std::size_t>(world_size_)}, at,
                 std::min(at + kSumAtOnce, end), out.data() + s.to);
    }
  }
  RETURN_IF_ERROR(NextPhase());  // All ranks have read what they sum: arenas may change.
  if (owners == 1) return absl::OkStatus();
  for (const Stretch& s : stretches) {
    for (int k = 0; s.owner == rank_ % group && k < owners; ++k) {
      if (k == number) continue;
      const std::int64_t begin = s.from + s.size * k / owners,
                         end = s.from + s.size * (k + 1) / owners;
      std::memcpy(own + begin,
                  reinterpret_cast<const T*>(PartOf(arena, k * group + s.owner)) + begin,
                  static_cast<std::size_t>(end - begin) * sizeof(T));
    }
  }
  return NextPhase();
}

absl::Status SharedMemoryCommunicator::ReduceScatter(Tensor arena,
                                                     std::span<const Stretch> stretches, Tensor out,
                                                     int group) {
  const SharedArena& shared = ArenaOf(arena);
  CHECK(shared.sharers == 1);
  RETURN_IF_ERROR(Meet(kScatter, shared, stretches, group));
  return WithType(shared.type, [&](auto one) {
    return SumOwned(shared, stretches, out.Elements<decltype(one)>(), group);
  });
}

absl::Status SharedMemoryCommunicator::AllGather(Tensor arena, std::span<const Stretch> stretches,
                                                 Tensor out, int group) {
  const SharedArena& shared = ArenaOf(arena);
  CHECK(out.type == arena.type);
  RETURN_IF_ERROR(Meet(kGather, shared, stretches, group));
  const bool in_place = out.data == arena.data;
  const int first = rank_ - rank_ % group;
  for (const Stretch& s : stretches) {
    if (in_place && PartOf(shared, first + s.owner) == out.data) continue;
    CHECK(s.owner >= 0 && s.owner < group &&
          s.from + s.size <= static_cast<std::int64_t>(arena.size) &&
          s.to + s.size <= static_cast<std::int64_t>(out.size) && (!in_place || s.from == s.to));
    const Tensor theirs(arena.type, PartOf(shared, first + s.owner), arena.size);
    const auto from = static_cast<std::size_t>(s.from), to = static_cast<std::size_t>(s.to),
               size = static_cast<std::size_t>(s.size);
    for (std::size_t at = 0; at < size; at += kSumAtOnce) {
      if (segment_->failure.load(std::memory_order_relaxed) != 0) return Failure();
      CopyPastCaches(out.at(to + at), theirs.at(from + at),
                     std::min(kSumAtOnce, size - at) * arena.element_bytes());
    }
  }
  return NextPhase();
}

absl::StatusOr<Tensor> SharedMemoryCommunicator::AllocateShared(DType type, std::size_t count,
                                                                int group) {
  CHECK(group >= 1 && world_size_ % group == 0);
  struct Offer {
    Peers::ArenaTicket ticket;
    std::int64_t ok = 0;
  } offer;
  const std::size_t stride =
      (Tensor(type, nullptr, count).bytes() + 4095) / 4096 * 4096 + kArenaSkew;
  const CallHeader header{kArena, TypeOf(type), count,
                          static_cast<std::uint64_t>(group) << 32 | arenas_.size(), NextCall()};
  absl::StatusOr<Peers::Arena> arena = absl::UnknownError("");
  if (rank_ == 0) {
    arena = peers_->MakeArena(stride * static_cast<std::size_t>(world_size_ / group));
    if (arena.ok()) offer = {arena->ticket, 1};
  }
  RETURN_IF_ERROR(Exchange(header, &offer, sizeof offer));
  std::memcpy(&offer, Buffer(0, phase_), sizeof offer);
  if (rank_ != 0) {
    arena = offer.ok != 0 ? peers_->OpenArena(offer.ticket)
                          : absl::ResourceExhaustedError("rank 0 could not make the arena");
  }
  // Every rank tells whether it has it, so that all of them fail together.
  std::int64_t failures = arena.ok() ? 0 : 1;
  RETURN_IF_ERROR(AllReduce(std::span(&failures, 1), Reduction::kSum));
  if (!arena.ok()) return arena.status();
  peers_->ArenaShared(arena->ticket);
  if (failures > 0)
    return absl::ResourceExhaustedError(
        absl::StrCat(failures, " other ranks could not open the arena"));
  arenas_.push_back({arena->base, stride, group, type, count});
  return Tensor(type, PartOf(arenas_.back(), rank_), count);
}

}  // namespace regroup::worker
