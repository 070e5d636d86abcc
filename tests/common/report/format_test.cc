#include "common/report/format.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/report/text_style.h"

namespace regroup {
namespace {

using namespace std::chrono_literals;

struct TimeRow {
  Duration d;
  std::string age, span, brief;
};

TEST(Format, Times) {
  const TimeRow rows[] = {{0s, "0.0s", "0.0s", "0 ms"},
                          {-5s, "0.0s", "0.0s", "0 ms"},
                          {41ms, "0.0s", "0.0s", "41 ms"},
                          {310ms, "0.3s", "0.3s", "0.31 s"},
                          {2100ms, "2.1s", "2.1s", "2.1 s"},
                          {9990ms, "9s", "9s", "10 s"},
                          {12s, "12s", "12s", "12 s"},
                          {59s, "59s", "59s", "59 s"},
                          {14min + 2s, "14m", "14m02s", "14m02s"},
                          {2h + 13min + 6s, "2h13m", "2h13m06s", "2h13m06s"},
                          {76h, "3d04h", "3d04h00m", "3d04h00m"}};
  for (const TimeRow& row : rows) {
    EXPECT_EQ(AgeText(row.d), row.age) << row.d.count();
    EXPECT_EQ(SpanText(row.d), row.span) << row.d.count();
    EXPECT_EQ(ShortText(row.d), row.brief) << row.d.count();
  }
  EXPECT_EQ(PhaseText(4ms), ".004");
  EXPECT_EQ(PhaseText(1250ms), "1.250");
  EXPECT_EQ(PhaseTextShort(220ms), ".22");
  EXPECT_EQ(PhaseTextShort(0s), "0");
  EXPECT_EQ(PhaseTextShort(2s), "2");
}

TEST(Format, WallTimes) {
  WallTime t{std::chrono::microseconds(1'795'270'170'114'999)};
  EXPECT_EQ(Rfc3339(t), "2026-11-21T14:09:30.114Z");
  EXPECT_EQ(ClockText(t), "14:09:30.114");
  EXPECT_EQ(Rfc3339(WallTime{std::chrono::microseconds(-1)}), "1969-12-31T23:59:59.999Z");
  EXPECT_FALSE(Rfc3339(WallTime::max()).empty());
  EXPECT_FALSE(Rfc3339(WallTime::min()).empty());
}

TEST(Format, Words) {
  EXPECT_EQ(Count(1, "node"), "1 node");
  EXPECT_EQ(Count(2, "node"), "2 nodes");
  EXPECT_EQ(RanksText({3}), "rank 3");
  EXPECT_EQ(RanksText({2, 0, 1}), "ranks 0 1 2");
  EXPECT_EQ(RanksText({0, 1, 2, 3, 7}), "ranks 0-3 7");
  EXPECT_EQ(WithTilde("/home/u/x", "/home/u"), "~/x");
  EXPECT_EQ(WithTilde("/home/user2/x", "/home/u"), "/home/user2/x");
  EXPECT_EQ(WithTilde("/x", ""), "/x");
  EXPECT_EQ(SignalName(9), "SIGKILL");
  EXPECT_EQ(SignalName(999), "signal 999");
}

TEST(TextStyle, NothingMovesTheCursor) {
  EXPECT_EQ(EscapeControls("a\x1b[2Jb\r\n\x07\x7f"), "a\\x1b[2Jb\\x0d\\x0a\\x07\\x7f");
  EXPECT_EQ(EscapeControls("a\tb"), "a\\x09b");
  EXPECT_EQ(EscapeControls("a\tb", true), "a\tb");
  EXPECT_EQ(EscapeControls("gr\xc3\xbc\xc3\x9f"), "gr\xc3\xbc\xc3\x9f");
  EXPECT_EQ(EscapeControls("\xc2\x9b"
                           "31m"),
            "\\xc2\\x9b31m");  // C1's CSI.
  EXPECT_EQ(EscapeControls("\xe2\x80\xae"
                           "x"),
            "\\xe2\\x80\\xaex");  // Right to left.
  EXPECT_EQ(EscapeControls("\xff\xc3"), "\\xff\\xc3");
  EXPECT_EQ(EscapeControls("\xc0\x80\xed\xa0\x80\xf5\x80\x80\x80"),
            "\\xc0\\x80\\xed\\xa0\\x80\\xf5\\x80\\x80\\x80");
  EXPECT_EQ(EscapeControls(std::string("\0", 1)), "\\x00");
}

TEST(TextStyle, CharsetAndWidth) {
  TextStyle ascii{.color = false, .utf8 = false, .terminal = false, .width = 80};
  EXPECT_EQ(ForCharset(ascii, "a · b – c → d … ✓ ü"), "a - b - c -> d ... + ?");
  TextStyle utf8;
  EXPECT_EQ(ForCharset(utf8, "a · ü"), "a · ü");
  EXPECT_EQ(DisplayWidth("a · ü"), 5);
  TextStyle color{.color = true, .utf8 = true, .terminal = true, .width = 80};
  EXPECT_EQ(DisplayWidth(Painted(color, Tone::kBad, "FAILED")), 6);
  EXPECT_EQ(Painted(utf8, Tone::kBad, "FAILED"), "FAILED");
}

class Variables {
 public:
  Variables() {
    for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG", "NO_COLOR"}) ::unsetenv(name);
  }
  ~Variables() {
    for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG", "NO_COLOR"}) ::unsetenv(name);
  }
};

TEST(TextStyle, LocaleDecidesTheCharset) {
  Variables variables;
  int pipe_ends[2];
  ASSERT_EQ(::pipe(pipe_ends), 0);
  EXPECT_FALSE(StyleOf(pipe_ends[1]).utf8);
  ::setenv("LANG", "de_DE.UTF-8", 1);
  EXPECT_TRUE(StyleOf(pipe_ends[1]).utf8);
  EXPECT_FALSE(StyleOf(pipe_ends[1]).color);
  EXPECT_EQ(StyleOf(pipe_ends[1]).width, 80);
  ::setenv("LC_ALL", "C", 1);
  EXPECT_FALSE(StyleOf(pipe_ends[1]).utf8);
  ::close(pipe_ends[0]);
  ::close(pipe_ends[1]);
}

TEST(TextStyle, ColorOnlyWhereItIsWanted) {
  Variables variables;
  int terminal = ::posix_openpt(O_RDWR | O_NOCTTY);
  ASSERT_GE(terminal, 0);
  ASSERT_EQ(::grantpt(terminal) | ::unlockpt(terminal), 0);
  ::setenv("TERM", "xterm", 1);
  EXPECT_TRUE(StyleOf(terminal).color);
  ::setenv("NO_COLOR", "1", 1);
  EXPECT_FALSE(StyleOf(terminal).color);
  ::unsetenv("NO_COLOR");
  ::setenv("TERM", "dumb", 1);
  EXPECT_FALSE(StyleOf(terminal).color);
  ::close(terminal);
}

}  // namespace
}  // namespace regroup
