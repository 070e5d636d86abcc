#include "worker/data/dataset.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "common/base/rng.h"

namespace regroup::worker {
namespace {

namespace fs = std::filesystem;

class TextFiles : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "regroup-data-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    root_ = name;
  }
  void TearDown() override { fs::remove_all(root_); }

  std::string Write(const std::string& name, const std::string& text) {
    fs::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name, std::ios::binary) << text;
    return (root_ / name).string();
  }

  fs::path root_;
};

std::string SampleText(const TextDataset& data, std::int64_t sample) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(data.context())), targets = tokens;
  EXPECT_TRUE(data.Read(sample, tokens, targets).ok());
  std::string text;
  for (std::int32_t token : tokens) text += static_cast<char>(token);
  text += '|';
  for (std::int32_t token : targets) text += static_cast<char>(token);
  return text;
}

TEST(TextDataset, EachSampleIsItsBytesAndTheBytesAfterThem) {
  const TextDataset data("abcdefghij", 3);
  EXPECT_EQ(data.samples(), 3);
  EXPECT_EQ(SampleText(data, 0), "abc|bcd");
  EXPECT_EQ(SampleText(data, 2), "ghi|hij");
  EXPECT_EQ(TextDataset("abcdefghi", 3).samples(), 2);  // The last target would be missing.
}

TEST(TextDataset, BytesAreNeverNegative) {
  const TextDataset data(std::string("\xff\x80\x00", 3), 2);
  std::vector<std::int32_t> tokens(2), targets(2);
  ASSERT_TRUE(data.Read(0, tokens, targets).ok());
  EXPECT_EQ(tokens, (std::vector<std::int32_t>{255, 128}));
  EXPECT_EQ(targets, (std::vector<std::int32_t>{128, 0}));
}

TEST_F(TextFiles, ADirectoryIsItsFilesInOrderOfTheirPaths) {
  Write("d/b.txt", "BB");
  Write("d/a/z.txt", "AZ");
  Write("d/a.txt", "A.");
  const std::string last = Write("e.txt", "E");
  const auto data = TextDataset::Open({(root_ / "d").string(), last}, 6);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(SampleText(**data, 0), "A.AZBB|.AZBBE");
  EXPECT_EQ((*data)->bytes(), 7);
}

TEST_F(TextFiles, FingerprintTellsTextsApart) {
  EXPECT_EQ(*TextDataset("same text", 2).Fingerprint(), *TextDataset("same text", 3).Fingerprint());
  EXPECT_NE(*TextDataset("same text", 2).Fingerprint(), *TextDataset("same tex!", 2).Fingerprint());
}

TEST_F(TextFiles, WhatCanNotBeReadIsNamed) {
  const auto missing = TextDataset::Open({(root_ / "nowhere").string()}, 2);
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_NE(missing.status().message().find("nowhere"), std::string::npos);
  const std::string small = Write("small.txt", "abc");
  const absl::Status status = TextDataset::Open({small}, 3).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("3 bytes"), std::string::npos) << status;
  EXPECT_EQ(TextDataset::Open({small}, 0).status().code(), absl::StatusCode::kInvalidArgument);
  if (geteuid() != 0) {  // Root may read everything.
    chmod(small.c_str(), 0);
    EXPECT_EQ(TextDataset::Open({small}, 1).status().code(), absl::StatusCode::kPermissionDenied);
  }
}

std::string Letters(std::size_t size, std::uint64_t seed) {
  Rng rng(seed);
  std::string text;
  while (text.size() < size) text += static_cast<char>('a' + rng.Below(26));
  return text;
}

// Held, mapped, held, mapped, mapped: what a sample is does not depend on where its bytes lie.
TEST_F(TextFiles, SamplesGoOnFromFileToFile) {
  std::string all;
  std::vector<std::string> paths;
  for (const int size : {200'000, 3 << 20, 1, 0, 77, 1 << 20, (1 << 20) + 13}) {
    const std::string text = Letters(static_cast<std::size_t>(size), paths.size());
    paths.push_back(Write("part" + std::to_string(paths.size()), text));
    all += text;
  }
  for (const int context : {1, 1000, 2 << 20}) {
    const auto data = TextDataset::Open(paths, context);
    ASSERT_TRUE(data.ok()) << data.status();
    TextDataset whole(all, context);
    EXPECT_EQ((*data)->bytes(), whole.bytes());
    EXPECT_EQ(*(*data)->Fingerprint(), *whole.Fingerprint());
    for (const std::int64_t of_hundred : {0, 4, 5, 60, 61, 62, 80, 99, 100}) {
      const std::int64_t sample = (whole.samples() - 1) * of_hundred / 100;
      ASSERT_EQ(SampleText(**data, sample), SampleText(whole, sample)) << sample;
    }
  }
  // Every border of two files.
  const auto data = TextDataset::Open(paths, 5);
  const TextDataset whole(all, 5);
  for (const std::int64_t border : {200'000, 3345728, 3345729, 3345806, 4394382}) {
    for (std::int64_t sample = border / 5 - 2; sample < border / 5 + 2; ++sample)
      ASSERT_EQ(SampleText(**data, sample), SampleText(whole, sample)) << sample;
  }
}

// A hole of 64 GiB, which no memory would hold.
TEST_F(TextFiles, ALargeFileIsNotReadToBeOpened) {
  const std::string path = Write("large", "begin");
  fs::resize_file(path, std::uintmax_t{64} << 30);
  const auto data = TextDataset::Open({path, Write("end", "end.")}, 4);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(SampleText(**data, 0), "begi|egin");
  // The last sample ends in the file behind it.
  EXPECT_EQ(SampleText(**data, (*data)->samples() - 1), std::string("\0\0\0\0|\0\0\0e", 9));
}

// The kernel gives a process 65,530 mappings.
TEST_F(TextFiles, SoManyLargeFilesAreMappedAndTheRestHeld) {
  constexpr int kFiles = 16'386;
  std::string folder;
  for (int i = 0; i < kFiles; ++i) {
    const std::string path = Write("many/" + std::to_string(100'000 + i), std::to_string(i));
    fs::resize_file(path, 1 << 20);
    folder = fs::path(path).parent_path().string();
  }
  const auto data = TextDataset::Open({folder}, 1 << 20);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ((*data)->bytes(), std::int64_t{kFiles} << 20);
  std::ifstream maps("/proc/self/maps");
  int mapped = 0;
  for (std::string line; std::getline(maps, line);) mapped += line.find(folder) != line.npos;
  EXPECT_EQ(mapped, 16'384);
  EXPECT_EQ(SampleText(**data, kFiles - 2).substr(0, 5), "16384");
}

// Looking at what is not there any more would end the process by a signal.
TEST_F(TextFiles, AFileThatIsCutMeanwhileIsNamed) {
  const std::string path = Write("large.txt", Letters(2 << 20, 1));
  const auto data = TextDataset::Open({path}, 100);
  ASSERT_TRUE(data.ok()) << data.status();
  std::vector<std::int32_t> tokens(100), targets(100);
  fs::resize_file(path, 1000);
  for (const absl::Status& status :
       {(*data)->Read((*data)->samples() - 1, tokens, targets), (*data)->Fingerprint().status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_NE(
        std::string(status.message()).find("large.txt: it has 1000 bytes now and had 2097152"),
        std::string::npos)
        << status;
  }
  // A new file of that name is not the one that was opened.
  fs::resize_file(path, 2 << 20);
  fs::rename(Write("other", "short"), path);
  EXPECT_TRUE((*data)->Read(0, tokens, targets).ok());
}

TEST_F(TextFiles, TheFingerprintIsTakenOnce) {
  const std::string path = Write("large.txt", Letters(2 << 20, 1));
  const auto data = TextDataset::Open({path}, 100);
  ASSERT_TRUE(data.ok()) << data.status();
  const std::uint64_t before = *(*data)->Fingerprint();
  fs::resize_file(path, 1000);  // Whoever read it again would fail.
  EXPECT_EQ(*(*data)->Fingerprint(), before);
}

TEST_F(TextFiles, AFileLargerThanABlockIsReadWhole) {
  std::string text;
  for (int i = 0; i < 200'000; ++i) text += static_cast<char>('a' + i % 26);
  const auto data = TextDataset::Open({Write("large.txt", text)}, 100);
  ASSERT_TRUE(data.ok());
  EXPECT_EQ(*(*data)->Fingerprint(), *TextDataset(text, 1).Fingerprint());
}

}  // namespace
}  // namespace regroup::worker
