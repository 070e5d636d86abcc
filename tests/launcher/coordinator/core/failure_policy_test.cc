// PROTOCOL §3: causes, charges, back-off, budget; §5: who may leave; CLI.md: exit codes.

#include "launcher/coordinator/core/failure_policy.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <csignal>

namespace regroup::coordinator {
namespace {

using namespace std::chrono_literals;  // NOLINT

RankCause Exit(ExitKind kind, int code, OomEvidence oom = OomEvidence::kNone, int rank = 0) {
  RankCause cause;
  cause.node = "n" + std::to_string(rank);
  cause.rank = rank;
  cause.exit.kind = kind;
  cause.exit.code = code;
  cause.exit.oom = oom;
  return cause;
}
EndReason Failed(int code, int rank = 0) {
  return WorkerFailed{Exit(ExitKind::kExited, code, OomEvidence::kNone, rank)};
}
EndReason Told(ErrorEvidence evidence) {
  WorkerFailed failed{Exit(ExitKind::kExited, 1)};
  failed.cause.exit.evidence = evidence;
  return failed;
}
EndReason GivenUp() {
  WorkerFailed failed{Exit(ExitKind::kSignaled, 9)};
  failed.cause.exit.given_up = true;
  return failed;
}
EndReason Killed(int signal) { return WorkerFailed{Exit(ExitKind::kSignaled, signal)}; }

// Root cause = worst class, then earliest time.
TEST(IsWorse, ClassThenTimeThenRank) {
  const Instant t{10s};
  const std::vector<std::pair<CauseAt, CauseAt>> worse_first = {
      {{NodeLost{"c", "silent", 5s}, t + 5s}, {Failed(1), t}},
      {{NodeRebooted{"c"}, t + 5s}, {Killed(9), t}},
      {{WorkerFailed{Exit(ExitKind::kSignaled, 9, OomEvidence::kCounted)}, t + 1s},
       {Killed(11), t}},
      {{Killed(11), t + 1s}, {Failed(1), t}},
      {{Told(ErrorEvidence::kErrorFile), t + 1s}, {Failed(1), t}},
      {{Told(ErrorEvidence::kErrorFile), t}, {Killed(11), t + 1ms}},
      {{Failed(1), t + 1s}, {Told(ErrorEvidence::kCommunicator), t}},
      {{StartTimedOut{"a", 10s}, t + 1s}, {Told(ErrorEvidence::kCommunicator), t}},
      {{GivenUp(), t + 1s}, {Told(ErrorEvidence::kCommunicator), t}},
      {{Failed(1), t}, {GivenUp(), t + 1s}},
      {{GivenUp(), t}, {Failed(1), t + 1s}},
      {{Told(ErrorEvidence::kCommunicator), t + 1s}, {Resized{2, 3, {}}, t}},
      {{Failed(1), t}, {Failed(2), t + 1ms}},
      {{Failed(1, 0), t}, {Failed(1, 1), t}},
      {{Failed(1), t + 1s}, {Resized{2, 3, {}}, t}},
  };
  for (const auto& [worse, other] : worse_first) {
    EXPECT_TRUE(IsWorse(worse, other)) << worse.reason.index() << " " << other.reason.index();
    EXPECT_FALSE(IsWorse(other, worse)) << worse.reason.index() << " " << other.reason.index();
    EXPECT_FALSE(IsWorse(worse, worse));
  }
}

// Own fault is charged; node loss, reboot, supervisor and store loss, preemption, drain and resize
// are free.
TEST(KindOf, Table) {
  EXPECT_EQ(KindOf(Failed(1)), EndKind::kOwn);
  EXPECT_EQ(KindOf(StartTimedOut{"a", 10s}), EndKind::kOwn);
  for (const EndReason& free : std::vector<EndReason>{NodeLost{}, NodeRebooted{}, SupervisorLost{},
                                                      StoreLost{}, ExecFailed{}, GivenUp()})
    EXPECT_EQ(KindOf(free), EndKind::kFree) << free.index();
  for (const EndReason& neutral :
       std::vector<EndReason>{Preempted{}, Resized{}, Cancelled{}, Finished{}})
    EXPECT_EQ(KindOf(neutral), EndKind::kNeutral) << neutral.index();
}

TEST(IsOfTheProgram, WhatAHostLacksForAMomentIsNot) {
  for (const int error : {ENOENT, EACCES, ENOEXEC, ENOTDIR, ELOOP, E2BIG, EPERM, EINVAL, EIO})
    EXPECT_TRUE(IsOfTheProgram(error)) << error;
  for (const int error : {EAGAIN, ENOMEM, EMFILE, ENFILE, ENOSPC, EDQUOT, ETXTBSY})
    EXPECT_FALSE(IsOfTheProgram(error)) << error;
}

TEST(AfterEnd, ProgressBeginsAnew) {
  EXPECT_EQ(AfterEnd({2, 1}, false, EndKind::kOwn), (Streak{3, 1}));
  EXPECT_EQ(AfterEnd({2, 1}, false, EndKind::kFree), (Streak{2, 2}));
  EXPECT_EQ(AfterEnd({2, 1}, false, EndKind::kNeutral), (Streak{2, 1}));
  EXPECT_EQ(AfterEnd({2, 1}, true, EndKind::kOwn), (Streak{1, 0}));
}

// The first restart and the first after progress are immediate; then 1 s, 2 s, … <= 60 s (free: 5
// min), ± 20 %.
TEST(RestartDelay, DoublesWithinItsLimits) {
  const Config config;
  EXPECT_EQ(RestartDelay({1, 0}, EndKind::kOwn, config, 1), 0s);
  EXPECT_EQ(RestartDelay({4, 4}, EndKind::kNeutral, config, 1), 0s);
  Duration wanted = 1s;
  for (int failures = 2; failures < 12; ++failures) {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      const Duration delay = RestartDelay({failures, 0}, EndKind::kOwn, config, seed);
      EXPECT_GE(delay, std::min<Duration>(wanted, 60s) * 8 / 10) << failures;
      EXPECT_LE(delay, std::min<Duration>(wanted * 12 / 10, 60s)) << failures;
      EXPECT_EQ(delay, RestartDelay({failures, 0}, EndKind::kOwn, config, seed));
    }
    wanted *= 2;
  }
  EXPECT_GT(RestartDelay({0, 12}, EndKind::kFree, config, 1), 60s);
  EXPECT_LE(RestartDelay({0, 40}, EndKind::kFree, config, 1), 5min);
}

// A free end waits when its node caused the free one before it, or when it is the third in a row;
// own faults before it do not count.
TEST(RestartDelay, OfFreeEnds) {
  const Config config;
  const auto waits = [&](const Streak& streak) {
    return RestartDelay(streak, EndKind::kFree, config, 1) > Duration{};
  };
  EXPECT_FALSE(waits({0, 1, 1}));
  EXPECT_FALSE(waits({3, 1, 1}));
  EXPECT_FALSE(waits({0, 2, 1}));
  EXPECT_TRUE(waits({0, 2, 2}));
  EXPECT_TRUE(waits({0, 3, 1}));
  EXPECT_GT(RestartDelay({0, 5, 5}, EndKind::kFree, config, 1), 6s);
  EXPECT_EQ(RestartDelay({1, 9, 9}, EndKind::kOwn, config, 1), 0s);
}

TEST(SameNodeEnds, Table) {
  const EndReason a = NodeLost{"a", "silent", 5s}, b = StoreLost{"b"}, own = StartTimedOut{"a", 1s};
  const auto count = [](std::vector<PastEnd> ends) { return SameNodeEnds(ends); };
  EXPECT_EQ(count({}), 0);
  EXPECT_EQ(count({{&a, false}}), 1);
  EXPECT_EQ(count({{&a, false}, {&a, false}}), 2);
  EXPECT_EQ(count({{&a, false}, {&a, true}}), 1);
  EXPECT_EQ(count({{&a, true}, {&a, false}}), 2);
  EXPECT_EQ(count({{&a, false}, {&b, false}, {&a, false}}), 1);
  EXPECT_EQ(count({{&a, false}, {&own, false}, {&a, false}}), 2);
  EXPECT_EQ(count({{&a, false}, {&own, true}, {&a, false}}), 1);
  EXPECT_EQ(count({{&a, false}, {&own, false}}), 0);
}

TEST(MemberBackoff, OneSecondDoublingToAMinute) {
  const Config config;
  const std::vector<Duration> wanted = {0s, 1s, 2s, 4s, 8s, 16s, 32s, 60s, 60s};
  for (std::size_t failures = 0; failures < wanted.size(); ++failures)
    EXPECT_EQ(MemberBackoff(static_cast<int>(failures), config), wanted[failures]);
}

// --scale-up settle|now|next|never.
TEST(SettleTime, Table) {
  const Config config;
  EXPECT_EQ(SettleTime(ScaleUp::kSettle, 0, 0, config), 0s);
  EXPECT_EQ(SettleTime(ScaleUp::kSettle, 1, 0, config), 30s);
  EXPECT_EQ(SettleTime(ScaleUp::kSettle, 1, 2, config), 120s);
  EXPECT_EQ(SettleTime(ScaleUp::kNow, 3, 2, config), 0s);
  EXPECT_EQ(SettleTime(ScaleUp::kNext, 0, 0, config), std::nullopt);
  EXPECT_EQ(SettleTime(ScaleUp::kNever, 0, 0, config), std::nullopt);
}

TEST(ChargesInWindow, OldOnesDropOut) {
  EXPECT_EQ(ChargesInWindow(5, {}, std::nullopt), 5);
  EXPECT_EQ(ChargesInWindow(3, {1s, 60s, 61s}, 60s), 2);
}

TEST(FailsJob, Table) {
  const Config config;
  JobSpec spec;
  spec.max_restarts = 3;
  spec.exit_codes = {{77, ExitAction::kFail}, {3, ExitAction::kRetry}};
  EXPECT_FALSE(FailsJob(spec, Failed(1), 2, {1, 0}, config));
  EXPECT_TRUE(std::holds_alternative<BudgetSpent>(*FailsJob(spec, Failed(1), 3, {1, 0}, config)));
  EXPECT_FALSE(FailsJob(spec, NodeLost{}, 3, {0, 9}, config));
  EXPECT_TRUE(
      std::holds_alternative<ExitCodeSaysFail>(*FailsJob(spec, Failed(77), 0, {1, 0}, config)));
  EXPECT_FALSE(FailsJob(spec, Failed(3), 0, {1, 0}, config));
  EXPECT_FALSE(FailsJob(spec, Killed(77), 0, {1, 0}, config));
  spec.max_restarts = 100;
  EXPECT_FALSE(FailsJob(spec, Failed(1), 9, {4, 0}, config));
  EXPECT_TRUE(std::holds_alternative<CrashLoop>(*FailsJob(spec, Failed(1), 9, {5, 0}, config)));
}

TEST(FailsForPreemption, Table) {
  JobSpec spec;
  EXPECT_FALSE(FailsForPreemption(spec, Preempted{"a", true}, 1'000'000)) << "without a limit";
  spec.max_preemptions = 2;
  EXPECT_FALSE(FailsForPreemption(spec, Preempted{"a", true}, 0));
  EXPECT_FALSE(FailsForPreemption(spec, Preempted{"a", true}, 1));
  const auto failed = FailsForPreemption(spec, Preempted{"a", true}, 2);
  ASSERT_TRUE(failed);
  EXPECT_EQ(std::get<PreemptionsSpent>(*failed).used, 2);
  EXPECT_EQ(std::get<PreemptionsSpent>(*failed).max, 2);
  EXPECT_FALSE(FailsForPreemption(spec, Failed(1), 2));
  EXPECT_FALSE(FailsForPreemption(spec, NodeLost{}, 2));
  EXPECT_FALSE(FailsForPreemption(spec, Resized{1, 2, {}}, 2));
  spec.max_preemptions = 0;
  EXPECT_TRUE(FailsForPreemption(spec, Preempted{"a", false}, 0));
}

// On all nodes, or the same errno on two: the job fails at once.
TEST(FailsForExec, Table) {
  const ExcludedNode a{NodeId("a"), "a", ENOENT}, b{NodeId("b"), "b", ENOENT},
      c{NodeId("c"), "c", EACCES}, d{NodeId("d"), "d", ENOENT, ExecObstacle::kDirectory};
  EXPECT_FALSE(FailsForExec({a}, 2, "train"));
  EXPECT_TRUE(FailsForExec({a}, 0, "train"));
  EXPECT_TRUE(FailsForExec({a, b}, 5, "train"));
  EXPECT_FALSE(FailsForExec({a, c}, 5, "train"));
  EXPECT_FALSE(FailsForExec({a, d}, 5, "/work")) << "a program here, a directory there";
  EXPECT_EQ(std::get<NotExecutable>(*FailsForExec({a, d}, 0, "/work")).obstacle,
            ExecObstacle::kDirectory);
  EXPECT_FALSE(FailsForExec({}, 0, "train"));
  const ExcludedNode e{NodeId("e"), "e", EAGAIN}, f{NodeId("f"), "f", EAGAIN};
  EXPECT_FALSE(FailsForExec({e, f}, 2, "train"));
  EXPECT_TRUE(FailsForExec({e, f}, 0, "train"));
}

TEST(ExitCodeOf, Table) {
  struct Row {
    FailReason failed;
    std::optional<EndReason> root;
    int code;
  };
  const std::vector<Row> table = {
      {BudgetSpent{0, 0}, Failed(7), 7},
      {BudgetSpent{0, 0}, Killed(SIGKILL), 137},
      {BudgetSpent{0, 0}, Killed(SIGSEGV), 139},
      {BudgetSpent{0, 0}, StartTimedOut{"a", 10s}, 125},
      {CrashLoop{5}, Failed(119), 119},
      {ExitCodeSaysFail{77}, Failed(77), 77},
      {NotExecutable{ENOENT, "x"}, std::nullopt, 127},
      {NotExecutable{EACCES, "x"}, std::nullopt, 126},
      {NotExecutable{ENOENT, "x", ExecObstacle::kInterpreter}, std::nullopt, 126},
      {NotExecutable{ENOENT, "/w", ExecObstacle::kDirectory}, std::nullopt, 126},
      {CancelledBy{"me", 0}, std::nullopt, 143},
      {CancelledBy{"node1", SIGINT}, std::nullopt, 130},
      {CancelledBy{"node1", SIGHUP}, std::nullopt, 129},
      {PreemptedAll{}, std::nullopt, 143},
      {PreemptionsSpent{2, 2}, Preempted{"a", true}, 143},
  };
  for (const Row& row : table)
    EXPECT_EQ(ExitCodeOf(row.failed, row.root), row.code) << row.failed.index();
}

// §5: leaving never ends an elastic job; a fixed-size one is cancelled by Ctrl-C; the last to leave
// cancels or preempts.
TEST(DecideLeave, Table) {
  JobSpec elastic, fixed;
  elastic.min_nodes = 1;
  elastic.max_nodes = 3;
  fixed.min_nodes = fixed.max_nodes = 3;
  EXPECT_EQ(DecideLeave(elastic, SIGINT, 2), LeaveOutcome::kLeaves);
  EXPECT_EQ(DecideLeave(elastic, SIGINT, 0), LeaveOutcome::kCancels);
  EXPECT_EQ(DecideLeave(elastic, SIGHUP, 0), LeaveOutcome::kCancels);
  EXPECT_EQ(DecideLeave(elastic, SIGTERM, 0), LeaveOutcome::kPreempts);
  EXPECT_EQ(DecideLeave(elastic, 0, 0), LeaveOutcome::kPreempts);  // --join-timeout
  EXPECT_EQ(DecideLeave(fixed, 0, 1), LeaveOutcome::kLeaves);
  EXPECT_EQ(DecideLeave(fixed, SIGINT, 2), LeaveOutcome::kCancels);
  EXPECT_EQ(DecideLeave(fixed, SIGTERM, 2), LeaveOutcome::kLeaves);
}

}  // namespace
}  // namespace regroup::coordinator
