#include "worker/comm/host_staged_communicator.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace regroup::worker {
namespace {

void CopyElements(Stream& stream, const Tensor& to, std::int64_t to_element, const Tensor& from,
                  std::int64_t from_element, std::int64_t size) {
  stream.Copy(to.at(static_cast<std::size_t>(to_element)),
              from.at(static_cast<std::size_t>(from_element)),
              static_cast<std::size_t>(size) * from.element_bytes());
}

}  // namespace

absl::StatusOr<std::unique_ptr<HostStagedCommunicator>> HostStagedCommunicator::Create(
    Communicator& ranks, Device& device, std::size_t piece_bytes) {
  CHECK(piece_bytes >= sizeof(double));
  std::unique_ptr<HostStagedCommunicator> made(new HostStagedCommunicator(ranks, device));
  ASSIGN_OR_RETURN(made->staged_memory_, device.Allocate(MemoryKind::kShared, piece_bytes));
  made->staged_ = made->staged_memory_.Take<std::byte>(piece_bytes);
  return made;
}

HostStagedCommunicator::~HostStagedCommunicator() {
  for (const Mirrored& each : mirrored_) {
    if (each.pinned) device_.Unpin(each.of_host.data);
  }
}

absl::StatusOr<Tensor> HostStagedCommunicator::AllocateShared(DType type, std::size_t count,
                                                              int /*group*/) {
  if (count == 0) return Tensor(type, nullptr, 0);
  Mirrored made;
  const std::size_t bytes = Tensor(type, nullptr, count).bytes();
  // Collective, so first: whoever fails alone after it is not waited for.
  ASSIGN_OR_RETURN(made.of_host, ranks_.AllocateTensor(type, count));
  ASSIGN_OR_RETURN(made.memory, device_.Allocate(MemoryKind::kDevice, bytes));
  made.of_device = Tensor(type, made.memory.Take<std::byte>(bytes).data(), count);
  made.pinned = device_.Pin(made.of_host.data, bytes);
  mirrored_.push_back(std::move(made));
  return mirrored_.back().of_device;
}

Tensor HostStagedCommunicator::MirrorOf(const Tensor& arena) const {
  const auto found = std::ranges::find(mirrored_, arena.data,
                                       [](const Mirrored& each) { return each.of_device.data; });
  CHECK(found != mirrored_.end());
  CHECK(found->of_device.type == arena.type);
  return found->of_host;
}

Tensor HostStagedCommunicator::Staged(DType type) const {
  return {type, staged_.data(), staged_.size() / static_cast<std::size_t>(SizeOf(type))};
}

void HostStagedCommunicator::AllReduceSum(Stream& stream, Tensor inout) {
  if (ranks_.world_size() == 1) return;
  const Tensor staged = Staged(inout.type);
  for (std::size_t begin = 0; begin < inout.size; begin += staged.size) {
    const Tensor piece(inout.type, staged.data, std::min(staged.size, inout.size - begin));
    stream.Copy(piece.data, inout.at(begin), piece.bytes());
    stream.Run([host = &ranks_, piece] { return host->AllReduceSum(piece); });
    stream.Copy(inout.at(begin), piece.data, piece.bytes());
  }
}

std::vector<HostStagedCommunicator::Piece> HostStagedCommunicator::PiecesOf(
    std::span<const Stretch> stretches, DType type) const {
  const auto room = static_cast<std::int64_t>(Staged(type).size);
  std::vector<Piece> pieces;
  std::int64_t used = room;
  for (const Stretch& stretch : stretches) {
    for (std::int64_t done = 0; done < stretch.size;) {
      if (used == room) {
        pieces.emplace_back();
        used = 0;
      }
      const std::int64_t size = std::min(stretch.size - done, room - used);
      pieces.back().stretches.push_back({stretch.owner, stretch.from + done, used, size});
      pieces.back().to.push_back(stretch.to + done);
      used += size;
      done += size;
    }
  }
  return pieces;
}

void HostStagedCommunicator::ReduceScatter(Stream& stream, Tensor arena,
                                           std::span<const Stretch> stretches, Tensor out,
                                           int group) {
  const Tensor mirror = MirrorOf(arena), staged = Staged(arena.type);
  for (Piece& piece : PiecesOf(stretches, arena.type)) {
    for (const Stretch& s : piece.stretches)
      CopyElements(stream, mirror, s.from, arena, s.from, s.size);
    stream.Run([host = &ranks_, mirror, staged, moved = piece.stretches, group] {
      return host->ReduceScatter(mirror, moved, staged, group);
    });
    for (std::size_t i = 0; i < piece.to.size(); ++i) {
      const Stretch& s = piece.stretches[i];
      if (s.owner == ranks_.rank() % group)
        CopyElements(stream, out, piece.to[i], staged, s.to, s.size);
    }
  }
}

void HostStagedCommunicator::AllGather(Stream& stream, Tensor arena,
                                       std::span<const Stretch> stretches, Tensor out, int group) {
  const Tensor mirror = MirrorOf(arena), staged = Staged(arena.type);
  for (Piece& piece : PiecesOf(stretches, arena.type)) {
    for (const Stretch& s : piece.stretches) {
      if (s.owner == ranks_.rank() % group)
        CopyElements(stream, mirror, s.from, arena, s.from, s.size);
    }
    stream.Run([host = &ranks_, mirror, staged, moved = piece.stretches, group] {
      return host->AllGather(mirror, moved, staged, group);
    });
    for (std::size_t i = 0; i < piece.to.size(); ++i) {
      const Stretch& s = piece.stretches[i];
      CopyElements(stream, out, piece.to[i], staged, s.to, s.size);
    }
  }
}

}  // namespace regroup::worker
