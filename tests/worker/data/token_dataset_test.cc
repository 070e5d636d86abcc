#include "worker/data/token_dataset.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/data/open_dataset.h"

namespace regroup::worker {
namespace {

namespace fs = std::filesystem;
using Numbers = std::vector<std::int32_t>;

template <typename Token>
std::string Bytes(const std::vector<Token>& tokens) {
  return std::string(reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(Token));
}

// As llm.c's data scripts write it.
std::string Header(std::uint32_t magic, std::uint32_t version, std::uint32_t count) {
  std::vector<std::uint32_t> words(256);
  words[0] = magic, words[1] = version, words[2] = count;
  return Bytes(words);
}

std::string Gpt2File(const std::vector<std::uint16_t>& tokens) {
  return Header(20240520, 1, static_cast<std::uint32_t>(tokens.size())) + Bytes(tokens);
}

class TokenFiles : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "regroup-tokens-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    root_ = name;
  }
  void TearDown() override { fs::remove_all(root_); }

  std::string Write(const std::string& name, const std::string& bytes) {
    fs::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name, std::ios::binary) << bytes;
    return (root_ / name).string();
  }

  fs::path root_;
};

// Tokens, then targets.
Numbers Sample(const Dataset& data, std::int64_t sample) {
  Numbers tokens(static_cast<std::size_t>(data.context())), targets = tokens;
  const absl::Status read = data.Read(sample, tokens, targets);
  EXPECT_TRUE(read.ok()) << read;
  tokens.insert(tokens.end(), targets.begin(), targets.end());
  return tokens;
}

TEST_F(TokenFiles, WhatAFileIsItsMagicAndItsNameSay) {
  const std::vector<std::uint16_t> tokens = {1, 50256, 3, 4, 65, 6, 7};
  const std::vector<std::uint32_t> wide = {1, 128255, 3, 70000, 5, 6, 7};
  const std::string gpt2 = Write("a/gpt2.bin", Gpt2File(tokens)),
                    nano = Write("train.bin", Bytes(tokens)), text = Write("t.txt", "abcdefg"),
                    llama = Write("llama3", Header(20240801, 7, 7) + Bytes(wide)),
                    raw = Write("raw", Bytes(tokens));
  struct Row {
    std::string path;
    DataFormat format;
    int vocabulary;
    Numbers last;
  };
  const std::vector<Row> rows = {
      {gpt2, DataFormat::kAuto, 50257, {4, 65, 6, 65, 6, 7}},
      {gpt2, DataFormat::kLlmC, 50257, {4, 65, 6, 65, 6, 7}},
      {fs::path(gpt2).parent_path().string(), DataFormat::kAuto, 50257, {4, 65, 6, 65, 6, 7}},
      {nano, DataFormat::kAuto, 50257, {4, 65, 6, 65, 6, 7}},
      {raw, DataFormat::kNanoGpt, 50257, {4, 65, 6, 65, 6, 7}},
      {llama, DataFormat::kAuto, 128256, {70000, 5, 6, 5, 6, 7}},
      {text, DataFormat::kAuto, 256, {'d', 'e', 'f', 'e', 'f', 'g'}},
      {nano, DataFormat::kText, 256, {}},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.path);
    const auto data = OpenDataset({row.path}, {.format = row.format, .context = 3});
    ASSERT_TRUE(data.ok()) << data.status();
    EXPECT_EQ((*data)->vocabulary(), row.vocabulary);
    EXPECT_EQ((*data)->samples(), row.last.empty() ? 4 : 2);  // Bytes are twice as many.
    if (!row.last.empty()) {
      EXPECT_EQ(Sample(**data, 1), row.last);
    }
  }
  // The tokens decide, not what is around them.
  EXPECT_EQ(*(*OpenDataset({gpt2}, {.context = 3}))->Fingerprint(),
            *(*OpenDataset({nano}, {.context = 2}))->Fingerprint());
  EXPECT_EQ((*OpenDataset({nano}, {.vocabulary = 50304, .context = 3}))->vocabulary(), 50304);
}

TEST_F(TokenFiles, SamplesGoOnFromFileToFile) {
  const std::vector<std::string> paths = {
      Write("a.bin", Gpt2File({0, 1})), Write("none.bin", Gpt2File({})),
      Write("b", Header(20240801, 7, 1) + Bytes(std::vector<std::uint32_t>{2})),
      Write("c.bin", Bytes(std::vector<std::uint16_t>{3, 4, 5, 6}))};
  const auto data = OpenDataset(paths, {.context = 3});
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ((*data)->samples(), 2);
  EXPECT_EQ(Sample(**data, 0), (Numbers{0, 1, 2, 1, 2, 3}));
  EXPECT_EQ(Sample(**data, 1), (Numbers{3, 4, 5, 4, 5, 6}));
}

// A hole of 8 GiB, so more than 2^32 tokens and far more than 2^31.
TEST_F(TokenFiles, PositionsBeyondThirtyTwoBitsAreReadWhereTheyAre) {
  const std::string path = Write("large.bin", "");
  const std::int64_t tokens = (std::int64_t{1} << 32) + 1001;
  fs::resize_file(path, static_cast<std::uintmax_t>(2 * tokens));
  {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(2 * (tokens - 3));
    file << Bytes(std::vector<std::uint16_t>{11, 12, 13});
  }
  const auto data = OpenDataset({path}, {.context = 1000});
  ASSERT_TRUE(data.ok()) << data.status();
  const std::int64_t samples = (*data)->samples();
  EXPECT_EQ(samples, (tokens - 1) / 1000);
  const auto whole = OpenDataset({path}, {.context = 2});
  EXPECT_EQ(Sample(**whole, (*whole)->samples() - 1), (Numbers{11, 12, 12, 13}));
  EXPECT_EQ(Sample(**data, samples - 1), Numbers(2000, 0));
  // A token out there is named by a position that needs more than 32 bits.
  const auto narrow = OpenDataset({path}, {.vocabulary = 13, .context = 2});
  Numbers a(2), b(2);
  const absl::Status read = (*narrow)->Read((*narrow)->samples() - 1, a, b);
  EXPECT_EQ(read.code(), absl::StatusCode::kOutOfRange);
  EXPECT_NE(std::string(read.message()).find("position 4294968296 is 13"), std::string::npos)
      << read;
}

TEST_F(TokenFiles, ATokenThatTheVocabularyLacksIsNamed) {
  const std::string path = Write("val.bin", Bytes(std::vector<std::uint16_t>{1, 2, 3, 50257, 5}));
  const auto data = OpenDataset({path}, {.context = 2});
  ASSERT_TRUE(data.ok()) << data.status();
  Numbers tokens(2), targets(2);
  EXPECT_TRUE((*data)->Read(0, tokens, targets).ok());
  for (const absl::Status& status :
       {(*data)->Read(1, tokens, targets), (*data)->Fingerprint().status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
    EXPECT_EQ(status.message(), absl::StrCat(path,
                                             ": its token at position 3 is 50257, and the "
                                             "vocabulary has 50257, from 0 to 50256"));
  }
}

TEST_F(TokenFiles, WhatIsNoTokenFileIsRefusedWithItsNumbers) {
  const std::string good = Gpt2File({1, 2, 3, 4, 5});
  struct Row {
    const char* name;
    std::string bytes;
    DataFormat format;
    const char* says;
  };
  const std::vector<Row> rows = {
      {"cut.bin", good.substr(0, good.size() - 2), DataFormat::kAuto,
       "has 1032 bytes, and its header says 5 tokens, which take 1034"},
      {"long.bin", good + "xx", DataFormat::kAuto, "has 1036 bytes, and its header says 5 tokens"},
      {"many", Header(20240520, 1, 0xffffffffu), DataFormat::kAuto,
       "its header says 4294967295 tokens, which take 8589935614"},
      {"head.bin", good.substr(0, 100), DataFormat::kAuto,
       "has 100 bytes, and the header of llm.c alone 1024"},
      {"old.bin", Header(20240520, 2, 0), DataFormat::kAuto, "is of version 2 of its format"},
      {"model.bin", Header(20240326, 3, 0), DataFormat::kAuto,
       "holds llm.c's model weights and no tokens"},
      {"state.bin", Header(20240527, 1, 0), DataFormat::kLlmC, "the state of llm.c's optimizer"},
      {"any", std::string(2000, 'a'), DataFormat::kLlmC,
       "begins with 1633771873, and token files of llm.c with 20240520 or 20240801"},
      {"odd.bin", "abc", DataFormat::kAuto, "has 3 bytes, no whole number of tokens of 2"},
      {"llmc.bin", good, DataFormat::kNanoGpt, "so it is none of nanoGPT's"},
      {"empty.bin", "", DataFormat::kAuto, "is empty"},
      {"few.bin", Gpt2File({1, 2}), DataFormat::kAuto,
       "the data is 2 tokens, fewer than one sample of 2"},
      {"text", "some words", DataFormat::kAuto, "a vocabulary of 50304 does not fit text"},
  };
  for (const Row& row : rows) {
    const std::string path = Write(row.name, row.bytes);
    const absl::Status status =
        OpenDataset({path}, {.format = row.format, .vocabulary = 50304, .context = 2}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << row.name;
    EXPECT_NE(std::string(status.message()).find(row.says), std::string::npos) << status;
  }
  const absl::Status mixed =
      OpenDataset({Write("a.txt", "text"), Write("b.bin", good)}, {.context = 2}).status();
  EXPECT_EQ(mixed.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(mixed.message()).find("a.txt is text"), std::string::npos) << mixed;
  EXPECT_EQ(OpenDataset({(root_ / "nowhere").string()}, {.context = 2}).status().code(),
            absl::StatusCode::kNotFound);
}

TEST_F(TokenFiles, AFileThatIsCutMeanwhileIsNamed) {
  const std::string path = Write("train.bin", Bytes(std::vector<std::uint16_t>(5000)));
  const auto data = OpenDataset({path}, {.context = 4});
  ASSERT_TRUE(data.ok()) << data.status();
  fs::resize_file(path, 1000);
  Numbers tokens(4), targets(4);
  const absl::Status status = (*data)->Read(0, tokens, targets);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(std::string(status.message()).find("train.bin: it has 1000 bytes now and had 10000"),
            std::string::npos)
      << status;
}

TEST_F(TokenFiles, OnlySoManyAreMapped) {
  const std::vector<TokenDataset::File> files(TokenDataset::kMaxFiles + 1,
                                              {Write("a.bin", Gpt2File({1, 2}))});
  const absl::Status status = TokenDataset::Open(files, 0, 2).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "16385 token files; at most 16384 can be mapped");
  EXPECT_TRUE(TokenDataset::Open({files.begin(), files.end() - 1}, 0, 2).ok());
}

}  // namespace
}  // namespace regroup::worker
