#include "agent/shell/live_area.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include "absl/strings/str_cat.h"

namespace regroup::agent {
namespace {

using namespace std::chrono_literals;

constexpr char kEscape = '\x1b';
constexpr std::string_view kClearRight = "\x1b[K", kClearBelow = "\x1b[J", kPlain = "\x1b[0m";

// Bytes of the escape sequence at the front of `text`, which is of this kind or cut short.
std::size_t EscapeLength(std::string_view text) {
  if (text.size() < 2) return text.size();
  if (text[1] != '[') return 2;
  std::size_t at = 2;
  while (at < text.size() && (text[at] < '@' || text[at] > '~')) ++at;
  return std::min(text.size(), at + 1);
}

std::size_t CharacterLength(std::string_view text) {
  const auto first = static_cast<unsigned char>(text.front());
  const std::size_t length = first < 0xc0 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  std::size_t at = 1;
  while (at < std::min(length, text.size()) && (text[at] & '\xc0') == '\x80') ++at;
  return at;
}

// East Asian characters and most pictures take two columns.
int CharacterColumns(std::string_view character) {
  if (character.size() < 3) return 1;
  unsigned value = static_cast<unsigned char>(character[0]) & (character.size() == 3 ? 0x0f : 0x07);
  for (char c : character.substr(1)) value = (value << 6) | (static_cast<unsigned char>(c) & 0x3f);
  const bool wide = (value >= 0x1100 && value <= 0x115f) || (value >= 0x2e80 && value <= 0xa4cf) ||
                    (value >= 0xac00 && value <= 0xd7a3) || (value >= 0xf900 && value <= 0xfaff) ||
                    (value >= 0xfe30 && value <= 0xfe6f) || (value >= 0xff00 && value <= 0xff60) ||
                    (value >= 0xffe0 && value <= 0xffe6) || (value >= 0x1f300 && value <= 0x3fffd);
  return wide ? 2 : 1;
}

// The number before the first % of a bar.
std::optional<int> Percentage(std::string_view text) {
  const std::size_t sign = text.find('%');
  if (sign == std::string_view::npos) return std::nullopt;
  std::size_t from = sign;
  while (from > 0 && std::isdigit(static_cast<unsigned char>(text[from - 1]))) --from;
  if (from == sign || sign - from > 3) return std::nullopt;
  int value = 0;
  for (char digit : text.substr(from, sign - from)) value = 10 * value + (digit - '0');
  return value;
}

}  // namespace

std::string BarText(std::string_view bytes) {
  std::string text;
  std::size_t used = 0;  // Without the blanks at its end.
  while (!bytes.empty()) {
    const char c = bytes.front();
    std::size_t length = 1;
    if (c == kEscape) {
      length = EscapeLength(bytes);
      if (length > 2 && bytes[length - 1] == 'm') {
        text += bytes.substr(0, length);
        if (used > 0) used = text.size();
      }
    } else if (c == '\t' || c == ' ') {
      text += ' ';
    } else if (static_cast<unsigned char>(c) >= 0x20 && c != '\x7f') {
      text += c;
      used = text.size();
    }
    bytes.remove_prefix(length);
  }
  text.resize(used);
  return text;
}

std::string ClipColumns(std::string_view text, int columns) {
  std::string out;
  bool colored = false;
  while (!text.empty()) {
    const bool escape = text.front() == kEscape;
    const std::size_t length = escape ? EscapeLength(text) : CharacterLength(text);
    if (!escape) columns -= CharacterColumns(text.substr(0, length));
    if (columns < 0) break;
    colored = colored || escape;
    out += text.substr(0, length);
    text.remove_prefix(length);
  }
  if (colored) out += kPlain;
  return out;
}

int Columns(std::string_view text) {
  int columns = 0;
  while (!text.empty()) {
    const bool escape = text.front() == kEscape;
    const std::size_t length = escape ? EscapeLength(text) : CharacterLength(text);
    if (!escape) columns += CharacterColumns(text.substr(0, length));
    text.remove_prefix(length);
  }
  return columns;
}

void LiveArea::Set(int source, std::string label, std::string text) {
  rows_[source] = {std::move(label), std::move(text)};
  changed_ = true;
}

void LiveArea::Remove(int source) {
  if (rows_.erase(source) > 0) changed_ = true;
}

std::optional<Instant> LiveArea::NextDraw() const {
  if (drawn_ ? !changed_ : rows_.empty()) return std::nullopt;
  const Instant oldest = draws_[next_];
  const Instant newest = draws_[(next_ + draws_.size() - 1) % draws_.size()];
  Instant next = oldest == Instant{} ? Instant{} : oldest + 1s;
  // What is new waits a little, so that what has been erased for a line can come back at once.
  if (drawn_) next = std::max(next, newest + kRefresh);
  return next;
}

// To the first of the lines that stand there. A narrower window has broken those that were longer.
std::string LiveArea::Up(Screen screen) const {
  int lines = 0;
  for (int width : widths_) lines += std::max(1, (width + screen.columns - 1) / screen.columns);
  return lines > 1 ? absl::StrCat("\r\x1b[", lines - 1, "A") : "\r";
}

std::string LiveArea::Erase(Screen screen) {
  if (!drawn_) return "";
  std::string text = absl::StrCat(Up(screen), std::string(kClearBelow));
  drawn_ = false;
  widths_.clear();
  return text;
}

std::string LiveArea::Summary() const {
  int low = 100, high = 0;
  bool all = true;
  for (auto row = std::next(rows_.begin(), kRows); row != rows_.end(); ++row) {
    const std::optional<int> percentage = Percentage(row->second.text);
    all = all && percentage;
    low = std::min(low, percentage.value_or(0));
    high = std::max(high, percentage.value_or(0));
  }
  std::string text = absl::StrCat("and ", rows_.size() - kRows, " more");
  if (all && low == high) text += absl::StrCat(": ", low, "%");
  if (all && low != high) text += absl::StrCat(": ", low, "% to ", high, "%");
  return text;
}

std::string LiveArea::Draw(Instant now, Screen screen) {
  std::vector<std::string> lines;
  for (const auto& [source, row] : rows_) {
    if (lines.size() == kRows) break;
    lines.push_back(row.label + row.text);
  }
  if (rows_.size() > kRows) lines.push_back(Summary());
  // A line in the last column would begin another; a low window keeps room for what is printed.
  const int most = std::max(1, screen.rows - 2), columns = std::max(1, screen.columns - 1);
  if (lines.size() > static_cast<std::size_t>(most)) lines.resize(static_cast<std::size_t>(most));
  std::string text = drawn_ ? Up(screen) : "";
  widths_.clear();
  for (const std::string& line : lines) {
    const std::string clipped = ClipColumns(line, columns);
    if (!widths_.empty()) text += '\n';
    text += clipped;
    text += kClearRight;
    widths_.push_back(Columns(clipped));
  }
  text += kClearBelow;
  drawn_ = !lines.empty();
  changed_ = false;
  draws_[next_] = now;
  next_ = (next_ + 1) % draws_.size();
  return text;
}

}  // namespace regroup::agent
