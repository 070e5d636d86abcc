#include "agent/shell/line_mixer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace regroup::agent {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::Not;
using Sink = LineMixer::Sink;
using Pieces = std::vector<LineMixer::Piece>;

Instant At(Duration d) { return Instant(100s) + d; }

LineMixer::Look Raw() { return {.prefix = "", .raw = true, .label = ""}; }

// What a mixer has shown so far, on both sinks.
class Shown {
 public:
  explicit Shown(LineMixer::Devices devices) : mixer(devices) {}
  int Source(std::string prefix, Sink sink = Sink::kStdout) {
    return mixer.AddSource(sink, {.prefix = prefix, .raw = false, .label = prefix});
  }
  void Add(int source, std::string_view bytes, Duration at) {
    now_ = std::max(now_, At(at));
    mixer.Add(source, bytes, At(at), pieces_);
  }
  void Flush(Duration at, bool all = false) {
    now_ = std::max(now_, At(at));
    mixer.Flush(At(at), all, pieces_);
  }
  // Lets time pass as whoever owns a mixer does. Fails when it asks for more than it needs.
  void Until(Duration end) {
    for (int i = 0; i < 1000; ++i) {
      const std::optional<Instant> next = mixer.NextFlush();
      if (!next || *next > At(end)) return;
      now_ = std::max(now_, *next);
      mixer.Flush(now_, false, pieces_);
      ASSERT_TRUE(!mixer.NextFlush() || *mixer.NextFlush() > now_) << "it would be asked for ever";
    }
    FAIL() << "more than 1000 flushes";
  }
  std::string Take() {
    std::string text;
    for (const LineMixer::Piece& piece : std::exchange(pieces_, {})) text += piece.bytes;
    return text;
  }
  LineMixer mixer;

 private:
  Pieces pieces_;
  Instant now_{};
};

constexpr LineMixer::Devices kOne{.one = true, .live = {}}, kTwo{.one = false, .live = {}},
    kTerminal{.one = true, .live = Sink::kStderr};

TEST(LineMixer, OneLocalWorkerPassesByteForByte) {
  LineMixer mixer(kOne);
  const int out = mixer.AddSource(Sink::kStdout, Raw()),
            err = mixer.AddSource(Sink::kStderr, Raw());
  Pieces pieces;
  mixer.Add(out, std::string("\0\xff no end", 9), At(0ms), pieces);
  mixer.Add(err, "e", At(0ms), pieces);
  mixer.Add(out, "\r\n", At(1ms), pieces);
  EXPECT_EQ(pieces, (Pieces{{Sink::kStdout, std::string("\0\xff no end", 9)},
                            {Sink::kStderr, "e"},
                            {Sink::kStdout, "\r\n"}}));
  EXPECT_FALSE(mixer.NextFlush());
}

TEST(LineMixer, LinesArePrefixedAndNeverInterleaved) {
  Shown shown(kOne);
  const int a = shown.Source("[n:0] "), b = shown.Source("[n:1] ");
  shown.Add(a, "hel", 0ms);
  shown.Add(b, "x\ny\r\nz", 0ms);
  shown.Add(a, "lo\n", 1ms);
  EXPECT_EQ(shown.Take(), "[n:1] x\n[n:1] y\r\n[n:0] hello\n");
}

TEST(LineMixer, OthersWaitForALineThatGrows) {
  Shown shown(kOne);
  const int a = shown.Source("[n:0] "), b = shown.Source("[n:1] ");
  shown.Add(a, "Password: ", 0ms);
  EXPECT_EQ(shown.mixer.NextFlush(), At(LineMixer::kHold));
  shown.Flush(LineMixer::kHold - 1ms);
  EXPECT_EQ(shown.Take(), "");
  shown.Flush(LineMixer::kHold);
  EXPECT_EQ(shown.Take(), "[n:0] Password: ") << "it is alone";
  shown.Add(b, "other\n", 50ms);
  shown.Add(a, "se", 900ms);
  shown.Flush(1800ms);
  EXPECT_EQ(shown.Take(), "se") << "it grew less than a second ago";
  shown.Add(a, "cret\n", 1850ms);
  EXPECT_EQ(shown.Take(), "cret\n[n:1] other\n");
  shown.Add(a, "open", 2s);
  shown.Until(2500ms);
  shown.Add(b, "second\n", 2500ms);
  EXPECT_EQ(shown.mixer.NextFlush(), At(3s));
  shown.Until(3s);
  EXPECT_EQ(shown.Take(), "[n:0] open\n[n:1] second\n") << "broken a second after its last byte";
  shown.Add(a, " again\n", 4s);
  EXPECT_EQ(shown.Take(), "[n:0]  again\n");
}

TEST(LineMixer, TwoHugeLinesAreTwoLines) {
  Shown shown(kOne);
  const int sources[] = {shown.Source("[n:0] "), shown.Source("[n:1] ")};
  constexpr std::size_t kBytes = 10'000'000, kChunk = 64 << 10;
  std::size_t left[] = {kBytes, kBytes}, most_held = 0;
  Duration now = 0ms;
  std::string text;
  while (left[0] + left[1] > 0 || shown.mixer.Holds()) {
    bool any = false;
    for (int i : {0, 1}) {
      if (left[i] == 0 || shown.mixer.Full(sources[i])) continue;
      const std::size_t bytes = std::min(kChunk, left[i]);
      shown.Add(sources[i], std::string(bytes, static_cast<char>('a' + i)), now);
      left[i] -= bytes;
      any = true;
      if (i == 1) most_held = std::max(most_held, kBytes - left[i]);
    }
    now += 1ms;
    shown.Flush(now, !any);
    text += shown.Take();
    if (left[0] == 0) continue;
    ASSERT_LE(most_held, 3 * kChunk) << "the bytes of the other stay where they are";
  }
  EXPECT_TRUE(text == absl::StrCat("[n:0] ", std::string(kBytes, 'a'), "\n[n:1] ",
                                   std::string(kBytes, 'b')));
}

TEST(LineMixer, ALineOnAnotherDeviceIsInNobodysWay) {
  Shown shown(kTwo);
  const int out = shown.Source("[n:0] "), err = shown.Source("[n:0] ", Sink::kStderr);
  shown.Add(out, "open", 0ms);
  shown.Until(30ms);
  shown.Add(err, "line\n", 40ms);
  EXPECT_EQ(shown.Take(), "[n:0] open[n:0] line\n");
}

TEST(LineMixer, OurLinesWaitForAWorkersButNotForLong) {
  Shown shown(kOne);
  const int a = shown.Source("[n:0] ");
  Pieces pieces;
  shown.Add(a, "open", 0ms);
  shown.Until(30ms);
  shown.mixer.Say("regroup: formed\n", false, At(40ms), pieces);
  EXPECT_TRUE(pieces.empty());
  shown.mixer.Say("regroup: SIGINT\n", true, At(50ms), pieces);
  ASSERT_EQ(pieces.size(), 2u);
  EXPECT_EQ(pieces[0].bytes + pieces[1].bytes, "\nregroup: formed\nregroup: SIGINT\n");
  pieces.clear();
  shown.Take();
  shown.mixer.Say("regroup: later\n", false, At(60ms), pieces);
  EXPECT_EQ(pieces.size(), 1u) << "no line stands there any more";
  for (int i = 0; i < 14; ++i) {  // One that grows for ever.
    shown.Add(a, ".", 100ms + i * 900ms);
    if (i == 0) shown.Flush(140ms);
    if (i == 0) shown.mixer.Say("regroup: waits\n", false, At(200ms), pieces);
    shown.Flush(101ms + i * 900ms);
  }
  EXPECT_EQ(shown.Take(), absl::StrCat("[n:0] ", std::string(13, '.'), "\nregroup: waits\n"));
}

TEST(LineMixer, AFileOfWorkerOutputHoldsWorkerOutputAlone) {
  LineMixer mixer(kTwo);
  const int a = mixer.AddSource(Sink::kStdout, Raw());
  Pieces pieces;
  mixer.Add(a, "open", At(0ms), pieces);
  mixer.Say("regroup: x\n", false, At(0ms), pieces);
  EXPECT_EQ(pieces, (Pieces{{Sink::kStdout, "open"}, {Sink::kStderr, "regroup: x\n"}}));
}

TEST(LineMixer, WhatIsNotFinishedIsShownAtTheEnd) {
  Shown shown(kOne);
  const int a = shown.Source("[n:0] "), b = shown.Source("[n:1] "), c = shown.Source("[n:2] ");
  shown.Add(a, "one", 0ms);
  shown.Until(30ms);
  shown.Add(b, "two\nthree", 31ms);
  shown.Add(c, "50%\r60%", 32ms);
  EXPECT_TRUE(shown.mixer.Holds());
  shown.Flush(33ms, true);
  EXPECT_EQ(shown.Take(), "[n:0] one\n[n:1] two\n[n:1] three\n[n:2] 60%\n");
  EXPECT_FALSE(shown.mixer.Holds());
}

TEST(LineMixer, ARemovedSourceIsShownWholeAndLeavesNothingOpen) {
  Shown shown(kOne);
  const int a = shown.Source("[n:0] "), b = shown.Source("[n:1] ");
  shown.Add(a, "growing", 0ms);
  shown.Until(30ms);
  shown.Add(b, "last words", 31ms);
  Pieces pieces;
  shown.mixer.RemoveSource(b, At(31ms), pieces);
  EXPECT_TRUE(pieces.empty()) << "another's line grows";
  EXPECT_EQ(shown.Source("[n:2] "), 2) << "its number is still in use";
  shown.Until(2s);
  EXPECT_EQ(shown.Take(), "[n:0] growing\n[n:1] last words\n");
  const int again = shown.Source("[n:7] ");
  EXPECT_EQ(again, b);
  shown.Add(again, "hello\n", 2s);
  EXPECT_EQ(shown.Take(), "[n:7] hello\n");
}

TEST(LineMixer, ALineOfARemovedSourceGrowsNoMore) {
  Shown shown(kOne);
  const int a = shown.Source("[n:0] "), b = shown.Source("[n:1] ");
  shown.Add(a, "growing", 0ms);
  shown.Until(30ms);
  Pieces pieces;
  shown.mixer.RemoveSource(a, At(31ms), pieces);
  shown.Add(b, "next\n", 32ms);
  ASSERT_EQ(pieces.size(), 1u);
  EXPECT_EQ(pieces[0].bytes, "\n");
  EXPECT_EQ(shown.Take(), "[n:0] growing[n:1] next\n");
}

// ---- progress bars

TEST(LineMixer, WithoutATerminalABarIsALineASecondAndItsLastState) {
  Shown shown(kOne);
  const int bar = shown.Source("[n:0] ", Sink::kStderr), other = shown.Source("[n:1] ");
  for (int i = 0; i < 250; ++i) {
    shown.Add(bar, absl::StrCat("\rat ", i), i * 10ms);
    shown.Until(i * 10ms);
    if (i == 120) shown.Add(other, "a line\n", i * 10ms);
  }
  EXPECT_EQ(shown.Take(), "[n:0] at 99\n[n:1] a line\n[n:0] at 199\n");
  shown.Until(10s);
  EXPECT_EQ(shown.Take(), "[n:0] at 249\n") << "where it stands still";
  shown.Add(bar, "\rat 250\n", 11s);
  EXPECT_EQ(shown.Take(), "[n:0] at 250\n");
  shown.Add(bar, "plain\n", 11s);
  EXPECT_EQ(shown.Take(), "[n:0] plain\n");
}

TEST(LineMixer, AStateThatWasALineIsNotToldAgain) {
  Shown shown(kOne);
  const int bar = shown.Source("[n:0] ");
  shown.Add(bar, "100%\r", 0ms);
  shown.Until(5s);
  EXPECT_EQ(shown.Take(), "[n:0] 100%\n");
  shown.Add(bar, "\n", 5s);
  shown.Flush(5s, true);
  EXPECT_EQ(shown.Take(), "");
}

TEST(LineMixer, BinaryBytesAreNoBar) {
  Shown shown(kTwo);
  const int a = shown.Source("");
  std::string bytes;
  for (int i = 0; i < 4096; ++i) bytes += static_cast<char>(i * 7 % 256);
  shown.Add(a, bytes, 0ms);
  shown.Add(a, "a\rb\rc\r", 1ms);
  shown.Flush(1ms, true);
  EXPECT_EQ(shown.Take(), bytes + "a\rb\rc\r");
}

TEST(LineMixer, ABarWithoutEndIsALineIsBounded) {
  Shown shown(kOne);
  const int a = shown.Source("[n:0] ");
  shown.Add(a, "\rx", 0ms);
  const std::string much(LineMixer::kMaxHeldBytes, 'x');
  shown.Add(a, much, 1ms);
  EXPECT_EQ(shown.Take(), absl::StrCat("[n:0] x", much));
}

TEST(LineMixer, OnATerminalBarsStayUnderTheOutput) {
  Shown shown(kTerminal);
  shown.mixer.SetScreen({.columns = 40, .rows = 24});
  const int zero = shown.Source("[n:0] ", Sink::kStderr),
            one = shown.Source("[n:1] ", Sink::kStderr), out = shown.Source("[n:0] ");
  shown.Add(zero, "\r 10%|#   |", 0ms);
  shown.Add(one, "\r 20%|##  |", 0ms);
  shown.Until(40ms);
  EXPECT_EQ(shown.Take(), "[n:0]  10%|#   |\x1b[K\n[n:1]  20%|##  |\x1b[K\x1b[J");
  shown.Add(out, "a line\n", 50ms);
  shown.Until(50ms);
  EXPECT_EQ(shown.Take(),
            "\r\x1b[1A\x1b[J[n:0] a line\n"
            "[n:0]  10%|#   |\x1b[K\n[n:1]  20%|##  |\x1b[K\x1b[J");
  shown.Add(zero, "\r 100%|####|\n", 60ms);
  shown.Until(60ms);
  EXPECT_EQ(shown.Take(), "\r\x1b[1A\x1b[J[n:0]  100%|####|\n[n:1]  20%|##  |\x1b[K\x1b[J");
  shown.Flush(70ms, true);
  EXPECT_EQ(shown.Take(), "\r\x1b[J[n:1]  20%|##  |\n");
}

TEST(LineMixer, AtMostFiveDrawsASecond) {
  Shown shown(kTerminal);
  std::vector<int> sources;
  for (int rank = 0; rank < 16; ++rank) sources.push_back(shown.Source("r ", Sink::kStderr));
  std::vector<int> drawn_at;
  for (int ms = 0; ms < 5000; ++ms) {
    if (ms % 10 == 0)
      shown.Add(sources[static_cast<std::size_t>(ms / 10 % 16)], absl::StrCat("\rat ", ms, "%"),
                ms * 1ms);
    if (ms % 50 == 0) shown.Add(sources[0], "\na line\n", ms * 1ms);
    shown.Until(ms * 1ms);
    if (shown.Take().find("\x1b[K") != std::string::npos) drawn_at.push_back(ms);
  }
  EXPECT_GT(drawn_at.size(), 15u);
  for (std::size_t i = 5; i < drawn_at.size(); ++i) EXPECT_GE(drawn_at[i] - drawn_at[i - 5], 1000);
}

TEST(LineMixer, FourRowsAndASummary) {
  Shown shown(kTerminal);
  for (int rank = 0; rank < 7; ++rank)
    shown.Add(shown.Source(absl::StrCat(rank, " "), Sink::kStderr),
              absl::StrCat("\r", 10 + rank, "%"), 0ms);
  shown.Until(30ms);
  EXPECT_EQ(shown.Take(),
            "0 10%\x1b[K\n1 11%\x1b[K\n2 12%\x1b[K\n3 13%\x1b[K\n"
            "and 3 more: 14% to 16%\x1b[K\x1b[J");
}

TEST(LineMixer, NestedBarsAndWritesBetweenThem) {
  Shown shown(kTerminal);
  const int a = shown.Source("", Sink::kStderr);
  // As tqdm writes them: the inner bar a row below, then the cursor goes up again.
  shown.Add(a, "\router 0%", 0ms);
  for (int i = 0; i < 3; ++i) shown.Add(a, absl::StrCat("\n\rinner ", i, "\x1b[A"), 1ms);
  shown.Until(300ms);
  EXPECT_EQ(shown.Take(), "outer 0%\ninner 1\x1b[K\x1b[J\rinner 2\x1b[K\x1b[J");
  shown.Add(a, "\r        \rfrom tqdm.write\n\router 50%", 300ms);
  shown.Until(400ms);
  EXPECT_THAT(shown.Take(), HasSubstr("from tqdm.write\nouter 50%\x1b[K"));
  shown.Add(a, "\r         \r", 500ms);
  shown.Until(2s);
  shown.Take();
  shown.Flush(2s, true);
  EXPECT_EQ(shown.Take(), "") << "it was wiped out";
}

TEST(LineMixer, AnUnfinishedLineHidesTheRowsUntilItStopsGrowing) {
  Shown shown(kTerminal);
  const int bar = shown.Source("b ", Sink::kStderr), out = shown.Source("[n:0] ");
  shown.Add(out, "Password: ", 0ms);
  shown.Until(30ms);
  shown.Take();
  shown.Add(bar, "\r5%", 40ms);
  shown.Until(999ms);
  EXPECT_EQ(shown.Take(), "");
  shown.Until(1100ms);
  EXPECT_EQ(shown.Take(), "\nb 5%\x1b[K\x1b[J");
}

TEST(LiveArea, RowsFitTheScreen) {
  EXPECT_EQ(ClipColumns("abc", 2), "ab");
  EXPECT_EQ(ClipColumns("\x1b[31mabc", 2), "\x1b[31mab\x1b[0m");
  EXPECT_EQ(ClipColumns("█▌x", 2), "█▌");
  EXPECT_EQ(ClipColumns("日本", 3), "日");
  EXPECT_EQ(BarText("\x1b[2K 5% \x1b[31m|\x1b[0m\a \t "), " 5% \x1b[31m|\x1b[0m");
  EXPECT_EQ(BarText("  \x1b[0m "), "");
  LiveArea area;
  area.Set(0, "a", std::string(100, 'x'));
  area.Set(1, "b", "y");
  const std::string drawn = area.Draw(At(0s), {.columns = 20, .rows = 24});
  EXPECT_THAT(drawn, HasSubstr(absl::StrCat("a", std::string(18, 'x'), "\x1b[K\n")));
  EXPECT_EQ(area.Erase({.columns = 10, .rows = 24}), "\r\x1b[2A\x1b[J") << "a row has been broken";
  EXPECT_THAT(area.Draw(At(1s), {.columns = 20, .rows = 3}), Not(HasSubstr("by")));
}

}  // namespace
}  // namespace regroup::agent
