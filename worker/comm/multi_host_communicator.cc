#include "worker/comm/multi_host_communicator.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "worker/comm/reduce.h"

namespace regroup::worker {
namespace {

using std::chrono::steady_clock;

// The first rank of a host is asked for its verdict first: it knows who is late on another host.
constexpr Duration kFirstRankSpeaks = std::chrono::seconds(3);

void Copy(std::byte* to, const std::byte* from, std::size_t bytes) { std::memcpy(to, from, bytes); }

// Partial sums are of the numbers that are added.
template <class T, void (*kCombine)(T*, const T*, std::size_t)>
constexpr Summing Plainly() {
  return {.begin = &Copy,
          .add =
              [](std::byte* partial, const std::byte* in, std::size_t bytes) {
                kCombine(reinterpret_cast<T*>(partial), reinterpret_cast<const T*>(in),
                         bytes / sizeof(T));
              },
          .finish = &Copy};
}

// Partial sums are floats.
template <class T>
constexpr Summing InFloats() {
  return {.wider = sizeof(float) / sizeof(T),
          .begin =
              [](std::byte* partial, const std::byte* in, std::size_t bytes) {
                Widen(reinterpret_cast<float*>(partial), reinterpret_cast<const T*>(in),
                      bytes / sizeof(T));
              },
          .add =
              [](std::byte* partial, const std::byte* in, std::size_t bytes) {
                AddWide(reinterpret_cast<float*>(partial), reinterpret_cast<const T*>(in),
                        bytes / sizeof(T));
              },
          .finish =
              [](std::byte* result, const std::byte* partial, std::size_t bytes) {
                Narrow(reinterpret_cast<T*>(result), reinterpret_cast<const float*>(partial),
                       bytes / sizeof(T));
              }};
}

Summing SummingOf(DType type) {
  switch (type) {
    case DType::kF32: return Plainly<float, &Add>();
    case DType::kBF16: return InFloats<BFloat16>();
    case DType::kF16: return InFloats<Half>();
  }
  CHECK(false);
}

template <class T>
std::span<std::byte> BytesOf(std::span<T> values) {
  return {reinterpret_cast<std::byte*>(values.data()), values.size() * sizeof(T)};
}

// Also of nothing, from nowhere.
void CopyAll(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

void Cut(Piece whole, std::size_t bytes, std::size_t at_most, std::vector<Piece>& pieces) {
  for (std::size_t at = 0; at < bytes; at += at_most) {
    Piece piece = whole;
    piece.from += at;
    piece.to += at;
    piece.bytes = std::min(at_most, bytes - at);
    pieces.push_back(piece);
  }
}

}  // namespace

// From a call's number to its end, on the first rank of a host the watch knows of it.
class MultiHostCommunicator::Call {
 public:
  explicit Call(MultiHostCommunicator& all, bool on_host = false)
      : all_(all), number_(all.local_->NextCall()) {
    all_.begun_ = steady_clock::now();
    if (!all_.watch_) return;
    on_host ? all_.watch_->BeginCallOnHost(number_) : all_.watch_->BeginCall(number_);
  }
  ~Call() {
    if (!all_.watch_) return;
    all_.watch_->EndCall(number_);
    if (all_.local_->FailureWord() != 0) all_.watch_->Tell();
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  std::uint64_t number() const { return number_; }

 private:
  MultiHostCommunicator& all_;
  const std::uint64_t number_;
};

MultiHostCommunicator::MultiHostCommunicator(int rank, Hosts hosts,
                                             std::unique_ptr<SharedMemoryCommunicator> local,
                                             Duration deadline)
    : rank_(rank),
      hosts_(std::move(hosts)),
      own_(HostOf(hosts_, rank)),
      local_(std::move(local)),
      deadline_(deadline) {}

MultiHostCommunicator::~MultiHostCommunicator() = default;

absl::StatusOr<std::unique_ptr<Communicator>> MultiHostCommunicator::Create(
    int rank, Hosts hosts, std::unique_ptr<SharedMemoryCommunicator> local,
    std::optional<HostLinks> links, Duration join_deadline, Duration deadline) {
  CHECK(hosts.size() > 1);
  std::unique_ptr<MultiHostCommunicator> all(
      new MultiHostCommunicator(rank, std::move(hosts), std::move(local), join_deadline));
  all->SetDeadline(join_deadline);
  ASSIGN_OR_RETURN(const std::span<float> part,
                   all->local_->AllocateArena(kBoardAndSlotsBytes / sizeof(float)));
  const auto arena = all->local_->FindInArena(part);
  CHECK(arena.has_value());
  all->board_arena_ = arena->arena;
  auto* const memory = all->local_->PartOf(arena->arena, 0);
  if (all->local_rank() == 0) {
    CHECK(links.has_value());
    all->board_ = new (memory) Board;
    all->watch_ = std::make_unique<HostWatch>(*all->local_, all->hosts_, all->own_,
                                              std::move(links->previous.control),
                                              std::move(links->next.control));
    all->chain_ = std::make_unique<HostChain>(
        all->hosts_, all->own_, std::move(links->previous.calls), std::move(links->next.calls),
        *all->local_, *all->watch_, all->board_);
  } else {
    all->board_ = reinterpret_cast<Board*>(memory);
    all->taker_.emplace(*all->local_, all->board_, all->local_rank());
  }
  RETURN_IF_ERROR(all->Barrier());
  all->SetDeadline(deadline);
  return all;
}

steady_clock::time_point MultiHostCommunicator::End() const {
  return begun_ + deadline_ + (chain_ ? Duration::zero() : kFirstRankSpeaks);
}

void MultiHostCommunicator::SetDeadline(Duration per_call) {
  deadline_ = per_call;
  local_->SetDeadline(per_call);
}

void MultiHostCommunicator::Abort() {
  local_->Abort();
  if (watch_) watch_->Tell();
}

absl::Status MultiHostCommunicator::Health() {
  absl::Status health = local_->Health();
  if (!health.ok() && watch_) watch_->Tell();
  return health;
}

absl::Status MultiHostCommunicator::Move(Flow flow, std::byte* out, std::byte* own_part,
                                         const std::byte* first_part) {
  if (chain_) {
    // A lone rank takes everything at once; others only what all of them want in the same place.
    const bool in_place = out == nullptr;
    if (host().count == 1) {
      flow.direct = in_place ? own_part : out;
    } else if (in_place && first_part != nullptr) {
      flow.direct = own_part;
    } else {
      flow.own = in_place ? own_part : out;
    }
    return chain_->Move(flow, End());
  }
  std::byte* const target = out != nullptr ? out : own_part;
  return taker_->Run(End(), [&](std::uint32_t number, const std::byte* at) {
    const Piece& piece = flow.pieces[number];
    if (!flow.IsFor(rank_, piece) || (at == nullptr && target == first_part)) return;
    std::memcpy(target + piece.to, at != nullptr ? at : first_part + piece.to, piece.bytes);
  });
}

absl::Status MultiHostCommunicator::SumBrought(const CallHeader& header, std::span<std::byte> inout,
                                               const Summing& summing) {
  RETURN_IF_ERROR(local_->Exchange(header, inout.data(), inout.size()));
  std::vector<const std::byte*> brought;
  for (int r = 0; r < host().count; ++r) brought.push_back(local_->Brought(r));
  std::vector<Piece> pieces;
  Cut({}, inout.size(), kPieceBytes / summing.wider, pieces);
  return Move({.header = header, .pieces = pieces, .sources = brought, .summing = summing},
              inout.data(), nullptr, nullptr);
}

absl::Status MultiHostCommunicator::ReduceStaged(const CallHeader& header,
                                                 std::span<std::byte> inout,
                                                 const Summing& summing) {
  std::size_t at = 0;
  do {
    const std::size_t bytes = std::min(kBufferBytes, inout.size() - at);
    RETURN_IF_ERROR(SumBrought(header, inout.subspan(at, bytes), summing));
    at += bytes;
  } while (at < inout.size());
  return absl::OkStatus();
}

absl::Status MultiHostCommunicator::Barrier() {
  const Call call(*this);
  std::int64_t nothing = 0;  // Which has to visit all hosts.
  return SumBrought({kBarrier, kByte, 0, 0, call.number()}, BytesOf(std::span(&nothing, 1)),
                    Plainly<std::int64_t, &Add>());
}

absl::Status MultiHostCommunicator::AllReduce(std::span<double> inout, Reduction reduction) {
  const Call call(*this);
  return ReduceStaged(
      {kReduce, kDouble, inout.size(), static_cast<std::uint64_t>(reduction), call.number()},
      BytesOf(inout),
      reduction == Reduction::kSum ? Plainly<double, &Add>() : Plainly<double, &Max>());
}

absl::Status MultiHostCommunicator::AllReduce(std::span<std::int64_t> inout, Reduction reduction) {
  const Call call(*this);
  return ReduceStaged(
      {kReduce, kInt64, inout.size(), static_cast<std::uint64_t>(reduction), call.number()},
      BytesOf(inout),
      reduction == Reduction::kSum ? Plainly<std::int64_t, &Add>() : Plainly<std::int64_t, &Max>());
}

std::byte* MultiHostCommunicator::NextStage() {
  static_assert(2 * kStageBytes <= kBoardAndSlotsBytes);
  return local_->PartOf(board_arena_, 1) + (stages_++ % 2) * kStageBytes;
}

absl::Status MultiHostCommunicator::Broadcast(std::span<std::byte> inout, int root) {
  CHECK(root >= 0 && root < world_size());
  const Call call(*this);
  const CallHeader header{kBroadcast, kByte, inout.size(), static_cast<std::uint64_t>(root),
                          call.number()};
  const int from = HostOf(hosts_, root);
  std::size_t at = 0;
  do {
    const std::span<std::byte> part = inout.subspan(at, std::min(kStageBytes, inout.size() - at));
    std::byte* const staged = from == own_ && host().count > 1 ? NextStage() : part.data();
    // Once the group has failed, some may still copy what the calls before handed round.
    if (local_->FailureWord() != 0) return local_->Failure();
    if (rank_ == root && staged != part.data()) CopyAll(staged, part.data(), part.size());
    RETURN_IF_ERROR(local_->Exchange(header, nullptr, 0));
    const std::vector<const std::byte*> sources(static_cast<std::size_t>(host().count), staged);
    std::vector<Piece> pieces;
    Cut({.host = from, .owner = root}, part.size(), kPieceBytes, pieces);
    RETURN_IF_ERROR(Move({.header = header, .sums = false, .pieces = pieces, .sources = sources},
                         part.data(), nullptr, nullptr));
    if (from == own_ && rank_ != root) CopyAll(part.data(), staged, part.size());
    at += part.size();
  } while (at < inout.size());
  return absl::OkStatus();
}

absl::Status MultiHostCommunicator::AllReduceSum(Tensor inout) {
  const Call call(*this);
  if (inout.size > kStagedElements) {
    if (const auto place = local_->FindInArena(inout))
      return SumInArena(*place, inout, call.number());
  }
  return ReduceStaged({kSum, TypeOf(inout.type), inout.size, kNoArena, call.number()},
                      {inout.data, inout.bytes()}, SummingOf(inout.type));
}

std::vector<const std::byte*> MultiHostCommunicator::PartsOf(std::size_t arena) const {
  std::vector<const std::byte*> parts;
  for (int r = 0; r < host().count; ++r) parts.push_back(local_->PartOf(arena, r));
  return parts;
}

absl::Status MultiHostCommunicator::SumInArena(SharedMemoryCommunicator::Place place,
                                               const Tensor& range, std::uint64_t call) {
  CHECK(local_->SharersOf(place.arena) == 1);
  const CallHeader header{kSum, TypeOf(range.type), range.size, place.Packed(), call};
  RETURN_IF_ERROR(local_->Exchange(header, nullptr, 0));
  std::vector<Piece> pieces;
  const Summing summing = SummingOf(range.type);
  const std::size_t begin = place.offset * range.element_bytes();
  Cut({.from = begin, .to = begin}, range.bytes(), kPieceBytes / summing.wider, pieces);
  const std::vector<const std::byte*> parts = PartsOf(place.arena);
  std::byte* const own = local_->PartOf(place.arena, local_rank());
  RETURN_IF_ERROR(Move({.header = header, .pieces = pieces, .sources = parts, .summing = summing},
                       nullptr, own, parts[0]));
  return local_->NextPhase();  // All ranks of this host have taken what they wait for.
}

bool MultiHostCommunicator::EachOnOneHost(int group) const {
  return std::ranges::all_of(
      hosts_, [&](const HostRanks& h) { return h.first % group == 0 && h.count % group == 0; });
}

std::vector<Piece> MultiHostCommunicator::PiecesOf(std::span<const Stretch> stretches,
                                                   std::size_t element_bytes,
                                                   std::size_t piece_bytes) const {
  std::vector<Piece> pieces;
  for (const Stretch& s : stretches) {
    CHECK(s.owner >= 0 && s.owner < world_size() && s.from >= 0 && s.to >= 0 && s.size >= 0);
    Cut({.from = static_cast<std::size_t>(s.from) * element_bytes,
         .to = static_cast<std::size_t>(s.to) * element_bytes,
         .host = HostOf(hosts_, s.owner),
         .owner = s.owner},
        static_cast<std::size_t>(s.size) * element_bytes, piece_bytes, pieces);
  }
  return pieces;
}

absl::Status MultiHostCommunicator::ReduceScatter(Tensor arena, std::span<const Stretch> stretches,
                                                  Tensor out, int group) {
  const Call call(*this);
  const auto place = local_->FindInArena(arena);
  CHECK(place.has_value() && place->offset == 0 && out.type == arena.type);
  CHECK(group >= 1 && world_size() % group == 0);
  CHECK(local_->SharersOf(place->arena) == 1);
  const CallHeader header{kScatter, TypeOf(arena.type), stretches.size(),
                          HashOf(stretches, group) + place->arena, call.number()};
  RETURN_IF_ERROR(local_->Exchange(header, nullptr, 0));
  const Summing summing = SummingOf(arena.type);
  const std::vector<Piece> pieces =
      PiecesOf(stretches, arena.element_bytes(), kPieceBytes / summing.wider);
  for (const Stretch& s : stretches) {
    CHECK(s.owner != rank_ % group || (s.from + s.size <= static_cast<std::int64_t>(arena.size) &&
                                       s.to + s.size <= static_cast<std::int64_t>(out.size)));
  }
  const std::vector<const std::byte*> parts = PartsOf(place->arena);
  RETURN_IF_ERROR(Move(
      {.header = header, .group = group, .pieces = pieces, .sources = parts, .summing = summing},
      out.data, nullptr, nullptr));
  return local_->NextPhase();  // Arenas may change.
}

absl::Status MultiHostCommunicator::AllGather(Tensor arena, std::span<const Stretch> stretches,
                                              Tensor out, int group) {
  CHECK(group >= 1 && world_size() % group == 0);
  const bool alone = EachOnOneHost(group);
  const Call call(*this, /*on_host=*/alone);
  const auto place = local_->FindInArena(arena);
  CHECK(place.has_value() && place->offset == 0 && out.type == arena.type);
  const CallHeader header{kGather, TypeOf(arena.type), stretches.size(),
                          HashOf(stretches, group) + place->arena, call.number()};
  RETURN_IF_ERROR(local_->Exchange(header, nullptr, 0));
  const bool in_place = out.data == arena.data;
  const int first = alone ? rank_ - rank_ % group : 0;
  const std::vector<const std::byte*> parts = PartsOf(place->arena);
  const std::size_t element = arena.element_bytes();
  const std::vector<Piece> pieces = PiecesOf(stretches, element, kPieceBytes);
  for (const Stretch& s : stretches) {
    CHECK(s.from + s.size <= static_cast<std::int64_t>(arena.size) &&
          s.to + s.size <= static_cast<std::int64_t>(out.size) && (!in_place || s.from == s.to));
    const int owner = first + s.owner;
    if (HostOf(hosts_, owner) != own_) continue;
    const std::byte* const theirs = parts[static_cast<std::size_t>(owner - host().first)];
    if (in_place && theirs == out.data) continue;
    CopyPastCaches(out.at(static_cast<std::size_t>(s.to)),
                   theirs + static_cast<std::size_t>(s.from) * element,
                   static_cast<std::size_t>(s.size) * element);
  }
  if (!alone) {
    RETURN_IF_ERROR(Move({.header = header, .sums = false, .pieces = pieces, .sources = parts},
                         in_place ? nullptr : out.data, out.data, in_place ? parts[0] : nullptr));
  }
  return local_->NextPhase();
}

absl::StatusOr<Tensor> MultiHostCommunicator::AllocateShared(DType type, std::size_t count,
                                                             int group) {
  CHECK(group >= 1 && world_size() % group == 0);
  const Call call(*this);
  // Groups on one host each, or one group of all; of others, two could have copies on one host.
  const int sharers = group == world_size() ? host().count : EachOnOneHost(group) ? group : 1;
  absl::StatusOr<Tensor> part = local_->AllocateShared(type, count, sharers);
  if (IsCommunicatorFailure(part.status())) return part.status();
  std::int64_t failures = part.ok() ? 0 : 1;
  const absl::Status agreed =
      SumBrought({kArena, TypeOf(type), count, static_cast<std::uint64_t>(group), call.number()},
                 BytesOf(std::span(&failures, 1)), Plainly<std::int64_t, &Add>());
  RETURN_IF_ERROR(agreed);
  if (!part.ok()) return part.status();
  if (failures == 0) return part;
  local_->ForgetLastArena();
  return absl::ResourceExhaustedError(
      absl::StrCat(failures, " ranks of other hosts have no memory for this arena"));
}

}  // namespace regroup::worker
