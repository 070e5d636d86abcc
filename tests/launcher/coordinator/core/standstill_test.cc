#include "launcher/coordinator/core/standstill.h"

#include <gtest/gtest.h>

namespace regroup::coordinator {
namespace {

using namespace std::chrono_literals;  // NOLINT

constexpr Instant kBegin = Instant(100s);

using Gap = Standstill::Gap;

TEST(Standstill, ALoopThatDidNotRunForMoreThanASecond) {
  Standstill standstill(kBegin);
  EXPECT_EQ(standstill.Enter(kBegin + 1s), std::nullopt);
  EXPECT_EQ(standstill.Enter(kBegin + 2001ms), (Gap{1001ms, false}));
  EXPECT_EQ(standstill.Enter(kBegin + 2002ms), std::nullopt);
}

TEST(Standstill, ACommitThatTakesLongIsToldOfPieceByPiece) {
  Standstill standstill(kBegin);
  standstill.BeginCommit(kBegin);
  EXPECT_EQ(standstill.Enter(kBegin + 299ms), std::nullopt);
  EXPECT_EQ(standstill.Enter(kBegin + 300ms), (Gap{50ms, true}));
  EXPECT_EQ(standstill.Enter(kBegin + 349ms), std::nullopt);
  EXPECT_EQ(standstill.Enter(kBegin + 800ms), (Gap{500ms, true}));
  EXPECT_EQ(standstill.Enter(kBegin + 1s), (Gap{200ms, true}));
  EXPECT_EQ(standstill.EndCommit(kBegin + 1s), 750ms);
  EXPECT_EQ(standstill.Enter(kBegin + 2s), std::nullopt);
}

TEST(Standstill, ACommitThatIsSoonOverIsNone) {
  Standstill standstill(kBegin);
  standstill.BeginCommit(kBegin);
  EXPECT_EQ(standstill.Enter(kBegin + 250ms), std::nullopt);
  EXPECT_EQ(standstill.EndCommit(kBegin + 250ms), 0ms);
  standstill.BeginCommit(kBegin + 250ms);  // Each has its own time.
  EXPECT_EQ(standstill.Enter(kBegin + 500ms), std::nullopt);
}

TEST(Standstill, NoTimeIsToldTwice) {
  Standstill standstill(kBegin);
  standstill.BeginCommit(kBegin);
  EXPECT_EQ(standstill.Enter(kBegin + 600ms), (Gap{350ms, true}));
  EXPECT_EQ(standstill.Enter(kBegin + 620ms), std::nullopt);
  // The 20 ms before are not told of: a deadline may come so early.
  EXPECT_EQ(standstill.Enter(kBegin + 4s), (Gap{3380ms, false}));
  EXPECT_EQ(standstill.Enter(kBegin + 4040ms), std::nullopt);
  EXPECT_EQ(standstill.Enter(kBegin + 4050ms), (Gap{50ms, true}));
}

}  // namespace
}  // namespace regroup::coordinator
