#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "worker/comm/host_links.h"
#include "worker/comm/host_watch.h"
#include "worker/comm/shared_memory_communicator.h"

namespace regroup::worker {

inline constexpr std::size_t kPieceBytes = kBufferBytes;
inline constexpr std::size_t kWindow = 6;  // Pieces of one lane that are under way on one host.
inline constexpr int kAllHosts = -1;

// A part of what a call moves. All ranks cut a call into the same pieces.
struct Piece {
  std::size_t from = 0, to = 0;  // Bytes into the sources, and into where results go.
  std::size_t bytes = 0;         // At most kPieceBytes, also as a partial sum.
  // A sum's: the first one that wants it. A gather's: which has it.
  int host = kAllHosts;
  int owner =
      0;  // A sum's: the place in its group of every rank that wants it. A gather's: a rank.
};

// In shared memory of one host: its first rank tells the others which pieces have come, and where
// they lie.
struct Board {
  static constexpr std::uint32_t kTags = 64;
  static constexpr std::uint32_t kDone = ~0u, kDirect = ~0u;
  struct Tag {
    std::uint32_t piece = 0;  // Or kDone: the call has no more.
    std::uint32_t slot = 0;   // Or kDirect: at `to`, in the first rank's part of the arena.
  };
  struct alignas(64) Counter {
    std::atomic<std::uint32_t> value{0};
  };
  Counter published;  // Tags so far, of all calls; a futex.
  alignas(64) std::array<Tag, kTags> tags;
  std::array<Counter, kMaxRanks> taken;  // By rank of this host: tags that it is done with.
};
inline constexpr std::size_t kBoardBytes = (sizeof(Board) + 4095) / 4096 * 4096;
inline constexpr std::size_t kBoardAndSlotsBytes = kBoardBytes + 2 * kWindow * kPieceBytes;
inline constexpr std::size_t kStageBytes = kWindow * kPieceBytes;  // MultiHostCommunicator.

// How pieces are added up: so many bytes of a source begin a partial sum or are added to it, and in
// the end become of it what ranks get, which may lie where it does.
struct Summing {
  std::size_t wider = 1;  // Bytes of a partial sum for each of a source. 1: as `begin` copies it.
  void (*begin)(std::byte* partial, const std::byte* in, std::size_t bytes) = nullptr;
  void (*add)(std::byte* partial, const std::byte* in, std::size_t bytes) = nullptr;
  void (*finish)(std::byte* result, const std::byte* partial, std::size_t bytes) = nullptr;
};

// What moves in one call, as this host's first rank sees it.
struct Flow {
  CallHeader header{};
  bool sums = true;  // Else it gathers.
  int group = 1;     // Of a sum whose pieces have owners: ranks of each group.
  std::span<const Piece> pieces{};
  std::span<const std::byte* const> sources{};  // By rank of this host.
  Summing summing{};                            // Of sums.
  // Where results go at once, or null: then they go through slots, from where every rank of this
  // host takes them.
  std::byte* direct = nullptr;
  std::byte* own = nullptr;  // Of the first rank, where direct is null; null if it takes none.

  bool IsFor(int rank, const Piece& piece) const {
    return !sums || piece.host == kAllHosts || piece.owner == rank % group;
  }
};

// The hosts in the order of their ranks, each holding a connection to the one before and the one
// behind it. Partial sums go up, from the first host to the last, and each host adds its ranks to
// them one by one; results come down. What one rank begins a sum with goes up as it has it, and is
// widened by the next host. Gathered pieces go both ways from who has them. Used by the
// calling thread of the host's first rank. Private to worker/comm.
class HostChain {
 public:
  // REQUIRES: `board` is followed by the slots; all of them outlive this object.
  HostChain(const Hosts& hosts, int own, io::UniqueFd previous, io::UniqueFd next,
            SharedMemoryCommunicator& local, HostWatch& watch, Board* board);

  // All pieces are where they belong on this host, but for what its other ranks still take from
  // slots. Fails as the group does.
  absl::Status Move(const Flow& flow, std::chrono::steady_clock::time_point end);

 private:
  struct Link {
    io::UniqueFd fd;
    int host = -1;
    CallMessage in{};
    std::size_t sent = 0, received = 0;  // Of the messages that begin the call.
    int wakes_at = 1;                    // Bytes that make it readable.
    bool exists() const { return fd.get() >= 0; }
    bool open() const { return received == sizeof(CallMessage); }
  };
  // One direction of a call.
  struct Lane {
    bool up = true;
    Link* in = nullptr;
    Link* out = nullptr;
    std::vector<std::uint32_t> pieces;  // In the order in which they pass.
    std::byte* slots = nullptr;
    // How many of them have come and are added up, are on their way, have left their slots.
    std::size_t ready = 0, sent = 0, released = 0;
    std::size_t in_bytes = 0, out_bytes = 0;  // Of the next one of each.
    std::array<const std::byte*, kWindow> at{};
    std::array<std::uint32_t, kWindow> tag{};  // Of what went to other ranks of this host.
    bool blocked = false;                      // On other ranks of this host.
    bool done() const { return sent == pieces.size() && ready == pieces.size(); }
  };

  void Begin(const Flow& flow);
  void AddLanes();
  bool Receives(const Lane& lane, const Piece& piece) const;
  bool Sends(const Lane& lane, const Piece& piece) const;
  bool Delivers(const Lane& lane, const Piece& piece) const;
  bool SendsNarrow(int host) const;
  std::size_t BytesFrom(int host, const Lane& lane, const Piece& piece) const;
  // Of what comes of it, and of what is passed on.
  std::size_t BytesIn(const Lane& lane, const Piece& piece) const;
  std::size_t BytesOut(const Lane& lane, const Piece& piece) const;
  bool Finished() const;
  // These return whether something has moved, or an error of the link.
  absl::StatusOr<bool> Advance();
  absl::StatusOr<bool> Greet(Link& link);
  absl::StatusOr<bool> Receive(Lane& lane);
  absl::StatusOr<bool> Send(Lane& lane);
  void Release(Lane& lane);
  void Complete(Lane& lane);
  const std::byte* AddUp(Lane& lane, const Piece& piece, std::byte* target);
  std::byte* Target(Lane& lane, const Piece& piece) const;
  std::uint32_t Publish(Board::Tag tag);
  bool Taken(std::uint32_t tag) const;
  absl::Status Compare(const Link& link);
  absl::Status Wait(std::chrono::steady_clock::time_point end);
  static void WakeAt(Link& link, int bytes);
  void ChooseWakes();
  absl::Status Late();
  absl::Status Lost(const Link& link);
  absl::Status Fail(std::uint64_t word);

  const Hosts hosts_;
  const int own_;
  const int count_;  // Ranks of this host.
  SharedMemoryCommunicator& local_;
  HostWatch& watch_;
  Board* const board_;
  Link previous_, next_;
  Flow flow_;  // In progress.
  std::vector<Lane> lanes_;
  std::vector<std::byte> narrow_;  // A piece on its way here from a host that sends it narrow.
};

// What the other ranks of a host do meanwhile: `take` is called for each piece that has come, with
// where it lies, or null for kDirect.
class PieceTaker {
 public:
  PieceTaker(SharedMemoryCommunicator& local, Board* board, int local_rank)
      : local_(local), board_(board), rank_(local_rank) {}
  template <class Take>
  absl::Status Run(std::chrono::steady_clock::time_point end, const Take& take) {
    for (;;) {
      if (absl::Status come = Await(end); !come.ok()) return come;
      const Board::Tag tag = board_->tags[taken_ % Board::kTags];
      if (tag.piece != Board::kDone) {
        take(tag.piece, tag.slot == Board::kDirect ? nullptr
                                                   : reinterpret_cast<const std::byte*>(board_) +
                                                         kBoardBytes + tag.slot * kPieceBytes);
      }
      board_->taken[static_cast<std::size_t>(rank_)].value.store(++taken_);
      if (tag.piece == Board::kDone) return absl::OkStatus();
    }
  }

 private:
  absl::Status Await(std::chrono::steady_clock::time_point end);

  SharedMemoryCommunicator& local_;
  Board* const board_;
  const int rank_;
  std::uint32_t taken_ = 0;
};

}  // namespace regroup::worker
