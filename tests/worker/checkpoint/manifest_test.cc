#include "worker/checkpoint/manifest.h"

#include <gtest/gtest.h>

#include <functional>

#include "worker/checkpoint/record.h"
#include "worker/checkpoint/shard.h"

namespace regroup::worker {
namespace {

Manifest Example(int world_size = 3) {
  Manifest m{"gpt-7",
             4,
             2,
             120,
             world_size,
             {{"samples", 3840}, {"negative", -1}},
             {{"seed", "7"}, {"ünïcode", "\"quoted\"\n"}},
             {{"a", {4, 5}}, {"b", {7}}, {"scalar", {}}},
             {}};
  for (int r = 0; r < world_size; ++r) {
    FileInfo file{ShardName(r, world_size),
                  4096,
                  std::string(32, 'a'),
                  {0xDEADBEEF},
                  PiecesOf(m.tensors, r, world_size)};
    for (PieceInfo& p : file.pieces) p.offset += 512;
    m.files.push_back(file);
  }
  return m;
}

TEST(ManifestTest, WhatIsWrittenIsRead) {
  for (int world : {1, 2, 3, 40}) {  // 40: some ranks have no element.
    const Manifest m = Example(world);
    const auto read = ParseManifest(SerializeManifest(m));
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(*read, m);
  }
  const ShardReport report{2, Example().files[2], "0a1b"};
  const auto read = ParseReport(SerializeReport(report));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->rank, 2);
  EXPECT_EQ(read->file, report.file);
  EXPECT_EQ(read->state, report.state);
}

TEST(ManifestTest, EveryFlippedBitAndEveryCutIsSeen) {
  const std::string record = SerializeManifest(Example());
  for (std::size_t bit = 0; bit < record.size() * 8; ++bit) {
    std::string flipped = record;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    ASSERT_EQ(ParseManifest(flipped).status().code(), absl::StatusCode::kDataLoss) << bit;
  }
  for (std::size_t size = 0; size < record.size(); ++size)
    ASSERT_FALSE(ParseManifest(record.substr(0, size)).ok()) << size;
}

TEST(ManifestTest, InconsistentOnesAreRefusedThoughTheirHashIsRight) {
  const std::vector<std::pair<const char*, std::function<void(Manifest&)>>> rows = {
      {"a file missing", [](Manifest& m) { m.files.pop_back(); }},
      {"world of another size", [](Manifest& m) { m.world_size = 2; }},
      {"world of none", [](Manifest& m) { m.world_size = 0, m.files.clear(); }},
      {"a path as name", [](Manifest& m) { m.files[0].name = "../../etc/passwd"; }},
      {"files swapped", [](Manifest& m) { std::swap(m.files[0], m.files[1]); }},
      {"a CRC missing", [](Manifest& m) { m.files[0].crc32c.clear(); }},
      {"a piece missing", [](Manifest& m) { m.files[1].pieces.pop_back(); }},
      {"a piece twice", [](Manifest& m) { m.files[1].pieces.push_back(m.files[1].pieces.back()); }},
      {"a piece in two files", [](Manifest& m) { m.files[1].pieces[0].begin -= 1; }},
      {"a piece beyond its tensor", [](Manifest& m) { m.files[2].pieces.back().end += 1; }},
      {"a piece of no tensor", [](Manifest& m) { m.files[2].pieces.back().tensor = 9; }},
      {"a piece beyond the file", [](Manifest& m) { m.files[0].pieces[0].offset = 4090; }},
      {"an offset that wraps", [](Manifest& m) { m.files[0].pieces[0].offset = 1ull << 62; }},
      {"an empty piece",
       [](Manifest& m) { m.files[0].pieces[0].end = m.files[0].pieces[0].begin; }},
      {"a huge shape",
       [](Manifest& m) {
         m.tensors[0].shape = {1ll << 40, 1ll << 40};
       }},
      {"a zero dimension", [](Manifest& m) { m.tensors[0].shape = {0}; }},
      {"a negative step", [](Manifest& m) { m.step = -1; }},
  };
  for (const auto& [name, damage] : rows) {
    Manifest m = Example();
    damage(m);
    EXPECT_EQ(ParseManifest(SerializeManifest(m)).status().code(), absl::StatusCode::kDataLoss)
        << name;
  }
}

TEST(ManifestTest, OtherTextsWithARightHashAreRefused) {
  for (const char* text :
       {"", "[]", "null", "{}", R"({"format":1})", R"({"format":"regroup-checkpoint"})",
        R"({"format":"regroup-checkpoint","version":"1"})",
        R"({"format":"regroup-checkpoint","version":1})",
        R"({"format":"regroup-checkpoint","version":1,"job":[],"generation":{}})", "{\"a\":"}) {
    EXPECT_EQ(ParseManifest(SealRecord(text)).status().code(), absl::StatusCode::kDataLoss) << text;
    EXPECT_FALSE(ParseReport(SealRecord(text)).ok()) << text;
  }
  const auto newer = ParseManifest(SealRecord(R"({"format":"regroup-checkpoint","version":2})"));
  EXPECT_EQ(newer.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(std::string(newer.status().message()).find("version 2"), std::string::npos);
}

}  // namespace
}  // namespace regroup::worker
