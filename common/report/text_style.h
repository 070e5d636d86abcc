#pragma once

// How text meets its reader: colour, character set, width, and what must never reach a terminal.

#include <string>
#include <string_view>

namespace regroup {

struct TextStyle {
  bool color = false;
  bool utf8 = true;       // Else · – → … ─ and bars become ASCII.
  bool terminal = false;  // Control bytes are escaped; columns may be cut to `width`.
  int width = 80;         // Piped: ids are never cut, whatever the width.
};

// Of a descriptor and the environment: NO_COLOR, TERM=dumb, LANG/LC_ALL=C, COLUMNS or the window's
// size.
TextStyle StyleOf(int fd);

enum class Tone { kPlain, kGood, kBad, kDim, kBold };
std::string Painted(const TextStyle& style, Tone tone, std::string_view text);

// Replaces what `style` can not show. Applied to whole screens, last.
std::string ForCharset(const TextStyle& style, std::string_view text);

// C0 and C1 controls (but not \t when keep_tab), DEL and broken UTF-8 as \xNN: nothing from a
// worker, name or file can move a cursor or set a title.
std::string EscapeControls(std::string_view text, bool keep_tab = false);

// Columns that `text` takes: code points, colour sequences count nothing.
int DisplayWidth(std::string_view text);

}  // namespace regroup
