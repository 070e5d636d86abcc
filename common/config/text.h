#pragma once

// Debian's abseil has a string_view of its own: this joins and cuts text without it.

#include <string>
#include <string_view>
#include <vector>

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

// "a,,b" has three parts, an empty text one.
inline std::vector<std::string> Split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (true) {
    const std::size_t end = text.find(separator);
    parts.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

// Without the spaces around it.
inline std::string Stripped(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return std::string(text);
}

}  // namespace regroup
