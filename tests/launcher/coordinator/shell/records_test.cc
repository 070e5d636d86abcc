#include "launcher/coordinator/shell/records.h"

#include <gmock/gmock.h>

#include "common/base/user_error.h"
#include "common/rpc/convert.h"

namespace regroup::coordinator {
namespace {

using ::testing::HasSubstr;

JobSpec Spec() {
  JobSpec spec;
  spec.name = "train";
  spec.origin = JobOrigin::kLaunched;
  spec.min_nodes = 2;
  spec.max_nodes = 6;
  spec.unit = 2;
  spec.workers_per_node = 8;
  spec.command = {"python", std::string("\xff\x01", 2), ""};
  spec.directory = "/work/\xfe";
  spec.environment = {{"A", "1"}, {"B", ""}};
  spec.grace = std::chrono::seconds(7);
  spec.start_timeout = std::chrono::seconds(8);
  spec.max_restarts = 9;
  spec.restart_window = std::chrono::hours(1);
  spec.max_preemptions = 4;
  spec.exit_codes = {{77, ExitAction::kFail}, {3, ExitAction::kRetry}};
  spec.scale_up = ScaleUp::kNever;
  spec.price_per_node_hour = 2.5;
  spec.role = "trainer";
  spec.numa_binding = "node";
  spec.virtual_local_rank = true;
  spec.sets_master_port = true;
  return spec;
}

RankCause Cause() {
  RankCause cause;
  cause.node = "node1";
  cause.rank = 3;
  cause.local_rank = 1;
  cause.exit = {1,    ExitKind::kSignaled,           9,      true, OomEvidence::kProbable,
                4121, std::chrono::milliseconds(12), "\xc3("};
  cause.at = WallTime(std::chrono::microseconds(1'700'000'000'000'001));
  return cause;
}

// The bytes of a row decoded and encoded again; equal bytes mean that no field was lost, since
// every field below is set to something else than its default.
void ExpectRoundTrip(const Row& row) {
  const JournalRow encoded = EncodeRow(row);
  ASSERT_TRUE(encoded.value.has_value());
  const JournalRow rows[] = {encoded};
  std::vector<std::string> left_out;
  const auto decoded = DecodeRows(rows, &left_out);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_TRUE(CheckReadable(row, encoded).ok());
  ASSERT_EQ(decoded->size(), 1u);
  EXPECT_EQ(decoded->front().key, row.key);
  EXPECT_EQ(decoded->front().value->index(), row.value->index());
  EXPECT_EQ(EncodeRow(decoded->front()), encoded);
}

TEST(Records, EveryKindOfRowSurvives) {
  const JobId job("train-4");
  const NodeId node("n1");
  const WallTime at(std::chrono::microseconds(1'700'000'000'000'007));
  ExpectRoundTrip({MetaKey(), MetaRow{ClusterId("c"), Epoch(7), 1, Epoch(9)}});

  NodeRow node_row{node, "node1", true, Incarnation(3), BootId("b"), "10.0.0.4", "10.0.0.1", 8,
                   true, true,    {},   true,           "silent",    {},         {}};
  node_row.version = {1, 2, "build"};
  node_row.launch = NodeLaunch{"key", job, 4, true};
  node_row.taken = {{job, Generation(2), 8, true}};
  ExpectRoundTrip({NodeKey(node), node_row});

  ExpectRoundTrip({JobSpecKey(job), JobSpecRow{job, 4, Spec(), "key", true, at}});

  JobStateRow state;
  state.job = job;
  state.phase = JobPhase::kEnding;
  state.last_number = Generation(5);
  state.last_formed = Generation(4);
  state.verdict = Verdict{VerdictState::kFailed, 3, FailReason(BudgetSpent{3, 3})};
  state.cancel.key = "cancel";
  state.cancel.now = true;
  state.ends = {3, {std::chrono::seconds(1), std::chrono::seconds(2)}, 2, 1, 12};
  state.regroups = 4;
  state.reached.step = 812;
  state.growths = 2;
  state.excluded = {{node, "node1", 13, ExecObstacle::kDirectory}};
  state.account = {Duration(1), Duration(2), Duration(3), Duration(4),
                   Duration(5), Duration(6), Duration(7)};
  state.held = {NodeTime(8), NodeTime(9)};
  state.reached.samples = 10;
  state.reached.tokens = 11;
  state.started_at = state.ended_at = at;
  state.ran_for = std::chrono::hours(2);
  ExpectRoundTrip({JobStateKey(job), state});

  GenerationRow generation;
  generation.job = job;
  generation.generation = Generation(4);
  generation.phase = GenerationPhase::kOver;
  generation.voided = true;
  generation.elective = true;
  generation.members = {
      {node, "node1", "10.0.0.4", 2, Address{"10.0.0.4", 3001}, true, {41, 42}, 8}};
  generation.store = Address{"fd00::4", 3000};
  generation.restart_count = 2;
  generation.resume_step = 800;
  generation.proposed_at = at;
  generation.formed_at = generation.ended_at = at;
  generation.ended = EndReason(WorkerFailed{Cause()});
  generation.verdict_open = true;
  generation.charged = true;
  generation.consequences = {Cause()};
  generation.phases = {Duration(1), Duration(2), Duration(3), Duration(4), Duration(5),
                       Duration(6), Duration(7), Duration(8), Duration(9)};
  generation.steps.first = 801;
  generation.steps.last = 0;
  generation.steps.restored = 800;
  ExpectRoundTrip({GenerationKey(job, Generation(4)), generation});

  ExpectRoundTrip({DoneKey(job, node), DoneRow{job, node, Generation(4), {0, 1}}});
  ExpectRoundTrip(
      {CommitKey(job), CommitRow{job, Generation(4), 2, 800, "00ff", "/ckpt/\xff", true, at}});
  ExpectRoundTrip({JobEventKey(job, 3),
                   JobEventRow{job, {3, at, Waits{BelowMinimum{1, 2, Duration(5), {"node2"}}}}}});
}

// A default value of every kind, as a core may well write it.
TEST(Records, RowsOfDefaultsSurvive) {
  JobSpecRow spec;
  spec.spec.name = "a";
  ExpectRoundTrip({"job/a-1/spec", spec});
  ExpectRoundTrip({"job/a-1/state", JobStateRow{}});
  ExpectRoundTrip({"job/a-1/gen/000000000001", GenerationRow{}});
  ExpectRoundTrip({"job/a-1/commit", CommitRow{}});
  ExpectRoundTrip({"job/a-1/done/n", DoneRow{}});
  ExpectRoundTrip({"node/n", NodeRow{}});
}

TEST(Records, DeletionsHaveNoValue) {
  EXPECT_EQ(EncodeRow({"node/n", std::nullopt}), (JournalRow{"node/n", std::nullopt}));
}

TEST(Records, WhatCanNotBeReadIsNamed) {
  std::vector<std::string> left_out;
  const JournalRow unknown_kind[] = {{"job/a-1/song", "x"}};
  EXPECT_THAT(PartsOf(DecodeRows(unknown_kind, &left_out).status()).because,
              HasSubstr("job/a-1/song"));
  const JournalRow garbage[] = {{"node/n", "\xff\xff\xff"}};
  const absl::Status status = DecodeRows(garbage, &left_out).status();
  EXPECT_TRUE(absl::IsDataLoss(status));
  EXPECT_THAT(PartsOf(status).because, HasSubstr("node/n (3 bytes)"));
  EXPECT_TRUE(left_out.empty());
}

// Who would close it could not say why it ended.
TEST(Records, AnOpenVerdictOfWhatHasNotEndedIsDamage) {
  GenerationRow row;
  row.job = JobId("train-1");
  row.generation = Generation(1);
  row.phase = GenerationPhase::kOver;
  row.verdict_open = true;
  const JournalRow rows[] = {EncodeRow({GenerationKey(row.job, row.generation), row})};
  std::vector<std::string> left_out;
  EXPECT_THAT(PartsOf(DecodeRows(rows, &left_out).status()).because,
              HasSubstr("verdict_open: is set, and ended is not"));
}

TEST(Records, AnEventThatCanNotBeReadIsLeftOutAndNamed) {
  const JobEventRow event{JobId("a-1"), {1, WallTime(), NodeLeft{"n", "why", false}}};
  const JournalRow rows[] = {{"job/a-1/event/000001", "\xff\xff\xff"},
                             EncodeRow({"job/a-1/event/000002", event})};
  std::vector<std::string> left_out;
  const auto decoded = DecodeRows(rows, &left_out);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  ASSERT_EQ(decoded->size(), 1u);
  EXPECT_EQ(decoded->front().key, "job/a-1/event/000002");
  EXPECT_THAT(left_out, ::testing::ElementsAre(HasSubstr("job/a-1/event/000001 (3 bytes)")));
}

TEST(Records, WhatCouldNotBeReadAgainIsFound) {
  const JobEventRow event{
      JobId("a-1"), {1, WallTime(), NodeLeft{"n", std::string(kMaxTextBytes + 1, 'x'), false}}};
  const Row row{"job/a-1/event/000001", event};
  EXPECT_THAT(PartsOf(CheckReadable(row, EncodeRow(row))).because,
              HasSubstr("job/a-1/event/000001"));
}

TEST(Records, SumsOfAnEarlierBuildAreCutToWhatCanBeTold) {
  JobStateRow state;
  state.job = JobId("a-1");
  state.account.detect = Duration(9'000'000'000'000'000'000);
  const JournalRow rows[] = {EncodeRow({JobStateKey(state.job), state})};
  std::vector<std::string> left_out;
  const auto decoded = DecodeRows(rows, &left_out);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(std::get<JobStateRow>(*decoded->front().value).account.detect, kMaxDuration);
}

TEST(Records, EpochIsInTheMetaRow) {
  EXPECT_EQ(MetaOf({}).epoch, Epoch(0));
  const Row rows[] = {{"node/n", NodeRow{}},
                      {"meta", MetaRow{ClusterId("c"), Epoch(7), 1, Epoch(0)}}};
  EXPECT_EQ(MetaOf(rows).epoch, Epoch(7));
}

}  // namespace
}  // namespace regroup::coordinator
