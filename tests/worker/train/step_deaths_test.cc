// Whatever piece of a step a rank dies before: the others come back, know who it was, and have the
// weights and moments of the step before or of the one after, not something between.

#include "tests/worker/train/step_deaths.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "common/base/rng.h"

namespace regroup::worker {
namespace {

constexpr int kDeaths = 4;  // Of each kind of plan; bench_step_deaths has many more.

TEST(StepDeaths, LeaveTheOthersWithAWholeStep) {
  Rng rng(20);
  for (const DeathCase& c : DeathCases()) {
    StepDeaths deaths(c);
    for (int i = 0; i < kDeaths; ++i) {
      const int victim = static_cast<int>(rng.Below(static_cast<std::uint64_t>(c.world())));
      const auto pieces = static_cast<std::uint64_t>(deaths.PiecesOf(victim));
      ASSERT_GT(pieces, 40u) << c.name;
      // One in each part of the step, the last piece among them.
      const std::uint64_t part = pieces / kDeaths;
      const std::uint64_t piece =
          i + 1 == kDeaths ? pieces - 1 : part * static_cast<std::uint64_t>(i) + rng.Below(part);
      SCOPED_TRACE(testing::Message()
                   << c.name << ", rank " << victim << ", piece " << piece << " of " << pieces);
      int fewest = StepDeaths::kSteps, most = 0;
      const auto survivors = deaths.KillAt(victim, static_cast<std::int64_t>(piece));
      for (int r = 0; r < c.world(); ++r) {
        if (r == victim) continue;
        const StepDeaths::Survivor& survivor = survivors[static_cast<std::size_t>(r)];
        EXPECT_TRUE(survivor.whole) << "rank " << r << " after " << survivor.updates;
        EXPECT_TRUE(survivor.group_failed) << "rank " << r;
        EXPECT_TRUE(survivor.names_the_dead) << "rank " << r;
        fewest = std::min(fewest, survivor.updates);
        most = std::max(most, survivor.updates);
      }
      // Of a step that the dead one has not voted for none is left, and all of any that it has; on
      // several hosts its vote may have come to some of them alone.
      EXPECT_GE(fewest, 1);
      EXPECT_LE(most, fewest + (c.one_host() ? 0 : 1));
      EXPECT_LE(most, 2);
    }
  }
}

}  // namespace
}  // namespace regroup::worker
