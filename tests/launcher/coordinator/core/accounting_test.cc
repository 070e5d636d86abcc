// Where time and money went: goodput's parts, node time, cost.

#include "launcher/coordinator/core/accounting.h"

#include <gtest/gtest.h>

#include <limits>

namespace regroup::coordinator {
namespace {

using namespace std::chrono_literals;  // NOLINT

TEST(Sums, StopAtWhatCanBeTold) {
  EXPECT_EQ(SaturatingSum(1s, 2s), 3s);
  EXPECT_EQ(SaturatingSum(kMaxDuration, kMaxDuration), kMaxDuration);
  EXPECT_EQ(SaturatingSum(-kMaxDuration, -kMaxDuration), -kMaxDuration);
  EXPECT_EQ(NodeTimeOf(kMaxDuration, 10'000), kMaxNodeTime);
  EXPECT_EQ(NodeTimeOf(1h, 2), 2h);
  EXPECT_EQ(SumOf(kMaxNodeTime, kMaxNodeTime), kMaxNodeTime);
  RunFacts run;
  run.lasted = 60s;
  run.first_step = 0;
  run.last_step = std::numeric_limits<std::int64_t>::max();
  run.best_step = 5;
  EXPECT_LE(SplitRun(run).recompute, 60s);
}

TEST(SplitRun, Table) {
  struct Row {
    const char* name;
    RunFacts run;
    Duration productive, checkpoint, restore, recompute;
  };
  const Row rows[] = {
      {"a worker that does not speak", {.lasted = 60s}, 60s, 0s, 0s, 0s},
      {"start and saves", {.lasted = 60s, .start = 10s, .checkpoint = 5s}, 45s, 5s, 10s, 0s},
      {"ended while it started", {.lasted = 4s, .start = 10s, .checkpoint = 5s}, 0s, 0s, 4s, 0s},
      {"steps that nobody had done before",
       {.lasted = 60s, .first_step = 1, .last_step = 60},
       60s,
       0s,
       0s,
       0s},
      {"12 of 60 steps repeated",
       {.lasted = 70s,
        .start = 10s,
        .first_step = 97,
        .last_step = 156,
        .resumed_from = 96,
        .best_step = 108},
       48s,
       0s,
       10s,
       12s},
      {"it never came as far as the one before",
       {.lasted = 10s, .first_step = 97, .last_step = 106, .resumed_from = 96, .best_step = 200},
       0s,
       0s,
       0s,
       10s},
      {"ended before it ran", {.lasted = -1s, .start = 1s}, 0s, 0s, 0s, 0s},
  };
  for (const Row& row : rows) {
    const TimeAccount account = SplitRun(row.run);
    EXPECT_EQ(account.productive, row.productive) << row.name;
    EXPECT_EQ(account.checkpoint, row.checkpoint) << row.name;
    EXPECT_EQ(account.restore, row.restore) << row.name;
    EXPECT_EQ(account.recompute, row.recompute) << row.name;
  }
}

TEST(HeldTime, WhatAFailureMadeNecessaryIsLost) {
  TimeAccount run;
  run.productive = 100s;
  run.checkpoint = 10s;
  run.restore = 4s;
  run.recompute = 6s;
  EXPECT_EQ(HeldByRun(run, 2, false), (HeldTime{240s, 0s}));  // Every job starts once.
  EXPECT_EQ(HeldByRun(run, 2, true), (HeldTime{240s, 20s}));
  EXPECT_EQ(HeldByOutage(5s, 3, 8s, true), (HeldTime{23s, 23s}));
  EXPECT_EQ(HeldByOutage(0s, 3, 8s, false), (HeldTime{8s, 0s}));  // Resized, because we wanted it.
  // Ten thousand nodes for ten years are counted.
  const Duration years = 24h * 3650;
  EXPECT_EQ(NodeTimeOf(years, 10'000), std::chrono::hours(24 * 3650) * 10'000ll);
}

TEST(CostOf, Table) {
  const HeldTime time{2h, 30min};
  EXPECT_FALSE(CostOf(std::nullopt, time, 1, 1));
  const std::optional<CostView> cost = CostOf(3.5, time, 4'000'000, 2'000'000'000);
  ASSERT_TRUE(cost);
  EXPECT_DOUBLE_EQ(cost->node_hours, 2);
  EXPECT_DOUBLE_EQ(cost->total, 7);
  EXPECT_DOUBLE_EQ(cost->lost, 1.75);
  EXPECT_DOUBLE_EQ(*cost->per_million_samples, 1.75);
  EXPECT_DOUBLE_EQ(*cost->per_million_tokens, 0.0035);
  const std::optional<CostView> silent = CostOf(3.5, time, 0, 0);
  EXPECT_FALSE(silent->per_million_samples);
  EXPECT_FALSE(silent->per_million_tokens);
  EXPECT_DOUBLE_EQ(CostOf(0.0, time, 1, 0)->total, 0);
}

}  // namespace
}  // namespace regroup::coordinator
