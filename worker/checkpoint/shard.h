#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/io/fd.h"
#include "worker/checkpoint/manifest.h"

namespace regroup::worker {

// Elements [begin, begin + data.size()) of one tensor, in live memory.
struct StateSlice {
  std::int64_t begin = 0;
  std::span<float> data;
};

// One tensor of the training state, weights or a moment of the optimizer, and what of it this rank
// holds: all, a part, or nothing.
struct StateTensor {
  StateTensor(TensorInfo tensor, std::span<float> whole)
      : info(std::move(tensor)), slices{{0, whole}} {}
  StateTensor(TensorInfo tensor, std::vector<StateSlice> held)
      : info(std::move(tensor)), slices(std::move(held)) {}

  TensorInfo info;
  std::vector<StateSlice> slices;  // In order, without overlap.
};

// Elements [begin, end) of one tensor, in row-major order: what a rank writes of it.
struct ElementRange {
  std::uint32_t tensor = 0;  // Index into the tensors.
  std::int64_t begin = 0, end = 0;
  friend bool operator==(const ElementRange&, const ElementRange&) = default;
};

// Of ranks that all hold everything. The elements [total · rank / world, total · (rank + 1) /
// world) of all tensors one after the other, cut at tensor borders. Pure: the ranks' parts cover
// everything once.
std::vector<ElementRange> EvenPart(const std::vector<TensorInfo>& tensors, int rank,
                                   int world_size);

// Names and shapes, in order.
std::vector<TensorInfo> InfosOf(const std::vector<StateTensor>& tensors);

// One rank's file as it will lie on disk, in memory of its own: page-aligned, padded to whole
// pages, its pages there from the start. The header is written once; Fill copies the data.
class ShardImage {
 public:
  // `part`, of all ranks, covers everything once. Resource exhausted, with the size, if there is no
  // memory for it.
  static absl::StatusOr<ShardImage> Create(const std::vector<TensorInfo>& tensors,
                                           std::vector<ElementRange> part, int rank,
                                           int world_size);
  // With EvenPart.
  static absl::StatusOr<ShardImage> Create(const std::vector<TensorInfo>& tensors, int rank,
                                           int world_size) {
    return Create(tensors, EvenPart(tensors, rank, world_size), rank, world_size);
  }
  ShardImage(ShardImage&& other) noexcept;
  ShardImage& operator=(ShardImage&& other) noexcept;
  ~ShardImage();

  // Copies this rank's share and takes the CRC of every chunk while it is warm. `state` has the
  // tensors given to Create, in their order, and each range in one slice.
  void Fill(const std::vector<StateTensor>& state);

  std::span<const std::byte> bytes() const {
    return {memory_, static_cast<std::size_t>(info_.bytes)};
  }
  std::span<const std::byte> padded() const { return {memory_, mapped_}; }
  // xxh3 is empty: the writer adds it.
  const FileInfo& info() const { return info_; }
  std::span<std::byte> mutable_bytes_for_test() {
    return {memory_, static_cast<std::size_t>(info_.bytes)};
  }

 private:
  ShardImage() = default;

  FileInfo info_;
  std::vector<ElementRange> part_;  // Of these its boxes are, one after the other.
  std::uint64_t data_begin_ = 0;
  std::byte* memory_ = nullptr;  // mmap'd, mapped_ bytes.
  std::size_t mapped_ = 0;
};

// Writes an image to a new file, around the page cache where the file system can, checks its CRCs
// against those taken by Fill on the way (a difference is data loss: somebody wrote into the
// snapshot), and fsyncs. Returns the file's info with xxh3. On failure nothing of the name is left.
// `cancelled` is looked at between chunks.
absl::StatusOr<FileInfo> WriteShard(const ShardImage& image, const std::string& path,
                                    const std::function<bool()>& cancelled);

// A file that was written so, read chunk by chunk.
class ShardReader {
 public:
  // Data loss: not a regular file, or of another size than `info` says, which outlives this. What
  // cannot be opened or read is never failed precondition.
  static absl::StatusOr<ShardReader> Open(std::string path, const FileInfo& info);
  ShardReader(ShardReader&& other) noexcept;
  ShardReader& operator=(ShardReader&& other) noexcept;
  ~ShardReader();

  // Its CRC was found right; valid until the next call. Data loss names file and chunk.
  absl::StatusOr<std::span<std::byte>> Read(std::size_t chunk);

 private:
  ShardReader() = default;

  std::string path_;
  const FileInfo* info_ = nullptr;
  io::UniqueFd fd_;
  std::byte* memory_ = nullptr;  // mmap'd, mapped_ bytes: a chunk, or the whole of a smaller file.
  std::size_t mapped_ = 0;
};

// Reads a whole file, checking size, every CRC and the hash. Data loss names file and chunk.
// `cancelled`, unless null, is looked at between chunks.
absl::Status ScanShard(const std::string& path, const FileInfo& info,
                       const std::function<bool()>& cancelled = nullptr);

}  // namespace regroup::worker
