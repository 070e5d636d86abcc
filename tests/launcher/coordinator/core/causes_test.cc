// PROTOCOL §3: the root cause of a generation's end, told in any order.

#include "launcher/coordinator/core/causes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace regroup::coordinator {
namespace {

using namespace std::chrono_literals;  // NOLINT
using ::testing::SizeIs;

constexpr Instant kStart{10s};

CauseAt Failed(const std::string& node, Duration at) {
  RankCause cause;
  cause.node = node;
  cause.local_rank = 0;
  cause.exit.code = 1;
  return {WorkerFailed{cause}, kStart + at};
}
RankExit Words(ErrorEvidence evidence, const std::string& error) {
  RankExit exit;
  exit.code = 1;
  exit.evidence = evidence;
  exit.error = error;
  return exit;
}
std::string NodeOf(const EndReason& reason) {
  const auto* failed = std::get_if<WorkerFailed>(&reason);
  return failed ? failed->cause.node : "";
}

TEST(Causes, TheFirstFailureIsTheCauseInWhateverOrderItIsTold) {
  Causes causes;
  EXPECT_FALSE(causes.known());
  causes.Fold(Failed("late", 3s));
  causes.Fold(Failed("first", 1s));
  causes.Fold(Failed("middle", 2s));
  EXPECT_EQ(NodeOf(causes.Reason()), "first");
  ASSERT_THAT(causes.consequences, SizeIs(2));
  EXPECT_EQ(causes.consequences[0].second.node, "middle");
  EXPECT_EQ(causes.consequences[1].second.node, "late");
}

TEST(Causes, ALostNodeIsWorseThanAFailureBeforeIt) {
  Causes causes;
  causes.Fold(Failed("a", 0s));
  causes.Fold({NodeLost{"b", "silent", 5s}, kStart + 5s});
  EXPECT_TRUE(std::holds_alternative<NodeLost>(causes.Reason()));
  ASSERT_THAT(causes.consequences, SizeIs(1));
  EXPECT_EQ(causes.consequences[0].second.node, "a");
}

TEST(Causes, EightConsequencesAreKept) {
  Causes causes;
  for (int i = 20; i >= 0; --i) causes.Fold(Failed("n" + std::to_string(i), i * 1s));
  EXPECT_EQ(NodeOf(causes.Reason()), "n0");
  ASSERT_THAT(causes.consequences, SizeIs(8));
  EXPECT_EQ(causes.consequences.back().second.node, "n8");
}

TEST(Causes, WordsThatComeLaterMayShowThatItOnlyLostItsPeer) {
  Causes causes;
  causes.Fold(Failed("victim", 1s));
  causes.Fold(Failed("culprit", 2s));
  EXPECT_EQ(NodeOf(causes.Reason()), "victim");
  EXPECT_TRUE(causes.Learn("victim", Words(ErrorEvidence::kCommunicator, "peer gone")));
  EXPECT_EQ(NodeOf(causes.Reason()), "culprit");
  ASSERT_THAT(causes.consequences, SizeIs(1));
  EXPECT_EQ(causes.consequences[0].second.exit.error, "peer gone");
  EXPECT_FALSE(causes.Learn("stranger", Words(ErrorEvidence::kNone, "x")));
}

TEST(Causes, TheFirstWordsStay) {
  Causes causes;
  causes.Fold(Failed("a", 1s));
  EXPECT_TRUE(causes.Learn("a", Words(ErrorEvidence::kNone, "ValueError: boom")));
  EXPECT_TRUE(causes.Learn("a", Words(ErrorEvidence::kNone, "something else")));
  EXPECT_EQ(std::get<WorkerFailed>(causes.Reason()).cause.exit.error, "ValueError: boom");
}

TEST(Causes, AFallbackCountsOnlyWithoutACause) {
  Causes causes;
  causes.fallback = SupervisorLost{"a"};
  EXPECT_TRUE(causes.known());
  EXPECT_TRUE(std::holds_alternative<SupervisorLost>(causes.Reason()));
  causes.Fold(Failed("b", 1s));
  EXPECT_EQ(NodeOf(causes.Reason()), "b");
}

// Not all ranks hear of a notice in one step: who lost a peer that had been told to go is no fault.
TEST(Causes, ALostPeerThatHadBeenToldToGoIsAPreemption) {
  Causes causes;
  causes.ended_by_notice = "leaver";
  causes.Fold(Failed("b", 1s));
  EXPECT_EQ(NodeOf(causes.Reason()), "b");
  causes.Learn("b", Words(ErrorEvidence::kCommunicator, "peer gone"));
  const EndReason reason = causes.Reason();
  ASSERT_TRUE(std::holds_alternative<Preempted>(reason));
  EXPECT_EQ(std::get<Preempted>(reason).node, "leaver");
}

}  // namespace
}  // namespace regroup::coordinator
