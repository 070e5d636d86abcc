#pragma once

// Debian's abseil has a string_view of its own: this puts pieces together without it.

#include <string>
#include <string_view>

namespace regroup {

inline std::string_view CatPiece(std::string_view text) { return text; }
inline std::string_view CatPiece(const char* text) { return text; }
inline std::string_view CatPiece(const std::string& text) { return text; }
template <class Number>
requires std::is_integral_v<Number> std::string CatPiece(Number number) {
  return std::to_string(number);
}

template <class... Pieces>
std::string Cat(const Pieces&... pieces) {
  std::string out;
  (out.append(CatPiece(pieces)), ...);
  return out;
}

}  // namespace regroup
