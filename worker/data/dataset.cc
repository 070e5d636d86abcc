#include "worker/data/dataset.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace regroup::worker {
namespace {

namespace fs = std::filesystem;

absl::Status Unreadable(const fs::path& path, int error) {
  return absl::ErrnoToStatus(error, absl::StrCat("cannot read data ", path.string()));
}

absl::StatusOr<std::vector<fs::path>> FilesBelow(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) return Unreadable(path, error ? error.value() : ENOENT);
  if (!fs::is_directory(status)) return std::vector<fs::path>{path};
  std::vector<fs::path> files;
  fs::recursive_directory_iterator entry(path, error), end;
  while (!error && entry != end) {
    if (entry->is_regular_file(error)) files.push_back(entry->path());
    entry.increment(error);
  }
  if (error) return Unreadable(path, error.value());
  std::sort(files.begin(), files.end(),
            [](const fs::path& a, const fs::path& b) { return a.native() < b.native(); });
  return files;
}

absl::Status AppendFile(const fs::path& path, std::string& text) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) return Unreadable(path, errno == 0 ? EIO : errno);
  std::array<char, 1 << 16> block;
  while (file.read(block.data(), block.size()) || file.gcount() > 0) {
    text.append(block.data(), static_cast<std::size_t>(file.gcount()));
  }
  if (file.bad()) return Unreadable(path, errno == 0 ? EIO : errno);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<TextDataset>> TextDataset::Open(
    const std::vector<std::string>& paths, int context) {
  if (context < 1)
    return absl::InvalidArgumentError(absl::StrCat("samples of ", context, " tokens"));
  std::string text;
  for (const std::string& path : paths) {
    ASSIGN_OR_RETURN(const std::vector<fs::path> files, FilesBelow(path));
    for (const fs::path& file : files) RETURN_IF_ERROR(AppendFile(file, text));
  }
  if (text.size() <= static_cast<std::size_t>(context)) {
    return absl::InvalidArgumentError(absl::StrCat("the data is ", text.size(),
                                                   " bytes, fewer than one sample of ", context,
                                                   " and the byte after it"));
  }
  return std::make_unique<TextDataset>(std::move(text), context);
}

TextDataset::TextDataset(std::string text, int context)
    : text_(std::move(text)), context_(context) {
  CHECK(context_ >= 1 && text_.size() > static_cast<std::size_t>(context_));
}

std::int64_t TextDataset::samples() const { return (bytes() - 1) / context_; }

absl::Status TextDataset::Read(std::int64_t sample, std::span<std::int32_t> tokens,
                               std::span<std::int32_t> targets) const {
  CHECK(sample >= 0 && sample < samples());
  CHECK(tokens.size() == static_cast<std::size_t>(context_) && targets.size() == tokens.size());
  const auto* bytes = reinterpret_cast<const unsigned char*>(text_.data()) + sample * context_;
  std::copy_n(bytes, tokens.size(), tokens.begin());
  std::copy_n(bytes + 1, targets.size(), targets.begin());
  return absl::OkStatus();
}

std::uint64_t TextDataset::Fingerprint() const { return XXH3_64bits(text_.data(), text_.size()); }

}  // namespace regroup::worker
