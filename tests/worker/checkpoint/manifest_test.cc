#include "worker/checkpoint/manifest.h"

#include <gtest/gtest.h>

#include <functional>

#include "worker/checkpoint/record.h"
#include "worker/checkpoint/shard.h"

namespace regroup::worker {
namespace {

// Of each rank an even part, and at last a matrix of BF16 whose columns they divide.
Manifest Example(int world_size = 3) {
  Manifest m{"gpt-7",
             4,
             2,
             120,
             {world_size, 1, "zero-3"},
             {{"layers", 12}, {"width", 768}},
             {{"samples", 3840}, {"negative", -1}},
             {{"seed", "7"}, {"ünïcode", "\"quoted\"\n"}},
             {{"a", {4, 5}}, {"exp_avg/a", {4, 5}, "F32", "exp_avg"}, {"scalar", {}}},
             {}};
  for (int r = 0; r < world_size; ++r) {
    FileInfo file{ShardName(r, world_size), 4096, std::string(32, 'a'), {0xDEADBEEF}, {}};
    std::uint64_t offset = 512;
    for (const ElementRange& range : EvenPart(m.tensors, r, world_size)) {
      for (Box& box : BoxesOf(m.tensors[range.tensor].shape, range.begin, range.end)) {
        const auto bytes = static_cast<std::uint64_t>(4 * ElementsOf(box.size));
        file.pieces.push_back({range.tensor, std::move(box), offset});
        offset += bytes;
      }
    }
    file.pieces.push_back({3, {{0, 2 * r}, {3, 2}}, offset});
    m.files.push_back(file);
  }
  m.tensors.push_back({"columns", {3, 2 * world_size}, "BF16"});
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

PieceInfo& Last(Manifest& m, std::size_t file) { return m.files[file].pieces.back(); }

TEST(ManifestTest, InconsistentOnesAreRefusedThoughTheirHashIsRight) {
  const std::vector<std::pair<const char*, std::function<void(Manifest&)>>> rows = {
      {"a file missing", [](Manifest& m) { m.files.pop_back(); }},
      {"world of another size", [](Manifest& m) { m.mesh.world = 2; }},
      {"world of none", [](Manifest& m) { m.mesh.world = 0, m.files.clear(); }},
      {"a path as name", [](Manifest& m) { m.files[0].name = "../../etc/passwd"; }},
      {"files swapped", [](Manifest& m) { std::swap(m.files[0], m.files[1]); }},
      {"a CRC missing", [](Manifest& m) { m.files[0].crc32c.clear(); }},
      {"an empty file",
       [](Manifest& m) {
         for (PieceInfo& p : m.files[0].pieces) m.files[1].pieces.push_back(std::move(p));
         m.files[0].pieces.clear();
         m.files[0].crc32c.clear();
         m.files[0].bytes = 0;
       }},
      {"a piece missing", [](Manifest& m) { m.files[1].pieces.pop_back(); }},
      {"a piece twice", [](Manifest& m) { m.files[1].pieces.push_back(Last(m, 1)); }},
      {"a piece in two files", [](Manifest& m) { m.files[1].pieces[0] = m.files[0].pieces[0]; }},
      {"boxes that overlap", [](Manifest& m) { Last(m, 1).box.begin[1] = 1; }},
      {"boxes that overlap, and as many elements as there are",
       [](Manifest& m) { Last(m, 1).box.begin[1] = 0; }},
      {"a piece beyond its tensor", [](Manifest& m) { Last(m, 2).box.size[1] = 3; }},
      {"a piece before its tensor", [](Manifest& m) { Last(m, 0).box.begin[1] = -1; }},
      {"a piece that wraps",
       [](Manifest& m) {
         Last(m, 0).box.size = {1ll << 62, 4};
       }},
      {"a piece of a negative size",
       [](Manifest& m) {
         Last(m, 0).box.size = {-3, -2};
       }},
      {"a piece of fewer dimensions",
       [](Manifest& m) {
         Last(m, 0).box = {{0}, {6}};
       }},
      {"a piece of more dimensions",
       [](Manifest& m) {
         Last(m, 0).box = {{0, 0, 0}, {3, 2, 1}};
       }},
      {"a piece without dimensions", [](Manifest& m) { Last(m, 0).box = {}; }},
      {"sizes for other places", [](Manifest& m) { Last(m, 0).box.size.pop_back(); }},
      {"an empty piece", [](Manifest& m) { Last(m, 0).box.size[0] = 0; }},
      {"a piece of no tensor", [](Manifest& m) { Last(m, 2).tensor = 9; }},
      {"a piece beyond the file", [](Manifest& m) { Last(m, 0).offset = 4090; }},
      {"a piece of more bytes than the file has left",
       [](Manifest& m) { Last(m, 0).offset = 4086; }},
      {"pieces that share bytes", [](Manifest& m) { m.files[0].pieces[1].offset -= 4; }},
      {"an offset that wraps", [](Manifest& m) { Last(m, 0).offset = 1ull << 62; }},
      {"a huge shape",
       [](Manifest& m) {
         m.tensors[0].shape = {1ll << 40, 1ll << 40};
       }},
      {"a shape of too many dimensions", [](Manifest& m) { m.tensors[2].shape = Dims(9, 1); }},
      {"a zero dimension", [](Manifest& m) { m.tensors[0].shape = {0}; }},
      {"a negative dimension",
       [](Manifest& m) {
         m.tensors[0].shape = {-4, -5};
       }},
      {"an unknown dtype", [](Manifest& m) { m.tensors[0].dtype = "F31"; }},
      {"no dtype", [](Manifest& m) { m.tensors[0].dtype = ""; }},
      {"a name twice", [](Manifest& m) { m.tensors[1].name = "a"; }},
      {"a negative step", [](Manifest& m) { m.step = -1; }},
  };
  for (const auto& [name, damage] : rows) {
    Manifest m = Example();
    damage(m);
    EXPECT_EQ(ParseManifest(SerializeManifest(m)).status().code(), absl::StatusCode::kDataLoss)
        << name;
  }
}

// What SerializeManifest never writes.
TEST(ManifestTest, FieldsOfAnotherTypeOrMeaningAreRefused) {
  const std::string record = SerializeManifest(Example());
  const std::string good = *OpenRecord(record);
  const std::vector<std::pair<std::string, std::string>> rows = {
      {R"("kind":"weights")", R"("kind":"gradients")"},
      {R"("kind":"weights")", R"("kind":1)"},
      {R"("kind":"weights"})", "}"},
      {R"(,"slot":"exp_avg")", ""},
      {R"("slot":"exp_avg")", R"("slot":"")"},
      {R"("mesh":{"world":3,)", R"("mesh":{)"},
      {R"("mesh":{"world":3,)", R"("mesh":{"world":3.5,)"},
      {R"("group":1,)", ""},
      {R"("group":1,)", R"("group":0,)"},
      {R"("group":1,)", R"("group":2,)"},
      {R"("group":1,)", R"("group":6,)"},
      {R"("strategy":"zero-3")", R"("strategy":3)"},
      {R"("model":{)", R"("model":{"heads":"12",)"},
      {R"("dtype":"F32",)", ""},
      {R"("shape":[4,5])", R"("shape":[4,"5"])"},
      {R"([0,[0,0],)", R"([0,[0,0.5],)"},
      {R"([0,[0,0],)", R"([0,0,)"},
      {R"([0,[0,0],)", R"([4294967296,[0,0],)"},
      {R"("chunk_bytes":4194304)", R"("chunk_bytes":4096)"},
  };
  for (const auto& [from, to] : rows) {
    const std::size_t at = good.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    std::string bad = good;
    bad.replace(at, from.size(), to);
    EXPECT_EQ(ParseManifest(SealRecord(bad)).status().code(), absl::StatusCode::kDataLoss) << to;
  }
}

// Twenty thousand pieces of one tensor, across each other's rows and columns.
TEST(ManifestTest, ManyPiecesTakeTimeInProportion) {
  Manifest m = Example(1);
  m.tensors = {{"grid", {200, 200}}};
  m.files[0].pieces.clear();
  m.files[0].bytes = 200 * 200 * 4;
  for (std::int64_t row = 0; row < 200; row += 2) {
    for (std::int64_t column = 0; column < 200; ++column) {
      m.files[0].pieces.push_back(
          {0, {{row, column}, {2, 1}}, static_cast<std::uint64_t>(8 * (row / 2 * 200 + column))});
    }
  }
  EXPECT_EQ(*ParseManifest(SerializeManifest(m)), m);
  std::swap(m.files[0].pieces[7000].box.begin, m.files[0].pieces[7001].box.begin);
  EXPECT_TRUE(ParseManifest(SerializeManifest(m)).ok());  // The order in a file is free.
  m.files[0].pieces[7000].box.begin = m.files[0].pieces[7001].box.begin;
  EXPECT_FALSE(ParseManifest(SerializeManifest(m)).ok());
}

// {tensor, begin, end, offset}: intervals of elements in row-major order.
std::string Format1(const std::string& pieces, const std::string& dtype = "F32") {
  return SealRecord(
      R"({"format":"regroup-checkpoint","version":1,"job":"a","generation":1,"attempt":1,"step":10,)"
      R"("world_size":1,"counters":{},"settings":{"layers":"12","data":"x"},"chunk_bytes":4194304,)"
      R"("tensors":[{"name":"w","dtype":")" +
      dtype +
      R"(","shape":[4,5]},{"name":"exp_avg/w","dtype":"F32","shape":[4,5]}],"files":[{"name":)"
      R"("rank-0-of-1.safetensors","bytes":200,"xxh3_128":"","crc32c":["00000001"],"pieces":[)" +
      pieces + "]}]}");
}

TEST(ManifestTest, Format1IsReadAndBecomesFormat2) {
  const auto m = ParseManifest(Format1("[0,0,20,40],[1,0,7,120],[1,7,20,148]"));
  ASSERT_TRUE(m.ok()) << m.status();
  EXPECT_EQ(m->mesh, (MeshInfo{1, 1, ""}));
  EXPECT_EQ(m->model, (std::map<std::string, std::int64_t>{{"layers", 12}}));
  EXPECT_EQ(m->tensors, (std::vector<TensorInfo>{{"w", {4, 5}, "F32", ""},
                                                 {"exp_avg/w", {4, 5}, "F32", "exp_avg"}}));
  EXPECT_EQ(m->files[0].pieces, (std::vector<PieceInfo>{{0, {{0, 0}, {4, 5}}, 40},
                                                        {1, {{0, 0}, {1, 5}}, 120},
                                                        {1, {{1, 0}, {1, 2}}, 140},
                                                        {1, {{1, 2}, {1, 3}}, 148},
                                                        {1, {{2, 0}, {2, 5}}, 160}}));
  EXPECT_EQ(*ParseManifest(SerializeManifest(*m)), *m);
  for (const char* pieces :
       {"[0,0,20,40]", "[0,0,20,40],[1,0,7,120],[1,8,20,148]", "[0,0,20,40],[1,0,21,120]",
        "[0,0,20,40],[1,0,0,120],[1,0,20,120]", "[0,0,20,40],[1,7,3,120]",
        "[0,0,20,40],[2,0,1,120]", "[0,0,20,40],[1,0,20,124]", "[0,0,20,40],[1,[0,0],[4,5],120]",
        "[0,0,20,40],[1,0,20,9223372036854775807]"}) {
    EXPECT_EQ(ParseManifest(Format1(pieces)).status().code(), absl::StatusCode::kDataLoss)
        << pieces;
  }
}

TEST(ManifestTest, OtherTextsWithARightHashAreRefused) {
  for (const char* text :
       {"", "[]", "null", "{}", R"({"format":1})", R"({"format":"regroup-checkpoint"})",
        R"({"format":"regroup-checkpoint","version":"1"})",
        R"({"format":"regroup-checkpoint","version":1})",
        R"({"format":"regroup-checkpoint","version":2})",
        R"({"format":"regroup-checkpoint","version":1,"job":[],"generation":{}})", "{\"a\":"}) {
    EXPECT_EQ(ParseManifest(SealRecord(text)).status().code(), absl::StatusCode::kDataLoss) << text;
    EXPECT_FALSE(ParseReport(SealRecord(text)).ok()) << text;
  }
  const auto newer = ParseManifest(SealRecord(R"({"format":"regroup-checkpoint","version":3})"));
  EXPECT_EQ(newer.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(std::string(newer.status().message()).find("version 3; this build reads 1 and 2"),
            std::string::npos)
      << newer.status();
}

}  // namespace
}  // namespace regroup::worker
