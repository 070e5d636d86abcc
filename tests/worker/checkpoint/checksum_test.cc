#include "worker/checkpoint/checksum.h"

#include <gtest/gtest.h>

#include <vector>

#include "worker/checkpoint/record.h"

namespace regroup::worker {
namespace {

std::span<const std::byte> Bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

TEST(ChecksumTest, KnownValues) {
  EXPECT_EQ(Crc32c(Bytes("123456789")), 0xE3069283u);
  EXPECT_EQ(Crc32c({}), 0u);
  EXPECT_EQ(Xxh3Hex({}), "99aa06d3014798d86001c324468d497f");
}

TEST(ChecksumTest, PiecesGiveTheHashOfTheWhole) {
  std::vector<std::byte> data(10'007);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = std::byte(i * 31 >> 3);
  Xxh3Stream stream;
  std::uint32_t crc = 0;
  for (std::size_t at = 0, size = 1; at < data.size(); at += size, size = size * 2 + 1) {
    const auto piece = std::span(data).subspan(at, std::min(size, data.size() - at));
    crc = Crc32c(piece, crc);
    stream.Update(piece);
  }
  EXPECT_EQ(crc, Crc32c(data));
  EXPECT_EQ(stream.Hex(), Xxh3Hex(data));
}

TEST(RecordTest, EveryFlippedBitEveryCutAndEveryAdditionIsSeen) {
  const std::string record = SealRecord(R"({"step": 12, "files": ["a", "b"]})");
  ASSERT_TRUE(OpenRecord(record).ok());
  for (std::size_t bit = 0; bit < record.size() * 8; ++bit) {
    std::string flipped = record;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    EXPECT_EQ(OpenRecord(flipped).status().code(), absl::StatusCode::kDataLoss) << bit;
  }
  for (std::size_t size = 0; size < record.size(); ++size)
    EXPECT_FALSE(OpenRecord(record.substr(0, size)).ok()) << size;
  EXPECT_FALSE(OpenRecord(record + "\n").ok());
  EXPECT_FALSE(OpenRecord(" " + record).ok());
}

}  // namespace
}  // namespace regroup::worker
