#include "worker/checkpoint/load.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"

namespace regroup::worker {
namespace {

constexpr int kSound = 0, kDamaged = 1, kOtherModel = 2;

absl::Status CompareTensor(const TensorInfo& saved, const TensorInfo& own) {
  const auto kind = [](const TensorInfo& t) {
    return t.slot.empty() ? std::string("a weight") : absl::StrCat("the optimizer's ", t.slot);
  };
  const auto shape = [](const TensorInfo& t) {
    return absl::StrCat("of shape (", absl::StrJoin(t.shape, ", "), ")");
  };
  const auto differs = [&](const std::string& theirs, const std::string& ours) {
    return absl::FailedPreconditionError(
        absl::StrCat("tensor ", saved.name, " is ", theirs, " there and ", ours, " here"));
  };
  if (saved.shape != own.shape) return differs(shape(saved), shape(own));
  if (saved.dtype != own.dtype) return differs(saved.dtype, own.dtype);
  if (saved.slot != own.slot) return differs(kind(saved), kind(own));
  return absl::OkStatus();
}

using Slices = std::vector<const std::vector<StateSlice>*>;  // Of this rank, by tensor.

// Finds what `state` holds of each tensor.
absl::Status Match(const Manifest& m, const std::vector<StateTensor>& state, Slices& held) {
  std::map<std::string, const StateTensor*> wanted;
  for (const StateTensor& t : state) wanted[t.info.name] = &t;
  const auto other_model = [&](const std::string& how) {
    return absl::FailedPreconditionError(
        absl::StrCat("the checkpoint of step ", m.step, " is of another model: ", how));
  };
  for (const TensorInfo& t : m.tensors) {
    const auto found = wanted.find(t.name);
    if (found == wanted.end())
      return other_model(absl::StrCat("it has a tensor ", t.name, ", and this one has none"));
    const absl::Status same = CompareTensor(t, found->second->info);
    if (!same.ok()) return other_model(std::string(same.message()));
    held.push_back(&found->second->slices);
  }
  if (m.tensors.size() != state.size()) {
    return other_model(
        absl::StrCat("it has ", m.tensors.size(), " tensors, and this one has ", state.size()));
  }
  return absl::OkStatus();
}

constexpr std::uint64_t BytesOfFloats(std::int64_t elements) {
  return static_cast<std::uint64_t>(elements) * sizeof(float);
}

// Calls use(memory, place in the file) for all that bytes [begin, end) of a file have of a piece
// and `slices` hold.
template <typename Use>
void ForEachCommon(const Dims& shape, const PieceInfo& piece, std::uint64_t begin,
                   std::uint64_t end, const std::vector<StateSlice>& slices, const Use& use) {
  const Runs runs(shape, piece.box);
  const std::uint64_t run_bytes = BytesOfFloats(runs.length());
  std::uint64_t run = begin <= piece.offset ? 0 : (begin - piece.offset) / run_bytes;
  for (; run < static_cast<std::uint64_t>(runs.count()) && piece.offset + run * run_bytes < end;
       ++run) {
    const std::int64_t run_begin = runs.Begin(static_cast<std::int64_t>(run));
    for (const StateSlice& slice : slices) {
      const std::int64_t first = std::max(run_begin, slice.begin),
                         last =
                             std::min(run_begin + runs.length(),
                                      slice.begin + static_cast<std::int64_t>(slice.data.size()));
      if (first >= last) continue;
      const std::uint64_t place = piece.offset + run * run_bytes + BytesOfFloats(first - run_begin);
      const std::uint64_t from = std::max(place, begin),
                          to = std::min(place + BytesOfFloats(last - first), end);
      if (from >= to) continue;
      use(std::as_writable_bytes(slice.data)
              .subspan(BytesOfFloats(first - slice.begin) + (from - place), to - from),
          from);
    }
  }
}

class Loader {
 public:
  Loader(Group& ranks, const Repository& repository, const Manifest& manifest, Slices held)
      : ranks_(ranks),
        directory_(repository.AttemptPath(manifest.step, manifest.generation, manifest.attempt)),
        manifest_(manifest),
        held_(std::move(held)) {
    for (std::uint32_t f = 0; f < manifest.files.size(); ++f) {
      for (std::uint32_t i = 0; i < manifest.files[f].crc32c.size(); ++i) chunks_.push_back({f, i});
    }
  }

  absl::Status Run() {
    RETURN_IF_ERROR(DealOut());
    RETURN_IF_ERROR(AgreeOn(ranks_, LoadOwn()));
    return LoadShared();
  }

 private:
  struct Chunk {
    std::uint32_t file, index;
  };
  using Bytes = std::span<std::byte>;

  std::uint64_t BeginOf(Chunk c) const { return c.index * kChunkBytes; }
  std::uint64_t SizeOf(Chunk c) const {
    return std::min(kChunkBytes, manifest_.files[c.file].bytes - BeginOf(c));
  }

  template <typename Use>
  void ForEachHeld(Chunk c, const Use& use) const {
    const std::uint64_t begin = BeginOf(c), end = begin + SizeOf(c);
    const std::vector<PieceInfo>& pieces = manifest_.files[c.file].pieces;
    auto piece = std::partition_point(pieces.begin(), pieces.end(), [&](const PieceInfo& p) {
      return p.offset + BytesOfFloats(ElementsOf(p.box.size)) <= begin;
    });
    for (; piece != pieces.end() && piece->offset < end; ++piece) {
      ForEachCommon(manifest_.tensors[piece->tensor].shape, *piece, begin, end,
                    *held_[piece->tensor], use);
    }
  }

  // Who reads what: one of the ranks that hold some of it, in turn, and in turn what none does.
  absl::Status DealOut() {
    const std::int64_t world = ranks_.world_size();
    std::vector<std::int64_t> claims(chunks_.size()), holders(chunks_.size());
    for (std::size_t c = 0; c < chunks_.size(); ++c) {
      ForEachHeld(chunks_[c], [&](Bytes, std::uint64_t) { holders[c] = 1; });
      const std::int64_t turn = (ranks_.rank() + static_cast<std::int64_t>(c)) % world;
      claims[c] = holders[c] * (1 + turn);
    }
    RETURN_IF_ERROR(ranks_.AllReduce(std::span(claims), Reduction::kMax));
    RETURN_IF_ERROR(ranks_.AllReduce(std::span(holders), Reduction::kSum));
    shared_.resize(static_cast<std::size_t>(world));
    for (std::size_t c = 0; c < chunks_.size(); ++c) {
      const std::int64_t turn = std::max<std::int64_t>(claims[c] - 1, 0);
      const std::int64_t reader = (turn + world - static_cast<std::int64_t>(c) % world) % world;
      if (holders[c] > 1) {
        shared_[static_cast<std::size_t>(reader)].push_back(chunks_[c]);
      } else if (reader == ranks_.rank()) {
        own_.push_back(chunks_[c]);
      }
    }
    return absl::OkStatus();
  }

  absl::Status LoadOwn() {
    for (const Chunk c : own_) {
      ASSIGN_OR_RETURN(const Bytes bytes, Read(c));
      Copy(c, bytes);
    }
    return absl::OkStatus();
  }

  // All ranks read at the same time, a chunk each, and then hand them round.
  absl::Status LoadShared() {
    std::size_t rounds = 0;
    for (const auto& chunks : shared_) rounds = std::max(rounds, chunks.size());
    std::vector<std::byte> received(rounds == 0 ? 0 : kChunkBytes);
    const auto self = static_cast<std::size_t>(ranks_.rank());
    for (std::size_t round = 0; round < rounds; ++round) {
      absl::StatusOr<Bytes> read = Bytes();
      if (round < shared_[self].size()) read = Read(shared_[self][round]);
      RETURN_IF_ERROR(AgreeOn(ranks_, read.status()));
      for (std::size_t r = 0; r < shared_.size(); ++r) {
        if (round >= shared_[r].size()) continue;
        const Chunk c = shared_[r][round];
        const Bytes bytes = r == self ? *read : Bytes(received).first(SizeOf(c));
        RETURN_IF_ERROR(ranks_.Broadcast(bytes, static_cast<int>(r)));
        Copy(c, bytes);
      }
    }
    return absl::OkStatus();
  }

  // Checked; valid until the next call.
  absl::StatusOr<Bytes> Read(Chunk c) {
    if (!open_ || open_file_ != c.file) {
      const FileInfo& file = manifest_.files[c.file];
      open_.reset();
      ASSIGN_OR_RETURN(open_, ShardReader::Open(absl::StrCat(directory_, "/", file.name), file));
      open_file_ = c.file;
    }
    return open_->Read(c.index);
  }

  void Copy(Chunk c, Bytes bytes) const {
    ForEachHeld(c, [&](Bytes memory, std::uint64_t place) {
      std::memcpy(memory.data(), bytes.data() + (place - BeginOf(c)), memory.size());
    });
  }

  Group& ranks_;
  const std::string directory_;
  const Manifest& manifest_;
  const Slices held_;
  std::vector<Chunk> chunks_;               // All there are.
  std::vector<Chunk> own_;                  // What this rank alone reads and uses.
  std::vector<std::vector<Chunk>> shared_;  // What several use, by the rank that reads it.
  std::optional<ShardReader> open_;
  std::uint32_t open_file_ = 0;
};

}  // namespace

absl::Status AgreeOn(Group& ranks, const absl::Status& own) {
  const int verdict = own.ok() ? kSound : absl::IsFailedPrecondition(own) ? kOtherModel : kDamaged;
  const std::int64_t world = ranks.world_size();
  std::int64_t worst =
      verdict == kSound ? 0 : verdict * world + world - 1 - std::int64_t{ranks.rank()};
  RETURN_IF_ERROR(ranks.AllReduce(std::span(&worst, 1), Reduction::kMax));
  if (worst == 0) return absl::OkStatus();
  const auto speaker = static_cast<int>(world - 1 - worst % world);
  std::array<char, 1024> text{};
  if (ranks.rank() == speaker)
    std::memcpy(text.data(), own.message().data(), std::min(own.message().size(), text.size() - 1));
  RETURN_IF_ERROR(ranks.Broadcast(std::as_writable_bytes(std::span(text)), speaker));
  return worst / world == kOtherModel ? absl::FailedPreconditionError(text.data())
                                      : absl::DataLossError(text.data());
}

absl::Status Load(Group& ranks, const Repository& repository, const Manifest& manifest,
                  const std::vector<StateTensor>& state) {
  Slices held;
  RETURN_IF_ERROR(AgreeOn(ranks, Match(manifest, state, held)));
  return Loader(ranks, repository, manifest, std::move(held)).Run();
}

}  // namespace regroup::worker
