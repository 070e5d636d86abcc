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
  CHECK(piece_bytes >= 8);
  std::unique_ptr<HostStagedCommunicator> made(new HostStagedCommunicator(ranks, device));
  if (ranks.world_size() == 1) return made;
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    ASSIGN_OR_RETURN(
        const Tensor staged,
        ranks.AllocateTensor(type, piece_bytes / static_cast<std::size_t>(SizeOf(type))));
    made->staged_.push_back(staged);
    if (device.Pin(staged.data, staged.bytes())) made->pinned_.push_back(staged.data);
  }
  return made;
}

HostStagedCommunicator::~HostStagedCommunicator() {
  for (std::byte* memory : pinned_) device_.Unpin(memory);
}

absl::StatusOr<Tensor> HostStagedCommunicator::AllocateShared(DType type, std::size_t count,
                                                              int /*group*/) {
  const std::size_t bytes = Tensor(type, nullptr, count).bytes();
  ASSIGN_OR_RETURN(Arena arena, device_.Allocate(MemoryKind::kDevice, bytes));
  const Tensor tensor(type, arena.Take<std::byte>(bytes).data(), count);
  arenas_.push_back(std::move(arena));
  return tensor;
}

const Tensor& HostStagedCommunicator::StagedOf(DType type) const {
  return *std::ranges::find(staged_, type, &Tensor::type);
}

void HostStagedCommunicator::AllReduceSum(Stream& stream, Tensor inout) {
  if (ranks_.world_size() == 1) return;
  const Tensor& staged = StagedOf(inout.type);
  for (std::size_t begin = 0; begin < inout.size; begin += staged.size) {
    const Tensor piece(inout.type, staged.data, std::min(staged.size, inout.size - begin));
    stream.Copy(piece.data, inout.at(begin), piece.bytes());
    stream.Run([host = &ranks_, piece] { return host->AllReduceSum(piece); });
    stream.Copy(inout.at(begin), piece.data, piece.bytes());
  }
}

std::vector<HostStagedCommunicator::Piece> HostStagedCommunicator::PiecesOf(
    std::span<const Stretch> stretches, DType type) const {
  const auto room = static_cast<std::int64_t>(StagedOf(type).size);
  std::vector<Piece> pieces;
  std::int64_t used = room;
  for (const Stretch& stretch : stretches) {
    for (std::int64_t done = 0; done < stretch.size;) {
      if (used == room) {
        pieces.emplace_back();
        used = 0;
      }
      const std::int64_t size = std::min(stretch.size - done, room - used);
      pieces.back().of_caller.push_back(
          {stretch.owner, stretch.from + done, stretch.to + done, size});
      pieces.back().moved.push_back({stretch.owner, used, used, size});
      used += size;
      done += size;
    }
  }
  return pieces;
}

void HostStagedCommunicator::Move(Stream& stream, Tensor arena, std::span<const Stretch> stretches,
                                  Tensor out, int group, bool gathers) {
  if (ranks_.world_size() == 1) {
    if (out.data == arena.data) return;
    for (const Stretch& s : stretches) CopyElements(stream, out, s.to, arena, s.from, s.size);
    return;
  }
  const Tensor& staged = StagedOf(arena.type);
  const int own = ranks_.rank() % group;
  for (const Piece& piece : PiecesOf(stretches, arena.type)) {
    for (std::size_t i = 0; i < piece.moved.size(); ++i) {
      const Stretch& s = piece.of_caller[i];
      if (!gathers || s.owner == own)
        CopyElements(stream, staged, piece.moved[i].to, arena, s.from, s.size);
    }
    stream.Run([host = &ranks_, staged, moved = piece.moved, group, gathers] {
      return gathers ? host->AllGather(staged, moved, staged, group)
                     : host->ReduceScatter(staged, moved, staged, group);
    });
    for (std::size_t i = 0; i < piece.moved.size(); ++i) {
      const Stretch& s = piece.of_caller[i];
      if (gathers || s.owner == own)
        CopyElements(stream, out, s.to, staged, piece.moved[i].to, s.size);
    }
  }
}

void HostStagedCommunicator::ReduceScatter(Stream& stream, Tensor arena,
                                           std::span<const Stretch> stretches, Tensor out,
                                           int group) {
  Move(stream, arena, stretches, out, group, /*gathers=*/false);
}

void HostStagedCommunicator::AllGather(Stream& stream, Tensor arena,
                                       std::span<const Stretch> stretches, Tensor out, int group) {
  Move(stream, arena, stretches, out, group, /*gathers=*/true);
}

}  // namespace regroup::worker
