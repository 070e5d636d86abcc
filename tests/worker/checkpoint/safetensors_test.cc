#include "worker/checkpoint/safetensors.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>

#include "tests/worker/checkpoint/testing.h"

namespace regroup::worker {
namespace {

std::string File(const std::string& header, std::uint64_t data_bytes) {
  const std::uint64_t length = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + header + std::string(data_bytes, 'd');
}

absl::StatusOr<SafetensorsHeader> Parse(const std::string& file) {
  const auto begin = SafetensorsDataBegin(file, file.size());
  if (!begin.ok()) return begin.status();
  return ParseSafetensorsHeader(std::string_view(file).substr(0, *begin), file.size());
}

TEST(SafetensorsTest, WhatIsWrittenIsReadAndItsDataIsAligned) {
  SafetensorsHeader header;
  header.metadata = {{"format", "pt"}};
  header.tensors = {{"a/\"quoted\" ü", "F32", {2, 3}, 0, 24},
                    {"scalar", "F32", {}, 24, 28},
                    {"empty", "U8", {0, 5}, 28, 28}};
  const auto bytes = SerializeSafetensorsHeader(header, 4096);
  ASSERT_TRUE(bytes.ok());
  EXPECT_EQ(bytes->size() % 4096, 0u);
  EXPECT_EQ(bytes->size(), header.data_begin);
  const auto read = Parse(*bytes + std::string(28, 'x'));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->metadata, header.metadata);
  EXPECT_EQ(read->tensors, header.tensors);
}

TEST(SafetensorsTest, TheReferenceWritersBytes) {
  SafetensorsHeader header;
  header.metadata = {{"format", "pt"}};
  header.tensors = {{"w", "F32", {2}, 0, 8}};
  EXPECT_EQ(
      SerializeSafetensorsHeader(header)->substr(8),
      R"({"__metadata__":{"format":"pt"},"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}   )");
}

struct Row {
  const char* name;
  std::string file;
  bool ok = false;
};

std::string Tensor(const std::string& name, const std::string& dtype, const std::string& shape,
                   const std::string& offsets) {
  return "\"" + name + R"(":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" +
         offsets + "}";
}

void ExpectVerdicts(const std::vector<Row>& rows) {
  for (const Row& row : rows) {
    const auto header = Parse(row.file);
    EXPECT_EQ(header.ok(), row.ok) << row.name << ": " << header.status();
    if (!row.ok) {
      EXPECT_EQ(header.status().code(), absl::StatusCode::kDataLoss) << row.name;
    }
  }
}

TEST(SafetensorsTest, HostileLengthsAndTextsAreRefused) {
  const std::string good = Tensor("a", "F32", "[2]", "[0,8]");
  std::string huge = File("{}", 0);
  const std::uint64_t all_ones = ~0ull, over = 100'000'001;
  const auto with_length = [&](std::uint64_t length) {
    std::string file = huge;
    std::memcpy(file.data(), &length, 8);
    return file;
  };
  const std::vector<Row> rows = {
      {"good", File("{" + good + "}", 8), true},
      {"leading and trailing blanks", File("  {" + good + "}  ", 8), true},
      {"unknown field",
       File(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":[1],"y":"z","v":null}})",
            8),
       true},
      {"no tensors", File("{}", 0), true},
      {"zero dimension", File("{" + Tensor("a", "F32", "[0,7]", "[0,0]") + "}", 0), true},
      {"empty file", ""},
      {"seven bytes", "1234567"},
      {"length 0", File("", 0)},
      {"length beyond the file", with_length(1000)},
      {"length 2^64-1", with_length(all_ones)},
      {"length over the limit", with_length(over)},
      {"not UTF-8", File("{\"\xff\xfe\":{}}", 0)},
      {"not JSON", File("hello world", 0)},
      {"a list", File("[]", 0)},
      {"a number", File("42", 0)},
      {"garbage behind", File("{" + good + "}x", 8)},
      {"two objects", File("{}{}", 0)},
      {"deep nesting", File("{\"a\":" + std::string(100'000, '[') + "}", 0)},
      {"deep objects", File("{\"a\":{\"b\":{\"c\":{}}}}", 0)},
      {"float number", File("{" + Tensor("a", "F32", "[2.0]", "[0,8]") + "}", 8)},
      {"exponent", File("{" + Tensor("a", "F32", "[2e0]", "[0,8]") + "}", 8)},
      {"negative", File("{" + Tensor("a", "F32", "[-2]", "[0,8]") + "}", 8)},
      {"beyond 2^64", File("{" + Tensor("a", "F32", "[99999999999999999999]", "[0,8]") + "}", 8)},
      {"beyond 2^48", File("{" + Tensor("a", "F32", "[281474976710656]", "[0,8]") + "}", 8)},
      {"duplicate name", File("{" + good + "," + good + "}", 8)},
      {"duplicate name, escaped",
       File("{" + good + "," + Tensor("\\u0061", "F32", "[0]", "[8,8]") + "}", 8)},
      {"duplicate field",
       File(R"({"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8)},
      {"duplicate metadata", File(R"({"__metadata__":{},"__metadata__":{}})", 0)},
      {"duplicate metadata key", File(R"({"__metadata__":{"a":"b","a":"b"}})", 0)},
      {"NUL in a name", File("{" + Tensor("a\\u0000b", "F32", "[2]", "[0,8]") + "}", 8)},
      {"empty name", File("{" + Tensor("", "F32", "[2]", "[0,8]") + "}", 8)},
      {"metadata as a list", File(R"({"__metadata__":[]})", 0)},
      {"metadata value no string", File(R"({"__metadata__":{"a":1}})", 0)},
      {"metadata value object", File(R"({"__metadata__":{"a":{}}})", 0)},
  };
  ExpectVerdicts(rows);
}

TEST(SafetensorsTest, HostileTensorsAreRefused) {
  const std::string good = Tensor("a", "F32", "[2]", "[0,8]");
  ExpectVerdicts({
      {"unknown dtype", File("{" + Tensor("a", "F33", "[2]", "[0,8]") + "}", 8)},
      {"missing field", File(R"({"a":{"dtype":"F32","shape":[2]}})", 0)},
      {"shape a string", File(R"({"a":{"dtype":"F32","shape":"2","data_offsets":[0,8]}})", 8)},
      {"dtype a number", File(R"({"a":{"dtype":32,"shape":[2],"data_offsets":[0,8]}})", 8)},
      {"one offset", File("{" + Tensor("a", "F32", "[2]", "[8]") + "}", 8)},
      {"three offsets", File("{" + Tensor("a", "F32", "[2]", "[0,4,8]") + "}", 8)},
      {"nested list", File("{" + Tensor("a", "F32", "[[2]]", "[0,8]") + "}", 8)},
      {"product wraps", File("{" + Tensor("a", "U8", "[4294967296,4294967296]", "[0,0]") + "}", 0)},
      {"zero hides overflow",
       File("{" + Tensor("a", "U8", "[4294967296,4294967296,0]", "[0,0]") + "}", 0)},
      {"bits no bytes", File("{" + Tensor("a", "F4", "[3]", "[0,2]") + "}", 2)},
      {"overlap", File("{" + good + "," + Tensor("b", "F32", "[2]", "[4,12]") + "}", 12)},
      {"same place", File("{" + good + "," + Tensor("b", "F32", "[2]", "[0,8]") + "}", 8)},
      {"hole", File("{" + good + "," + Tensor("b", "F32", "[1]", "[12,16]") + "}", 16)},
      {"hole at the front", File("{" + Tensor("b", "F32", "[1]", "[4,8]") + "}", 8)},
      {"end before begin", File("{" + Tensor("a", "F32", "[2]", "[8,0]") + "}", 8)},
      {"size is not the shape's", File("{" + Tensor("a", "F32", "[3]", "[0,8]") + "}", 8)},
      {"beyond the end", File("{" + good + "}", 7)},
      {"bytes behind", File("{" + good + "}", 9)},
  });
}

TEST(SafetensorsTest, AMillionNamesAreReadInBoundedTime) {
  std::string header = "{";
  for (int i = 0; i < 100'000; ++i)
    header += (i > 0 ? "," : "") + Tensor(std::to_string(i), "U8", "[0]", "[0,0]");
  EXPECT_TRUE(Parse(File(header + "}", 0)).ok());
}

TEST(SafetensorsTest, OnlyRegularFilesAreOpened) {
  const TemporaryDirectory directory;
  ASSERT_EQ(mkfifo((directory / "fifo").c_str(), 0600), 0);
  EXPECT_EQ(ReadSafetensorsHeader(directory / "fifo").status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReadSafetensorsHeader("/dev/zero").status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(ReadSafetensorsHeader(directory.path()).ok());
  EXPECT_EQ(ReadSafetensorsHeader(directory / "none").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace regroup::worker
