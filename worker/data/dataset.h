#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace regroup::worker {

// Numbered samples of `context` tokens each, with the token that follows each of them.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual std::int64_t samples() const = 0;
  virtual int vocabulary() const = 0;
  virtual int context() const = 0;
  // targets[t] is the token after tokens[t]. REQUIRES: 0 <= sample < samples(), both spans of
  // context().
  virtual absl::Status Read(std::int64_t sample, std::span<std::int32_t> tokens,
                            std::span<std::int32_t> targets) const = 0;
};

// Plain text, one token per byte (vocabulary 256): the files one after the other, sample i being
// bytes [i · context, (i + 1) · context] of the whole. Held in memory.
class TextDataset final : public Dataset {
 public:
  // A directory stands for all regular files below it, in byte order of their paths. Not found or
  // permission denied names the file; invalid argument: text shorter than one sample, context < 1.
  static absl::StatusOr<std::unique_ptr<TextDataset>> Open(const std::vector<std::string>& paths,
                                                           int context);
  // REQUIRES: context >= 1, text longer than context.
  TextDataset(std::string text, int context);

  std::int64_t samples() const override;
  int vocabulary() const override { return 256; }
  int context() const override { return context_; }
  absl::Status Read(std::int64_t sample, std::span<std::int32_t> tokens,
                    std::span<std::int32_t> targets) const override;

  std::int64_t bytes() const { return static_cast<std::int64_t>(text_.size()); }
  // XXH3-64 of the text: two nodes that read different data are told apart.
  std::uint64_t Fingerprint() const;

 private:
  std::string text_;
  int context_;
};

}  // namespace regroup::worker
