#include "common/report/reasons.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <cerrno>

#include <cerrno>
#include <set>

namespace regroup {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

const ReasonContext kContext{JobId("train-4"), Generation(2), JobOrigin::kLaunched};

template <class Variant>
void Check(const Variant& reason, std::set<std::string_view>& kinds) {
  ReasonText text = Explain(reason, kContext);
  EXPECT_TRUE(kinds.insert(text.kind).second) << text.kind << " names two reasons";
  EXPECT_FALSE(text.kind.empty() || text.brief.empty() || text.next.empty()) << text.kind;
  ASSERT_FALSE(text.sentence.empty()) << text.kind;
  EXPECT_EQ(text.sentence.back(), '.') << text.sentence;
  EXPECT_NE(text.brief.back(), '.') << text.brief;
}

template <class Variant, std::size_t... Index>
void CheckAll(std::set<std::string_view>& kinds, std::index_sequence<Index...>) {
  (Check(Variant(std::in_place_index<Index>), kinds), ...);
}

// Every alternative, also one that is added tomorrow.
TEST(Reasons, EveryOneHasASentenceAndANextStep) {
  std::set<std::string_view> kinds;
  CheckAll<WaitReason>(kinds, std::make_index_sequence<std::variant_size_v<WaitReason>>());
  CheckAll<EndReason>(kinds, std::make_index_sequence<std::variant_size_v<EndReason>>());
  CheckAll<FailReason>(kinds, std::make_index_sequence<std::variant_size_v<FailReason>>());
  EXPECT_EQ(kinds.size(), AllReasonKinds().size());
}

template <class Reason>
void ExpectClean(const Reason& reason) {
  const ReasonText text = Explain(reason, kContext);
  for (const std::string& part : {text.brief, text.sentence, text.next}) {
    for (const char c : part)
      EXPECT_TRUE(static_cast<unsigned char>(c) >= ' ' && c != 0x7f) << part;
    EXPECT_EQ(part.find('\xff'), std::string::npos) << part;
    EXPECT_EQ(part.find("\xc2\x9b"), std::string::npos) << part;
  }
  EXPECT_THAT(text.sentence, HasSubstr("\\x1b]0;pwn\\x07\\x0aFAKE\\xff\\xc2\\x9b2J"));
}

// Whatever can be chosen by who submits, cancels, runs a node or a worker.
TEST(Reasons, ForeignTextIsEscaped) {
  const std::string foreign =
      "a\x1b]0;pwn\x07\nFAKE\xff\xc2\x9b"
      "2J";
  RankCause cause{foreign, 3, 1, {}, {}};
  cause.exit.kind = ExitKind::kExecFailed;
  cause.exit.error = foreign;
  ExpectClean(FailReason(NotExecutable{2, foreign, ExecObstacle::kProgram}));
  ExpectClean(FailReason(CancelledBy{foreign, 0}));
  ExpectClean(EndReason(Cancelled{foreign}));
  ExpectClean(EndReason(NodeLost{"n", foreign, {}}));
  ExpectClean(EndReason(WorkerFailed{cause}));
  ExpectClean(EndReason(ExecFailed{cause}));
  ExpectClean(WaitReason(BackingOff{1, 1s, "n", foreign}));
}

RankCause Cause(ExitKind kind, int code) {
  RankCause cause{"node1", 3, 1, {}, {}};
  cause.exit.kind = kind;
  cause.exit.code = code;
  cause.exit.pid = 48121;
  return cause;
}

struct EndRow {
  EndReason reason;
  std::string brief, sentence, next;
};

TEST(Reasons, EndsNameWhoWhatAndNumbers) {
  RankCause oom = Cause(ExitKind::kSignaled, 9), maybe = oom, ours = oom;
  oom.exit.oom = OomEvidence::kCounted;
  maybe.exit.oom = OomEvidence::kProbable;
  ours.exit.after_stop = true;
  RankCause without_directory = Cause(ExitKind::kExecFailed, 2);
  without_directory.exit.obstacle = ExecObstacle::kDirectory;
  without_directory.exit.error = "working directory /w: No such file or directory";
  RankCause said = Cause(ExitKind::kExited, 7);
  said.exit.error = "Traceback (most recent call last):\n  File\nValueError: \x1b[1mboom\n\n";
  const EndRow rows[] = {
      {WorkerFailed{Cause(ExitKind::kSignaled, 9)},
       "node1 rank 3: SIGKILL, not by us, no OOM kill counted",
       "Rank 3 on node1 (pid 48121) was killed by signal 9. Regroup did not send it and its cgroup "
       "counted no OOM kill: "
       "something else on node1 did.",
       "regroup logs train-4 --generation 2 --rank 3"},
      {WorkerFailed{oom}, "node1 rank 3: SIGKILL, out of memory: its cgroup counted an OOM kill",
       "Rank 3 on node1 (pid 48121) was killed by signal 9: out of memory, its cgroup counted an "
       "OOM kill.",
       "regroup logs train-4 --generation 2 --rank 3"},
      {WorkerFailed{maybe},
       "node1 rank 3: SIGKILL, probably out of memory: the kernel counted an OOM kill",
       "Rank 3 on node1 (pid 48121) was killed by signal 9: probably out of memory, the kernel of "
       "node1 counted an OOM "
       "kill and there is no memory cgroup to tell whose.",
       "regroup logs train-4 --generation 2 --rank 3"},
      {WorkerFailed{ours}, "node1 rank 3: SIGKILL, stopped by us",
       "Rank 3 on node1 (pid 48121) was killed by signal 9. Regroup sent it to stop the group.",
       "regroup logs train-4 --generation 2 --rank 3"},
      {WorkerFailed{Cause(ExitKind::kSignaled, 11)}, "node1 rank 3: SIGSEGV",
       "Rank 3 on node1 (pid 48121) was killed by signal 11 (SIGSEGV).",
       "regroup logs train-4 --generation 2 --rank 3"},
      {WorkerFailed{Cause(ExitKind::kExited, 7)}, "node1 rank 3: exit 7",
       "Rank 3 on node1 (pid 48121) exited with code 7.",
       "regroup logs train-4 --generation 2 --rank 3"},
      {WorkerFailed{said}, "node1 rank 3: exit 7: ValueError: \\x1b[1mboom",
       "Rank 3 on node1 (pid 48121) exited with code 7: ValueError: \\x1b[1mboom.",
       "regroup logs train-4 --generation 2 --rank 3"},
      {ExecFailed{Cause(ExitKind::kExecFailed, 13)},
       "node1 rank 3: could not start: Permission denied",
       "Rank 3 on node1 (pid 48121) could not be started: Permission denied. node1 is left out; it "
       "costs no restart.",
       "is the program there, and executable, on node1?"},
      {ExecFailed{without_directory},
       "node1 rank 3: could not start: its working directory: No such file or directory",
       "Rank 3 on node1 (pid 48121) could not be started: working directory /w: No such file or "
       "directory. node1 is left out; it costs no restart.",
       "make that directory on node1, or give another --workdir"},
      {NodeLost{"node2", "connection refused", 0s}, "node2 lost (connection refused)",
       "node2 was lost: connection refused. Losing a node costs no restart.",
       "regroup nodes node2"},
      {NodeLost{"node2", "silent", 5200ms}, "node2 lost (silent)",
       "node2 was lost: silent, silent for 5.2 s. Losing a node costs no restart.",
       "regroup nodes node2"},
      {Preempted{"node2", true}, "node2 preempted (saved)",
       "node2 was told to leave, and left after a save. It costs no restart.",
       "regroup nodes node2"},
      {Resized{2, 3, {"node2"}}, "2 to 3 nodes: node2 joined",
       "The group went from 2 to 3 nodes: node2 joined. It costs no restart.",
       "regroup explain train-4"}};
  for (const EndRow& row : rows) {
    ReasonText text = Explain(row.reason, kContext);
    EXPECT_EQ(text.brief, row.brief);
    EXPECT_EQ(text.sentence, row.sentence);
    EXPECT_EQ(text.next, row.next);
  }
}

TEST(Reasons, WorkersWereStoppedOrTheirSupervisorDied) {
  const ReasonText died = Explain(EndReason(SupervisorLost{"node2"}), kContext);
  EXPECT_EQ(died.brief, "node2: supervisor of the workers died");
  EXPECT_EQ(died.sentence,
            "The regroup-shim of this job on node2 died, so its workers were killed. It costs no "
            "restart.");
  const ReasonText stopped = Explain(EndReason(SupervisorLost{"node2", true}), kContext);
  EXPECT_EQ(stopped.brief, "node2: workers were stopped");
  EXPECT_EQ(stopped.sentence,
            "The workers of this job on node2 had been told to stop, by a launch command or a "
            "coordinator that is gone; why is not recorded. It costs no restart.");
}

TEST(Reasons, ARankThatLacksSomethingHasNoLogs) {
  const ReasonText text =
      Explain(EndReason(WorkerFailed{Cause(ExitKind::kExecFailed, EAGAIN)}), kContext);
  EXPECT_EQ(text.brief, "node1 rank 3: could not start: Resource temporarily unavailable");
  EXPECT_EQ(text.sentence,
            "Rank 3 on node1 (pid 48121) could not be started: Resource temporarily unavailable.");
  EXPECT_EQ(text.next,
            "what does node1 lack: processes (ulimit -u, pids.max), memory, room on a disk?");
}

TEST(Reasons, ARankThatDidNotGoOnInPlaceWasKilledByItsAgent) {
  RankCause given_up = Cause(ExitKind::kSignaled, 9);
  given_up.exit.given_up = true;
  given_up.exit.error = "it did not take its new generation within 10 s";
  const ReasonText text = Explain(EndReason(WorkerFailed{given_up}), kContext);
  EXPECT_EQ(text.brief,
            "node1 rank 3: SIGKILL by its agent: it did not take its new generation within 10 s");
  EXPECT_EQ(text.sentence,
            "Rank 3 on node1 (pid 48121) was killed by signal 9 by its agent: it did not take its "
            "new generation within 10 s. It costs no restart.");
}

TEST(Reasons, AFailedCheckOfAOneNodeJobAsksForNoOtherNode) {
  EXPECT_EQ(Explain(WaitReason(BelowMinimum{0, 1, 0s, {}}), kContext).next,
            "regroup explain train-4");
  EXPECT_EQ(Explain(WaitReason(BelowMinimum{1, 2, 0s, {}}), kContext).next,
            "start the same command on another node");
  EXPECT_EQ(
      Explain(WaitReason(BackingOff{1, 2s, "a", "its node check exited with 3"}), kContext).next,
      "what its node check says, or start without --node-check");
}

TEST(Reasons, WaitsSpeakOfTheirWorld) {
  WaitReason below = BelowMinimum{2, 4, 3min, {}};
  EXPECT_EQ(Explain(below, {JobId("eval-2"), {}, JobOrigin::kSubmitted}).brief,
            "needs 4 nodes, 2 free");
  EXPECT_EQ(Explain(below, {JobId("eval-2"), {}, JobOrigin::kLaunched}).brief, "2 of 4 nodes");
  EXPECT_EQ(Explain(WaitReason(MembersPreparing{{"node2"}, 1200ms}), kContext).brief,
            "node2 preparing, 1.2 s");
  EXPECT_EQ(Explain(WaitReason(BackingOff{3, 2s, "", ""}), kContext).brief,
            "waiting 2.0 s after 3 failures");
  EXPECT_EQ(Explain(WaitReason(CannotFit{1, 0, 16, 2, "node-a"}), kContext).brief,
            "needs 16 slots on a node; the largest has 2 (node-a)");
  EXPECT_EQ(Explain(WaitReason(CannotFit{10, 3, 1, 2, "node-a"}), kContext).brief,
            "needs 10 nodes, this cluster has 3");
  EXPECT_EQ(Explain(WaitReason(CannotFit{2, 1, kWorkerPerGpu, 8, "node-a"}), kContext).brief,
            "needs 2 nodes whose slots are GPUs, this cluster has 1");
  const ReasonText node =
      Explain(WaitReason(BackingOff{0, 2s, "node2", "no port is free"}), kContext);
  EXPECT_EQ(node.brief, "node2: no port is free, again in 2.0 s");
  EXPECT_EQ(node.sentence,
            "node2 could not prepare a generation: no port is free. It tries again in 2.0 s.");
  EXPECT_EQ(node.next, "regroup nodes node2");
  std::vector<std::string> many(1000, "node");
  EXPECT_THAT(Explain(WaitReason(AwaitReattach{many, 1s}), kContext).sentence,
              HasSubstr(" and 995 more"));
}

}  // namespace
}  // namespace regroup
