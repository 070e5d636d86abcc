#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace regroup::worker {

// The safetensors format: u64 little-endian header length, JSON header, packed tensors.
struct SafetensorsEntry {
  std::string name;
  std::string dtype;                 // "F32", "BF16", …
  std::vector<std::int64_t> shape;   // Row-major; empty for a scalar.
  std::uint64_t begin = 0, end = 0;  // Bytes after the header.
  friend bool operator==(const SafetensorsEntry&, const SafetensorsEntry&) = default;
};

struct SafetensorsHeader {
  std::map<std::string, std::string> metadata;
  std::vector<SafetensorsEntry> tensors;  // In file order: each begins where the one before ends.
  std::uint64_t data_begin = 0;           // Bytes of length field and header.
};

inline constexpr std::uint64_t kMaxSafetensorsHeader = 100'000'000;  // The limit of the format.

// Length field and header, padded with blanks so that the data starts at a multiple of `alignment`.
// Fills in data_begin. REQUIRES: tensors in file order without holes, names unique, alignment a
// multiple of 8.
absl::StatusOr<std::string> SerializeSafetensorsHeader(SafetensorsHeader& header,
                                                       std::uint64_t alignment = 8);

// The length of length field and header, from the first 8 bytes of a file of `file_bytes`.
absl::StatusOr<std::uint64_t> SafetensorsDataBegin(std::string_view first_bytes,
                                                   std::uint64_t file_bytes);

// `bytes` are the first SafetensorsDataBegin bytes. Data loss, saying what is wrong, unless every
// rule of the format holds: unique names, known dtypes, sizes that agree with shapes without
// overflow, the data covered without hole, overlap or rest.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(std::string_view bytes,
                                                         std::uint64_t file_bytes);

// Opens, checks and parses. Refuses what is not a regular file.
absl::StatusOr<SafetensorsHeader> ReadSafetensorsHeader(const std::string& path);

}  // namespace regroup::worker
