#include "agent/shim/protocol.h"

#include <gmock/gmock.h>

#include "agent/shim/wire.h"
#include "common/base/rng.h"

namespace regroup::shim {
namespace {

Spec FullSpec() {
  Spec spec;
  spec.role = Role::kStore;
  spec.nonce = "00ff";
  spec.boot = BootId("boot");
  spec.cluster = ClusterId("cluster");
  spec.epoch = Epoch(7);
  spec.node = NodeId("node");
  spec.job = JobId("train-4");
  spec.generation = Generation(1ull << 40);
  spec.workers = 8;
  spec.command = {"python", "train.py", "", "a\nb"};
  spec.environment = {"A=1", "B=x=y\n\x01"};
  spec.directory = "/shared/gpt";
  spec.umask = 027;
  spec.log_root = "/logs";
  spec.log_limits = {.segment_bytes = 1 << 16, .segments = 3};
  spec.passing = "/run/passing";
  spec.cgroup = "/sys/fs/cgroup/x";
  spec.lifeline_grace = std::chrono::milliseconds(1500);
  spec.unkillable_after = std::chrono::milliseconds(250);
  spec.limits = {{7, 100, ~0ull}};
  spec.oom_score_adj = 500;
  spec.store_members = {"10.0.0.1", "::1"};
  spec.agent_data = std::string("\0\1\2", 3);
  spec.keeps_ranks = true;
  spec.log_patience = std::chrono::seconds(7);
  return spec;
}

State FullState() {
  State state;
  state.nonce = "00ff";
  state.shim_pid = 42;
  state.phase = Phase::kUnkillable;
  state.ever_started = true;
  RankState rank;
  rank.local_rank = 1;
  rank.rank = 9;
  rank.phase = RankPhase::kEnded;
  rank.pid = 77;
  rank.start_ticks = 1234567;
  rank.started_at = Instant(Duration(5));
  rank.ended_at = Instant(Duration(1ll << 60));
  rank.exit_kind = ExitKind::kExecFailed;
  rank.code = 13;
  rank.exec_stage = "exec";
  rank.after_stop = true;
  rank.oom = OomEvidence::kProbable;
  rank.logs_complete = true;
  rank.inherited = true;
  state.ranks = {RankState{}, rank};
  state.stop_deadline = Instant(Duration(99));
  state.left = {1, 2, 3};
  state.cgroup_used = true;
  state.output_bytes = 1ull << 50;
  state.lost_log_bytes = 5;
  state.log_trouble = "disk full";
  state.unshown_bytes = 6;
  state.disk_full = true;
  return state;
}

TEST(ShimProtocol, SpecRoundTrips) {
  const Spec spec = FullSpec();
  absl::StatusOr<Spec> back = DecodeSpec(Encode(spec));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(Encode(*back), Encode(spec));  // Every field is encoded.
  EXPECT_EQ(back->command, spec.command);
  EXPECT_EQ(back->environment, spec.environment);
  EXPECT_EQ(back->limits, spec.limits);
  EXPECT_EQ(back->oom_score_adj, 500);
  EXPECT_EQ(back->unkillable_after, spec.unkillable_after);
  EXPECT_EQ(back->agent_data, spec.agent_data);
  EXPECT_EQ(back->log_patience, spec.log_patience);
  EXPECT_EQ(back->generation, spec.generation);
}

TEST(ShimProtocol, AKeptRankIsAnEndedOneToOlderPrograms) {
  State state = FullState();
  state.ranks[0].phase = RankPhase::kKept;
  state.ranks[1].phase = RankPhase::kRunning;
  const std::string bytes = Encode(state);
  absl::StatusOr<State> back = DecodeState(bytes);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, state);
  // As one reads it that knows the numbers 0 to 3 alone.
  FieldReader in(std::string_view(bytes).substr(1));
  std::vector<std::int64_t> phases;
  while (in.Next()) {
    if (in.tag() != 6) continue;
    FieldReader rank(in.bytes());
    while (rank.Next()) {
      if (rank.tag() == 3) phases.push_back(rank.Int());
    }
  }
  EXPECT_EQ(phases, (std::vector<std::int64_t>{3, 2}));
}

TEST(ShimProtocol, StateRoundTrips) {
  absl::StatusOr<State> back = DecodeState(Encode(FullState()));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, FullState());
}

TEST(ShimProtocol, CommandsRoundTrip) {
  const std::vector<Command> commands = {
      Hello{.version = kShimProtocol, .nonce = "n", .wants_output = true},
      StartRanks{{{.local_rank = 0, .rank = 4, .environment = {"RANK=4"}, .cpus = {0, 3}},
                  {.local_rank = 1,
                   .rank = 5,
                   .environment = {},
                   .cpus = {},
                   .command = {"train", "5", ""}}}},
      Stop{.deadline = Instant(Duration(123)), .signal = 2},
      Kill{},
      Query{},
      Shown{{{0, true, {3, 1ull << 40}}, {1, false, io::kNotAwaited}}, 7},
      Adopt{.with_stdin = true}};
  for (const Command& command : commands) {
    absl::StatusOr<Command> back = DecodeCommand(Encode(command));
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(back->index(), command.index());
    EXPECT_EQ(Encode(*back), Encode(command));
  }
}

TEST(ShimProtocol, UnknownFieldsAreSkippedOtherVersionsAreNot) {
  FieldWriter extra;
  extra.Bytes(999, "from a later release");
  EXPECT_TRUE(DecodeSpec(Encode(FullSpec()) + extra.Take()).ok());
  State state = FullState();
  state.version = kShimProtocol + 1;
  EXPECT_TRUE(absl::IsFailedPrecondition(DecodeState(Encode(state)).status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(
      DecodeCommand(Encode(Command(Hello{.version = 0, .nonce = "n"}))).status()));
  EXPECT_TRUE(absl::IsUnimplemented(DecodeCommand("\x7f").status()));
}

TEST(ShimProtocol, DamagedBytesAreRefusedNotObeyed) {
  const std::string spec = Encode(FullSpec()), state = Encode(FullState());
  for (std::size_t size = 0; size < spec.size(); ++size) {
    DecodeSpec(spec.substr(0, size))
        .status()
        .IgnoreError();  // A cut at a field's end is a shorter spec; no crash.
  }
  EXPECT_FALSE(DecodeSpec("").ok());
  EXPECT_FALSE(DecodeSpec(state).ok());
  Rng rng(3);
  for (int i = 0; i < 3000; ++i) {
    std::string bytes = state;
    bytes[rng.Below(bytes.size())] = static_cast<char>(rng.Below(256));
    DecodeState(bytes).status().IgnoreError();
    DecodeCommand(bytes).status().IgnoreError();
  }
}

TEST(ShimProtocol, Frames) {
  std::string buffer = Frame("one") + Frame("") + Frame("three").substr(0, 6);
  EXPECT_THAT(*TakeFrames(buffer), testing::ElementsAre("one", ""));
  buffer += "ree";
  EXPECT_THAT(*TakeFrames(buffer), testing::ElementsAre("three"));
  EXPECT_TRUE(buffer.empty());
  buffer = std::string("\xff\xff\xff\xff", 4);
  EXPECT_FALSE(TakeFrames(buffer).ok());
}

TEST(ShimProtocol, EnvironmentOfARank) {
  Spec spec;
  spec.nonce = "abc";
  spec.environment = {"PATH=/bin", "RANK=old", "EMPTY="};
  RankPlan plan{.local_rank = 0, .rank = 3, .environment = {"RANK=3", "NEW=a=b"}, .cpus = {}};
  EXPECT_THAT(RankEnvironment(spec, plan), testing::ElementsAre("EMPTY=", "NEW=a=b", "PATH=/bin",
                                                                "RANK=3", "REGROUP_GROUP=abc"));
}

}  // namespace
}  // namespace regroup::shim
