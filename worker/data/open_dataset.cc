#include "worker/data/open_dataset.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "worker/data/files.h"
#include "worker/data/token_dataset.h"

namespace regroup::worker {
namespace {

constexpr int kTextVocabulary = 256;

// None: text.
absl::StatusOr<std::optional<TokenDataset::Format>> FormatOf(const std::string& path,
                                                             DataFormat told) {
  ASSIGN_OR_RETURN(const std::optional<std::uint32_t> magic, MagicOf(path));
  const bool llmc = magic && (*magic == kTokens16Magic || *magic == kTokens32Magic);
  const std::string other = magic ? OtherContentOf(*magic) : "";
  switch (told) {
    case DataFormat::kText: return std::nullopt;
    case DataFormat::kLlmC: return TokenDataset::Format::kLlmC;
    case DataFormat::kNanoGpt:
      if (!llmc && other.empty()) return TokenDataset::Format::kNanoGpt;
      return absl::InvalidArgumentError(absl::StrCat(
          path, " begins with ", *magic, " as ", llmc ? "token files of llm.c do" : other + " does",
          ", so it is none of nanoGPT's"));
    case DataFormat::kAuto:
      if (llmc) return TokenDataset::Format::kLlmC;
      if (!other.empty())
        return absl::InvalidArgumentError(absl::StrCat(path, " holds ", other, " and no tokens"));
      if (path.ends_with(".bin")) return TokenDataset::Format::kNanoGpt;
      return std::nullopt;
  }
  CHECK(false);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> OpenDataset(const std::vector<std::string>& paths,
                                                     const DataOptions& options) {
  std::vector<TokenDataset::File> tokens;
  std::string text;  // The first file that is.
  for (const std::string& path : paths) {
    if (options.format == DataFormat::kText) break;
    ASSIGN_OR_RETURN(const std::vector<std::string> files, FilesBelow(path));
    for (const std::string& file : files) {
      ASSIGN_OR_RETURN(const std::optional<TokenDataset::Format> format,
                       FormatOf(file, options.format));
      if (format) {
        tokens.push_back({file, *format});
      } else if (text.empty()) {
        text = file;
      }
    }
  }
  if (!tokens.empty() && !text.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(tokens[0].path, " is a token file and ", text,
                                                   " is text; the data must be all of one kind"));
  }
  if (!tokens.empty()) {
    ASSIGN_OR_RETURN(std::unique_ptr<TokenDataset> dataset,
                     TokenDataset::Open(tokens, options.vocabulary, options.context));
    return dataset;
  }
  if (options.vocabulary != 0 && options.vocabulary != kTextVocabulary) {
    return absl::InvalidArgumentError(absl::StrCat("a vocabulary of ", options.vocabulary,
                                                   " does not fit text, which has ",
                                                   kTextVocabulary, " tokens, one per byte"));
  }
  ASSIGN_OR_RETURN(std::unique_ptr<TextDataset> dataset, TextDataset::Open(paths, options.context));
  return dataset;
}

}  // namespace regroup::worker
