#include "agent/shell/group_warnings.h"

#include <gtest/gtest.h>

namespace regroup::agent {
namespace {

TEST(LeftBehind, SaysWhoseItWasAndWhatBecameOfIt) {
  shim::State state;
  for (int local_rank = 0; local_rank < 3; ++local_rank) {
    state.ranks.emplace_back().local_rank = local_rank;
    state.ranks.back().rank = 4 + local_rank;
  }
  state.left_behind = {{.local_rank = 1, .pid = 41, .name = "up\nloader"}};
  state.left_behind_count = 1;
  EXPECT_EQ(LeftBehindSentence(state),
            "1 process left behind by rank 5 was ended: up\\x0aloader (41)");
  state.left_behind_kept = true;
  EXPECT_EQ(LeftBehindSentence(state),
            "1 process left behind by rank 5 runs on: up\\x0aloader (41)");
  state.left_behind = {{.local_rank = 2, .pid = 41, .name = "a"},
                       {.local_rank = 0, .pid = 42, .name = "b"},
                       {.local_rank = -1, .pid = 43, .name = "c"}};
  state.left_behind_count = 20;
  EXPECT_EQ(LeftBehindSentence(state),
            "20 processes left behind by ranks 4 6 run on: a (41), b (42), c (43), ...");
  state.left_behind_kept = false;
  state.left_behind = {{.local_rank = -1, .pid = 43, .name = "c"}};
  state.left_behind_count = 1;
  EXPECT_EQ(LeftBehindSentence(state), "1 process left behind was ended: c (43)");
}

}  // namespace
}  // namespace regroup::agent
