#include "common/report/run_screen.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include "common/report/failure_report.h"
#include "tests/common/report/golden.h"

namespace regroup {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::StartsWith;

LaunchConfig Launch() {
  LaunchConfig launch;
  launch.spec.name = "train";
  launch.spec.min_nodes = 2;
  launch.spec.max_nodes = 3;
  launch.spec.max_restarts = 3;
  launch.endpoint = Endpoint{"node0", 29400};
  launch.others_options = {"--nnodes", "2:3", "--nproc-per-node", "2", "--max-restarts", "3"};
  launch.others_program = {"train.py"};
  launch.insecure = true;
  return launch;
}

RunStart Start() {
  return {JobId("train-4"),
          "node0",
          Address{"10.0.0.4", 29400},
          /*token=*/"",
          "/home/u/.local/state/regroup/node0/train-4",
          true};
}

RankCause Killed() {
  RankCause cause{"node1", 3, 1, {}, {}};
  cause.exit.kind = ExitKind::kSignaled;
  cause.exit.code = 9;
  cause.exit.pid = 48121;
  return cause;
}

RestartPhases Phases() {
  RestartPhases phases;
  phases.down = 310ms;
  phases.detect = 4ms;
  phases.decide = 1ms;
  phases.stop = 220ms;
  phases.form = 30ms;
  phases.spawn = 50ms;
  return phases;
}

class RunScreenTest : public ::testing::Test {
 protected:
  RunScreenTest() {
    ::setenv("HOME", "/home/u", 1);
    Reset(Launch());
  }
  void Reset(const LaunchConfig& launch, TextStyle style = {}) {
    screen_ = std::make_unique<RunScreen>(launch, style);
  }
  std::string On(JobEventBody body, Duration now = 0s) {
    return screen_->OnEvent(now, {++number_, {}, std::move(body)});
  }
  std::unique_ptr<RunScreen> screen_;
  std::uint64_t number_ = 0;
};

JobView Succeeded() {
  JobView view;
  view.id = JobId("train-4");
  view.spec = Launch().spec;
  view.state = "succeeded";
  view.generation = Generation(2);
  view.restarts_charged = 1;
  view.ran_for = 14min + 2s;
  return view;
}

JobView Failed() {
  JobView view = Succeeded();
  view.state = "failed";
  view.exit_code = 1;
  view.restarts_charged = 3;
  view.failed = BudgetSpent{3, 3};
  GenerationView generation;
  generation.generation = Generation(4);
  RankCause cause{"node1", 3, 1, {}, WallTime{std::chrono::microseconds(1'795'230'764'817'000)}};
  cause.exit.code = 1;
  cause.exit.pid = 48121;
  cause.exit.error =
      "Traceback (most recent call last):\n  File \"train.py\", line 88, in step\nRuntimeError: "
      "out of memory\n";
  generation.ended = WorkerFailed{cause};
  for (int rank : {0, 1, 2}) {
    RankCause other{"node0", rank, rank, {}, cause.at + 900ms};
    other.exit.code = 1;
    other.exit.error = "Traceback\nconnection closed by peer\n";
    generation.consequences.push_back(other);
  }
  view.generations = {generation};
  return view;
}

TEST_F(RunScreenTest, TheScreenOfCliMd) {
  std::string text = screen_->Started(0s, Start());
  text += On(Waits{BelowMinimum{1, 2, 0s, {}}});
  text += On(NodeJoined{"node0", 1, 2, 3});
  text += On(NodeJoined{"node1", 2, 2, 3}, 5s);
  text += On(GenerationFormed{Generation(1), 2, 4, 41ms, {"node0", "node1"}}, 5100ms);
  text += On(GenerationRunning{Generation(1), {}}, 5200ms);
  text += On(GenerationEnded{Generation(1), WorkerFailed{Killed()}, true, 1, 3}, 60s);
  text += On(GenerationFormed{Generation(2), 2, 4, 30ms, {"node0", "node1"}}, 60s);
  text += On(GenerationRunning{Generation(2), Phases()}, 60s);
  text += On(CommitAccepted{Generation(2), 100}, 61s);
  text += On(JobEnded{0, "succeeded"}, 90s);
  text += screen_->Ended(90s, Succeeded(), 0);
  ExpectGolden("run_two_nodes.txt", text);
  EXPECT_EQ(screen_->NextTick(), std::nullopt);
}

TEST_F(RunScreenTest, FailedReport) {
  std::string text = screen_->Started(0s, Start());
  text += On(GenerationFormed{Generation(1), 2, 4, 41ms, {}});
  text += On(GenerationEnded{Generation(1), WorkerFailed{Killed()}, true, 3, 3}, 1s);
  text += On(JobEnded{1, "failed"}, 1s);  // The held line is the report's now.
  text += screen_->Ended(1s, Failed(), 1);
  ExpectGolden("run_failed.txt", text);
}

TEST_F(RunScreenTest, OfAProgressBarTheLastStateIsReported) {
  JobView view = Failed();
  std::get<WorkerFailed>(*view.generations[0].ended).cause.exit.error =
      "\r 1%|  |\r 99%|##|\nValueError: x\n";
  const std::string text = screen_->Ended(1s, view, 1);
  EXPECT_THAT(text, HasSubstr("stderr      |  99%|##|\n              | ValueError: x\n"));
}

TEST_F(RunScreenTest, WhatCannotBeShownIsToldAlsoWhenQuiet) {
  LaunchConfig launch = Launch();
  launch.quiet = true;
  Reset(launch);
  EXPECT_EQ(screen_->OutputTrouble("stdout", "No space left on device", "/home/u/logs/train-4"),
            "regroup: stdout cannot be written: No space left on device · the job goes on "
            "(--stdout-errors fail ends it) · all output is in ~/logs/train-4\n");
  EXPECT_EQ(screen_->OutputGap("stderr", "open x: Permission denied", "/home/u/logs/train-4/1/7"),
            "regroup: not all stderr of rank 7 is shown: open x: Permission denied · what is kept "
            "of it is in ~/logs/train-4/1/7\n");
}

TEST_F(RunScreenTest, HealthyOneNodeRunPrintsThreeLines) {
  LaunchConfig launch = Launch();
  launch.endpoint.reset();
  launch.insecure = false;
  Reset(launch);
  std::string text =
      screen_->Started(0s, {JobId("train-1"), "node0", std::nullopt, "", "/var/log/x", true});
  text += On(NodeJoined{"node0", 1, 1, 1});
  text += On(GenerationFormed{Generation(1), 1, 2, 3ms, {"node0"}});
  text += On(GenerationRunning{Generation(1), {}});
  JobView view = Succeeded();
  view.id = JobId("train-1");
  view.generation = Generation(1);
  view.restarts_charged = 0;
  text += screen_->Ended(1s, view, 0);
  EXPECT_EQ(text,
            "regroup: train-1 · logs /var/log/x\n"
            "regroup: generation 1 · world 2 · formed in 3 ms\n"
            "regroup: train-1 succeeded · 14m02s · 1 generation · regroup explain train-1\n");
}

TEST_F(RunScreenTest, QuietSaysOnlyWhatFailed) {
  LaunchConfig launch = Launch();
  launch.quiet = true;
  Reset(launch);
  std::string text = screen_->CoordinatorAway(0s, "refused") + screen_->Started(0s, Start());
  text += On(Waits{BelowMinimum{1, 2, 0s, {}}});
  text += screen_->Tick(40s);
  text += On(GenerationEnded{Generation(1), WorkerFailed{Killed()}, true, 1, 3}, 60s);
  text += screen_->Leaving(60s, 2, 30s, false);
  text += screen_->Ended(90s, Succeeded(), 0);
  EXPECT_EQ(text, "");
  EXPECT_THAT(screen_->Ended(90s, Failed(), 1), StartsWith("regroup: train-4 FAILED, exit 1"));
}

TEST_F(RunScreenTest, OthersCannotBeToldALoopbackAddress) {
  LaunchConfig launch = Launch();
  launch.spec.min_nodes = launch.spec.max_nodes = 4;
  Reset(launch);
  RunStart start = Start();
  start.coordinator = Address{"127.0.0.1", 29400};
  (void)screen_->Started(0s, start);
  EXPECT_THAT(
      On(Waits{BelowMinimum{1, 4, 0s, {}}}),
      StartsWith("regroup: 1 of 4 nodes. On this host again (others cannot reach 127.0.0.1: "
                 "give --rdzv-endpoint an address of this host for those):\n    regroup run"));
}

TEST_F(RunScreenTest, WhatIsLeftOfAHoldGoesDown) {
  (void)screen_->Started(0s, Start());
  (void)On(GenerationFormed{Generation(1), 2, 2, 3ms, {}}, 0s);
  EXPECT_EQ(On(Waits{FinishHold{"node2", 60s}}, 10s),
            "regroup: waiting: node2 silent at the end, 1m00s\n");
  EXPECT_EQ(screen_->Tick(40s), "regroup: waiting for 30s: node2 silent at the end, 30 s\n");
  EXPECT_EQ(On(Waits{FinishHold{"node2", 60s}}, 60s), "") << "of the same kind, and longer";
  EXPECT_EQ(screen_->Tick(75s), "regroup: waiting for 1m05s: node2 silent at the end, 45 s\n");
}

TEST_F(RunScreenTest, WaitingTellsEachArrivalAndEveryThirtySeconds) {
  LaunchConfig launch = Launch();
  launch.spec.min_nodes = launch.spec.max_nodes = 4;
  Reset(launch);
  (void)screen_->Started(0s, Start());
  EXPECT_THAT(On(Waits{BelowMinimum{1, 4, 0s, {}}}),
              StartsWith("regroup: 1 of 4 nodes. On the others:\n    regroup run"));
  EXPECT_EQ(On(NodeJoined{"node1", 2, 4, 4}, 3s), "regroup: node1 joined · 2 of 4 nodes\n");
  EXPECT_EQ(On(Waits{BelowMinimum{2, 4, 3s, {}}}, 3s), "");  // Not taught twice.
  EXPECT_EQ(screen_->NextTick(), Duration(30s));
  EXPECT_EQ(screen_->Tick(29s), "");
  EXPECT_EQ(screen_->Tick(30s), "regroup: 2 of 4 nodes for 30s · waiting for 2 more\n");
  EXPECT_EQ(screen_->Tick(60s), "regroup: 2 of 4 nodes for 1m00s · waiting for 2 more\n");
  EXPECT_EQ(On(Waits{BelowMinimum{3, 4, 61s, {"node3"}}}, 61s), "");
  EXPECT_EQ(screen_->Tick(90s), "regroup: 3 of 4 nodes for 1m30s · waiting for node3\n");
  (void)On(GenerationFormed{Generation(1), 4, 8, 3ms, {}}, 91s);
  EXPECT_EQ(screen_->NextTick(), std::nullopt);
}

TEST_F(RunScreenTest, ArrivalOfANodeThatIsNotNeededYetIsToldWithinASecond) {
  (void)screen_->Started(0s, Start());
  (void)On(GenerationFormed{Generation(1), 2, 4, 3ms, {}});
  EXPECT_EQ(On(NodeJoined{"node2", 3, 2, 3}, 10s), "");
  EXPECT_EQ(screen_->NextTick(), Duration(11s));
  EXPECT_EQ(screen_->Tick(11s), "regroup: node2 joined · 3 of 2:3 nodes\n");
  (void)On(NodeJoined{"node2", 3, 2, 3}, 20s);
  EXPECT_EQ(On(GenerationEnded{Generation(1), Resized{2, 3, {"node2"}}, false, 0, 3}, 20s), "");
  EXPECT_EQ(On(GenerationFormed{Generation(2), 3, 6, 3ms, {}}, 20s), "");
  EXPECT_EQ(On(GenerationRunning{Generation(2), Phases()}, 20s),
            "regroup: node2 joined · generation 2 · 3 nodes, world 6 · down 0.31 s (detect .004 "
            "stop .22 form .03 spawn .05)\n");
  (void)On(GenerationFormed{Generation(3), 3, 6, 3ms, {}}, 30s);
  EXPECT_EQ(On(GenerationRunning{Generation(3), Phases(), 5}, 30s),
            "regroup: generation 3 · world 6 · 5 ranks kept · down 0.31 s (detect .004 stop .22 "
            "form .03 spawn .05)\n");
}

TEST_F(RunScreenTest, SpareNodesAreToldApart) {
  (void)screen_->Started(0s, Start());
  (void)On(GenerationFormed{Generation(1), 3, 6, 3ms, {"node1", "node2", "node3"}});
  EXPECT_EQ(On(NodeJoined{"node0", 4, 2, 3}, 1s) + On(NodeJoined{"node4", 5, 2, 3}, 1s), "");
  EXPECT_EQ(screen_->Tick(2s),
            "regroup: node4 joined as a spare · 5 of 2:3 nodes\n"
            "regroup: this node waits as a spare · 4 of 2:3 nodes\n");
  EXPECT_EQ(screen_->NextTick(), std::nullopt);
  // Which of those that come at once is one too many is known once a group has formed.
  EXPECT_EQ(On(NodeJoined{"node0", 4, 2, 3}, 10s), "");
  EXPECT_EQ(On(GenerationFormed{Generation(2), 3, 6, 3ms, {"node1", "node2", "node4"}}, 10s), "");
  EXPECT_EQ(screen_->Tick(11s), "regroup: this node waits as a spare · 4 of 2:3 nodes\n");
  EXPECT_EQ(On(NodeJoined{"node0", 4, 2, 3}, 20s), "");
  EXPECT_EQ(On(GenerationFormed{Generation(3), 3, 6, 3ms, {"node0", "node1", "node2"}}, 20s), "");
  EXPECT_EQ(screen_->NextTick(), std::nullopt);
}

TEST_F(RunScreenTest, LastRestartIsToldOnceItIsKnownNotToBeTheEnd) {
  (void)screen_->Started(0s, Start());
  (void)On(GenerationFormed{Generation(1), 2, 4, 3ms, {}});
  EXPECT_EQ(On(GenerationEnded{Generation(1), WorkerFailed{Killed()}, true, 3, 3}, 5s), "");
  EXPECT_EQ(On(GenerationFormed{Generation(2), 2, 4, 3ms, {}}, 5s),
            "regroup: node1 rank 3: SIGKILL, not by us, no OOM kill counted · restart 3 of 3\n");
  EXPECT_EQ(
      On(GenerationEnded{Generation(2), NodeLost{"node1", "connection refused", 0s}, false, 3, 3},
         6s),
      "regroup: node1 lost (connection refused)\n");
}

TEST_F(RunScreenTest, RepeatedEventsAreSilent) {
  JobEvent event{1, {}, NodeLeft{"node1", "SIGTERM"}};
  EXPECT_EQ(screen_->OnEvent(0s, event), "regroup: node1 left: SIGTERM\n");
  EXPECT_EQ(screen_->OnEvent(0s, event), "");
  event = {2, {}, NodeLeft{"node1", "every port is in use", true}};
  EXPECT_EQ(screen_->OnEvent(0s, event), "regroup: node1 cannot prepare: every port is in use\n");
}

TEST_F(RunScreenTest, UnreachableCoordinatorIsPatientAndVisible) {
  EXPECT_EQ(
      screen_->CoordinatorAway(0s, "connection refused"),
      "regroup: the coordinator node0:29400 does not answer (connection refused); trying again\n");
  EXPECT_EQ(screen_->CoordinatorAway(1s, "connection refused"), "");
  EXPECT_EQ(screen_->Tick(30s),
            "regroup: the coordinator node0:29400 has not answered for 30 s (connection refused); "
            "trying again\n");
  EXPECT_THAT(screen_->JoinTimedOut(30s),
              HasSubstr("\nbecause: the coordinator node0:29400 has not answered for 30 s "
                        "(connection refused)\ntry: "));
  EXPECT_THAT(screen_->Started(31s, Start()), HasSubstr("regroup: train-4 · coordinator"));
  // A coordinator that is restarted quickly is nobody's business.
  EXPECT_EQ(screen_->CoordinatorAway(40s, "reset"), "");
  EXPECT_EQ(screen_->NextTick(), Duration(42s));
  EXPECT_EQ(screen_->CoordinatorBack(41s), "");
  EXPECT_EQ(screen_->CoordinatorAway(50s, "reset"), "");
  EXPECT_EQ(
      screen_->Tick(52s),
      "regroup: the coordinator 10.0.0.4:29400 has not answered for 2.0 s (reset); waiting for "
      "it, workers are left alone\n");
  // What it can't do by itself: come back on a host that died.
  EXPECT_EQ(screen_->CoordinatorAway(60s, "no route to host"), "");
  EXPECT_EQ(screen_->Tick(82s),
            "regroup: the coordinator 10.0.0.4:29400 has not answered for 32 s (no route to host); "
            "waiting for it, workers are left alone · if its host died: start it there again\n");
  EXPECT_EQ(screen_->CoordinatorBack(85s), "regroup: the coordinator answers again after 35 s\n");
}

TEST_F(RunScreenTest, OtherEnds) {
  JobView view = Succeeded();
  view.state = "cancelled";
  view.failed = CancelledBy{"Ctrl-C on node0", 2};
  EXPECT_EQ(screen_->Ended(1s, view, 130),
            "regroup: train-4 cancelled by Ctrl-C on node0 (SIGINT) · 14m02s · 2 generations, 1 "
            "restart · regroup explain train-4\n");
  view.state = "preempted";
  view.committed_step = 96;
  EXPECT_THAT(screen_->Ended(1s, view, 143), HasSubstr("the same command goes on from step 96"));
  view = Failed();
  view.exit_code = 130;
  std::get<WorkerFailed>(*view.generations[0].ended).cause.exit.code = 130;
  EXPECT_THAT(screen_->Ended(1s, view, 130), ::testing::EndsWith("regroup: worker exit 130\n"));
}

TEST_F(RunScreenTest, LeavingIsToldTwice) {
  EXPECT_EQ(screen_->LeftJob(0s), "regroup: this node has left before it had a job\n");
  (void)screen_->Started(0s, Start());
  EXPECT_EQ(
      screen_->Leaving(1s, 2, 30s, false),
      "regroup: SIGINT · this node leaves, its workers have 30 s · once more to kill them now\n");
  EXPECT_EQ(screen_->Leaving(2s, 2, 0s, true),
            "regroup: SIGINT again · killing this node's workers now\n");
  EXPECT_EQ(screen_->LeftJob(3s),
            "regroup: this node has left train-4 · regroup explain train-4\n");
}

TEST_F(RunScreenTest, AsciiHasNoOtherBytes) {
  TextStyle ascii;
  ascii.utf8 = false;
  Reset(Launch(), ascii);
  JobView view = Failed();
  std::get<WorkerFailed>(*view.generations[0].ended).cause.exit.error =
      "\x1b]0;title\x07 gr\xc3\xbc\xc3\x9f \xff\n";
  std::string text = screen_->Started(0s, Start()) + On(Waits{BelowMinimum{1, 2, 0s, {}}}) +
                     screen_->Ended(1s, view, 1);
  for (unsigned char c : text) {
    EXPECT_TRUE(c == '\n' || (c >= 32 && c < 127)) << int{c};
  }
}

TEST(CommandForOthers, FitsAndQuotes) {
  LaunchConfig launch = Launch();
  launch.others_program = {"-m", "pkg.train", "--name", "it's a run", "--lr=3e-4"};
  EXPECT_EQ(CommandForOthers(launch, {"fd00::4", 29400}, "", 80),
            "    regroup run --nnodes 2:3 --nproc-per-node 2 --max-restarts 3 \\\n"
            "      --rdzv-endpoint [fd00::4]:29400 --rdzv-id train --insecure -m pkg.train \\\n"
            "      --name 'it'\\''s a run' --lr=3e-4\n");
}

TEST(CommandForOthers, ShowsTheTokenThatTheyNeed) {
  LaunchConfig launch = Launch();
  launch.insecure = false;
  EXPECT_EQ(CommandForOthers(launch, {"10.0.0.4", 29500}, "secret", 200),
            "    REGROUP_TOKEN=secret regroup run --nnodes 2:3 --nproc-per-node 2 --max-restarts 3 "
            "--rdzv-endpoint 10.0.0.4:29500 --rdzv-id train train.py\n");
  EXPECT_EQ(CommandForOthers(launch, {"127.0.0.1", 29500}, "secret", 200).find("secret"),
            std::string::npos);
}

TEST(CommandForOthers, OfTorchrunNamesItsIdAndNothingImplied) {
  LaunchConfig launch = Launch();
  launch.others_command = {"regroup-torchrun"};
  launch.insecure = launch.insecure_implied = true;
  launch.worker.run_id = "Run 1";
  EXPECT_EQ(CommandForOthers(launch, {"10.0.0.4", 29500}, "", 200),
            "    regroup-torchrun --nnodes 2:3 --nproc-per-node 2 --max-restarts 3 "
            "--rdzv-endpoint 10.0.0.4:29500 --rdzv-id 'Run 1' train.py\n");
}

TEST(FailureReport, LongStderrIsCutAtItsBeginning) {
  JobView view = Failed();
  std::string& error = std::get<WorkerFailed>(*view.generations[0].ended).cause.exit.error;
  error.clear();
  for (int i = 0; i < 100; ++i) error += "line " + std::to_string(i) + "\n";
  std::string text = FailureReport(view, {});
  EXPECT_THAT(text, HasSubstr("| (40 lines before)\n"));
  EXPECT_THAT(text, HasSubstr("| line 99\n"));
  EXPECT_THAT(text, ::testing::Not(HasSubstr("| line 39\n")));
}

TEST(FailureReport, WithoutAnyGeneration) {
  JobView view = Failed();
  view.generations.clear();
  view.failed = NotExecutable{13, "./train"};
  EXPECT_EQ(FailureReport(view, {}),
            "regroup: train-4 FAILED, exit 1 · ./train could not be started: Permission denied\n"
            "  root cause  ./train could not be started on the nodes: Permission denied.\n"
            "  look        regroup explain train-4\n");
}

}  // namespace
}  // namespace regroup
