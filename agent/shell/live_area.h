#pragma once

// Rows that are redrawn in place under the output of a terminal: the progress bars of several
// ranks.

#include <array>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/time.h"

namespace regroup::agent {

struct Screen {
  int columns = 80, rows = 24;
};

// Pure. Knows what it drew; whoever writes to the terminal erases it first, and draws it again.
class LiveArea {
 public:
  // `text`: as BarText makes it.
  void Set(int source, std::string label, std::string text);
  void Remove(int source);
  bool drawn() const { return drawn_; }
  // When it may and should be drawn again; unset: what stands there is right.
  std::optional<Instant> NextDraw() const;
  // REQUIRES: the cursor is where Draw left it, or, when not drawn, at the beginning of a line.
  std::string Draw(Instant now, Screen screen);
  std::string Erase(Screen screen);

  static constexpr int kRows = 4;  // And a summary of the others.
  static constexpr int kDrawsPerSecond = 5;
  static constexpr Duration kRefresh = std::chrono::milliseconds(250);

 private:
  struct Row {
    std::string label, text;
  };
  std::string Up(Screen screen) const;
  std::string Summary() const;

  std::map<int, Row> rows_;
  bool drawn_ = false, changed_ = false;
  std::vector<int> widths_;                       // Of the lines that stand there.
  std::array<Instant, kDrawsPerSecond> draws_{};  // The last ones, a ring.
  std::size_t next_ = 0;
};

// What a progress bar wrote, without what would move a cursor and without blanks at its end.
std::string BarText(std::string_view bytes);
// At most so many columns of it; colours count nothing and end with it.
std::string ClipColumns(std::string_view text, int columns);
int Columns(std::string_view text);

}  // namespace regroup::agent
