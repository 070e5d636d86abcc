#include "worker/train/train_config.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include "common/base/user_error.h"
#include "tests/worker/checkpoint/testing.h"
#include "worker/train/environment.h"

namespace regroup::worker {
namespace {

class TrainConfigTest : public testing::Test {
 protected:
  ~TrainConfigTest() override {
    for (const char* name : {"REGROUP_STEPS", "REGROUP_WIDTH", "RANK", "WORLD_SIZE", "MASTER_ADDR",
                             "MASTER_PORT", "REGROUP_TEST_MUTATION"})
      unsetenv(name);
  }
  std::string File(const std::string& text) {
    WriteAll(directory_ / "train.yaml", text);
    return directory_ / "train.yaml";
  }
  TemporaryDirectory directory_;
};

TEST_F(TrainConfigTest, FlagsBeatEnvironmentBeatsFileBeatsDefaults) {
  setenv("REGROUP_STEPS", "20", 1);
  setenv("REGROUP_WIDTH", "64", 1);
  const std::string file =
      File("data: [a.txt, b]\nsteps: 10\nwidth: 32\nheads: 4\nlearning_rate: 0.5\nclip: 0\n");
  const auto config = ReadTrainConfig({"--config", file, "--width", "128", "--seed", "9"});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ((*config)->data, (std::vector<std::string>{"a.txt", "b"}));
  EXPECT_EQ((*config)->steps, 20);
  EXPECT_EQ((*config)->width, 128);
  EXPECT_EQ((*config)->heads, 4);
  EXPECT_EQ((*config)->learning_rate, 0.5);
  EXPECT_EQ((*config)->clip, 0);
  EXPECT_EQ((*config)->seed, 9u);
  EXPECT_EQ((*config)->layers, 6);
}

TEST_F(TrainConfigTest, AStrategyHasTheNamesThatPeopleKnow) {
  const std::vector<std::pair<const char*, Strategy>> rows = {
      {"ddp", Strategy::kReplicated},      {"NO_SHARD", Strategy::kReplicated},
      {"zero-1", Strategy::kZero1},        {"ZeRO_2", Strategy::kZero2},
      {"SHARD_GRAD_OP", Strategy::kZero2}, {"zero-3", Strategy::kZero3},
      {"full-shard", Strategy::kZero3},    {"HYBRID_SHARD", Strategy::kZero3}};
  EXPECT_EQ((*ReadTrainConfig({"--data", "x"}))->strategy, Strategy::kReplicated);
  for (const auto& [name, strategy] : rows) {
    EXPECT_EQ((*ReadTrainConfig({"--data", "x", "--strategy", name}))->strategy, strategy);
    const std::string file = File(std::string("data: x\nstrategy: ") + name + "\n");
    EXPECT_EQ((*ReadTrainConfig({"--config", file}))->strategy, strategy);
  }
}

TEST_F(TrainConfigTest, AGroupIsAllRanksOrAsManyAsToldOrThoseOfANode) {
  const auto group = [](std::vector<std::string> args) {
    args.insert(args.begin(), {"--data", "x"});
    return (*ReadTrainConfig(args))->ShardGroup(/*ranks_of_host=*/8);
  };
  EXPECT_EQ(group({"--strategy", "zero-3"}), 0);
  EXPECT_EQ(group({"--strategy", "hybrid-shard"}), 8);
  EXPECT_EQ(group({"--shard-group", "2", "--strategy", "hybrid_shard"}), 2);
  EXPECT_EQ(group({"--strategy", "zero-2", "--shard-group", "4"}), 4);
  const std::string file = File("data: x\nstrategy: hybrid-shard\n");
  EXPECT_EQ(group({"--config", file}), 8);
  EXPECT_EQ(group({"--config", file, "--strategy", "zero-3"}), 0);
  const absl::Status status = ReadTrainConfig({"--data", "x", "--shard-group", "2"}).status();
  EXPECT_NE(std::string(status.message()).find("--shard-group 2 does not fit --strategy ddp"),
            std::string::npos)
      << status;
}

TEST_F(TrainConfigTest, ATruthIsSaidInTwoWords) {
  const auto resharded = [](std::vector<std::string> args) {
    args.insert(args.begin(), {"--data", "x", "--strategy", "zero-3"});
    return (*ReadTrainConfig(args))->reshard_after_forward;
  };
  EXPECT_TRUE(resharded({}));
  EXPECT_TRUE(resharded({"--reshard-after-forward", "true"}));
  EXPECT_FALSE(resharded({"--reshard-after-forward", "false"}));
  EXPECT_FALSE(resharded({"--config", File("data: x\nreshard_after_forward: false\n")}));
  for (const auto& [word, told] :
       {std::pair("no", "\"no\" is not accepted"), {"false", "does not fit --strategy ddp"}}) {
    const absl::Status status =
        ReadTrainConfig({"--data", "x", "--reshard-after-forward", word}).status();
    EXPECT_NE(std::string(status.message()).find(told), std::string::npos) << status;
  }
}

TEST_F(TrainConfigTest, UnitsAreWrappedAsToldWhereTheirWeightsAreFreed) {
  const auto wrap = [](std::vector<std::string> args) {
    args.insert(args.begin(), {"--data", "x", "--layers", "2"});
    const auto config = ReadTrainConfig(args);
    return config.ok() ? ToString((*config)->wrap) : RenderUserError(config.status());
  };
  const std::vector<std::string> zero3 = {"--strategy", "zero-3", "--wrap"};
  const auto wrapped = [&](const std::string& policy) {
    std::vector<std::string> args = zero3;
    args.push_back(policy);
    return wrap(args);
  };
  EXPECT_EQ(wrap({}), "block");
  for (const char* policy :
       {"block", "size:1", "size:100000000", "list:block.1", "list:embed,head"})
    EXPECT_EQ(wrapped(policy), policy);
  EXPECT_EQ(wrap({"--config", File("data: x\nstrategy: zero-3\nwrap: size:7\n")}), "size:7");
  const auto says = [](const std::string& said, const char* text) {
    EXPECT_NE(said.find(text), std::string::npos) << said;
  };
  says(wrapped("list:block.2"), "no unit is called \"block.2\"");
  says(wrapped("list:block.2"), "embed, block.0 to block.1 and head");
  says(wrapped("list:"), "\"list:\" is not accepted");
  says(wrapped("size:0"), "1 to ");
  says(wrapped("size:many"), "\"many\" is not a whole number");
  says(wrapped("block:2"), "\"block:2\" is not accepted");
  says(wrap({"--wrap", "size:7"}), "--wrap size:7 does not fit --strategy ddp");
}

TEST_F(TrainConfigTest, APrecisionIsChosenOrFollowsTheCpu) {
  const auto precision = [](std::vector<std::string> args) {
    args.insert(args.begin(), {"--data", "x"});
    return (*ReadTrainConfig(args))->Precision();
  };
  EXPECT_EQ(precision({}), DType::kF32);
  EXPECT_EQ(precision({"--precision", "bf16"}), DType::kBF16);
  EXPECT_EQ(precision({"--precision", "f16"}), DType::kF16);
  EXPECT_EQ(precision({"--precision", "auto", "--kernels", "baseline"}), DType::kF32);
  const bool native = MultipliesNatively(DType::kBF16, BestIsa());
  EXPECT_EQ(precision({"--precision", "auto"}), native ? DType::kBF16 : DType::kF32);
  const std::string file = File("data: x\nprecision: f16\n");
  EXPECT_EQ((*ReadTrainConfig({"--config", file}))->Settings().at("precision"), "f16");
}

TEST_F(TrainConfigTest, ALearningRateGoesAsItIsToldByFlagOrFile) {
  const std::vector<std::pair<const char*, ScheduleKind>> rows = {
      {"cosine", ScheduleKind::kCosine},
      {"linear", ScheduleKind::kLinear},
      {"constant", ScheduleKind::kConstant},
      {"constant_with_warmup", ScheduleKind::kConstant},
      {"warmup", ScheduleKind::kWarmup},
      {"WarmupLR", ScheduleKind::kWarmup},
      {"warmup-decay", ScheduleKind::kWarmupDecay},
      {"WarmupDecayLR", ScheduleKind::kWarmupDecay}};
  EXPECT_EQ((*ReadTrainConfig({"--data", "x"}))->LearningRates().kind, ScheduleKind::kCosine);
  for (const auto& [name, kind] : rows) {
    EXPECT_EQ((*ReadTrainConfig({"--data", "x", "--lr-schedule", name}))->LearningRates().kind,
              kind);
    const std::string file = File(std::string("data: x\nlr_schedule: ") + name + "\n");
    EXPECT_EQ((*ReadTrainConfig({"--config", file}))->LearningRates().kind, kind);
  }
  const std::string file = File(
      "data: x\nlearning_rate: 0.1\nmin_learning_rate: 0.01\nbatch: 1024\n"
      "lr_scale: linear\n");
  Schedule schedule = (*ReadTrainConfig({"--config", file}))->LearningRates();
  EXPECT_DOUBLE_EQ(schedule.lr, 0.4);  // 1,024 is four times 256.
  EXPECT_DOUBLE_EQ(schedule.min_lr, 0.04);
  schedule = (*ReadTrainConfig({"--config", file, "--lr-scale", "sqrt", "--base-batch", "64"}))
                 ->LearningRates();
  EXPECT_DOUBLE_EQ(schedule.lr, 0.4);
  EXPECT_DOUBLE_EQ((*ReadTrainConfig({"--config", file, "--lr-scale", "none"}))->LearningRates().lr,
                   0.1);
}

TEST_F(TrainConfigTest, AnOptimizerIsToldByNameAndItsOwnNumbers) {
  for (const OptimizerKind kind : kOptimizers) {
    const OptimizerConfig config =
        (*ReadTrainConfig({"--data", "x", "--optimizer", NameOf(kind), "--momentum", "0.8",
                           "--trust-coefficient", "0.02"}))
            ->Optimizer();
    EXPECT_EQ(config.kind, kind);
    EXPECT_EQ(config.momentum, 0.8);
    EXPECT_EQ(config.trust, 0.02);
  }
}

// Records of trainings as there always were are equal but for the optimizer's name.
TEST_F(TrainConfigTest, SettingsNameWhatDecidesTheResult) {
  const auto names = [](const std::vector<std::string>& args) {
    std::string all;
    for (const auto& [name, value] : (*ReadTrainConfig(args))->Settings()) all += name + " ";
    return all;
  };
  const std::string before = names({"--data", "x"});
  EXPECT_EQ(before,
            "batch beta1 beta2 clip context heads layers learning-rate min-learning-rate "
            "optimizer precision seed steps warmup weight-decay width ");
  const std::string more = names(
      {"--data", "x", "--optimizer", "lars", "--lr-schedule", "linear", "--lr-scale", "sqrt"});
  for (const char* name :
       {"momentum ", "trust-coefficient ", "lr-schedule ", "lr-scale ", "base-batch "})
    EXPECT_NE(more.find(name), std::string::npos) << name;
}

TEST_F(TrainConfigTest, HelpIsNoError) { EXPECT_FALSE(ReadTrainConfig({"--help"})->has_value()); }

struct Row {
  std::vector<std::string> args;
  const char* what;
};

TEST_F(TrainConfigTest, WhatIsWrongIsNamed) {
  const std::vector<Row> rows = {
      {{}, "--data is missing"},
      {{"--data", "x", "--layers", "0"}, "--layers"},
      {{"--data", "x", "--batch", "1e9"}, "--batch"},
      {{"--data", "x", "--learning-rate", "fast"}, "--learning-rate"},
      {{"--data", "x", "--learning-rate", "nan"}, "--learning-rate"},
      {{"--data", "x", "--beta1", "1"}, "--beta1"},
      {{"--data", "x", "--keep", "1"}, "--keep"},
      {{"--data", "x", "--seed", "-1"}, "--seed"},
      {{"--data", ","}, "no path"},
      {{"--data", "x", "--width", "10", "--heads", "3"}, "--width 10 does not fit --heads 3"},
      {{"--data", "x", "--steps", "5", "--warmup", "6"}, "--warmup"},
      {{"--data", "x", "--join-timeout", "0s"}, "--join-timeout is 0"},
      {{"--data", "x", "--save-timeout", "0s"}, "--save-timeout is 0"},
      {{"--data", "x", "--layers", "1000", "--width", "16777216", "--heads", "65536"},
       "3.38e+18 parameters"},
      {{"--data", "x", "word"}, "word"},
      {{"--data", "x", "--kernels", "sse"}, "--kernels"},
      {{"--data", "x", "--cuda-graphs", "yes"}, "\"yes\" is not accepted"},
      {{"--data", "x", "--strategy", "zero-4"}, "ddp, zero-1, zero-2 and zero-3 are"},
      {{"--data", "x", "--precision", "fp8"}, "f32, bf16, f16 and auto are"},
      {{"--data", "x", "--reduce-type", "f16"}, "f32 and bf16 are"},
      {{"--data", "x", "--accumulate-type", "f16"}, "f32 and bf16 are"},
      {{"--data", "x", "--accumulate-type", "bf16"},
       "--accumulate-type bf16 does not fit --precision f32"},
      {{"--data", "x", "--accumulate-type", "bf16", "--precision", "auto"},
       "--accumulate-type bf16 does not fit --precision auto"},
      {{"--data", "x", "--accumulate-type", "bf16", "--precision", "bf16", "--reduce-type", "f32"},
       "--accumulate-type bf16 does not fit --reduce-type f32"},
      {{"--data", "x", "--recompute", "all"}, "none, selective and full are"},
      {{"--dta", "x"}, "--dta"},
      {{"--config", "/nonexistent.yaml"}, "/nonexistent.yaml"},
      {{"--config", File("steps 10")}, "no configuration"},
      {{"--config", (WriteAll(directory_ / "a", "data: x\nstps: 1\n"), directory_ / "a")},
       ":2: unknown field stps"},
      {{"--config", (WriteAll(directory_ / "g", "data: x\n---\nsteps: 1\n"), directory_ / "g")},
       ":3: a second document"},
      {{"--config", (WriteAll(directory_ / "b", "data: x\nsteps: {a: 1}\n"), directory_ / "b")},
       ":2: the value of steps"},
      {{"--config", (WriteAll(directory_ / "c", "data: [x\n"), directory_ / "c")}, "not YAML"},
      {{"--config", (WriteAll(directory_ / "d", "data: x\nsteps: -1\n"), directory_ / "d")},
       "--steps"},
      {{"--config", (WriteAll(directory_ / "e", "config: x\n"), directory_ / "e")},
       "unknown field config"},
      {{"--config",
        (WriteAll(directory_ / "f", "data: x\nsteps: 1\nsteps: 2\n"), directory_ / "f")},
       ":3: steps is given twice"},
  };
  for (const Row& row : rows) {
    const auto config = ReadTrainConfig(row.args);
    ASSERT_FALSE(config.ok()) << row.what;
    EXPECT_NE(RenderUserError(config.status()).find(row.what), std::string::npos)
        << RenderUserError(config.status());
  }
}

TEST_F(TrainConfigTest, TheEnvironmentOfARank) {
  EXPECT_EQ(ReadWorkerEnvironment()->world_size, 1);
  setenv("WORLD_SIZE", "2", 1);
  EXPECT_FALSE(ReadWorkerEnvironment().ok());  // No store.
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  setenv("MASTER_PORT", "1234", 1);
  setenv("RANK", "1", 1);
  EXPECT_EQ(ReadWorkerEnvironment()->rank, 1);
  setenv("RANK", "2", 1);
  EXPECT_FALSE(ReadWorkerEnvironment().ok());
  setenv("RANK", "x", 1);
  EXPECT_FALSE(ReadWorkerEnvironment().ok());
  setenv("RANK", "0", 1);
  setenv("REGROUP_TEST_MUTATION", "nonsense", 1);
  EXPECT_FALSE(ReadWorkerEnvironment().ok());
  setenv("REGROUP_TEST_MUTATION", "skip_batch", 1);
  EXPECT_EQ(ReadWorkerEnvironment()->mutation, Mutation::kSkipBatch);
}

}  // namespace
}  // namespace regroup::worker
