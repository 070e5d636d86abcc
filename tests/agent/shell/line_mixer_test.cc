#include "agent/shell/line_mixer.h"

#include <gtest/gtest.h>

namespace regroup::agent {
namespace {

using namespace std::chrono_literals;
using Sink = LineMixer::Sink;
using Pieces = std::vector<LineMixer::Piece>;

Instant At(Duration d) { return Instant(1s) + d; }

TEST(LineMixer, OneLocalWorkerPassesByteForByte) {
  LineMixer mixer(false);
  const int out = mixer.AddSource(Sink::kStdout, ""), err = mixer.AddSource(Sink::kStderr, "");
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
  LineMixer mixer(true);
  const int a = mixer.AddSource(Sink::kStdout, "[n:0] "),
            b = mixer.AddSource(Sink::kStdout, "[n:1] ");
  Pieces pieces;
  mixer.Add(a, "hel", At(0ms), pieces);
  mixer.Add(b, "x\ny\nz", At(0ms), pieces);
  mixer.Add(a, "lo\n", At(1ms), pieces);
  ASSERT_EQ(pieces.size(), 1u);
  EXPECT_EQ(pieces[0].bytes, "[n:1] x\n[n:1] y\n[n:0] hello\n");
}

TEST(LineMixer, AnOldUnfinishedLineIsShownAndBrokenOnlyForOthers) {
  LineMixer mixer(true);
  const int a = mixer.AddSource(Sink::kStdout, "[n:0] "),
            b = mixer.AddSource(Sink::kStdout, "[n:1] ");
  Pieces pieces;
  mixer.Add(a, "Password: ", At(0ms), pieces);
  EXPECT_EQ(mixer.NextFlush(), At(LineMixer::kHold));
  mixer.Flush(At(LineMixer::kHold) - 1ms, false, pieces);
  EXPECT_TRUE(pieces.empty());
  mixer.Flush(At(LineMixer::kHold), false, pieces);
  mixer.Add(a, "ok\n", At(100ms), pieces);
  mixer.Add(a, "open", At(100ms), pieces);
  mixer.Flush(At(200ms), false, pieces);
  mixer.Add(b, "other\n", At(200ms), pieces);
  mixer.Add(a, " again\n", At(200ms), pieces);
  ASSERT_EQ(pieces.size(), 1u);
  EXPECT_EQ(pieces[0].bytes, "[n:0] Password: ok\n[n:0] open\n[n:1] other\n[n:0]  again\n");
}

TEST(LineMixer, CarriageReturnsEndALine) {
  LineMixer mixer(true);
  const int a = mixer.AddSource(Sink::kStderr, "[n:0] ");
  Pieces pieces;
  mixer.Add(a, "10%\r20%\r", At(0ms), pieces);
  mixer.Add(a, "30%\r\nend\r\n", At(1ms), pieces);
  ASSERT_EQ(pieces.size(), 1u);
  EXPECT_EQ(pieces[0].bytes, "[n:0] 10%\r[n:0] 20%\r[n:0] 30%\r\n[n:0] end\r\n");
}

TEST(LineMixer, OurLinesStartOnALineOfTheirOwn) {
  LineMixer terminal(true), files(false);
  for (LineMixer* mixer : {&terminal, &files}) {
    const int a = mixer->AddSource(Sink::kStdout, "");
    Pieces pieces;
    mixer->Add(a, "open", At(0ms), pieces);
    mixer->Say("regroup: x\n", pieces);
    const bool broken =
        pieces == Pieces{{Sink::kStdout, "open\n"}, {Sink::kStderr, "regroup: x\n"}};
    EXPECT_EQ(broken, mixer == &terminal) << "a file of worker output holds worker output alone";
  }
}

TEST(LineMixer, ALineWithoutEndIsBounded) {
  LineMixer mixer(true);
  const int a = mixer.AddSource(Sink::kStdout, "[n:0] ");
  Pieces pieces;
  mixer.Add(a, std::string(LineMixer::kMaxHeldBytes + 1, 'x'), At(0ms), pieces);
  EXPECT_FALSE(pieces.empty());
  EXPECT_FALSE(mixer.NextFlush());
}

TEST(LineMixer, ARemovedSourceLeavesNothingOpen) {
  LineMixer mixer(true);
  const int a = mixer.AddSource(Sink::kStdout, "[n:0] ");
  Pieces pieces;
  mixer.Add(a, "last words", At(0ms), pieces);
  mixer.RemoveSource(a, pieces);
  const int b = mixer.AddSource(Sink::kStdout, "[n:7] ");
  EXPECT_EQ(b, a);
  mixer.Add(b, "hello\n", At(0ms), pieces);
  ASSERT_EQ(pieces.size(), 1u);
  EXPECT_EQ(pieces[0].bytes, "[n:0] last words\n[n:7] hello\n");
}

}  // namespace
}  // namespace regroup::agent
