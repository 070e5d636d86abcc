#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace regroup::worker {

// A regular file that is read where it lies: only what is looked at is in memory, and that belongs
// to the page cache. Movable; the mapping ends with the object.
class MappedFile {
 public:
  // As it is now: what is appended later is not seen. Invalid argument: not a regular file, or
  // empty.
  static absl::StatusOr<MappedFile> Open(const std::string& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) = delete;
  ~MappedFile();

  std::string_view bytes() const { return {data_, size_}; }
  // To be asked before bytes() are looked at: the kernel kills who looks beyond the end of a file.
  // Data loss, with both sizes: the file was cut meanwhile. A file that was replaced is still the
  // old one here.
  absl::Status CheckWhole() const;

 private:
  MappedFile(std::string path, const char* data, std::size_t size, std::size_t device,
             std::size_t inode)
      : path_(std::move(path)), data_(data), size_(size), device_(device), inode_(inode) {}

  std::string path_;
  const char* data_;
  std::size_t size_;
  std::size_t device_, inode_;
};

}  // namespace regroup::worker
