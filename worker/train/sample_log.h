#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "common/io/fd.h"

namespace regroup::worker {

// Which samples a rank consumed, for whoever wants to prove that none was lost or repeated: one
// line per step, `generation step rank world first_index count hash loss`, in
// DIRECTORY/GENERATION-RANK.log. step counts from 1; first_index is the position of this rank's
// first sample in the endless order of samples; hash, in hex, is the sum of the hashes of the
// samples' ids modulo 2^64, so that the sum over ranks does not depend on their number.
class SampleLog {
 public:
  // Appends to an existing file.
  static absl::StatusOr<SampleLog> Open(const std::string& directory, std::uint64_t generation,
                                        int rank, int world_size);
  // One write: a killed process leaves a whole line or a last one without its end.
  absl::Status Append(std::int64_t step, std::int64_t first_index,
                      std::span<const std::int64_t> ids, double loss);

 private:
  SampleLog(io::UniqueFd file, std::string path, std::uint64_t generation, int rank, int world_size)
      : file_(std::move(file)),
        path_(std::move(path)),
        generation_(generation),
        rank_(rank),
        world_size_(world_size) {}

  io::UniqueFd file_;
  std::string path_;
  std::uint64_t generation_;
  int rank_, world_size_;
};

std::uint64_t HashOfIds(std::span<const std::int64_t> ids);

}  // namespace regroup::worker
