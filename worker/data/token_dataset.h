#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/data/dataset.h"
#include "worker/data/mapped_file.h"

namespace regroup::worker {

// The first words of llm.c's files, little-endian as the rest of them.
inline constexpr std::uint32_t kTokens16Magic = 20240520, kTokens32Magic = 20240801;
// GPT-2's and Llama 3's, whose tokenizers write files of 2 and of 4 bytes per token.
inline constexpr int kGpt2Vocabulary = 50257, kLlama3Vocabulary = 128256;

// What the first four bytes of a regular file say; none: it has fewer, or is not regular. Not found
// or permission denied names the file.
absl::StatusOr<std::optional<std::uint32_t>> MagicOf(const std::string& path);
// "llm.c's model weights" and so on, of a file of llm.c that holds no tokens; else empty.
std::string OtherContentOf(std::uint32_t magic);

// Token files, one after the other, each mapped where it lies: sample i is tokens [i · context,
// (i + 1) · context] of the whole. Counts are 64-bit, so a file may have more than 2^31 tokens. One
// thread at a time.
class TokenDataset final : public Dataset {
 public:
  enum class Format : std::uint8_t {
    kLlmC,     // 256 words of header, then tokens of 2 bytes (GPT-2) or 4 bytes (Llama 3).
    kNanoGpt,  // Tokens of 2 bytes and nothing else.
  };
  struct File {
    std::string path;
    Format format = Format::kLlmC;
  };
  static constexpr std::size_t kMaxFiles = 16'384;  // A process has 65,530 mappings.

  // Reads headers only. `vocabulary` 0: that of GPT-2, or of Llama 3 where a token has 4 bytes.
  // Invalid argument names the file and what is wrong with it: no such header, another version, a
  // size that is not that of the header's count, or part of a token; too few tokens, too many
  // files.
  static absl::StatusOr<std::unique_ptr<TokenDataset>> Open(const std::vector<File>& files,
                                                            int vocabulary, int context);

  std::int64_t samples() const override { return (tokens_ - 1) / context_; }
  int vocabulary() const override { return vocabulary_; }
  int context() const override { return context_; }
  // Data loss names a file that was cut since it was opened. Out of range names the file, position
  // and value of a token that the vocabulary does not have.
  absl::Status Read(std::int64_t sample, std::span<std::int32_t> tokens,
                    std::span<std::int32_t> targets) const override;
  absl::StatusOr<std::uint64_t> Fingerprint() override;

  std::int64_t tokens() const { return tokens_; }

 private:
  struct Part {
    std::int64_t begin = 0, tokens = 0;  // In the whole.
    int width = 2;                       // Bytes of a token.
    std::size_t skip = 0;                // Bytes of the header.
    std::string path;
    MappedFile file;
  };
  // The tokens from `first` of a part on, which are within the vocabulary.
  using Use = std::function<void(const Part& part, std::string_view bytes)>;

  TokenDataset(int vocabulary, int context) : vocabulary_(vocabulary), context_(context) {}
  absl::Status Append(const File& file);
  absl::Status Visit(std::int64_t begin, std::int64_t size, const Use& use) const;
  absl::Status CheckVocabulary(const Part& part, std::int64_t first, std::string_view bytes) const;

  std::vector<Part> parts_;  // None without a token.
  std::int64_t tokens_ = 0;
  int vocabulary_;
  int context_;
  std::optional<std::uint64_t> fingerprint_;
};

}  // namespace regroup::worker
