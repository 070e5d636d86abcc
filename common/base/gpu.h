#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace regroup {

inline constexpr int kMaxGpusPerNode = 256;  // That a message tells of.

// One GPU, or one MIG instance of one, as its driver describes it. What it does not say is unset.
struct Gpu {
  std::string id;    // As CUDA_VISIBLE_DEVICES takes it: its number by PCI address, or "MIG-…".
  std::string uuid;  // "GPU-…" or "MIG-…".
  std::string name;  // "NVIDIA H100 80GB HBM3".
  std::uint64_t memory_bytes = 0, used_bytes = 0;
  // Of an instance: its GPU's, to the end of the critical errors since somebody listens.
  std::optional<int> celsius;
  std::optional<std::uint64_t> ecc_errors;  // Uncorrected, since the driver was loaded.
  std::uint64_t xids = 0, last_xid = 0;  // How many, and the number that NVIDIA has for the last.
  std::string trouble;                   // Why nothing can run on it; empty: it can.
  friend bool operator==(const Gpu&, const Gpu&) = default;
};

}  // namespace regroup
