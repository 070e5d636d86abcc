#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "common/base/check.h"

namespace regroup::worker {

// Number types of tensors. One of 16 bits is for storage: every computation widens what it reads to
// float and rounds what it writes, to the nearest number and of two to the even one.

// The upper half of a float: its range, 8 bits of precision.
struct BFloat16 {
  std::uint16_t bits;

  BFloat16() = default;
  constexpr explicit BFloat16(float value) {
    const auto wide = std::bit_cast<std::uint32_t>(value);
    const bool nan = (wide & 0x7FFFFFFFu) > 0x7F800000u;
    bits = static_cast<std::uint16_t>(nan ? wide >> 16 | 0x40u
                                          : (wide + 0x7FFFu + (wide >> 16 & 1u)) >> 16);
  }
  constexpr operator float() const {  // NOLINT(google-explicit-constructor)
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }
};

// IEEE's: 11 bits of precision, from 2^-24 to 65504; beyond it is infinity.
struct Half {
  std::uint16_t bits;

  Half() = default;
  constexpr explicit Half(float value) {
    constexpr std::uint32_t kInfinity = 255u << 23, kTooLarge = (127u + 16) << 23;
    constexpr std::uint32_t kNormal = 113u << 23, kMagic = (127u - 15 + 23 - 10 + 1) << 23;
    const auto all = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t sign = all & 0x80000000u;
    std::uint32_t wide = all ^ sign;
    if (wide >= kTooLarge) {
      wide = wide > kInfinity ? 0x7E00u : 0x7C00u;
    } else if (wide < kNormal) {  // The sum rounds where a number below 2^-14 has its last bit.
      const float sum = std::bit_cast<float>(wide) + std::bit_cast<float>(kMagic);
      wide = std::bit_cast<std::uint32_t>(sum) - kMagic;
    } else {
      wide = (wide + ((15u - 127u) << 23) + 0xFFFu + (wide >> 13 & 1u)) >> 13;
    }
    bits = static_cast<std::uint16_t>(wide | sign >> 16);
  }
  constexpr operator float() const {  // NOLINT(google-explicit-constructor)
    // No product scales it: where a float would be subnormal, CPUs take a hundred times as long.
    constexpr std::uint32_t kScale = (127u - 15) << 23, kWasInfinite = (127u + 16) << 23;
    const std::uint32_t shifted = (bits & 0x7FFFu) << 13;
    std::uint32_t wide = shifted + kScale;
    if (shifted < 1u << 23) {  // It has no leading 1: one is put before it, and taken away.
      wide = std::bit_cast<std::uint32_t>(std::bit_cast<float>(wide + (1u << 23)) - 0x1p-14f);
    } else if (wide >= kWasInfinite) {
      wide |= 255u << 23;
    }
    return std::bit_cast<float>(wide | static_cast<std::uint32_t>(bits & 0x8000u) << 16);
  }
};

static_assert(sizeof(BFloat16) == 2 && sizeof(Half) == 2);

// What is kept in full precision beside tensors of T: gradients of weights, the weights that the
// optimizer steps and its moments, statistics, losses, and every sum under way.
template <typename T>
struct WideOf {
  using Type = float;
};
template <>
struct WideOf<double> {
  using Type = double;
};
template <typename T>
using Wide = typename WideOf<T>::Type;

// What weights and activations are stored as while a step computes.
enum class DType : std::uint8_t { kF32, kBF16, kF16 };

constexpr const char* NameOf(DType type) {
  switch (type) {
    case DType::kF32: return "f32";
    case DType::kBF16: return "bf16";
    case DType::kF16: return "f16";
  }
  CHECK(false);
}
template <typename T>
concept TensorElement =
    std::is_same_v<T, float> || std::is_same_v<T, BFloat16> || std::is_same_v<T, Half>;
template <TensorElement T>
constexpr DType DTypeOf() {
  return sizeof(T) == 4 ? DType::kF32 : std::is_same_v<T, Half> ? DType::kF16 : DType::kBF16;
}
constexpr std::int64_t SizeOf(DType type) { return type == DType::kF32 ? 4 : 2; }

}  // namespace regroup::worker
