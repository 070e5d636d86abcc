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
#include "worker/data/files.h"

namespace regroup::worker {
namespace {

namespace fs = std::filesystem;

constexpr std::uintmax_t kMappedBytes = 1 << 20;  // Of which a file is mapped: there are few such.
// A process has 65,530 mappings, and threads and arenas need some.
constexpr int kMaxMappedFiles = 16'384;
constexpr std::int64_t kHashedBytes = 4 << 20;  // At once, after a look whether they are there.

absl::Status Unreadable(const fs::path& path, int error) {
  return absl::ErrnoToStatus(error, absl::StrCat("cannot read data ", path.string()));
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
  std::unique_ptr<TextDataset> dataset(new TextDataset(context));
  for (const std::string& path : paths) {
    ASSIGN_OR_RETURN(const std::vector<std::string> files, FilesBelow(path));
    for (const std::string& file : files) RETURN_IF_ERROR(dataset->Append(file));
  }
  if (dataset->bytes_ <= context) {
    return absl::InvalidArgumentError(absl::StrCat("the data is ", dataset->bytes_,
                                                   " bytes, fewer than one sample of ", context,
                                                   " and the byte after it"));
  }
  return dataset;
}

TextDataset::TextDataset(std::string text, int context) : context_(context) {
  bytes_ = static_cast<std::int64_t>(text.size());
  parts_.push_back({0, std::move(text), std::nullopt});
  CHECK(context_ >= 1 && bytes_ > context_);
}

absl::Status TextDataset::Append(const std::string& path) {
  std::error_code ignored;
  // Not regular: a pipe, a device. Of no size: perhaps one whose size is not known before.
  if (mapped_ < kMaxMappedFiles && fs::is_regular_file(path, ignored) &&
      fs::file_size(path, ignored) >= kMappedBytes) {
    ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
    ++mapped_;
    parts_.push_back({bytes_, {}, std::move(file)});
    bytes_ += static_cast<std::int64_t>(parts_.back().bytes().size());
    return absl::OkStatus();
  }
  if (parts_.empty() || parts_.back().file) parts_.push_back({bytes_, {}, std::nullopt});
  RETURN_IF_ERROR(AppendFile(path, parts_.back().memory));
  bytes_ = parts_.back().begin + static_cast<std::int64_t>(parts_.back().memory.size());
  return absl::OkStatus();
}

std::int64_t TextDataset::samples() const { return (bytes_ - 1) / context_; }

absl::Status TextDataset::Visit(std::int64_t begin, std::int64_t size,
                                const std::function<void(std::string_view)>& use) const {
  auto part = std::upper_bound(parts_.begin(), parts_.end(), begin,
                               [](std::int64_t at, const Part& p) { return at < p.begin; });
  for (--part; size > 0; ++part) {
    RETURN_IF_ERROR(part->CheckWhole());
    const std::string_view piece = part->bytes().substr(
        static_cast<std::size_t>(begin - part->begin), static_cast<std::size_t>(size));
    use(piece);
    begin += static_cast<std::int64_t>(piece.size());
    size -= static_cast<std::int64_t>(piece.size());
  }
  return absl::OkStatus();
}

absl::Status TextDataset::Read(std::int64_t sample, std::span<std::int32_t> tokens,
                               std::span<std::int32_t> targets) const {
  CHECK(sample >= 0 && sample < samples());
  CHECK(tokens.size() == static_cast<std::size_t>(context_) && targets.size() == tokens.size());
  std::size_t at = 0;
  return Visit(sample * context_, context_ + 1, [&](std::string_view piece) {
    for (const char byte : piece) {
      const std::int32_t token = static_cast<unsigned char>(byte);
      if (at < tokens.size()) tokens[at] = token;
      if (at > 0) targets[at - 1] = token;
      ++at;
    }
  });
}

absl::StatusOr<std::uint64_t> TextDataset::Fingerprint() {
  if (fingerprint_) return *fingerprint_;
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> hash(XXH3_createState(),
                                                                      &XXH3_freeState);
  CHECK(hash != nullptr && XXH3_64bits_reset(hash.get()) == XXH_OK);
  for (std::int64_t at = 0; at < bytes_; at += kHashedBytes) {
    RETURN_IF_ERROR(Visit(at, std::min(kHashedBytes, bytes_ - at), [&](std::string_view piece) {
      XXH3_64bits_update(hash.get(), piece.data(), piece.size());
    }));
  }
  fingerprint_ = XXH3_64bits_digest(hash.get());
  return *fingerprint_;
}

}  // namespace regroup::worker
