#include <array>
#include <cstdio>
#include <ctime>

#include "common/obs/logger.h"

namespace regroup::obs {
namespace {

std::string_view NameOf(Level level) {
  switch (level) {
    case Level::kDebug: return "debug";
    case Level::kInfo: return "info";
    case Level::kWarning: return "warning";
    case Level::kError: return "error";
  }
  return "?";
}

std::string FormatTime(WallTime at) {
  const std::int64_t us = at.time_since_epoch().count();
  std::int64_t seconds = us / 1'000'000, rest = us % 1'000'000;
  if (rest < 0) seconds -= 1, rest += 1'000'000;
  const std::time_t time = static_cast<std::time_t>(seconds);
  std::tm parts{};
  gmtime_r(&time, &parts);
  std::array<char, 64> text{};
  const std::size_t size = std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%S", &parts);
  std::array<char, 16> fraction{};
  std::snprintf(fraction.data(), fraction.size(), ".%06dZ", static_cast<int>(rest));
  return std::string(text.data(), size) + fraction.data();
}

// Length of the well-formed UTF-8 sequence at the front of `text` that shows as something; 0: none.
// C1 controls (U+0080 to U+009F) steer terminals as C0 ones do.
std::size_t PrintableUtf8(std::string_view text) {
  const auto byte = [&](std::size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
  };
  const auto follows = [&](std::size_t i) { return (byte(i) & 0xC0u) == 0x80u; };
  const unsigned first = byte(0);
  if (first < 0x80) return first >= 0x20 && first != 0x7F ? 1 : 0;
  if (first >= 0xC2 && first <= 0xDF)
    return follows(1) && !(first == 0xC2 && byte(1) < 0xA0) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    const bool shortest = first != 0xE0 || byte(1) >= 0xA0;
    const bool no_surrogate = first != 0xED || byte(1) < 0xA0;
    return follows(1) && follows(2) && shortest && no_surrogate ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    const bool shortest = first != 0xF0 || byte(1) >= 0x90;
    const bool in_range = first != 0xF4 || byte(1) < 0x90;
    return follows(1) && follows(2) && follows(3) && shortest && in_range ? 4 : 0;
  }
  return 0;
}

void AppendEscapedByte(std::string& out, unsigned char c, bool json) {
  std::array<char, 8> text{};
  switch (c) {
    case '\n': out += "\\n"; return;
    case '\r': out += "\\r"; return;
    case '\t': out += "\\t"; return;
    default: break;
  }
  // JSON has no \x; what is not UTF-8 is shown as the code point of the same number.
  std::snprintf(text.data(), text.size(), json ? "\\u%04x" : "\\x%02x", c);
  out += text.data();
}

void AppendQuoted(std::string& out, std::string_view text, bool json) {
  out += '"';
  while (!text.empty()) {
    const std::size_t size = PrintableUtf8(text);
    if (size == 0) {
      AppendEscapedByte(out, static_cast<unsigned char>(text.front()), json);
      text.remove_prefix(1);
      continue;
    }
    if (text.front() == '"' || text.front() == '\\') out += '\\';
    out += text.substr(0, size);
    text.remove_prefix(size);
  }
  out += '"';
}

bool IsPlainWord(std::string_view text) {
  if (text.empty()) return false;
  for (char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       std::string_view("._-:/+,@%[]").find(c) != std::string_view::npos;
    if (!plain) return false;
  }
  return true;
}

}  // namespace

std::string RenderLine(WallTime at, Level level, std::string_view what, const Fields& fields,
                       bool json) {
  std::string out;
  if (json) {
    out += "{\"time\":\"" + FormatTime(at) + "\",\"level\":\"";
    out += NameOf(level);
    out += "\",\"what\":";
    AppendQuoted(out, what, true);
    for (const auto& [key, value] : fields) {
      out += ',';
      AppendQuoted(out, key, true);
      out += ':';
      AppendQuoted(out, value, true);
    }
    return out + "}";
  }
  out += FormatTime(at);
  out += ' ';
  out += NameOf(level);
  out += " what=";
  AppendQuoted(out, what, false);
  for (const auto& [key, value] : fields) {
    out += ' ';
    out += IsPlainWord(key) ? key : "field";
    out += '=';
    if (IsPlainWord(value)) {
      out += value;
    } else {
      AppendQuoted(out, value, false);
    }
  }
  return out;
}

}  // namespace regroup::obs
