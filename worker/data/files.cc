#include "worker/data/files.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace regroup::worker {
namespace {

absl::Status Unreadable(const std::string& path, int error) {
  return absl::ErrnoToStatus(error, absl::StrCat("cannot read data ", path));
}

}  // namespace

absl::StatusOr<std::vector<std::string>> FilesBelow(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) return Unreadable(path, error ? error.value() : ENOENT);
  if (!fs::is_directory(status)) return std::vector<std::string>{path};
  std::vector<std::string> files;
  fs::recursive_directory_iterator entry(path, error), end;
  while (!error && entry != end) {
    if (entry->is_regular_file(error)) files.push_back(entry->path().string());
    entry.increment(error);
  }
  if (error) return Unreadable(path, error.value());
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace regroup::worker
