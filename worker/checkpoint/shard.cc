#include "worker/checkpoint/shard.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/io/fd.h"
#include "worker/checkpoint/checksum.h"
#include "worker/checkpoint/safetensors.h"

namespace regroup::worker {
namespace {

constexpr std::uint64_t kPage = 4096;  // Of O_DIRECT: addresses, offsets and lengths.
constexpr std::size_t kCopyBytes = 256
                                   << 10;  // Still in the second-level cache when its CRC is taken.

std::uint64_t RoundUp(std::uint64_t value, std::uint64_t to) { return (value + to - 1) / to * to; }

absl::StatusOr<std::byte*> MapPages(std::size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED)
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for a buffer of ", bytes, " bytes"));
  return static_cast<std::byte*>(memory);
}

bool RefusesDirect(int error) { return error == EINVAL || error == EOPNOTSUPP; }

void GoThroughPageCache(int fd) { fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_DIRECT); }

absl::StatusOr<io::UniqueFd> OpenDirect(const std::string& path, int flags) {
  int fd = open(path.c_str(), flags | O_DIRECT | O_CLOEXEC, 0644);
  if (fd < 0 && RefusesDirect(errno)) {
    if ((flags & O_CREAT) != 0)
      unlink(path.c_str());  // Some file systems make the file and then refuse.
    fd = open(path.c_str(), flags | O_CLOEXEC, 0644);
  }
  if (fd < 0) return io::ErrnoStatus(errno, path);
  return io::UniqueFd(fd);
}

absl::Status WriteAllAt(int fd, std::span<const std::byte> bytes, std::uint64_t offset,
                        const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t wrote = pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (wrote > 0) {
      // A short direct write may end off a page border, where direct writing can not go on.
      if (static_cast<std::uint64_t>(wrote) % kPage != 0) GoThroughPageCache(fd);
      bytes = bytes.subspan(static_cast<std::size_t>(wrote));
      offset += static_cast<std::uint64_t>(wrote);
    } else if (wrote < 0 && errno == EINVAL && (fcntl(fd, F_GETFL) & O_DIRECT) != 0) {
      GoThroughPageCache(fd);
    } else if (wrote == 0 || errno != EINTR) {
      return io::ErrnoStatus(wrote == 0 ? ENOSPC : errno, path);
    }
  }
  return absl::OkStatus();
}

// Bytes read; fewer than asked for only at the end of the file.
absl::StatusOr<std::size_t> ReadAllAt(int fd, std::byte* out, std::size_t size,
                                      std::uint64_t offset, const std::string& path) {
  std::size_t done = 0;
  while (done < size) {
    const ssize_t got = pread(fd, out + done, size - done, static_cast<off_t>(offset + done));
    if (got > 0) {
      done += static_cast<std::size_t>(got);
      if (done < size && static_cast<std::uint64_t>(got) % kPage != 0) GoThroughPageCache(fd);
    } else if (got == 0) {
      break;
    } else if (errno == EINVAL && (fcntl(fd, F_GETFL) & O_DIRECT) != 0) {
      GoThroughPageCache(fd);
    } else if (errno != EINTR) {
      return io::ErrnoStatus(errno, path);
    }
  }
  return done;
}

absl::StatusOr<std::string> WriteChunks(const ShardImage& image, int fd, const std::string& path,
                                        const std::function<bool()>& cancelled) {
  const FileInfo& info = image.info();
  Xxh3Stream hash;
  for (std::size_t chunk = 0; chunk < info.crc32c.size(); ++chunk) {
    if (cancelled()) return absl::CancelledError(absl::StrCat(path, ": the save was given up"));
    const std::uint64_t offset = chunk * kChunkBytes;
    const auto bytes =
        image.bytes().subspan(offset, std::min<std::uint64_t>(kChunkBytes, info.bytes - offset));
    if (Crc32c(bytes) != info.crc32c[chunk]) {
      return absl::DataLossError(absl::StrCat(path, ": the snapshot in memory changed at chunk ",
                                              chunk, " while it was saved"));
    }
    hash.Update(bytes);
    RETURN_IF_ERROR(
        WriteAllAt(fd, image.padded().subspan(offset, RoundUp(bytes.size(), kPage)), offset, path));
  }
  if (ftruncate(fd, static_cast<off_t>(info.bytes)) != 0) return io::ErrnoStatus(errno, path);
  if (fsync(fd) != 0) return io::ErrnoStatus(errno, absl::StrCat("fsync ", path));
  return hash.Hex();
}

std::span<const float> DataOf(const StateTensor& tensor, const ElementRange& range) {
  for (const StateSlice& slice : tensor.slices) {
    const std::int64_t end = slice.begin + static_cast<std::int64_t>(slice.data.size());
    if (range.begin < slice.begin || range.end > end) continue;
    return slice.data.subspan(static_cast<std::size_t>(range.begin - slice.begin),
                              static_cast<std::size_t>(range.end - range.begin));
  }
  CHECK(false);
}

// "NAME#[0:1,3:10]", as Python writes a part of an array.
std::string NameOf(const TensorInfo& tensor, const Box& box) {
  if (box.size == tensor.shape) return tensor.name;
  std::vector<std::string> parts;
  for (std::size_t d = 0; d < box.size.size(); ++d)
    parts.push_back(absl::StrCat(box.begin[d], ":", box.begin[d] + box.size[d]));
  return absl::StrCat(tensor.name, "#[", absl::StrJoin(parts, ","), "]");
}

}  // namespace

std::vector<ElementRange> EvenPart(const std::vector<TensorInfo>& tensors, int rank,
                                   int world_size) {
  unsigned __int128 total = 0;
  for (const TensorInfo& t : tensors) total += static_cast<std::uint64_t>(t.elements());
  const auto border = [&](int r) {
    return static_cast<std::int64_t>(total * static_cast<unsigned>(r) /
                                     static_cast<unsigned>(world_size));
  };
  const std::int64_t begin = border(rank), end = border(rank + 1);
  std::vector<ElementRange> part;
  std::int64_t at = 0;  // Of the tensor, in all elements.
  for (std::uint32_t t = 0; t < tensors.size(); ++t) {
    const std::int64_t from = std::max(begin, at), to = std::min(end, at + tensors[t].elements());
    if (from < to) part.push_back({t, from - at, to - at});
    at += tensors[t].elements();
  }
  return part;
}

std::vector<TensorInfo> InfosOf(const std::vector<StateTensor>& tensors) {
  std::vector<TensorInfo> infos;
  for (const StateTensor& t : tensors) infos.push_back(t.info);
  return infos;
}

absl::StatusOr<ShardImage> ShardImage::Create(const std::vector<TensorInfo>& tensors,
                                              std::vector<ElementRange> part, int rank,
                                              int world_size) {
  ShardImage image;
  image.info_.name = ShardName(rank, world_size);
  SafetensorsHeader header;
  header.metadata["format"] = "pt";  // Readers of the format's first years crash without it.
  std::uint64_t data_bytes = 0;
  for (const ElementRange& range : part) {
    const TensorInfo& tensor = tensors[range.tensor];
    CHECK(tensor.dtype == "F32");  // As slices are.
    for (Box& box : BoxesOf(tensor.shape, range.begin, range.end)) {
      const std::uint64_t begin = data_bytes;
      data_bytes += static_cast<std::uint64_t>(ElementsOf(box.size)) * sizeof(float);
      header.tensors.push_back({NameOf(tensor, box), tensor.dtype, box.size, begin, data_bytes});
      image.info_.pieces.push_back({range.tensor, std::move(box), begin});
    }
  }
  image.part_ = std::move(part);
  ASSIGN_OR_RETURN(const std::string head, SerializeSafetensorsHeader(header, kPage));
  image.data_begin_ = header.data_begin;
  image.info_.bytes = header.data_begin + data_bytes;
  for (PieceInfo& p : image.info_.pieces) p.offset += header.data_begin;
  image.info_.crc32c.resize((image.info_.bytes + kChunkBytes - 1) / kChunkBytes);
  image.mapped_ = RoundUp(image.info_.bytes, kPage);
  ASSIGN_OR_RETURN(image.memory_, MapPages(image.mapped_));
  std::memcpy(image.memory_, head.data(), head.size());
  return image;
}

ShardImage::ShardImage(ShardImage&& other) noexcept { *this = std::move(other); }

ShardImage& ShardImage::operator=(ShardImage&& other) noexcept {
  std::swap(info_, other.info_);
  std::swap(part_, other.part_);
  std::swap(data_begin_, other.data_begin_);
  std::swap(memory_, other.memory_);
  std::swap(mapped_, other.mapped_);
  return *this;
}

ShardImage::~ShardImage() {
  if (memory_ != nullptr) munmap(memory_, mapped_);
}

void ShardImage::Fill(const std::vector<StateTensor>& state) {
  std::uint64_t summed = 0;  // What the CRCs cover.
  std::uint32_t crc = 0;
  const auto sum_until = [&](std::uint64_t end) {
    while (summed < end) {
      const std::uint64_t stop = std::min(end, (summed / kChunkBytes + 1) * kChunkBytes);
      crc = Crc32c({memory_ + summed, static_cast<std::size_t>(stop - summed)}, crc);
      info_.crc32c[summed / kChunkBytes] = crc;
      if (stop % kChunkBytes == 0) crc = 0;
      summed = stop;
    }
  };
  sum_until(data_begin_);
  for (const ElementRange& range : part_) {
    CHECK(range.tensor < state.size());
    auto source = std::as_bytes(DataOf(state[range.tensor], range));
    while (!source.empty()) {
      const std::size_t size = std::min(kCopyBytes, source.size());
      std::memcpy(memory_ + summed, source.data(), size);
      sum_until(summed + size);
      source = source.subspan(size);
    }
  }
}

absl::StatusOr<FileInfo> WriteShard(const ShardImage& image, const std::string& path,
                                    const std::function<bool()>& cancelled) {
  ASSIGN_OR_RETURN(io::UniqueFd fd, OpenDirect(path, O_WRONLY | O_CREAT | O_EXCL));
  absl::StatusOr<std::string> hash = WriteChunks(image, fd.get(), path, cancelled);
  // A write-back error may show only here, and only once: such a file is never tried again.
  if (close(fd.release()) != 0 && hash.ok())
    hash = io::ErrnoStatus(errno, absl::StrCat("close ", path));
  if (!hash.ok()) {
    unlink(path.c_str());
    return hash.status();
  }
  FileInfo info = image.info();
  info.xxh3 = *std::move(hash);
  return info;
}

absl::StatusOr<ShardReader> ShardReader::Open(std::string path, const FileInfo& info) {
  ShardReader reader;
  absl::StatusOr<io::UniqueFd> fd = OpenDirect(path, O_RDONLY | O_NONBLOCK);
  if (absl::IsFailedPrecondition(fd.status())) return absl::DataLossError(fd.status().message());
  if (!fd.ok()) return fd.status();
  struct stat file {};
  if (fstat(fd->get(), &file) != 0) return io::ErrnoStatus(errno, path);
  if (!S_ISREG(file.st_mode))
    return absl::DataLossError(absl::StrCat(path, " is not a regular file"));
  if (static_cast<std::uint64_t>(file.st_size) != info.bytes) {
    return absl::DataLossError(
        absl::StrCat(path, " has ", file.st_size, " bytes, its commit says ", info.bytes));
  }
  reader.mapped_ = std::clamp<std::uint64_t>(RoundUp(info.bytes, kPage), kPage, kChunkBytes);
  ASSIGN_OR_RETURN(reader.memory_, MapPages(reader.mapped_));
  reader.path_ = std::move(path);
  reader.info_ = &info;
  reader.fd_ = *std::move(fd);
  return reader;
}

ShardReader::ShardReader(ShardReader&& other) noexcept { *this = std::move(other); }

ShardReader& ShardReader::operator=(ShardReader&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(info_, other.info_);
  std::swap(fd_, other.fd_);
  std::swap(memory_, other.memory_);
  std::swap(mapped_, other.mapped_);
  return *this;
}

ShardReader::~ShardReader() {
  if (memory_ != nullptr) munmap(memory_, mapped_);
}

absl::StatusOr<std::span<std::byte>> ShardReader::Read(std::size_t chunk) {
  const std::uint64_t offset = chunk * kChunkBytes;
  const std::size_t size = std::min<std::uint64_t>(kChunkBytes, info_->bytes - offset);
  const absl::StatusOr<std::size_t> got =
      ReadAllAt(fd_.get(), memory_, RoundUp(size, kPage), offset, path_);
  if (!got.ok()) return absl::DataLossError(got.status().message());
  const std::span<std::byte> bytes(memory_, size);
  if (*got < size || Crc32c(bytes) != info_->crc32c[chunk]) {
    return absl::DataLossError(absl::StrCat(path_, ": chunk ", chunk, " (bytes ", offset, " to ",
                                            offset + size, ") does not match its CRC"));
  }
  return bytes;
}

absl::Status ScanShard(const std::string& path, const FileInfo& info,
                       const std::function<bool()>& cancelled) {
  ASSIGN_OR_RETURN(ShardReader reader, ShardReader::Open(path, info));
  Xxh3Stream hash;
  for (std::size_t chunk = 0; chunk < info.crc32c.size(); ++chunk) {
    if (cancelled && cancelled()) return absl::CancelledError("reading was given up");
    ASSIGN_OR_RETURN(const std::span<const std::byte> bytes, reader.Read(chunk));
    hash.Update(bytes);
  }
  if (hash.Hex() != info.xxh3)
    return absl::DataLossError(absl::StrCat(path, " does not match its XXH3"));
  return absl::OkStatus();
}

}  // namespace regroup::worker
