// Ranks that are not alike, as real processes: all of them end, with one sentence.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "tests/worker/train/fake_agent.h"
#include "tests/worker/train/train_fixture.h"

namespace regroup::worker {
namespace {

using DisagreementTest = TrainTest;

// What is as it always was is no setting that a record has, and so none that is compared.
TEST_F(DisagreementTest, SettingsThatOneRankWasToldAreNamed) {
  ExpectExits({
      {"another type of what is summed",
       {.flags_of_rank = {{1, {"--reduce-type", "bf16"}}}},
       2,
       WorkerExit::kRanksDisagree,
       "reduce-type is bf16 on rank 1 and the default on rank 0"},
      {"another type of what is added up",
       {.flags_of_rank = {{1, {"--precision", "bf16", "--accumulate-type", "bf16"}},
                          {0, {"--precision", "bf16"}}}},
       2,
       WorkerExit::kRanksDisagree,
       "accumulate-type is bf16 on rank 1 and the default on rank 0"},
      {"another schedule",
       {.flags_of_rank = {{0, {"--lr-schedule", "linear"}}}},
       2,
       WorkerExit::kRanksDisagree,
       "lr-schedule is the default on rank 1 and linear on rank 0"},
  });
}

TEST_F(DisagreementTest, RanksThatWereToldDifferentThingsAllSaySo) {
  ExpectExits({
      {"other settings",
       {.flags_of_rank = {{1, {"--seed", "2"}}}},
       2,
       WorkerExit::kRanksDisagree,
       "seed is 2 on rank 1 and 1 on rank 0"},
      {"other micro-batches",
       {.flags_of_rank = {{1, {"--micro-batch", "3"}}}},
       2,
       WorkerExit::kRanksDisagree,
       "micro-batch is 3 on rank 1 and 2 on rank 0"},
      {"another strategy",
       {.flags_of_rank = {{1, {"--strategy", "zero-2"}}}},
       2,
       WorkerExit::kRanksDisagree,
       "strategy is zero-2 on rank 1 and ddp on rank 0"},
      {"another precision",
       {.flags_of_rank = {{1, {"--precision", "f16"}}}},
       2,
       WorkerExit::kRanksDisagree,
       "precision is f16 on rank 1 and f32 on rank 0"},
      {"other recomputation",
       {.flags_of_rank = {{1, {"--recompute", "full"}}}},
       2,
       WorkerExit::kRanksDisagree,
       "recompute is full on rank 1 and none on rank 0"},
      {"another optimizer",
       {.flags_of_rank = {{1, {"--optimizer", "lamb"}}}},
       2,
       WorkerExit::kRanksDisagree,
       "optimizer is lamb on rank 1 and adamw on rank 0"},
      {"another rhythm of validation",
       {.flags_of_rank = {{1, {"--eval-every", "7"}}}},
       2,
       WorkerExit::kRanksDisagree,
       "eval-every is 7 on rank 1 and 100 on rank 0"},
      {"other validation data",
       {.flags = {"--eval-data", directory_ / "data.txt"},
        .flags_of_rank = {{1, {"--eval-data", REGROUP_READ_CHECKPOINT}}}},
       2,
       WorkerExit::kRanksDisagree,
       "eval-data has the hash "},
      {"other data",
       {.flags_of_rank = {{1, {"--data", REGROUP_READ_CHECKPOINT}}}},
       2,
       WorkerExit::kRanksDisagree,
       "data has the hash "},
      {"other kernels",
       {.flags_of_rank = {{1, {"--kernels", "baseline"}}}},
       3,
       WorkerExit::kRanksDisagree,
       "rank 1 would compute with other kernels than rank 0"},
      {"other checkpoint directories",
       {.flags = Checkpoints("here"), .flags_of_rank = {{1, Checkpoints("there")}}},
       2,
       WorkerExit::kRanksDisagree,
       "rank 1 would keep its checkpoints elsewhere"},
      {"other steps to save at",
       {.flags = Checkpoints("here"), .flags_of_rank = {{1, {"--checkpoint-every", "5"}}}},
       2,
       WorkerExit::kRanksDisagree,
       "/here, every 4 steps"},
      {"checkpoints of one rank only",
       {.flags_of_rank = {{1, Checkpoints("there")}}},
       2,
       WorkerExit::kRanksDisagree,
       "without checkpoints"},
  });
}

// An agent stops all others as soon as one has ended.
TEST_F(DisagreementTest, NoneEndsBeforeAllHaveSaidWhy) {
  constexpr int kWorld = 8;
  for (int round = 0; round < 4; ++round) {
    Group group(*this, kWorld, {.flags_of_rank = {{kWorld - 1, {"--seed", "2"}}}});
    siginfo_t first{};
    ASSERT_EQ(waitid(P_ALL, 0, &first, WEXITED | WNOWAIT), 0);
    for (int r = 0; r < kWorld; ++r) group.Kill(r, SIGKILL);
    (void)group.WaitAll();
    for (int r = 0; r < kWorld; ++r) {
      EXPECT_NE(group.Output(r).find("seed is 2 on rank 7 and 1 on rank 0"), std::string::npos)
          << r << ": " << group.Output(r);
    }
  }
}

// The same program but for the ID that its linker gave it.
std::string ProgramOfAnotherBuild() {
  std::string program = ReadAll(REGROUP_WORKER);
  const std::string note("\x03\0\0\0GNU\0", 8);  // The type and name of the note of the ID.
  const std::size_t at = program.find(note);
  CHECK(at != std::string::npos);
  program[at + note.size()] = static_cast<char>(~program[at + note.size()]);
  return program;
}

TEST_F(DisagreementTest, RanksOfTwoBuildsFormNoGroup) {
  const std::string other = directory_ / "other-build";
  WriteAll(other, ProgramOfAnotherBuild());
  std::filesystem::permissions(other, std::filesystem::perms::owner_all);
  ExpectExits({{"another build",
                {.program_of_rank = {{1, other}}},
                2,
                WorkerExit::kGroupNotFormed,
                "all ranks run one build of the program"}});
}

// One bit of one rank's weights: what was saved before stays, nothing is saved of it afterwards.
TEST_F(DisagreementTest, ReplicasThatDifferAreNeverSaved) {
  // Of four in groups of two, two hold the same.
  for (const int world : {2, 3, 4}) {
    const std::string name = "w" + std::to_string(world);
    std::vector<std::string> flags = Checkpoints(name);
    if (world == 4) flags.insert(flags.end(), {"--strategy", "zero-3", "--shard-group", "2"});
    Group group(*this, world, {.flags = flags, .mutation = "flip_bit"});
    for (int r = 0; r < world; ++r) {
      EXPECT_EQ(group.Wait(r), static_cast<int>(WorkerExit::kReplicasDiffer));
      const std::string out = group.Output(r);
      const char* const who[] = {"at step 8 rank 1 and the other ranks no longer hold the same",
                                 "at step 8 rank 2 no longer holds what the other ranks hold",
                                 "at step 8 rank 3 and rank 1 no longer hold the same"};
      EXPECT_NE(out.find(who[world - 2]), std::string::npos) << out;
      EXPECT_NE(out.find("of unit "), std::string::npos) << out;
    }
    EXPECT_EQ(NewestStep(name), 4);
    EXPECT_FALSE(std::filesystem::exists(directory_ / (name + "/step-8")));
    Group well(*this, world, {.generation = 2, .flags = Checkpoints(name)});
    for (int code : well.WaitAll()) EXPECT_EQ(code, 0) << well.Output(0);
    EXPECT_NE(well.Output(0).find("resumed from step 4"), std::string::npos) << well.Output(0);
  }
}

// Who leaves waits for no collective: rank 0 finds it out by what the others report.
TEST_F(DisagreementTest, ReplicasThatDifferAreNotSavedForANotice) {
  FakeAgent agent(directory_ / "sock");
  std::vector<std::string> flags = Checkpoints("ckpt", 1'000'000);
  flags.insert(flags.end(), {"--steps", "1000000"});
  Group group(*this, 2, {.flags = flags, .socket = agent.path(), .mutation = "flip_bit"});
  agent.AwaitStep(0, 7);
  agent.Notice(0, 20);
  const auto says = [&](const char* text) {
    return group.Output(0).find(text) != std::string::npos;
  };
  while (!says("saved (") && !says("saved step")) std::this_thread::yield();
  EXPECT_TRUE(says("rank 1 no longer holds the same as rank 0")) << group.Output(0);
  EXPECT_EQ(NewestStep("ckpt"), -1);
  for (int r = 0; r < 2; ++r) group.Kill(r, SIGTERM);
  for (int code : group.WaitAll()) EXPECT_EQ(code, 128 + SIGTERM) << group.Output(0);
}

}  // namespace
}  // namespace regroup::worker
