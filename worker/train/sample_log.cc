#include "worker/train/sample_log.h"

#include <fcntl.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "common/io/files.h"
#include "worker/tensor/counter_rng.h"

namespace regroup::worker {

absl::StatusOr<SampleLog> SampleLog::Open(const std::string& directory, std::uint64_t generation,
                                          int rank, int world_size) {
  RETURN_IF_ERROR(io::MakeDirectories(directory));
  std::string path = absl::StrCat(directory, "/", generation, "-", rank, ".log");
  io::UniqueFd file(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!file) return io::ErrnoStatus(errno, path);
  return SampleLog(std::move(file), std::move(path), generation, rank, world_size);
}

absl::Status SampleLog::Append(std::int64_t step, std::int64_t first_index,
                               std::span<const std::int64_t> ids, double loss) {
  const std::string line =
      absl::StrFormat("%d %d %d %d %d %d %016x %.9g\n", generation_, step, rank_, world_size_,
                      first_index, ids.size(), HashOfIds(ids), loss);
  return io::WriteAll(file_.get(), line);
}

std::uint64_t HashOfIds(std::span<const std::int64_t> ids) {
  std::uint64_t sum = 0;
  for (std::int64_t id : ids)
    sum += MixBits(static_cast<std::uint64_t>(id) + 0x9E3779B97F4A7C15ull);
  return sum;
}

}  // namespace regroup::worker
