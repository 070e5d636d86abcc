#include "worker/checkpoint/checksum.h"

#include <isa-l/crc.h>
#include <xxhash.h>

#include <algorithm>

#include "absl/strings/str_format.h"

namespace regroup::worker {
namespace {

std::string Hex(const XXH128_hash_t& hash) {
  return absl::StrFormat("%016x%016x", hash.high64, hash.low64);
}

// Debian's ISA-L returns with dirty upper halves of the vector registers, after which SSE code of
// this thread runs at a quarter of its speed.
void CleanVectorRegisters() {
#if defined(__x86_64__)
  static const bool has_avx = __builtin_cpu_supports("avx") != 0;
  if (has_avx) asm volatile("vzeroupper" ::: "memory");
#endif
}

}  // namespace

std::uint32_t Crc32c(std::span<const std::byte> bytes, std::uint32_t crc) {
  crc = ~crc;
  while (!bytes.empty()) {
    const std::size_t size = std::min<std::size_t>(bytes.size(), 1 << 30);  // ISA-L counts in int.
    auto* data = const_cast<unsigned char*>(reinterpret_cast<const unsigned char*>(bytes.data()));
    crc = crc32_iscsi(data, static_cast<int>(size), crc);
    bytes = bytes.subspan(size);
  }
  CleanVectorRegisters();
  return ~crc;
}

std::uint64_t Xxh3(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

std::string Xxh3Hex(std::span<const std::byte> bytes) {
  return Hex(XXH3_128bits(bytes.data(), bytes.size()));
}

struct Xxh3Stream::State {
  XXH3_state_t xxh;
};
Xxh3Stream::Xxh3Stream() : state_(new State) { XXH3_128bits_reset(&state_->xxh); }
Xxh3Stream::~Xxh3Stream() = default;
void Xxh3Stream::Update(std::span<const std::byte> bytes) {
  XXH3_128bits_update(&state_->xxh, bytes.data(), bytes.size());
}
std::string Xxh3Stream::Hex() const {
  return regroup::worker::Hex(XXH3_128bits_digest(&state_->xxh));
}

}  // namespace regroup::worker
