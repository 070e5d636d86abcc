#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/data/mapped_file.h"

namespace regroup::worker {

// Numbered samples of `context` tokens each, with the token that follows each of them.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual std::int64_t samples() const = 0;
  virtual int vocabulary() const = 0;
  virtual int context() const = 0;
  virtual bool tokens_are_bytes() const { return false; }  // Of text, for who writes it.
  // targets[t] is the token after tokens[t]. REQUIRES: 0 <= sample < samples(), both spans of
  // context().
  virtual absl::Status Read(std::int64_t sample, std::span<std::int32_t> tokens,
                            std::span<std::int32_t> targets) const = 0;
  // XXH3-64 of all tokens: two nodes that read different data are told apart. The first call reads
  // all of them, and fails where Read would.
  virtual absl::StatusOr<std::uint64_t> Fingerprint() = 0;
};

// Plain text, one token per byte (vocabulary 256): the files one after the other, sample i being
// bytes [i · context, (i + 1) · context] of the whole. The first 16,384 large files are mapped, so
// the text may be larger than memory; others are held. One thread at a time.
class TextDataset final : public Dataset {
 public:
  // A directory stands for all regular files below it, in byte order of their paths. Reads only the
  // small files. Not found or permission denied names the file; invalid argument: text shorter than
  // one sample, context < 1.
  static absl::StatusOr<std::unique_ptr<TextDataset>> Open(const std::vector<std::string>& paths,
                                                           int context);
  // REQUIRES: context >= 1, text longer than context.
  TextDataset(std::string text, int context);

  std::int64_t samples() const override;
  int vocabulary() const override { return 256; }
  bool tokens_are_bytes() const override { return true; }
  int context() const override { return context_; }
  // Data loss names a file that was cut since it was opened.
  absl::Status Read(std::int64_t sample, std::span<std::int32_t> tokens,
                    std::span<std::int32_t> targets) const override;

  std::int64_t bytes() const { return bytes_; }
  absl::StatusOr<std::uint64_t> Fingerprint() override;

 private:
  // One large file, or small ones one after the other.
  struct Part {
    std::int64_t begin = 0;  // In the whole.
    std::string memory;
    std::optional<MappedFile> file;
    std::string_view bytes() const { return file ? file->bytes() : std::string_view(memory); }
    absl::Status CheckWhole() const { return file ? file->CheckWhole() : absl::OkStatus(); }
  };

  explicit TextDataset(int context) : context_(context) {}
  absl::Status Append(const std::string& path);
  // Gives `use` the bytes [begin, begin + size) of the whole in pieces. REQUIRES: they exist.
  absl::Status Visit(std::int64_t begin, std::int64_t size,
                     const std::function<void(std::string_view)>& use) const;

  std::vector<Part> parts_;
  std::int64_t bytes_ = 0;
  int mapped_ = 0;  // Parts that are.
  int context_;
  std::optional<std::uint64_t> fingerprint_;
};

}  // namespace regroup::worker
