#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "common/base/check.h"

namespace regroup::worker {

enum class DType : std::uint8_t { kF32, kF64, kI32, kU8 };

constexpr std::size_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return 4;
    case DType::kF64:
      return 8;
    case DType::kI32:
      return 4;
    case DType::kU8:
      return 1;
  }
  CHECK(false);
}

// The name that safetensors gives it.
constexpr std::string_view NameOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "F32";
    case DType::kF64:
      return "F64";
    case DType::kI32:
      return "I32";
    case DType::kU8:
      return "U8";
  }
  CHECK(false);
}

template <typename T>
inline constexpr DType kDTypeOf = [] { static_assert(sizeof(T) == 0, "no such dtype"); }();
template <>
inline constexpr DType kDTypeOf<float> = DType::kF32;
template <>
inline constexpr DType kDTypeOf<double> = DType::kF64;
template <>
inline constexpr DType kDTypeOf<std::int32_t> = DType::kI32;
template <>
inline constexpr DType kDTypeOf<std::uint8_t> = DType::kU8;

}  // namespace regroup::worker
