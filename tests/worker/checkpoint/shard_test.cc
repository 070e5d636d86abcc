#include "worker/checkpoint/shard.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <numeric>

#include "common/base/rng.h"
#include "tests/worker/checkpoint/testing.h"
#include "worker/checkpoint/checksum.h"
#include "worker/checkpoint/safetensors.h"

namespace regroup::worker {
namespace {

bool Never() { return false; }

TEST(ShardTest, PartsOfAllRanksCoverEveryElementOnceAndEvenly) {
  const TestState state;
  std::int64_t total = 0;
  for (const TensorInfo& t : state.infos()) total += t.elements();
  for (int world = 1; world <= 9; ++world) {
    std::map<std::pair<std::uint32_t, std::int64_t>, int> seen;
    for (int r = 0; r < world; ++r) {
      std::int64_t mine = 0;
      for (const ElementRange& range : EvenPart(state.infos(), r, world)) {
        for (std::int64_t i = range.begin; i < range.end; ++i) ++seen[{range.tensor, i}];
        mine += range.end - range.begin;
      }
      EXPECT_LE(std::abs(mine - total / world), 1);
    }
    EXPECT_EQ(static_cast<std::int64_t>(seen.size()), total);
    for (const auto& [element, times] : seen) EXPECT_EQ(times, 1);
  }
}

class ShardFileTest : public testing::Test {
 protected:
  // Larger than a chunk, so that there are several CRCs.
  ShardFileTest()
      : state_({{"a", {1200, 1000}}, {"b", {77}}}),
        image_(*ShardImage::Create(state_.infos(), 0, 1)) {
    state_.SetStep(5);
    image_.Fill(state_.tensors());
  }
  std::string path() const { return directory_ / "shard"; }

  TemporaryDirectory directory_;
  TestState state_;
  ShardImage image_;
};

TEST_F(ShardFileTest, AFileIsPlainSafetensorsAndReadsBack) {
  const auto info = WriteShard(image_, path(), Never);
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->crc32c.size(), 2u);
  EXPECT_EQ(std::filesystem::file_size(path()), info->bytes);
  const auto header = ReadSafetensorsHeader(path());
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->data_begin % 4096, 0u);
  EXPECT_EQ(header->tensors[0].name, "a");
  EXPECT_EQ(header->tensors[1].shape, (std::vector<std::int64_t>{77}));
  ASSERT_TRUE(ScanShard(path(), *info).ok());
  std::string read;
  ShardReader reader = *ShardReader::Open(path(), *info);
  for (std::size_t chunk = 0; chunk < 2; ++chunk) {
    const auto bytes = reader.Read(chunk);
    ASSERT_TRUE(bytes.ok()) << bytes.status();
    read.append(reinterpret_cast<const char*>(bytes->data()), bytes->size());
  }
  EXPECT_EQ(read, ReadAll(path()));
  float first = 0;
  std::memcpy(&first, read.data() + header->data_begin, sizeof first);
  EXPECT_EQ(first, TestState::Value(0, 0, 5));
}

TEST_F(ShardFileTest, APieceOfATensorIsNamedByItsBox) {
  const auto image = ShardImage::Create(state_.infos(), 1, 2);
  ASSERT_TRUE(image.ok());
  const auto info = WriteShard(*image, path(), Never);
  // The image was never filled: its CRCs are not those of its bytes.
  EXPECT_EQ(info.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_FALSE(std::filesystem::exists(path()));
  ShardImage filled = *ShardImage::Create(state_.infos(), 1, 2);
  filled.Fill(state_.tensors());
  ASSERT_TRUE(WriteShard(filled, path(), Never).ok());
  const auto tensors = ReadSafetensorsHeader(path())->tensors;
  EXPECT_EQ(tensors[0].name, "a#[600:601,38:1000]");
  EXPECT_EQ(tensors[0].shape, (Dims{1, 962}));
  EXPECT_EQ(tensors[1].name, "a#[601:1200,0:1000]");
  EXPECT_EQ(tensors[1].shape, (Dims{599, 1000}));
}

TEST_F(ShardFileTest, ASnapshotThatChangesBeforeItIsWrittenIsNotWritten) {
  image_.mutable_bytes_for_test()[image_.bytes().size() - 1] ^= std::byte{1};
  const auto info = WriteShard(image_, path(), Never);
  EXPECT_EQ(info.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(std::string(info.status().message()).find("chunk 1"), std::string::npos)
      << info.status();
  EXPECT_FALSE(std::filesystem::exists(path()));
}

TEST_F(ShardFileTest, AnExistingFileIsNeverOverwritten) {
  WriteAll(path(), "precious");
  EXPECT_EQ(WriteShard(image_, path(), Never).status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(ReadAll(path()), "precious");
}

TEST_F(ShardFileTest, GivingUpLeavesNothing) {
  int chunks = 0;
  EXPECT_EQ(WriteShard(image_, path(), [&] { return ++chunks == 2; }).status().code(),
            absl::StatusCode::kCancelled);
  EXPECT_FALSE(std::filesystem::exists(path()));
}

TEST_F(ShardFileTest, AFullDiskIsAnErrorAndLeavesNothing) {
  // A limit on the file's size makes real writes fail half-way, for any user.
  rlimit before{}, small{1 << 20, RLIM_INFINITY};
  getrlimit(RLIMIT_FSIZE, &before);
  small.rlim_max = before.rlim_max;
  const auto old_handler = signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto info = WriteShard(image_, path(), Never);
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, old_handler);
  EXPECT_FALSE(info.ok());
  EXPECT_NE(std::string(info.status().message()).find(path()), std::string::npos) << info.status();
  EXPECT_FALSE(std::filesystem::exists(path()));
}

TEST_F(ShardFileTest, DamageIsAlwaysSeen) {
  const auto info = WriteShard(image_, path(), Never);
  ASSERT_TRUE(info.ok());
  const std::string good = ReadAll(path());
  Rng rng(1);
  const auto refused = [&](const std::string& bytes) {
    WriteAll(path(), bytes);
    return absl::IsDataLoss(ScanShard(path(), *info));
  };
  for (int i = 0; i < 60; ++i) {
    std::string bad = good;
    const std::uint64_t bit = rng.Below(good.size() * 8);
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << bit % 8));
    EXPECT_TRUE(refused(bad)) << bit;
  }
  EXPECT_TRUE(refused(good.substr(0, good.size() - 1)));
  EXPECT_TRUE(refused(good.substr(0, kChunkBytes)));
  EXPECT_TRUE(refused(good + "x"));
  EXPECT_TRUE(refused(""));
  std::string swapped = good;
  std::swap_ranges(swapped.begin() + 8192, swapped.begin() + 12288, swapped.begin() + 16384);
  EXPECT_TRUE(refused(swapped));
  WriteAll(path(), good);
  FileInfo other = *info;
  other.xxh3 = Xxh3Hex(std::as_bytes(std::span(swapped)));
  EXPECT_TRUE(absl::IsDataLoss(ScanShard(path(), other)))
      << "each chunk is right, the whole is not";
  std::filesystem::remove(path());
  EXPECT_EQ(ScanShard(path(), *info).code(), absl::StatusCode::kNotFound);
}

TEST(SmallShardTest, EveryBitOfHeaderAndDataCounts) {
  const TemporaryDirectory directory = TemporaryDirectory::InMemory();
  TestState state({{"x", {9}}});
  ShardImage image = *ShardImage::Create(state.infos(), 0, 1);
  image.Fill(state.tensors());
  const std::string path = directory / "shard";
  const auto info = WriteShard(image, path, Never);
  ASSERT_TRUE(info.ok());
  const std::string good = ReadAll(path);
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  const auto put = [&](std::size_t at, char value) {
    file.seekp(static_cast<std::streamoff>(at));
    file.put(value).flush();
  };
  for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
    put(bit / 8, static_cast<char>(good[bit / 8] ^ (1 << bit % 8)));
    ASSERT_TRUE(absl::IsDataLoss(ScanShard(path, *info))) << bit;
    put(bit / 8, good[bit / 8]);
  }
  EXPECT_TRUE(ScanShard(path, *info).ok());
}

}  // namespace
}  // namespace regroup::worker
