// The real program, as many processes as ranks, with a store and an agent of the test.

#include <gtest/gtest.h>
#include <signal.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <tuple>

#include "tests/worker/train/fake_agent.h"
#include "tests/worker/train/train_fixture.h"
#include "worker/checkpoint/owner.h"

namespace regroup::worker {
namespace {

TEST_F(TrainTest, OneTwoAndThreeRanksTrainTheSame) {
  std::map<std::int64_t, double> reference;
  std::map<std::int64_t, std::uint64_t> hashes;
  for (int world : {1, 2, 3}) {
    const std::string name = "w" + std::to_string(world);
    Group group(*this, world, {.flags = Checkpoints(name)});
    for (int code : group.WaitAll()) ASSERT_EQ(code, 0) << group.Output(0);
    std::map<std::int64_t, std::uint64_t> sums;
    std::map<std::int64_t, std::int64_t> counts;
    for (const Consumed& c : Samples(name)) {
      if (world == 1) reference[c.step] = c.loss;
      EXPECT_NEAR(c.loss, reference[c.step], 1e-5) << "world " << world << " step " << c.step;
      sums[c.step] += c.hash;
      counts[c.step] += c.count;
    }
    if (world == 1) hashes = sums;
    EXPECT_EQ(sums, hashes);
    EXPECT_EQ(sums.size(), 12u);
    for (const auto& [step, count] : counts) EXPECT_EQ(count, 7);
    EXPECT_NE(group.Output(0).find("step 12  loss "), std::string::npos);
    EXPECT_EQ(NewestStep(name), 12);
    // Adam divides by the root of a second moment: tiny gradients of noisy sign move weights by
    // ±lr.
    EXPECT_LT(Difference(NewestState(name), NewestState("w1")), 1e-3) << world;
  }
  EXPECT_LT(reference[12], reference[1]);
}

// A node that joins must not end a healthy job for having too few samples.
TEST_F(TrainTest, RanksWithoutASampleTakePart) {
  const auto flags = [&](const std::string& name) {
    std::vector<std::string> all = Checkpoints(name);
    all.insert(all.end(), {"--batch", "2"});
    return all;
  };
  std::map<std::int64_t, double> alone;
  for (const int world : {1, 3}) {
    const std::string name = "w" + std::to_string(world);
    Group group(*this, world, {.flags = flags(name)});
    for (int code : group.WaitAll()) ASSERT_EQ(code, 0) << group.Output(0);
    std::map<std::int64_t, std::int64_t> counts;
    for (const Consumed& c : Samples(name)) {
      if (world == 1) alone[c.step] = c.loss;
      EXPECT_NEAR(c.loss, alone[c.step], 1e-5) << "world " << world << " step " << c.step;
      EXPECT_EQ(c.count, world == 1 ? 2 : c.rank < 2 ? 1 : 0);
      counts[c.step] += c.count;
    }
    EXPECT_EQ(counts.size(), 12u);
    for (const auto& [step, count] : counts) EXPECT_EQ(count, 2) << step;
    const bool said =
        group.Output(0).find("leaves 1 of 3 ranks without a sample") != std::string::npos;
    EXPECT_EQ(said, world == 3) << group.Output(0);
  }
  EXPECT_LT(Difference(NewestState("w3"), NewestState("w1")), 1e-3);
}

// Another program's reader of safetensors, here one of its own, finds the same numbers in the
// files.
TEST_F(TrainTest, CheckpointsArePlainSafetensors) {
  for (const auto& [world, strategy] : {std::pair(1, "ddp"), {3, "ddp"}, {3, "zero-3"}}) {
    const std::string name = std::string(strategy) + std::to_string(world),
                      out = directory_ / (name + ".bin");
    std::vector<std::string> flags = Checkpoints(name);
    flags.insert(flags.end(), {"--strategy", strategy});
    Group group(*this, world, {.flags = flags});
    for (int code : group.WaitAll()) ASSERT_EQ(code, 0) << group.Output(0);
    const std::string command =
        "python3 " REGROUP_READ_CHECKPOINT " '" + directory_ / name + "' '" + out + "'";
    ASSERT_EQ(std::system(command.c_str()), 0);
    const auto state = NewestState(name);
    const Repository repository = *Repository::Open(directory_ / name);
    std::string expected;
    const Manifest manifest = *repository.ReadManifest(12);
    for (const TensorInfo& info : manifest.tensors) {
      const std::vector<float>& values = state.at(info.name);
      expected.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
    }
    EXPECT_EQ(ReadAll(out), expected);
  }
}

std::vector<std::string> With(std::vector<std::string> flags, std::vector<std::string> more) {
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}

// What ranks divide decides where the state lies and nothing else: losses and checkpoints have the
// same bits, and a checkpoint of any strategy is gone on from with any other.
TEST_F(TrainTest, EveryStrategyTrainsToTheSameBitsAndResumesTheOthers) {
  const std::vector<std::string> strategies = {"ddp", "zero-1", "zero-2", "zero-3"};
  for (const int world : {2, 3}) {
    std::map<std::string, std::vector<float>> state;
    std::map<std::int64_t, double> losses;
    for (std::size_t s = 0; s < strategies.size(); ++s) {
      const std::string name = strategies[s] + "-" + std::to_string(world);
      const auto flags = [&](const std::string& strategy) {
        return With(Checkpoints(name), {"--strategy", strategy});
      };
      Group group(*this, world, {.generation = 1, .flags = flags(strategies[s])});
      for (int code : group.WaitAll()) ASSERT_EQ(code, 0) << group.Output(0);
      EXPECT_EQ(group.Output(0).find(strategies[s] + ": rank 0 keeps ") == std::string::npos,
                s == 0)
          << group.Output(0);
      if (s == 0) state = NewestState(name);
      EXPECT_EQ(NewestState(name), state) << name;
      for (const Consumed& c : Samples(name)) {
        if (s == 0) losses[c.step] = c.loss;
        EXPECT_EQ(c.loss, losses.at(c.step)) << name << " step " << c.step;
      }
      // As if it had ended before its last save.
      ASSERT_TRUE(std::filesystem::remove(directory_ / name + "/commits/step-12"));
      const std::string& next = strategies[(s + 1) % strategies.size()];
      Group other(*this, world, {.generation = 2, .flags = flags(next)});
      for (int code : other.WaitAll()) ASSERT_EQ(code, 0) << other.Output(0);
      EXPECT_NE(other.Output(0).find("resumed from step 8"), std::string::npos) << other.Output(0);
      EXPECT_EQ(NewestState(name), state) << name << ", then " << next;
    }
  }
}

// Each group of ranks holds a copy of what its ranks divide.
TEST_F(TrainTest, GroupsTrainToTheSameBitsAndResumeTheOthers) {
  const auto flags = [&](const std::string& name, const std::string& strategy, const char* group) {
    return With(Checkpoints(name), {"--strategy", strategy, "--shard-group", group});
  };
  Group whole(*this, 4, {.flags = flags("whole", "zero-3", "0")});
  for (int code : whole.WaitAll()) ASSERT_EQ(code, 0) << whole.Output(0);
  const auto state = NewestState("whole");
  std::uint64_t generation = 0;
  for (const std::string strategy : {"zero-1", "zero-2", "zero-3"}) {
    Group groups(*this, 4, {.generation = ++generation, .flags = flags(strategy, strategy, "2")});
    for (int code : groups.WaitAll()) ASSERT_EQ(code, 0) << groups.Output(0);
    EXPECT_NE(groups.Output(0).find(strategy + " in 2 groups of 2 ranks: rank 0 keeps "),
              std::string::npos)
        << groups.Output(0);
    EXPECT_EQ(NewestState(strategy), state) << strategy;
    EXPECT_EQ(Repository::Open(directory_ / strategy)->ReadManifest(12)->mesh,
              (MeshInfo{.world = 4, .group = 2, .strategy = strategy}));
    ASSERT_TRUE(std::filesystem::remove(directory_ / (strategy + "/commits/step-12")));
    const char* next = strategy == "zero-2" ? "2" : "0";
    Group other(*this, 4, {.generation = ++generation, .flags = flags(strategy, "zero-3", next)});
    for (int code : other.WaitAll()) ASSERT_EQ(code, 0) << other.Output(0);
    EXPECT_NE(other.Output(0).find("resumed from step 8"), std::string::npos) << other.Output(0);
    EXPECT_EQ(NewestState(strategy), state) << strategy << ", then zero-3";
  }
  ExpectExits({{"three ranks in groups of two",
                {.flags = flags("three", "zero-2", "2")},
                3,
                WorkerExit::kUsage,
                "world 3 is no multiple of the shard group of 2"}});
}

// As above, of numbers of 16 bits: what a checkpoint has of them is in full precision, with how
// often f16's loss scale has changed.
TEST_F(TrainTest, ShortNumbersResumeToTheSameBits) {
  for (const std::string precision : {"bf16", "f16"}) {
    const auto flags = [&](const std::string& name, const std::string& strategy) {
      return With(Checkpoints(name), {"--strategy", strategy, "--precision", precision});
    };
    Group straight(*this, 2, {.flags = flags(precision, "ddp")});
    for (int code : straight.WaitAll()) ASSERT_EQ(code, 0) << straight.Output(0);
    EXPECT_NE(straight.Output(0).find(precision + ": "), std::string::npos) << straight.Output(0);
    const auto state = NewestState(precision);
    const std::string name = precision + "-again";
    Group first(*this, 2, {.generation = 1, .flags = flags(name, "zero-3")});
    for (int code : first.WaitAll()) ASSERT_EQ(code, 0) << first.Output(0);
    EXPECT_EQ(NewestState(name), state);
    ASSERT_TRUE(std::filesystem::remove(directory_ / name + "/commits/step-12"));
    Group second(*this, 2, {.generation = 2, .flags = flags(name, "zero-1")});
    for (int code : second.WaitAll()) ASSERT_EQ(code, 0) << second.Output(0);
    EXPECT_NE(second.Output(0).find("resumed from step 8"), std::string::npos);
    EXPECT_EQ(NewestState(name), state);
    const auto manifest = Repository::Open(directory_ / name)->ReadManifest(12);
    EXPECT_EQ(manifest->counters.count("loss-scale-steps"), precision == "f16" ? 1u : 0u);
    EXPECT_EQ(manifest->settings.at("precision"), precision);
    // And goes on in f32, with a word about it.
    ASSERT_TRUE(std::filesystem::remove(directory_ / name + "/commits/step-12"));
    Group third(*this, 2, {.generation = 3, .flags = Checkpoints(name)});
    for (int code : third.WaitAll()) ASSERT_EQ(code, 0) << third.Output(0);
    EXPECT_NE(third.Output(0).find("precision " + precision + " → f32"), std::string::npos)
        << third.Output(0);
  }
}

// Gradients that are kept in 16 bits too: a step begins and ends without any.
TEST_F(TrainTest, WhatIsAccumulatedInShortNumbersResumesToTheSameBits) {
  const auto flags = [&](const std::string& name, const std::string& strategy) {
    return With(Checkpoints(name), {"--strategy", strategy, "--precision", "bf16",
                                    "--accumulate-type", "bf16", "--micro-batch", "1"});
  };
  Group straight(*this, 2, {.flags = flags("straight", "zero-2")});
  for (int code : straight.WaitAll()) ASSERT_EQ(code, 0) << straight.Output(0);
  const auto state = NewestState("straight");
  const auto settings = Repository::Open(directory_ / "straight")->ReadManifest(12)->settings;
  EXPECT_EQ(settings.at("accumulate-type"), "bf16");
  EXPECT_EQ(settings.at("reduce-type"), "bf16");
  ASSERT_TRUE(std::filesystem::remove(directory_ / "straight/commits/step-12"));
  Group resumed(*this, 2, {.generation = 2, .flags = flags("straight", "ddp")});
  for (int code : resumed.WaitAll()) ASSERT_EQ(code, 0) << resumed.Output(0);
  EXPECT_NE(resumed.Output(0).find("resumed from step 8"), std::string::npos);
  EXPECT_EQ(resumed.Output(0).find("other settings"), std::string::npos) << resumed.Output(0);
  EXPECT_EQ(NewestState("straight"), state);
  // And it is what gradients are added up as: to other bits than floats that are exchanged so.
  Group floats(*this, 2,
               {.generation = 3,
                .flags = With(Checkpoints("floats"), {"--precision", "bf16", "--reduce-type",
                                                      "bf16", "--micro-batch", "1"})});
  for (int code : floats.WaitAll()) ASSERT_EQ(code, 0) << floats.Output(0);
  EXPECT_NE(NewestState("floats"), state);
}

// A rank that owns nothing of so small a model, and one without a sample: a file of no tensor.
TEST_F(TrainTest, MoreRanksThanThereAreBlocksOrSamples) {
  for (const std::string strategy : {"zero-1", "zero-3"}) {
    const auto flags = With(Checkpoints(strategy), {"--strategy", strategy, "--batch", "5"});
    Group group(*this, 6, {.flags = flags});
    for (int code : group.WaitAll()) ASSERT_EQ(code, 0) << group.Output(0);
    EXPECT_EQ(NewestStep(strategy), 12);
    Group alone(*this, 1, {.generation = 2, .flags = With(flags, {"--steps", "13"})});
    EXPECT_EQ(alone.Wait(0), 0) << alone.Output(0);
    EXPECT_NE(alone.Output(0).find("resumed from step 12"), std::string::npos) << alone.Output(0);
  }
}

// One rank is killed without warning after a commit; what goes on from there ends with the same
// bits as a run that was never disturbed.
TEST_F(TrainTest, AKilledRunResumesToTheSameBits) {
  for (const auto& [world, strategy] : {std::pair(1, "ddp"), {2, "ddp"}, {2, "zero-3"}}) {
    const std::vector<std::string> more = {"--steps", "60", "--strategy", strategy};
    const std::string run = strategy + std::to_string(world), straight = "straight-" + run,
                      broken = "broken-" + run;
    Group undisturbed(*this, world, {.flags = With(Checkpoints(straight, 5), more)});
    for (int code : undisturbed.WaitAll()) ASSERT_EQ(code, 0) << undisturbed.Output(0);
    {
      Group first(*this, world, {.generation = 1, .flags = With(Checkpoints(broken, 5), more)});
      while (NewestStep(broken) < 5) std::this_thread::yield();
      first.Kill(world - 1, SIGKILL);
      EXPECT_EQ(first.Wait(world - 1), 128 + SIGKILL);
      if (world == 2) {
        EXPECT_EQ(first.Wait(0), static_cast<int>(WorkerExit::kCommunicatorFailed))
            << first.Output(0);
        EXPECT_NE(first.Output(0).find("rank 1"), std::string::npos) << first.Output(0);
      }
    }
    EXPECT_LT(NewestStep(broken), 60);
    Group second(*this, world, {.generation = 2, .flags = With(Checkpoints(broken, 5), more)});
    for (int code : second.WaitAll()) ASSERT_EQ(code, 0) << second.Output(0);
    EXPECT_NE(second.Output(0).find("resumed from step "), std::string::npos) << second.Output(0);
    EXPECT_EQ(Newest(broken), Newest(straight)) << run;
  }
}

// Killed twice, and each time another number of ranks takes over.
TEST_F(TrainTest, AKilledRunResumesAtOtherWorldSizesOnTheSameCourse) {
  const auto flags = [&](const std::string& name) {
    std::vector<std::string> all = Checkpoints(name, 5);
    all.insert(all.end(), {"--steps", "60"});
    return all;
  };
  Group undisturbed(*this, 2, {.flags = flags("straight")});
  for (int code : undisturbed.WaitAll()) ASSERT_EQ(code, 0) << undisturbed.Output(0);
  std::uint64_t generation = 0;
  for (const int world : {3, 1, 2}) {
    const std::int64_t resumed = std::max<std::int64_t>(0, NewestStep("resized"));
    Group group(*this, world, {.generation = ++generation, .flags = flags("resized")});
    if (generation < 3) {
      while (NewestStep("resized") < resumed + 5) std::this_thread::yield();
      for (int r = 0; r < world; ++r) group.Kill(r, SIGKILL);
      (void)group.WaitAll();
      EXPECT_LT(NewestStep("resized"), 60);
      continue;
    }
    for (int code : group.WaitAll()) ASSERT_EQ(code, 0) << group.Output(0);
    EXPECT_NE(group.Output(0).find("resumed from step "), std::string::npos) << group.Output(0);
  }
  const auto straight = LossesOfLineage("straight"), resized = LossesOfLineage("resized");
  EXPECT_EQ(straight.size(), 60u);
  EXPECT_EQ(resized.size(), 60u);
  for (const auto& [step, loss] : resized) EXPECT_NEAR(loss, straight.at(step), 1e-5) << step;
  EXPECT_LT(Difference(NewestState("resized"), NewestState("straight")), 1e-3);
}

// Notices, each to one rank only: all ranks save after the same step, none goes on, and the next
// world takes over there. The first divides its weights.
TEST_F(TrainTest, NoticesAndResizesLoseAndRepeatNoSample) {
  const std::vector<std::string> steps = {"--steps", "1500"};
  const auto flags = [&](const std::string& name) {
    std::vector<std::string> all = Checkpoints(name, 100);
    all.insert(all.end(), steps.begin(), steps.end());
    return all;
  };
  std::uint64_t generation = 0;
  for (int world : {3, 1, 2}) {
    ++generation;
    const std::int64_t resumed = std::max<std::int64_t>(0, NewestStep("resized"));
    FakeAgent agent(directory_ / "sock");
    Group group(
        *this, world,
        {.generation = generation,
         .flags = With(flags("resized"), {"--strategy", generation == 1 ? "zero-3" : "ddp"}),
         .socket = agent.path()});
    if (generation == 3) {
      for (int code : group.WaitAll()) EXPECT_EQ(code, 0) << group.Output(0);
      break;
    }
    agent.AwaitStep(0, resumed + 3);
    agent.Notice(world - 1, 20);
    agent.Await([&](const auto& said) {
      return std::any_of(said.begin(), said.end(),
                         [](const auto& s) { return s.line.commit().for_notice(); });
    });
    for (int r = 0; r < world; ++r) group.Kill(r, SIGTERM);
    for (int code : group.WaitAll()) EXPECT_EQ(code, 128 + SIGTERM) << group.Output(0);
    EXPECT_GT(NewestStep("resized"), resumed);
  }
  std::map<std::int64_t, std::int64_t> counts, ends;
  for (const Consumed& c : Samples("resized")) {
    counts[c.step] += c.count;
    ends[c.step] = std::max(ends[c.step], c.first + c.count);
  }
  EXPECT_EQ(counts.size(), 1500u);
  EXPECT_EQ(LossesOfLineage("resized").size(), 1500u);
  for (const auto& [step, count] : counts) {
    EXPECT_EQ(count, 7) << "step " << step;
    EXPECT_EQ(ends[step], step * 7);
  }
}

TEST_F(TrainTest, SigtermWithoutANoticeEndsItAtOnce) {
  FakeAgent agent(directory_ / "sock");
  Group group(*this, 1, {.flags = {"--steps", "1000000"}, .socket = agent.path()});
  agent.AwaitStep(0, 1);
  group.Kill(0, SIGTERM);
  EXPECT_EQ(group.Wait(0), 128 + SIGTERM);
}

TEST_F(TrainTest, ALostRankIsToldToTheAgent) {
  FakeAgent agent(directory_ / "sock");
  Group group(*this, 3, {.flags = {"--steps", "1000000"}, .socket = agent.path()});
  for (int r = 0; r < 3; ++r) agent.AwaitStep(r, 1);
  group.Kill(1, SIGKILL);
  for (int r : {0, 2}) EXPECT_EQ(group.Wait(r), static_cast<int>(WorkerExit::kCommunicatorFailed));
  EXPECT_EQ(agent.Count([](const local::WorkerLine& l) {
    return l.communicator_failed().text().find("rank 1") != std::string::npos;
  }),
            2u);
}

TEST_F(TrainTest, ARefusedCommitHarmsNothingUntilTheLast) {
  FakeAgent agent(directory_ / "sock");
  agent.SetJudge([](const local::CommitRequest& request) {
    return request.step() == 4 ? FakeAgent::Accept(request) : FakeAgent::Refuse(request);
  });
  Group group(*this, 2, {.flags = Checkpoints("ckpt"), .socket = agent.path()});
  for (int code : group.WaitAll())
    EXPECT_EQ(code, static_cast<int>(WorkerExit::kLastCheckpointFailed));
  EXPECT_NE(group.Output(0).find("the coordinator refused the commit of step 8"), std::string::npos)
      << group.Output(0);
  EXPECT_NE(group.Output(0).find("step 12  loss"), std::string::npos);
  EXPECT_EQ(NewestStep("ckpt"), 4);
  EXPECT_EQ(AllFiles(directory_ / "ckpt").size(), 4u);  // A record, two files, the owner.
}

// A limit on the size of files stands for the full disk; a world of one shares no memory, which it
// would limit too.
TEST_F(TrainTest, AFullDiskIsAWarningUntilTheLastCheckpoint) {
  Group group(*this, 1, {.flags = Checkpoints("ckpt"), .file_bytes = 4096});
  EXPECT_EQ(group.Wait(0), static_cast<int>(WorkerExit::kLastCheckpointFailed));
  EXPECT_NE(group.Output(0).find("step 12  loss"), std::string::npos) << group.Output(0);
  EXPECT_NE(group.Output(0).find("the checkpoint of step 4 was not saved"), std::string::npos)
      << group.Output(0);
  EXPECT_EQ(AllFiles(directory_ / "ckpt"), std::vector<std::string>{"owner"});
}

TEST_F(TrainTest, AFullDiskOfOneRankLeavesTheCommitsBeforeIt) {
  Group first(*this, 2, {.flags = Checkpoints("ckpt")});
  for (int code : first.WaitAll()) ASSERT_EQ(code, 0) << first.Output(0);
  const std::string before = Newest("ckpt");
  std::vector<std::string> flags = Checkpoints("ckpt");
  flags.insert(flags.end(), {"--steps", "24"});
  Group full(*this, 2, {.generation = 2, .flags = flags, .file_bytes = 4096, .full_rank = 1});
  for (int code : full.WaitAll())
    EXPECT_EQ(code, static_cast<int>(WorkerExit::kLastCheckpointFailed)) << full.Output(0);
  EXPECT_NE(full.Output(0).find("rank 1 could not write its file"), std::string::npos)
      << full.Output(0);
  EXPECT_NE(full.Output(1).find("step 24 was not saved"), std::string::npos) << full.Output(1);
  EXPECT_EQ(NewestStep("ckpt"), 12);
  EXPECT_EQ(Newest("ckpt"), before);
  Group well(*this, 2, {.generation = 3, .flags = flags});
  for (int code : well.WaitAll()) EXPECT_EQ(code, 0) << well.Output(0);
  EXPECT_NE(well.Output(0).find("resumed from step 12"), std::string::npos) << well.Output(0);
  EXPECT_EQ(NewestStep("ckpt"), 24);
}

// The newest checkpoint may be under way still when the loss is lost.
TEST_F(TrainTest, ALossThatIsNotFiniteLosesNoSave) {
  const std::vector<std::string> wild = {"--learning-rate", "1000", "--clip",         "0",
                                         "--steps",         "200",  "--weight-decay", "1000"};
  Group first(*this, 2, {.flags = wild});
  for (int code : first.WaitAll()) ASSERT_EQ(code, static_cast<int>(WorkerExit::kLossNotFinite));
  int lost = 0;
  const std::string said = first.Output(0);
  const std::size_t at = said.find("the loss of step ");
  ASSERT_TRUE(at != std::string::npos &&
              sscanf(said.c_str() + at, "the loss of step %d", &lost) == 1)
      << said;
  ASSERT_GT(lost, 1);
  FakeAgent agent(directory_ / "sock");
  agent.SetJudge(&FakeAgent::KeepSilent);
  std::vector<std::string> flags = Checkpoints("ckpt", 1);
  flags.insert(flags.end(), wild.begin(), wild.end());
  Group group(*this, 2, {.flags = flags, .socket = agent.path()});
  agent.AwaitStep(0, lost - 1);
  agent.Close();  // The ranks ask its successor again.
  agent.SetJudge(&FakeAgent::Accept);
  agent.Open();
  for (int code : group.WaitAll())
    EXPECT_EQ(code, static_cast<int>(WorkerExit::kLossNotFinite)) << group.Output(0);
  EXPECT_GE(NewestStep("ckpt"), 1);
}

// What only one rank meets, in the middle of a step or of the last save, ends all of them.
TEST_F(TrainTest, ARankThatFailsAloneTakesTheOthersAlong) {
  Group group(*this, 3,
              {.flags = {"--sample-log", directory_ / "log", "--steps", "1000000"},
               .file_bytes = 300,
               .full_rank = 1});
  EXPECT_EQ(group.Wait(1), static_cast<int>(WorkerExit::kFailed));
  for (int r : {0, 2}) {
    EXPECT_EQ(group.Wait(r), static_cast<int>(WorkerExit::kCommunicatorFailed));
    EXPECT_NE(group.Output(r).find("rank 1 failed and ended the group"), std::string::npos)
        << group.Output(r);
  }
}

TEST_F(TrainTest, AStoppedRankIsNamedWhenTimeIsUp) {
  FakeAgent agent(directory_ / "sock");
  Group group(
      *this, 2,
      {.flags = {"--steps", "1000000", "--collective-timeout", "1s"}, .socket = agent.path()});
  for (int r = 0; r < 2; ++r) agent.AwaitStep(r, 1);
  group.Kill(1, SIGSTOP);
  EXPECT_EQ(group.Wait(0), static_cast<int>(WorkerExit::kCommunicatorFailed));
  EXPECT_NE(group.Output(0).find("has waited for rank 1"), std::string::npos) << group.Output(0);
}

TEST_F(TrainTest, ARankLostBeforeTheLastCommitIsNoticed) {
  for (const int victim : {0, 1}) {
    FakeAgent agent(directory_ / ("sock" + std::to_string(victim)));
    agent.SetJudge(&FakeAgent::KeepSilent);
    Group group(
        *this, 2,
        {.flags = Checkpoints("lost" + std::to_string(victim), 100), .socket = agent.path()});
    agent.Await([](const auto& said) {
      return std::any_of(said.begin(), said.end(),
                         [](const auto& s) { return s.line.commit().step() == 12; });
    });
    group.Kill(victim, SIGKILL);
    EXPECT_EQ(group.Wait(1 - victim), static_cast<int>(WorkerExit::kCommunicatorFailed));
    EXPECT_NE(group.Output(1 - victim).find("rank " + std::to_string(victim)), std::string::npos);
    EXPECT_EQ(NewestStep("lost" + std::to_string(victim)), -1);
  }
}

TEST_F(TrainTest, ADamagedNewestCommitIsPassedOverAloud) {
  Group first(*this, 2, {.flags = Checkpoints("ckpt")});
  for (int code : first.WaitAll()) ASSERT_EQ(code, 0);
  std::filesystem::resize_file(directory_ / "ckpt/step-12/1-3/rank-1-of-2.safetensors", 4096);
  Group second(*this, 1, {.generation = 2, .flags = Checkpoints("ckpt")});
  EXPECT_EQ(second.Wait(0), 0) << second.Output(0);
  EXPECT_NE(second.Output(0).find("the commit of step 12 is not usable"), std::string::npos)
      << second.Output(0);
  EXPECT_NE(second.Output(0).find("resumed from step 8"), std::string::npos) << second.Output(0);
  // The damaged one gave way to the one that was trained again.
  Group third(*this, 1, {.generation = 3, .flags = Checkpoints("ckpt")});
  EXPECT_EQ(third.Wait(0), 0);
  EXPECT_NE(third.Output(0).find("resumed from step 12"), std::string::npos) << third.Output(0);
}

TEST_F(TrainTest, WhatIsWrongIsSaidInThreePartsWithItsExit) {
  Group broken(*this, 1, {.flags = Checkpoints("broken")});
  ASSERT_EQ(broken.Wait(0), 0);
  for (const char* step : {"8", "12"})
    WriteAll(directory_ / ("broken/commits/step-" + std::string(step)), "garbage");
  WriteAll(directory_ / "tiny.txt", "tiny");
  const std::vector<BadRow> rows = {
      {"data missing",
       {.flags = {"--data", "/nonexistent"}},
       1,
       WorkerExit::kUsage,
       "/nonexistent"},
      {"data too short",
       {.flags = {"--data", directory_ / "tiny.txt"}},
       1,
       WorkerExit::kUsage,
       "4 bytes"},
      {"unknown flag", {.flags = {"--stps", "1"}}, 1, WorkerExit::kUsage, "did you mean --steps?"},
      {"checkpoint directory",
       {.flags = {"--checkpoint-dir", directory_ / "data.txt"}},
       1,
       WorkerExit::kCheckpointDirectory,
       "--checkpoint-dir"},
      {"sample log",
       {.flags = {"--sample-log", directory_ / "data.txt"}},
       1,
       WorkerExit::kUsage,
       "--sample-log"},
      {"no usable commit",
       {.flags = Checkpoints("broken")},
       2,
       WorkerExit::kCheckpointUnusable,
       "step 12 is not usable"},
      {"loss",
       {.flags = {"--learning-rate", "1000", "--clip", "0", "--steps", "200", "--weight-decay",
                  "1000"}},
       2,
       WorkerExit::kLossNotFinite,
       "not finite"},
      {"rank missing",
       {.flags = {"--join-timeout", "300ms"}, .flags_of_rank = {{1, {"--layers", "0"}}}},
       2,
       WorkerExit::kGroupNotFormed,
       "no rank 1",
       WorkerExit::kUsage},
      {"too large",
       {.flags = {"--batch", "16777216", "--micro-batch", "16777216", "--context", "100"}},
       1,
       WorkerExit::kUsage,
       "micro-batches of 16777216 x 100 tokens"},
  };
  ExpectExits(rows);
}

// Eight steps and then four more are twelve, for every optimizer and although what ranks divide
// changes between them. None goes on from another's state, though LAMB's has the names of AdamW's.
TEST_F(TrainTest, EveryOptimizerGoesOnFromItsOwnStateAndNoOther) {
  for (const auto& [optimizer, other] :
       {std::pair("adamw", "lamb"), {"sgd", "adamw"}, {"lamb", "adamw"}, {"lars", "sgd"}}) {
    const std::string name = optimizer, straight = name + "-straight";
    const auto flags = [&](const std::string& directory, const char* steps, const char* strategy,
                           const std::string& by) {
      return With(Checkpoints(directory), {"--optimizer", by, "--lr-schedule", "constant",
                                           "--steps", steps, "--strategy", strategy});
    };
    for (const auto& [generation, directory, steps, strategy] :
         {std::tuple(1, straight, "12", "ddp"),
          {1, name, "8", "zero-2"},
          {2, name, "12", "zero-3"}}) {
      Group group(*this, 2,
                  {.generation = static_cast<std::uint64_t>(generation),
                   .flags = flags(directory, steps, strategy, name)});
      for (int code : group.WaitAll()) ASSERT_EQ(code, 0) << group.Output(0);
    }
    EXPECT_EQ(NewestState(name), NewestState(straight)) << name;
    Group group(*this, 2, {.generation = 3, .flags = flags(name, "16", "ddp", other)});
    for (int code : group.WaitAll())
      EXPECT_EQ(code, static_cast<int>(WorkerExit::kCheckpointUnusable)) << group.Output(0);
    EXPECT_NE(group.Output(1).find("holds the state of the optimizer " + name + ", which " + other +
                                   " cannot go on from"),
              std::string::npos)
        << group.Output(1);
    EXPECT_EQ(NewestStep(name), 12);
  }
}

// Also one whose tensors have the same shapes.
TEST_F(TrainTest, AnotherModelOnTheSameCheckpointsIsRefusedAndTheyStay) {
  Group made(*this, 1, {.flags = Checkpoints("good")});
  ASSERT_EQ(made.Wait(0), 0);
  const std::string before = Newest("good");
  std::uint64_t generation = 1;
  for (const auto& [flag, value, says] :
       {std::tuple("--layers", "2", "layers: the checkpoint has 1, this training 2"),
        {"--width", "32", "width: the checkpoint has 16, this training 32"},
        {"--heads", "4", "heads: the checkpoint has 2, this training 4"},
        {"--context", "8", "context: the checkpoint has 16, this training 8"}}) {
    Group other(*this, 1,
                {.generation = ++generation, .flags = With(Checkpoints("good"), {flag, value})});
    EXPECT_EQ(other.Wait(0), static_cast<int>(WorkerExit::kCheckpointUnusable)) << flag;
    EXPECT_NE(other.Output(0).find(std::string("is of another model: ") + says), std::string::npos)
        << other.Output(0);
    EXPECT_EQ(Newest("good"), before);
  }
}

TEST_F(TrainTest, AnotherOrderOfSamplesIsRefusedUnlessAccepted) {
  Group made(*this, 2, {.flags = Checkpoints("good")});
  for (int code : made.WaitAll()) ASSERT_EQ(code, 0) << made.Output(0);
  const std::string before = Newest("good");
  WriteAll(directory_ / "other.txt", ReadAll(directory_ / "data.txt") + "more");
  const std::vector<std::pair<const char*, std::vector<std::string>>> rows = {
      {"seed 1 → 2", {"--seed", "2"}},
      {"data ", {"--data", directory_ / "other.txt"}},
  };
  std::uint64_t generation = 1;
  for (const auto& [says, other] : rows) {
    std::vector<std::string> flags = Checkpoints("good");
    flags.insert(flags.end(), other.begin(), other.end());
    Group refused(*this, 2, {.generation = ++generation, .flags = flags});
    for (int r = 0; r < 2; ++r) {
      EXPECT_EQ(refused.Wait(r), static_cast<int>(WorkerExit::kCheckpointUnusable));
      EXPECT_NE(refused.Output(r).find(says), std::string::npos) << refused.Output(r);
    }
    EXPECT_EQ(Newest("good"), before);
  }
  std::vector<std::string> accepted = Checkpoints("good");
  accepted.insert(accepted.end(), {"--seed", "2", "--steps", "16", "--accept-other-settings"});
  Group well(*this, 2, {.generation = ++generation, .flags = accepted});
  for (int code : well.WaitAll()) EXPECT_EQ(code, 0) << well.Output(0);
  EXPECT_NE(well.Output(0).find("warning: the checkpoint was made with other settings"),
            std::string::npos)
      << well.Output(0);
  EXPECT_EQ(NewestStep("good"), 16);
}

// A setting that a record has not where it is as it always was.
TEST_F(TrainTest, AnotherTypeOfWhatRanksExchangeIsToldAndGoneOnWith) {
  Group made(*this, 2, {.flags = Checkpoints("floats")});
  for (int code : made.WaitAll()) ASSERT_EQ(code, 0) << made.Output(0);
  EXPECT_EQ(made.Output(0).find("other settings"), std::string::npos) << made.Output(0);
  const std::map<std::string, std::vector<float>> floats = NewestState("floats");
  std::uint64_t generation = 1;
  std::int64_t steps = NewestStep("floats");
  for (const auto& [type, says] : {std::pair("bf16", "reduce-type as by default → bf16"),
                                   {"f32", "reduce-type bf16 → as by default"}}) {
    std::vector<std::string> flags = Checkpoints("floats");
    steps += 4;
    flags.insert(flags.end(), {"--reduce-type", type, "--steps", std::to_string(steps)});
    Group resumed(*this, 2, {.generation = ++generation, .flags = flags});
    for (int code : resumed.WaitAll()) EXPECT_EQ(code, 0) << resumed.Output(0);
    EXPECT_NE(resumed.Output(0).find(says), std::string::npos) << resumed.Output(0);
    EXPECT_EQ(NewestStep("floats"), steps);
  }
  // And it is what ranks exchange.
  std::vector<std::string> flags = Checkpoints("shorts");
  flags.insert(flags.end(), {"--reduce-type", "bf16"});
  Group shorts(*this, 2, {.generation = ++generation, .flags = flags});
  for (int code : shorts.WaitAll()) EXPECT_EQ(code, 0) << shorts.Output(0);
  EXPECT_NE(NewestState("shorts"), floats);
}

// It is lost while a checkpoint is loaded: what lies there is the new owner's, however its
// generations are numbered.
TEST_F(TrainTest, ADirectoryThatWasLostIsNotSwept) {
  std::vector<std::string> flags = Checkpoints("ckpt");
  flags.insert(flags.end(), {"--width", "256", "--layers", "3"});  // Some time to load.
  Group made(*this, 1, {.generation = 8, .flags = flags, .job = "one-1"});
  ASSERT_EQ(made.Wait(0), 0) << made.Output(0);
  const std::string path = directory_ / "ckpt";
  flags.insert(flags.end(), {"--steps", "1000000"});
  Group resumed(*this, 1, {.generation = 9, .flags = flags, .job = "one-1"});
  while (ReadAll(path + "/owner").find("\"generation\":9") == std::string::npos)
    std::this_thread::yield();
  resumed.Kill(0, SIGSTOP);
  const auto owner = Owner::Take(path, {.job = "two-1", .generation = 1, .take_over = true},
                                 [](const std::string&, Duration) {});
  ASSERT_TRUE(owner.ok()) << owner.status();
  const Repository repository = *Repository::Open(path);
  ASSERT_TRUE(repository.PrepareAttempt(1000, 1, 1).ok());
  resumed.Kill(0, SIGCONT);
  EXPECT_EQ(resumed.Wait(0), static_cast<int>(WorkerExit::kCheckpointDirectory));
  EXPECT_NE(resumed.Output(0).find("in use by two-1"), std::string::npos) << resumed.Output(0);
  EXPECT_TRUE(std::filesystem::exists(repository.AttemptPath(1000, 1, 1)));
}

// Two jobs on one directory: the second is refused by name, and what it takes over ends the first.
TEST_F(TrainTest, ADirectoryHasOneOwner) {
  const auto flags = [&](std::vector<std::string> more) {
    std::vector<std::string> all = Checkpoints("ckpt", 5);
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  const int refused = static_cast<int>(WorkerExit::kCheckpointDirectory);
  Group first(*this, 2, {.flags = flags({"--steps", "1000000"}), .job = "one-1"});
  while (NewestStep("ckpt") < 5) std::this_thread::yield();
  Group second(*this, 1, {.generation = 2, .flags = flags({}), .job = "two-1"});
  EXPECT_EQ(second.Wait(0), refused);
  EXPECT_NE(second.Output(0).find("in use by one-1"), std::string::npos) << second.Output(0);
  EXPECT_NE(second.Output(0).find("--take-over"), std::string::npos) << second.Output(0);
  Group third(
      *this, 1,
      {.generation = 3, .flags = flags({"--take-over", "--steps", "1000000"}), .job = "two-1"});
  EXPECT_EQ(first.Wait(0), refused);
  EXPECT_NE(first.Output(0).find("in use by two-1"), std::string::npos) << first.Output(0);
  EXPECT_EQ(first.Wait(1), static_cast<int>(WorkerExit::kCommunicatorFailed)) << first.Output(1);
  const std::int64_t step = NewestStep("ckpt");
  while (NewestStep("ckpt") < step + 5) std::this_thread::yield();
  third.Kill(0, SIGTERM);  // Its lease ends soon, so that the next job need not wait long.
  EXPECT_EQ(third.Wait(0), 128 + SIGTERM);
  Group fourth(
      *this, 1,
      {.generation = 1, .flags = flags({"--steps", "1", "--warmup", "0"}), .job = "three-1"});
  EXPECT_EQ(fourth.Wait(0), 0) << fourth.Output(0);
  EXPECT_NE(fourth.Output(0).find("was last written by two-1"), std::string::npos)
      << fourth.Output(0);
  EXPECT_EQ(std::filesystem::exists(directory_ / "ckpt/owner"), false);
}

TEST_F(TrainTest, PlantedDefectsAreLoudAndShowInTheSampleLog) {
  Group right(*this, 2, {.flags = Checkpoints("right")});
  for (int code : right.WaitAll()) ASSERT_EQ(code, 0);
  std::map<std::int64_t, double> losses;
  for (const Consumed& c : Samples("right")) losses[c.step] = c.loss;
  for (const char* mutation : {"skip_batch", "repeat_batch", "gradient_scale"}) {
    Group wrong(*this, 2, {.flags = Checkpoints(mutation), .mutation = mutation});
    for (int code : wrong.WaitAll()) EXPECT_EQ(code, 0);
    EXPECT_NE(wrong.Output(0).find("WRONG ON PURPOSE"), std::string::npos);
    bool positions_differ = false, losses_differ = false;
    for (const Consumed& c : Samples(mutation)) {
      if (c.rank == 0) positions_differ |= c.first != (c.step - 1) * 7;
      losses_differ |= std::abs(c.loss - losses[c.step]) > 1e-3;
    }
    EXPECT_EQ(positions_differ, std::string(mutation) != "gradient_scale") << mutation;
    EXPECT_TRUE(losses_differ) << mutation;
  }
  Group zero(*this, 1,
             {.generation = 2, .flags = Checkpoints("right"), .mutation = "resume_from_zero"});
  EXPECT_EQ(zero.Wait(0), 0);
  EXPECT_NE(zero.Output(0).find("training from the start"), std::string::npos);
}

}  // namespace
}  // namespace regroup::worker
