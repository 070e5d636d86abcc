#include "worker/data/token_dataset.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/io/fd.h"

namespace regroup::worker {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::size_t kHeaderWords = 256, kHeaderBytes = kHeaderWords * sizeof(std::uint32_t);
constexpr std::int64_t kHashedTokens = 1 << 20;  // At once, after a look whether they are there.

struct Kind {
  std::uint32_t magic, version;
  int width;
};
constexpr Kind kKinds[] = {{kTokens16Magic, 1, 2}, {kTokens32Magic, 7, 4}};

template <typename Token>
Token TokenAt(std::string_view bytes, std::size_t index) {
  Token token;
  std::memcpy(&token, bytes.data() + index * sizeof(Token), sizeof(Token));
  return token;
}

template <typename Token>
std::uint64_t LargestOf(std::string_view bytes) {
  Token largest = 0;
  for (std::size_t i = 0; i < bytes.size() / sizeof(Token); ++i)
    largest = std::max(largest, TokenAt<Token>(bytes, i));
  return largest;
}

std::uint64_t TokenOf(int width, std::string_view bytes, std::size_t index) {
  return width == 2 ? TokenAt<std::uint16_t>(bytes, index) : TokenAt<std::uint32_t>(bytes, index);
}

absl::Status Refuse(const std::string& path, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat(path, " ", why));
}

// What is in a file of llm.c after its header: bytes of a token.
absl::StatusOr<int> CheckHeader(const std::string& path, std::string_view bytes) {
  if (bytes.size() < kHeaderBytes) {
    return Refuse(path, absl::StrCat("has ", bytes.size(), " bytes, and the header of llm.c alone ",
                                     kHeaderBytes));
  }
  const auto word = [&](std::size_t index) { return TokenAt<std::uint32_t>(bytes, index); };
  const auto* kind =
      std::ranges::find_if(kKinds, [&](const Kind& known) { return known.magic == word(0); });
  if (kind == std::end(kKinds)) {
    const std::string other = OtherContentOf(word(0));
    return Refuse(path, other.empty()
                            ? absl::StrCat("begins with ", word(0), ", and token files of llm.c ",
                                           "with ", kTokens16Magic, " or ", kTokens32Magic)
                            : absl::StrCat("holds ", other, " and no tokens"));
  }
  if (word(1) != kind->version) {
    return Refuse(path, absl::StrCat("is of version ", word(1), " of its format, and only ",
                                     kind->version, " is known"));
  }
  // The count is 32 bits wide.
  const std::uint64_t expected =
      kHeaderBytes + std::uint64_t{word(2)} * static_cast<std::uint64_t>(kind->width);
  if (bytes.size() != expected) {
    return Refuse(path, absl::StrCat("has ", bytes.size(), " bytes, and its header says ", word(2),
                                     " tokens, which take ", expected));
  }
  return kind->width;
}

}  // namespace

absl::StatusOr<std::optional<std::uint32_t>> MagicOf(const std::string& path) {
  // A pipe is read once, and not here.
  const io::UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info {};
  if (!fd || fstat(fd.get(), &info) != 0)
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot read data ", path));
  std::uint32_t magic = 0;
  if (!S_ISREG(info.st_mode)) return std::nullopt;
  const ssize_t got = pread(fd.get(), &magic, sizeof(magic), 0);
  if (got < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot read data ", path));
  return got == sizeof(magic) ? std::optional(magic) : std::nullopt;
}

std::string OtherContentOf(std::uint32_t magic) {
  switch (magic) {
    case 20240326: return "llm.c's model weights";
    case 20240327: return "a state that llm.c is debugged with";
    case 20240522: return "llm.c's multiple-choice questions";
    case 20240527: return "the state of llm.c's optimizer";
    default: return "";
  }
}

absl::StatusOr<std::unique_ptr<TokenDataset>> TokenDataset::Open(const std::vector<File>& files,
                                                                 int vocabulary, int context) {
  if (context < 1)
    return absl::InvalidArgumentError(absl::StrCat("samples of ", context, " tokens"));
  if (files.size() > kMaxFiles) {
    return absl::InvalidArgumentError(
        absl::StrCat(files.size(), " token files; at most ", kMaxFiles, " can be mapped"));
  }
  std::unique_ptr<TokenDataset> dataset(new TokenDataset(vocabulary, context));
  for (const File& file : files) RETURN_IF_ERROR(dataset->Append(file));
  if (dataset->tokens_ <= context) {
    return absl::InvalidArgumentError(absl::StrCat("the data is ", dataset->tokens_,
                                                   " tokens, fewer than one sample of ", context,
                                                   " and the token after it"));
  }
  const bool wide =
      std::ranges::any_of(dataset->parts_, [](const Part& part) { return part.width == 4; });
  if (vocabulary == 0) dataset->vocabulary_ = wide ? kLlama3Vocabulary : kGpt2Vocabulary;
  return dataset;
}

absl::Status TokenDataset::Append(const File& file) {
  absl::StatusOr<MappedFile> mapped = MappedFile::Open(file.path);
  if (!mapped.ok()) {
    return absl::IsInvalidArgument(mapped.status())
               ? Refuse(file.path, "is empty, or no regular file, and holds no tokens")
               : mapped.status();
  }
  const std::string_view bytes = mapped->bytes();
  int width = 2;
  std::size_t skip = 0;
  if (file.format == Format::kLlmC) {
    ASSIGN_OR_RETURN(width, CheckHeader(file.path, bytes));
    skip = kHeaderBytes;
  } else if (bytes.size() % 2 != 0) {
    return Refuse(file.path,
                  absl::StrCat("has ", bytes.size(), " bytes, no whole number of tokens of 2"));
  }
  const auto count =
      static_cast<std::int64_t>((bytes.size() - skip) / static_cast<std::size_t>(width));
  if (count == 0) return absl::OkStatus();
  parts_.push_back({tokens_, count, width, skip, file.path, *std::move(mapped)});
  tokens_ += count;
  return absl::OkStatus();
}

absl::Status TokenDataset::CheckVocabulary(const Part& part, std::int64_t first,
                                           std::string_view bytes) const {
  const auto limit = static_cast<std::uint64_t>(vocabulary_);
  const std::uint64_t largest =
      part.width == 2 ? LargestOf<std::uint16_t>(bytes) : LargestOf<std::uint32_t>(bytes);
  if (largest < limit) return absl::OkStatus();
  std::size_t at = 0;
  while (TokenOf(part.width, bytes, at) < limit) ++at;
  return absl::OutOfRangeError(
      absl::StrCat(part.path, ": its token at position ", first + static_cast<std::int64_t>(at),
                   " is ", TokenOf(part.width, bytes, at), ", and the vocabulary has ", vocabulary_,
                   ", from 0 to ", vocabulary_ - 1));
}

absl::Status TokenDataset::Visit(std::int64_t begin, std::int64_t size, const Use& use) const {
  auto part = std::upper_bound(parts_.begin(), parts_.end(), begin,
                               [](std::int64_t at, const Part& p) { return at < p.begin; });
  for (--part; size > 0; ++part) {
    RETURN_IF_ERROR(part->file.CheckWhole());
    const std::int64_t first = begin - part->begin, count = std::min(size, part->tokens - first);
    const auto width = static_cast<std::size_t>(part->width);
    const std::string_view bytes =
        part->file.bytes().substr(part->skip + static_cast<std::size_t>(first) * width,
                                  static_cast<std::size_t>(count) * width);
    RETURN_IF_ERROR(CheckVocabulary(*part, first, bytes));
    use(*part, bytes);
    begin += count;
    size -= count;
  }
  return absl::OkStatus();
}

absl::Status TokenDataset::Read(std::int64_t sample, std::span<std::int32_t> tokens,
                                std::span<std::int32_t> targets) const {
  CHECK(sample >= 0 && sample < samples());
  CHECK(tokens.size() == static_cast<std::size_t>(context_) && targets.size() == tokens.size());
  std::size_t at = 0;
  return Visit(sample * context_, context_ + 1, [&](const Part& part, std::string_view bytes) {
    for (std::size_t i = 0; i < bytes.size() / static_cast<std::size_t>(part.width); ++i, ++at) {
      const auto token = static_cast<std::int32_t>(TokenOf(part.width, bytes, i));
      if (at < tokens.size()) tokens[at] = token;
      if (at > 0) targets[at - 1] = token;
    }
  });
}

absl::StatusOr<std::uint64_t> TokenDataset::Fingerprint() {
  if (fingerprint_) return *fingerprint_;
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> hash(XXH3_createState(),
                                                                      &XXH3_freeState);
  CHECK(hash != nullptr && XXH3_64bits_reset(hash.get()) == XXH_OK);
  for (std::int64_t at = 0; at < tokens_; at += kHashedTokens) {
    RETURN_IF_ERROR(
        Visit(at, std::min(kHashedTokens, tokens_ - at), [&](const Part&, std::string_view bytes) {
          XXH3_64bits_update(hash.get(), bytes.data(), bytes.size());
        }));
  }
  fingerprint_ = XXH3_64bits_digest(hash.get());
  return *fingerprint_;
}

}  // namespace regroup::worker
