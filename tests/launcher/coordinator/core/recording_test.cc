// The recorder by which two builds are compared: it must see every field, and nothing that differs
// from run to run.

#include "tests/sim/recorder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace regroup {
namespace {

using coordinator::Effects;
using coordinator::NodeRow;
using sim::Record;
using sim::RecordedLife;
using sim::Recording;
using ::testing::HasSubstr;

Effects OneOfEach() {
  Effects effects;
  NodeRow row;
  row.node = NodeId("n1");
  row.taken.push_back({JobId("job-1"), Generation(3), 2, true});
  effects.rows.push_back({coordinator::NodeKey(row.node), row});
  effects.rows.push_back({coordinator::NodeKey(NodeId("n2")), std::nullopt});
  effects.actions.push_back(
      coordinator::Probe{NodeId("n1"), JobId("job-1"), Generation(3), Address{"10.0.0.1", 4000}});
  effects.actions.push_back(coordinator::StepDown{absl::AbortedError("too\nold")});
  effects.notes.push_back({coordinator::Severity::kInfo, "node lost", {{"node", "n1"}}});
  return effects;
}

TEST(Recorder, WritesEveryFieldOfRowsActionsAndNotes) {
  const std::string text = sim::TextOf(OneOfEach());
  EXPECT_THAT(text, HasSubstr(R"(row {"node/n1" 1{"n1" "" 0 0 "" "" "" 1 0 0 {1 0 "" } 0 "" - )"));
  EXPECT_THAT(text, HasSubstr(R"([{"job-1" 3 2 1 } ])"));
  EXPECT_THAT(text, HasSubstr("row {\"node/n2\" - }\n"));
  EXPECT_THAT(text, HasSubstr(R"({"n1" "job-1" 3 {"10.0.0.1" 4000 } })"));
  EXPECT_THAT(text, HasSubstr(R"(too\nold)"));
  EXPECT_THAT(text, HasSubstr("note {1 \"node lost\" [\"node\"=\"n1\" ] }\n"));
}

TEST(Recorder, OneFieldMakesAnotherText) {
  Effects changed = OneOfEach();
  std::get<NodeRow>(*changed.rows[0].value).taken[0].unkillable = false;
  EXPECT_NE(sim::TextOf(changed), sim::TextOf(OneOfEach()));
}

TEST(Recorder, EqualLivesHaveEqualHashes) {
  std::set<std::uint64_t> hashes;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const Recording kept = Record(seed, RecordedLife(seed), /*keep_text=*/true);
    const Recording again = Record(seed, RecordedLife(seed), /*keep_text=*/false);
    EXPECT_EQ(kept.hash, again.hash) << seed;
    EXPECT_GT(kept.steps, 0u);
    EXPECT_THAT(kept.text, HasSubstr("action "));
    hashes.insert(kept.hash);
  }
  EXPECT_EQ(hashes.size(), 20u);
}

// A build that decides anything else prints another hash.
TEST(Recorder, AChangedDecisionChangesTheHash) {
  sim::ChaosOptions options = RecordedLife(2);
  const Recording before = Record(2, options, /*keep_text=*/false);
  options.plant = [](sim::World& world) {
    world.tamper = [](Effects& effects) {
      for (coordinator::Note& note : effects.notes) note.severity = coordinator::Severity::kDebug;
    };
  };
  EXPECT_NE(Record(2, options, /*keep_text=*/false).hash, before.hash);
}

}  // namespace
}  // namespace regroup
