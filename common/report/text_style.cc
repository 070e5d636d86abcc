#include "common/report/text_style.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <utility>

#include "common/config/env.h"
#include "common/config/text.h"

namespace regroup {
namespace {

struct CodePoint {
  std::uint32_t value = 0;
  std::size_t bytes = 1;
  bool valid = false;
};

// Strict UTF-8: no overlong forms, no surrogates, nothing above U+10FFFF.
CodePoint FirstOf(std::string_view text) {
  auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  unsigned char first = byte(0);
  if (first < 0x80) return {first, 1, true};
  std::size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < length) return {};
  std::uint32_t value = first & (0xFFu >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return {};
    value = value << 6 | (byte(i) & 0x3F);
  }
  bool overlong = (length == 3 && value < 0x800) || (length == 4 && value < 0x10000);
  bool surrogate = value >= 0xD800 && value <= 0xDFFF;
  if (overlong || surrogate || value > 0x10FFFF) return {};
  return {value, length, true};
}

bool IsControl(std::uint32_t c) {
  // C0, DEL, C1, and the marks that turn the direction of text around.
  bool direction =
      (c >= 0x202A && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069) || c == 0x200E || c == 0x200F;
  return c < 0x20 || (c >= 0x7F && c < 0xA0) || direction;
}

bool SaysUtf8(std::string_view locale) {
  std::string lower;
  for (char c : locale) lower += static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  return lower.find("utf-8") != std::string::npos || lower.find("utf8") != std::string::npos;
}

int WindowWidth(int fd) {
  winsize size{};
  if (::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

}  // namespace

TextStyle StyleOf(int fd) {
  TextStyle style;
  style.terminal = ::isatty(fd) == 1;
  std::string term = GetEnv("TERM").value_or("");
  bool no_color = !GetEnv("NO_COLOR").value_or("").empty();
  style.color = style.terminal && !no_color && term != "dumb" && !term.empty();
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    std::string locale = GetEnv(name).value_or("");
    style.utf8 = SaysUtf8(locale);
    if (!locale.empty()) break;
  }
  if (style.terminal) style.width = std::max(WindowWidth(fd), 40);
  return style;
}

std::string Painted(const TextStyle& style, Tone tone, std::string_view text) {
  if (!style.color || tone == Tone::kPlain) return std::string(text);
  const char* code = tone == Tone::kGood  ? "32"
                     : tone == Tone::kBad ? "31"
                     : tone == Tone::kDim ? "2"
                                          : "1";
  return Cat("\x1b[", code, "m", text, "\x1b[0m");
}

std::string ForCharset(const TextStyle& style, std::string_view text) {
  if (style.utf8) return std::string(text);
  constexpr std::array<std::pair<std::string_view, std::string_view>, 20> kAscii = {
      {{"·", "-"}, {"–", "-"}, {"—", "--"}, {"…", "..."}, {"→", "->"}, {"─", "-"}, {"●", "*"},
       {"✓", "+"}, {"✗", "x"}, {"▶", ">"},  {"╳", "X"},   {"▇", "#"},  {"▆", "#"}, {"▅", "="},
       {"▄", "="}, {"▃", "-"}, {"▂", "_"},  {"▁", "_"},   {"×", "x"},  {"Δ", "d"}}};
  std::string out;
  while (!text.empty()) {
    CodePoint c = FirstOf(text);
    std::string_view piece = text.substr(0, c.bytes);
    text.remove_prefix(c.bytes);
    if (c.valid && c.value < 0x80) {
      out += piece;
      continue;
    }
    const auto* found = std::find_if(kAscii.begin(), kAscii.end(),
                                     [&](const auto& row) { return row.first == piece; });
    out += found == kAscii.end() ? std::string_view("?") : found->second;
  }
  return out;
}

std::string EscapeControls(std::string_view text, bool keep_tab) {
  std::string out;
  while (!text.empty()) {
    CodePoint c = FirstOf(text);
    bool plain = c.valid && (!IsControl(c.value) || (keep_tab && c.value == '\t'));
    for (std::size_t i = 0; i < c.bytes; ++i) {
      if (plain) {
        out += text[i];
        continue;
      }
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\x%02x", static_cast<unsigned char>(text[i]));
      out += escaped;
    }
    text.remove_prefix(c.bytes);
  }
  return out;
}

int DisplayWidth(std::string_view text) {
  int width = 0;
  while (!text.empty()) {
    if (text.front() == '\x1b') {
      std::size_t end = text.find('m');
      text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
      continue;
    }
    text.remove_prefix(FirstOf(text).bytes);
    ++width;
  }
  return width;
}

}  // namespace regroup
