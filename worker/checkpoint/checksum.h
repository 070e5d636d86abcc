#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace regroup::worker {

// CRC-32C of `bytes` after what `crc` already covers (0: nothing). Crc32c("123456789") is
// 0xE3069283.
std::uint32_t Crc32c(std::span<const std::byte> bytes, std::uint32_t crc = 0);

// XXH3-64.
std::uint64_t Xxh3(std::span<const std::byte> bytes);
// XXH3-128 as 32 lower-case hex digits, high word first.
std::string Xxh3Hex(std::span<const std::byte> bytes);

// The same over bytes that come in pieces.
class Xxh3Stream {
 public:
  Xxh3Stream();
  ~Xxh3Stream();
  void Update(std::span<const std::byte> bytes);
  std::string Hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace regroup::worker
