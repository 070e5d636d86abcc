#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/checkpoint/box.h"

namespace regroup::worker {

inline constexpr std::uint64_t kChunkBytes =
    4u << 20;  // What one CRC covers, and one read or write moves.

// One tensor of the training state, whole, as all ranks together hold it.
struct TensorInfo {
  std::string name;
  Dims shape;
  std::string dtype = "F32";  // As safetensors names it.
  std::string slot{};         // Of the optimizer's state: exp_avg, …. Empty: weights.
  std::int64_t elements() const { return ElementsOf(shape); }
  friend bool operator==(const TensorInfo&, const TensorInfo&) = default;
};
// Of one element of F32, BF16, F16 or F64; 0: a checkpoint cannot have it.
std::uint64_t BytesOf(std::string_view dtype);

// A box of one tensor, packed in row-major order, in one file.
struct PieceInfo {
  std::uint32_t tensor = 0;  // Index into Manifest::tensors.
  Box box;
  std::uint64_t offset = 0;  // In bytes from the start of the file.
  friend bool operator==(const PieceInfo&, const PieceInfo&) = default;
};

struct FileInfo {
  std::string name;  // rank-R-of-W.safetensors; never a path.
  std::uint64_t bytes = 0;
  std::string xxh3;                   // Of the whole file.
  std::vector<std::uint32_t> crc32c;  // One per chunk of kChunkBytes, the last one shorter.
  std::vector<PieceInfo> pieces;      // In file order.
  friend bool operator==(const FileInfo&, const FileInfo&) = default;
};

// The ranks that a checkpoint was made by.
struct MeshInfo {
  int world = 1;
  int group = 1;  // So many of them divided it, one after the other; each such group has all.
  std::string strategy;  // What they divided, as --strategy names it. Empty: format 1 has none.
  friend bool operator==(const MeshInfo&, const MeshInfo&) = default;
};

// The commit record: what makes a checkpoint exist, and all that is needed to trust and to read it.
// FORMAT.md says how it is written.
struct Manifest {
  std::string job;  // Empty: trained without a coordinator.
  std::uint64_t generation = 0, attempt = 0;
  std::int64_t step = 0;
  MeshInfo mesh;
  std::map<std::string, std::int64_t> model;     // Its sizes by name; may be empty in format 1.
  std::map<std::string, std::int64_t> counters;  // samples, …
  std::map<std::string, std::string>
      settings;  // What the run was told; for people and for warnings.
  std::vector<TensorInfo> tensors;
  std::vector<FileInfo> files;  // One per rank, in rank order.
  friend bool operator==(const Manifest&, const Manifest&) = default;
};

// Where its files lie, below the checkpoint directory: step-N/GENERATION-ATTEMPT.
std::string AttemptDirectory(std::int64_t step, std::uint64_t generation, std::uint64_t attempt);
std::string ShardName(int rank, int world_size);

// In format 2.
std::string SerializeManifest(const Manifest& manifest);
// Of format 1 or 2; of another, failed precondition. Data loss unless the record is whole and
// consistent: its hash, sizes and CRC counts, and every element of every tensor in exactly one
// piece that lies inside its file.
absl::StatusOr<Manifest> ParseManifest(std::string_view record);

// The part of a manifest that one rank reports to rank 0.
struct ShardReport {
  int rank = 0;
  FileInfo file;
  std::string state;  // What others must hold alike, hashed: see Saver::Hashes.
};
std::string SerializeReport(const ShardReport& report);
absl::StatusOr<ShardReport> ParseReport(std::string_view record);

}  // namespace regroup::worker
