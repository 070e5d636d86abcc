#pragma once

// Any plain value as text, every field in the order of its declaration, so that two builds can be
// compared by what they print.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "common/base/user_error.h"
#include "tests/sim/fields.h"

namespace regroup::sim {

template <class T, template <class...> class Template>
inline constexpr bool kIs = false;
template <class... Args, template <class...> class Template>
inline constexpr bool kIs<Template<Args...>, Template> = true;

template <class T>
inline constexpr bool kIsTime = false;
template <class Rep, class Period>
inline constexpr bool kIsTime<std::chrono::duration<Rep, Period>> = true;
template <class Clock, class Span>
inline constexpr bool kIsTime<std::chrono::time_point<Clock, Span>> = true;

inline void Write(std::string& out, const std::string& text) {
  out += '"';
  for (const char c : text) {
    if (c == '\n' || c == '"' || c == '\\') out += '\\';
    out += c == '\n' ? 'n' : c;
  }
  out += '"';
}

inline void Write(std::string& out, double number) {
  char text[40];
  std::snprintf(text, sizeof text, "%.17g", number);
  out += text;
}

template <class T>
void Write(std::string& out, const T& value);

template <class Range>
void WriteAll(std::string& out, const Range& range) {
  out += '[';
  for (const auto& item : range) {
    Write(out, item);
    out += ' ';
  }
  out += ']';
}

template <class T>
void WriteFields(std::string& out, const T& value) {
  out += '{';
  ForEachField(value, [&](const auto& field) {
    Write(out, field);
    out += ' ';
  });
  out += '}';
}

template <class T>
void Write(std::string& out, const T& value) {
  if constexpr (std::is_enum_v<T>) {
    out += std::to_string(static_cast<long long>(value));
  } else if constexpr (std::is_integral_v<T>) {
    out += std::to_string(value);
  } else if constexpr (std::is_same_v<T, absl::Status>) {
    // Not ToString: the order of payloads is chance.
    out += std::to_string(static_cast<int>(value.code()));
    WriteFields(out, PartsOf(value));
  } else if constexpr (kIs<T, std::chrono::time_point>) {
    Write(out, value.time_since_epoch());
  } else if constexpr (kIsTime<T>) {
    out += std::to_string(value.count());
  } else if constexpr (kIs<T, std::optional>) {
    if (!value) out += '-';
    if (value) Write(out, *value);
  } else if constexpr (kIs<T, std::shared_ptr>) {
    Write(out, *value);
  } else if constexpr (kIs<T, std::variant>) {
    out += std::to_string(value.index());
    std::visit([&](const auto& held) { Write(out, held); }, value);
  } else if constexpr (kIs<T, std::pair>) {
    Write(out, value.first);
    out += '=';
    Write(out, value.second);
  } else if constexpr (kIs<T, std::vector> || kIs<T, std::map> || kIs<T, std::set>) {
    WriteAll(out, value);
  } else if constexpr (requires { value.value(); }) {  // A StrongId.
    Write(out, value.value());
  } else {
    WriteFields(out, value);
  }
}

// FNV-1a of all that was folded in, from kNothingFolded on; equal everywhere.
inline constexpr std::uint64_t kNothingFolded = 14695981039346656037ull;
inline std::uint64_t Fold(std::uint64_t hash, const std::string& text) {
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  return hash;
}

// A line for each of `items`.
template <class Items>
void WriteLines(std::string& out, const char* what, const Items& items) {
  for (const auto& item : items) {
    out += what;
    Write(out, item);
    out += '\n';
  }
}

}  // namespace regroup::sim
