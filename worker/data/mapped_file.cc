#include "worker/data/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/io/fd.h"

namespace regroup::worker {

absl::StatusOr<MappedFile> MappedFile::Open(const std::string& path) {
  const io::UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info {};
  if (!fd || fstat(fd.get(), &info) != 0)
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot read data ", path));
  if (!S_ISREG(info.st_mode) || info.st_size == 0)
    return absl::InvalidArgumentError(absl::StrCat(path, " cannot be mapped"));
  const auto size = static_cast<std::size_t>(info.st_size);
  void* data = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (data == MAP_FAILED)
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot map ", size, " bytes of data ", path));
  return MappedFile(path, static_cast<const char*>(data), size, info.st_dev, info.st_ino);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(other.size_),
      device_(other.device_),
      inode_(other.inode_) {}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<char*>(data_), size_);
}

absl::Status MappedFile::CheckWhole() const {
  struct stat now {};
  // What has no name any more cannot be cut by it.
  if (stat(path_.c_str(), &now) != 0 || now.st_dev != device_ || now.st_ino != inode_ ||
      static_cast<std::size_t>(now.st_size) >= size_) {
    return absl::OkStatus();
  }
  return absl::DataLossError(absl::StrCat("cannot read data ", path_, ": it has ", now.st_size,
                                          " bytes now and had ", size_, " when it was opened"));
}

}  // namespace regroup::worker
